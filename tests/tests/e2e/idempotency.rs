//! The same request many times makes one job.

use anyhow::Result;
use isocost_tests::api::{Answer, items};
use isocost_tests::jobs::{once, wait_for_end, with};
use isocost_tests::site::Site;
use serde_json::json;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

const AT_ONCE: usize = 64;

#[tokio::test(flavor = "multi_thread")]
async fn ap08_of_64_equal_requests_at_once_one_makes_the_job() -> Result<()> {
    let site = Site::with_ledger()?;
    let process = site.start().await?;
    let api = process.api();
    for round in 0..10 {
        let job = with(
            once("ledger"),
            json!({ "clientRequestId": format!("order-{round}") }),
        );
        let barrier = Arc::new(Barrier::new(AT_ONCE));
        let mut requests = JoinSet::new();
        for _ in 0..AT_ONCE {
            let (api, job, barrier) = (api.clone(), job.clone(), Arc::clone(&barrier));
            requests.spawn(async move {
                barrier.wait().await;
                api.post("/openapi/jobs", &job).await
            });
        }
        let answers: Vec<Answer> = requests.join_all().await.into_iter().collect::<Result<_>>()?;
        let accepted = answers.iter().filter(|answer| answer.status == 202).count();
        let replayed = answers.iter().filter(|answer| answer.status == 200).count();
        assert_eq!((accepted, replayed), (1, AT_ONCE - 1));
        let ids: HashSet<_> = answers
            .iter()
            .map(|answer| answer.json()["jobId"].to_string())
            .collect();
        assert_eq!(ids.len(), 1, "{ids:?}");
        for answer in &answers {
            assert_eq!(answer.json()["replayed"], answer.status == 200);
        }
        let id: String = serde_json::from_str(ids.iter().next().map_or("", String::as_str))?;
        wait_for_end(api, &id).await?;
    }
    let jobs = items(api.get("/openapi/jobs?pageSize=500").await?.success()?)?;
    assert_eq!(jobs.len(), 10);
    assert_eq!(site.ledger().len()?, 10);
    process.stop().await
}

#[tokio::test]
async fn the_same_key_with_other_content_is_refused_and_changes_nothing() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let api = process.api();
    let job = with(
        once("noop"),
        json!({ "clientRequestId": "a", "params": { "n": 1 } }),
    );
    let id = api.submit(&job).await?;
    let other = api
        .post(
            "/openapi/jobs",
            &with(job.clone(), json!({ "params": { "n": 2 } })),
        )
        .await?;
    assert_eq!(other.status, 422, "{}", other.text);
    let replayed = api.post("/openapi/jobs", &job).await?;
    assert_eq!(replayed.status, 200);
    assert_eq!(replayed.json()["jobId"], id);
    process.stop().await
}

#[tokio::test]
async fn a_request_is_still_known_after_a_crash() -> Result<()> {
    let site = Site::with_ledger()?;
    let process = site.start().await?;
    let job = with(once("ledger"), json!({ "clientRequestId": "before the crash" }));
    let id = process.api().submit(&job).await?;
    wait_for_end(process.api(), &id).await?;
    process.kill().await?;

    let process = site.start().await?;
    let replayed = process.api().post("/openapi/jobs", &job).await?;
    assert_eq!(replayed.status, 200, "{}", replayed.text);
    assert_eq!(replayed.json()["jobId"], id);
    assert_eq!(replayed.json()["status"], "SUCCESS");
    process.stop().await?;
    assert_eq!(site.ledger().len()?, 1);
    Ok(())
}
