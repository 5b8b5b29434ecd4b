//! One run at a time, and stopping what runs.

use anyhow::{Context, Result};
use isocost_tests::jobs::{once, wait_for_end, wait_for_execution, with};
use isocost_tests::patience::never;
use isocost_tests::site::Site;
use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn du08_a_manual_run_does_not_pass_the_limit_of_one_and_the_answer_says_why() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let api = process.api();
    let job = with(
        once("sleep"),
        json!({ "params": { "ms": 60_000 }, "trigger": { "type": "manual" }, "concurrency": "discard" }),
    );
    let job = api.submit(&job).await?;
    let trigger = format!("/openapi/jobs/{job}/trigger");
    api.post(&trigger, &json!({})).await?.success()?;
    wait_for_execution(api, &job, "RUNNING").await?;
    let second = api.post(&trigger, &json!({})).await?;
    println!("the second run: {} {}", second.status, second.text);
    let open = async || {
        let executions = api.executions(&job).await?;
        let is_open = |status: &str| !matches!(status, "SKIPPED" | "CANCELLED");
        let open = executions
            .iter()
            .filter(|execution| execution["status"].as_str().is_some_and(is_open));
        anyhow::Ok(open.count())
    };
    never("a second open execution", Duration::from_secs(2), async || {
        let open = open().await?;
        Ok((open > 1).then_some(open))
    })
    .await?;
    // Either the request is refused, or its execution is there to be seen as skipped, with the reason.
    if second.status.is_success() {
        let skipped = wait_for_execution(api, &job, "SKIPPED").await?;
        let id = skipped["executionId"].as_str().context("an id")?;
        let shown = api.execution(id).await?;
        let steps = isocost_tests::steps::of(&shown)?;
        assert!(
            steps.iter().any(|step| step.message.is_some()),
            "no reason: {shown:#}"
        );
    } else {
        assert_eq!(second.status, 409, "{}", second.text);
        assert!(second.json()["detail"].is_string(), "no reason: {}", second.text);
    }
    api.post(&format!("/openapi/jobs/{job}/cancel"), &json!({}))
        .await?
        .success()?;
    process.stop().await
}

#[tokio::test]
async fn du10_a_job_stopped_by_hand_is_not_started_again_by_its_retries() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let api = process.api();
    let job = with(
        once("sleep"),
        json!({
            "params": { "ms": 60_000 },
            "retry": { "maxAttempts": 4, "backoff": "fixed", "initialMs": 10, "maxMs": 10 }
        }),
    );
    let job = api.submit(&job).await?;
    wait_for_execution(api, &job, "RUNNING").await?;
    api.post(&format!("/openapi/jobs/{job}/cancel"), &json!({}))
        .await?
        .success()?;
    assert_eq!(wait_for_end(api, &job).await?["status"], "CANCELLED");
    never("another attempt", Duration::from_secs(3), async || {
        let executions = api.executions(&job).await?;
        let changed = executions
            .into_iter()
            .find(|e| e["status"] != "CANCELLED" || e["attempt"] != 1);
        Ok(changed)
    })
    .await?;
    process.stop().await
}

#[tokio::test]
async fn serial_runs_of_one_job_do_not_overlap() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let api = process.api();
    let job = with(
        once("sleep"),
        json!({ "params": { "ms": 200 }, "trigger": { "type": "manual" }, "concurrency": "serial" }),
    );
    let job = api.submit(&job).await?;
    for _ in 0..4 {
        api.post(&format!("/openapi/jobs/{job}/trigger"), &json!({}))
            .await?
            .success()?;
    }
    let executions = isocost_tests::patience::eventually("four runs", Duration::from_secs(20), async || {
        let executions = api.executions(&job).await?;
        let done = executions
            .iter()
            .filter(|execution| execution["status"] == "SUCCEEDED")
            .count();
        Ok((done == 4).then_some(executions))
    })
    .await?;
    let mut runs = Vec::new();
    for execution in &executions {
        let started = isocost_tests::api::instant_ms(execution, "startedAt")?;
        runs.push((started, isocost_tests::api::instant_ms(execution, "finishedAt")?));
    }
    runs.sort_unstable();
    for pair in runs.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "two runs overlap: {runs:?}");
    }
    process.stop().await
}
