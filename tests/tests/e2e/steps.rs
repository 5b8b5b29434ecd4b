//! The story of an execution, as its steps tell it.

use anyhow::{Context, Result};
use isocost_tests::jobs::{once, wait_for_end, with};
use isocost_tests::patience::eventually;
use isocost_tests::receiver::Receiver;
use isocost_tests::site::Site;
use isocost_tests::steps::{self, Step};
use serde_json::{Value, json};
use std::time::Duration;

#[track_caller]
fn assert_never_decreasing(steps: &[Step]) {
    assert!(steps.is_sorted_by_key(|step| step.at_ms), "{steps:#?}");
}

#[tokio::test]
async fn steps_tell_everything_from_the_submission_to_the_delivered_callback() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let api = process.api();
    let receiver = Receiver::start([]).await?;
    let job = with(once("noop"), json!({ "callbackUrl": receiver.url() }));
    let job = wait_for_end(api, &api.submit(&job).await?).await?;
    let id = job["lastExecution"]["executionId"]
        .as_str()
        .context("an execution")?;
    let steps = eventually("the delivery is a step", Duration::from_secs(10), async || {
        let steps = steps::of(&api.execution(id).await?)?;
        let is_delivered = steps.iter().any(|step| step.name == "CALLBACK_DELIVERED");
        Ok(is_delivered.then_some(steps))
    })
    .await?;
    assert_never_decreasing(&steps);
    // Without room at once, it waits between DUE and DISPATCHED. Notes are not steps of the way.
    let names: Vec<_> = steps
        .iter()
        .map(|step| step.name.as_str())
        .filter(|name| !matches!(*name, "PENDING" | "NOTE"))
        .collect();
    let story = [
        "SUBMITTED",
        "DUE",
        "DISPATCHED",
        "RUNNING",
        "SUCCEEDED",
        "CALLBACK_DELIVERED",
    ];
    assert_eq!(names, story, "{steps:#?}");
    for step in steps
        .iter()
        .filter(|step| matches!(step.name.as_str(), "DISPATCHED" | "RUNNING" | "SUCCEEDED"))
    {
        assert!(step.worker.is_some(), "no worker: {step:?}");
    }
    process.stop().await
}

#[tokio::test]
async fn retries_are_attempts_of_one_execution_with_their_pauses() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let api = process.api();
    let job = with(
        once("fail"),
        json!({
            "params": { "times": 2 },
            "retry": { "maxAttempts": 3, "backoff": "fixed", "initialMs": 200, "maxMs": 200 }
        }),
    );
    let job = wait_for_end(api, &api.submit(&job).await?).await?;
    assert_eq!(job["status"], "SUCCESS", "{job}");
    assert_eq!(
        api.executions(job["jobId"].as_str().context("an id")?)
            .await?
            .len(),
        1
    );
    let execution: Value = api
        .execution(
            job["lastExecution"]["executionId"]
                .as_str()
                .context("an execution")?,
        )
        .await?;
    assert_eq!(execution["attempt"], 3, "{execution}");
    let steps = steps::of(&execution)?;
    assert_never_decreasing(&steps);
    let starts: Vec<&Step> = steps.iter().filter(|step| step.name == "RUNNING").collect();
    assert_eq!(starts.len(), 3, "{steps:#?}");
    for pair in starts.windows(2) {
        // The pause may be jittered, but not away.
        assert!(pair[1].at_ms - pair[0].at_ms >= 100, "{steps:#?}");
    }
    process.stop().await
}
