//! An orderly stop.

use anyhow::Result;
use isocost_tests::api::Api;
use isocost_tests::jobs::{LONG, once, wait_for_end, with};
use isocost_tests::patience::eventually;
use isocost_tests::site::Site;
use serde_json::{Value, json};
use std::time::Instant;

const RUNNING: usize = 4;
const WAITING: usize = 10;

fn sleeping(ms: u64) -> Value {
    with(
        once("sleep"),
        json!({ "params": { "ms": ms }, "retry": { "maxAttempts": 3 } }),
    )
}

async fn running(api: &Api) -> Result<usize> {
    let list = api
        .get("/openapi/executions?status=RUNNING&pageSize=500")
        .await?
        .success()?;
    Ok(isocost_tests::api::items(list)?.len())
}

#[tokio::test]
async fn sd02_what_runs_at_a_stop_ends_and_what_waits_runs_once_after_it() -> Result<()> {
    let site = Site::new()?.with("ISOCOST__WORKER__HANDLER_SLOTS__SLEEP", &RUNNING.to_string());
    let process = site.start().await?;
    let jobs = process
        .api()
        .submit_batch(&vec![sleeping(2_000); RUNNING + WAITING])
        .await?;
    eventually("all slots are busy", LONG, async || {
        Ok((running(process.api()).await? == RUNNING).then_some(()))
    })
    .await?;
    process.stop().await?;

    let process = site.start().await?;
    let ended = process
        .api()
        .jobs(&jobs)
        .await?
        .iter()
        .filter(|job| job["status"] == "SUCCESS")
        .count();
    assert_eq!(ended, RUNNING, "what ran at the stop has its result");
    for job in &jobs {
        let job = wait_for_end(process.api(), job).await?;
        assert_eq!(job["status"], "SUCCESS", "{job}");
        assert_eq!(job["lastExecution"]["attempt"], 1, "it ran twice: {job}");
    }
    process.stop().await
}

#[tokio::test]
async fn sd04_what_outlasts_the_grace_is_given_back_before_the_exit() -> Result<()> {
    let site = Site::new()?.with("ISOCOST__WORKER__GRACE_MS", "300");
    let process = site.start().await?;
    let job = process.api().submit(&sleeping(60_000)).await?;
    eventually("it runs", LONG, async || {
        Ok((running(process.api()).await? == 1).then_some(()))
    })
    .await?;
    let from = Instant::now();
    process.stop().await?;
    assert!(
        from.elapsed().as_secs() < 10,
        "the stop took {:?}",
        from.elapsed()
    );

    let process = site.start().await?;
    let execution = &process.api().executions(&job).await?[0];
    let execution = process
        .api()
        .execution(execution["executionId"].as_str().unwrap_or_default())
        .await?;
    let steps = isocost_tests::steps::of(&execution)?;
    assert_eq!(isocost_tests::steps::taken_back(&steps).len(), 1, "{steps:#?}");
    process
        .api()
        .post(&format!("/openapi/jobs/{job}/cancel"), &json!({}))
        .await?
        .success()?;
    wait_for_end(process.api(), &job).await?;
    process.stop().await
}
