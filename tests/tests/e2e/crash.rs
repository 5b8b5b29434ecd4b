//! One crash, looked at closely. `kill_loop` has many.

use anyhow::Result;
use isocost_tests::bounds;
use isocost_tests::jobs::{LONG, once, wait_for_end, wait_for_execution, with};
use isocost_tests::patience::eventually;
use isocost_tests::site::Site;
use isocost_tests::steps;
use serde_json::json;
use std::time::Instant;

#[tokio::test]
async fn what_ran_at_a_crash_runs_again_and_the_steps_say_why() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let job = with(
        once("sleep"),
        json!({ "params": { "ms": 1_500 }, "retry": { "maxAttempts": 3, "backoff": "fixed", "initialMs": 10 } }),
    );
    let job = process.api().submit(&job).await?;
    wait_for_execution(process.api(), &job, "RUNNING").await?;
    process.kill().await?;

    let process = site.start().await?;
    let job = wait_for_end(process.api(), &job).await?;
    assert_eq!(job["status"], "SUCCESS", "{job}");
    assert_eq!(job["lastExecution"]["attempt"], 2, "{job}");
    let id = job["lastExecution"]["executionId"].as_str().unwrap_or_default();
    let steps = steps::of(&process.api().execution(id).await?)?;
    let taken_back = steps::taken_back(&steps);
    assert_eq!(taken_back.len(), 1, "{steps:#?}");
    assert!(taken_back[0].message.is_some(), "no reason given: {steps:#?}");
    process.stop().await
}

#[tokio::test]
async fn wk08_a_job_without_an_attempt_left_ends_as_lost_with_a_reason() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let job = process
        .api()
        .submit(&with(once("sleep"), json!({ "params": { "ms": 60_000 } })))
        .await?;
    wait_for_execution(process.api(), &job, "RUNNING").await?;
    process.kill().await?;

    let process = site.start().await?;
    let job = wait_for_end(process.api(), &job).await?;
    assert_eq!(job["status"], "FAILED", "{job}");
    assert_eq!(job["lastExecution"]["status"], "LOST", "{job}");
    assert!(job["lastExecution"]["error"]["message"].is_string(), "{job}");
    assert!(job["lastExecution"]["finishedAt"].is_string(), "{job}");
    process.stop().await
}

/// A program that went on would run beside its own repetition.
#[tokio::test]
async fn programs_and_their_children_end_with_a_worker_that_is_killed() -> Result<()> {
    let site = Site::new()?.with("ISOCOST__WORKER__COMMANDS", r#"["/bin/sh"]"#);
    let process = site.start().await?;
    let file = site.data().join("processes");
    let script = r#"sleep 300 & echo "$$ $!" > "$0.new"; mv "$0.new" "$0"; wait"#;
    let params = json!({ "program": "/bin/sh", "args": ["-c", script, file] });
    let job = with(once("command"), json!({ "params": params }));
    process.api().submit(&job).await?;
    let processes = eventually("the program runs", LONG, async || {
        Ok(std::fs::read_to_string(&file).ok())
    })
    .await?;
    let processes: Vec<&str> = processes.split_whitespace().collect();
    assert_eq!(processes.len(), 2);
    assert!(processes.iter().all(|id| lives(id)), "{processes:?}");
    process.kill().await?;
    let from = Instant::now();
    eventually("both have ended", LONG, async || {
        Ok((!processes.iter().any(|id| lives(id))).then_some(()))
    })
    .await?;
    let took = from.elapsed();
    println!("a worker was killed → its program and the program's child had ended: {took:.1?}");
    assert!(
        took < bounds::time_on_a_busy_machine("program-orphaned")?,
        "{took:?}"
    );
    Ok(())
}

/// Ended ones may wait to be noticed by their new parent.
fn lives(id: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

#[tokio::test]
async fn a_job_that_was_not_due_at_the_crash_fires_once_after_it() -> Result<()> {
    let site = Site::with_ledger()?;
    let process = site.start().await?;
    let later = with(
        once("ledger"),
        json!({ "trigger": { "type": "once", "delayMs": 1_500 } }),
    );
    let job = process.api().submit(&later).await?;
    process.kill().await?;

    let process = site.start().await?;
    assert_eq!(wait_for_end(process.api(), &job).await?["status"], "SUCCESS");
    process.stop().await?;
    assert_eq!(site.ledger().len()?, 1);
    Ok(())
}

#[tokio::test]
async fn a_thousand_waiting_jobs_do_not_slow_a_start() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let job = with(
        once("noop"),
        json!({ "trigger": { "type": "once", "delayMs": 3_600_000 } }),
    );
    process.api().submit_batch(&vec![job; 1_000]).await?;
    process.kill().await?;
    let from = Instant::now();
    let process = site.start().await?;
    assert!(from.elapsed().as_secs() < 5, "{:?}", from.elapsed());
    process.stop().await
}
