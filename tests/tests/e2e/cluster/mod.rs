//! Real processes of every role on private servers. Each test has its own servers, so `./test` runs them one by one.

mod amqp;
mod balance;
mod broker_faults;
mod crashes;
mod cut_off;
mod doctor;
mod frozen;
mod long_runs;
mod outages;
mod overload;
mod plans;
mod producer;
mod redis_faults;
mod roles;
mod roll;
mod silent_database;
mod statements;
mod worker_death;

use anyhow::{Result, ensure};
use isocost_tests::api::{Api, text};
use isocost_tests::cluster::{Cluster, Process, Role};
use isocost_tests::jobs::{once, with};
use isocost_tests::patience::eventually;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A run of the handler `ledger` that takes so long, and is tried again when its worker dies.
fn ledger(ms: u64) -> Value {
    with(
        once("ledger"),
        json!({
            "params": { "ms": ms },
            "retry": { "maxAttempts": 5, "backoff": "fixed", "initialMs": 10, "maxMs": 10 }
        }),
    )
}

/// Submits all of them, a thousand at a time, and returns their ids in order.
async fn submit_all(api: &Api, jobs: &[Value]) -> Result<Vec<String>> {
    let mut ids = Vec::with_capacity(jobs.len());
    for part in jobs.chunks(1_000) {
        ids.extend(api.submit_batch(part).await?);
    }
    Ok(ids)
}

/// Waits until every job has succeeded; any other end fails at once.
async fn all_succeed(api: &Api, ids: &[String], within: Duration) -> Result<()> {
    let deadline = Instant::now() + within;
    let mut open = ids.to_vec();
    loop {
        let jobs = api.jobs(&open).await?;
        ensure!(
            jobs.len() == open.len(),
            "{} of {} jobs are there",
            jobs.len(),
            open.len()
        );
        let ended = |job: &&Value| matches!(job["status"].as_str(), Some("FAILED" | "CANCELLED" | "INVALID"));
        let failed = jobs.iter().find(ended);
        ensure!(failed.is_none(), "an accepted job did not succeed: {failed:?}");
        let waiting = jobs.iter().filter(|job| job["status"] != "SUCCESS");
        open = waiting.map(|job| text(job, "jobId")).collect::<Result<_>>()?;
        let Some(one) = open.first() else { return Ok(()) };
        if Instant::now() >= deadline {
            let job = api.job(one).await?;
            anyhow::bail!("{} jobs are open after {within:?}, such as {job:#}", open.len());
        }
        sleep(Duration::from_millis(250)).await;
    }
}

/// Which of these dispatchers leads: its place in the list.
async fn leader(dispatchers: &[Process], within: Duration) -> Result<usize> {
    eventually("a dispatcher leads", within, async || {
        for (place, dispatcher) in dispatchers.iter().enumerate() {
            if dispatcher.is_leader().await.unwrap_or(false) {
                return Ok(Some(place));
            }
        }
        Ok(None)
    })
    .await
}

/// So many processes of a role, ready.
async fn start_many(cluster: &Cluster, role: Role, name: &str, count: usize) -> Result<Vec<Process>> {
    let mut processes = Vec::with_capacity(count);
    for number in 1..=count {
        processes.push(cluster.start(role, &format!("{name}{number}")).await?);
    }
    Ok(processes)
}
