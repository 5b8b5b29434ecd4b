//! Lists of very many rows stay fast.

use anyhow::Result;
use isocost_tests::api::items;
use isocost_tests::database;
use isocost_tests::jobs::{once, wait_for_end};
use isocost_tests::site::Site;
use std::time::{Duration, Instant};

const ROWS: u32 = 300_000;
const LIMIT: Duration = Duration::from_secs(1);

#[tokio::test]
async fn ui03_every_list_of_300_000_jobs_and_executions_answers_within_a_second() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let job = process.api().submit(&once("noop")).await?;
    let job = wait_for_end(process.api(), &job).await?["jobId"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let execution = process.api().executions(&job).await?[0]["executionId"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    process.stop().await?;
    // An id of the form of a UUIDv7, older than any real one.
    let id = ("id", "'01900000-0000-7000-8000-' || printf('%012x', i)");
    let no_request = ("client_request_hash", "null");
    let another_time = ("scheduled_time", "scheduled_time - i");
    database::multiply(&site, "job_info", &job, ROWS, &[id, no_request]).await?;
    database::multiply(&site, "job_execution", &execution, ROWS, &[id, another_time]).await?;

    let process = site.start().await?;
    for list in [
        "/openapi/jobs?pageSize=500".to_owned(),
        "/openapi/jobs?status=SUCCESS".to_owned(),
        "/openapi/jobs?status=RUNNING".to_owned(),
        "/openapi/jobs?status=FAILED".to_owned(),
        "/openapi/jobs?handler=noop".to_owned(),
        "/openapi/jobs?name=nothing%20like%20this".to_owned(),
        "/openapi/executions?pageSize=500".to_owned(),
        "/openapi/executions?status=FAILED".to_owned(),
        format!("/openapi/jobs/{job}/executions?pageSize=500"),
        format!("/openapi/jobs/{job}"),
    ] {
        let from = Instant::now();
        let answer = process.api().get(&list).await?;
        let took = from.elapsed();
        println!("{list}: {took:?}, {} bytes", answer.text.len());
        assert!(answer.status.is_success(), "{list}: {}", answer.text);
        assert!(took < LIMIT, "{list} took {took:?}");
    }
    let page = process.api().get("/openapi/jobs?pageSize=500").await?.success()?;
    assert!(page["nextPageToken"].is_string());
    assert_eq!(items(page)?.len(), 500);
    process.stop().await
}
