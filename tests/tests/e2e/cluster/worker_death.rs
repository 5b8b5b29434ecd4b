//! A worker is killed with a job in its hands.

use super::{ledger, start_many};
use anyhow::{Context, Result};
use isocost_tests::api::{Api, instant_ms, items, text};
use isocost_tests::cluster::{Cluster, Role};
use isocost_tests::jobs::{LONG, wait_for_end, wait_for_execution, with};
use isocost_tests::patience::eventually;
use isocost_tests::receiver::Receiver;
use serde_json::{Value, json};
use std::time::Duration;

/// With short leases: 2.6 s of silence, and some for a busy machine.
const NOTICED: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread")]
async fn wk08_a_killed_workers_jobs_run_elsewhere_or_end_with_a_reason() -> Result<()> {
    let cluster = Cluster::new().await?.with_short_leases();
    let dispatcher = cluster.start(Role::Dispatcher, "dispatcher").await?;
    let _relay = cluster.start(Role::Relay, "relay").await?;
    let api_process = cluster.start(Role::Api, "api").await?;
    let api = cluster.api(&api_process)?;
    let mut workers = start_many(&cluster, Role::LedgerWorker, "worker", 1).await?;
    let receiver = Receiver::start([]).await?;
    let called = json!({ "callbackUrl": receiver.url() });

    let again = api.submit(&with(ledger(6_000), called.clone())).await?;
    let once_only = with(ledger(300_000), json!({ "retry": { "maxAttempts": 1 } }));
    let lost = api.submit(&with(once_only, called)).await?;
    for job in [&again, &lost] {
        wait_for_execution(&api, job, "RUNNING").await?;
    }
    workers.push(cluster.start(Role::LedgerWorker, "other").await?);
    workers[0].kill().await?;
    let killed_at = chrono::Utc::now().timestamp_millis();

    let ended = eventually("the job without another attempt ends", NOTICED, async || {
        let job = api.job(&lost).await?;
        Ok((job["status"] == "FAILED").then_some(job))
    })
    .await?;
    let execution = &ended["lastExecution"];
    assert_eq!(execution["status"], "LOST", "{ended}");
    assert!(execution["error"]["message"].is_string(), "no reason: {ended}");
    assert!(execution["finishedAt"].is_string(), "no end: {ended}");
    let ended_ms = instant_ms(execution, "finishedAt")? - killed_at;

    let counted = "isocost_executions_finished_total{status=\"LOST\"}";
    eventually("what is lost is counted", NOTICED, async || {
        Ok((dispatcher.metric(counted).await? > 0.0).then_some(()))
    })
    .await?;
    assert_ne!(worker_status(&api, "worker1").await?, "ONLINE");
    let done = wait_for_end(&api, &again).await?;
    let execution = &done["lastExecution"];
    assert_eq!(
        (&done["status"], &execution["attempt"]),
        (&json!("SUCCESS"), &json!(2)),
        "{done}"
    );
    let shown = api.execution(&text(execution, "executionId")?).await?;
    assert_eq!(shown["workerId"], "other", "{shown}");
    let again_ms = instant_ms(&shown, "startedAt")? - killed_at;
    println!("a worker was killed → its job was lost after {ended_ms} ms, or ran again after {again_ms} ms");
    assert!(again_ms < i64::try_from(NOTICED.as_millis())?, "{again_ms} ms");

    let hits = receiver.wait_for(2, LONG).await?;
    let types: Vec<Value> = hits
        .iter()
        .map(|hit| Ok(serde_json::from_slice::<Value>(&hit.body)?["type"].take()))
        .collect::<Result<_>>()?;
    assert!(types.contains(&json!("execution.lost")), "{types:?}");
    assert!(types.contains(&json!("execution.succeeded")), "{types:?}");
    Ok(())
}

async fn worker_status(api: &Api, name: &str) -> Result<String> {
    let workers = items(api.get("/openapi/workers").await?.success()?)?;
    let worker = workers.iter().find(|worker| worker["workerId"] == name);
    text(worker.context("the worker is listed")?, "status")
}
