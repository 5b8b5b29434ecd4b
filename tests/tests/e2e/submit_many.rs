//! Many jobs: each runs exactly once.

use anyhow::{Context, Result};
use isocost_tests::api::{Api, text};
use isocost_tests::jobs::{once, with};
use isocost_tests::patience::eventually;
use isocost_tests::site::Site;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const BATCHED: usize = 20_000;
const BATCH: usize = 1_000;
const SINGLE: usize = 10_000;
const CONNECTIONS: usize = 64;
const ALL_DONE: Duration = Duration::from_secs(180);

#[tokio::test(flavor = "multi_thread")]
async fn twenty_thousand_jobs_in_batches_run_exactly_once_each() -> Result<()> {
    let site = Site::with_ledger()?;
    let process = site.start().await?;
    let from = Instant::now();
    let mut ids = Vec::with_capacity(BATCHED);
    for batch in 0..BATCHED / BATCH {
        let jobs: Vec<Value> = (0..BATCH)
            .map(|n| {
                with(
                    once("ledger"),
                    json!({ "clientRequestId": format!("{batch}-{n}") }),
                )
            })
            .collect();
        ids.extend(process.api().submit_batch(&jobs).await?);
    }
    let submitted = from.elapsed();
    each_ran_once(&site, process.api(), &ids).await?;
    report("batched jobs", BATCHED, submitted, from.elapsed());
    process.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_single_submissions_over_64_connections_run_exactly_once_each() -> Result<()> {
    let site = Site::with_ledger()?;
    let process = site.start().await?;
    let from = Instant::now();
    let next = Arc::new(AtomicUsize::new(0));
    let mut connections = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (api, next) = (process.api().clone(), Arc::clone(&next));
        connections.spawn(async move {
            let mut ids = Vec::new();
            while next.fetch_add(1, Ordering::Relaxed) < SINGLE {
                ids.push(api.submit(&once("ledger")).await?);
            }
            anyhow::Ok(ids)
        });
    }
    let mut ids = Vec::with_capacity(SINGLE);
    for connection in connections.join_all().await {
        ids.extend(connection?);
    }
    let submitted = from.elapsed();
    assert_eq!(ids.len(), SINGLE);
    each_ran_once(&site, process.api(), &ids).await?;
    report("single jobs", SINGLE, submitted, from.elapsed());
    process.stop().await
}

fn report(what: &str, count: usize, submitted: Duration, done: Duration) {
    let rate = |time: Duration| count as f64 / time.as_secs_f64();
    println!(
        "{count} {what}: accepted at {:.0}/s, all results committed at {:.0}/s",
        rate(submitted),
        rate(done)
    );
}

/// Every job is SUCCESS, and the executions that the jobs name are exactly those in the ledger, once each.
async fn each_ran_once(site: &Site, api: &Api, ids: &[String]) -> Result<()> {
    let ledger = site.ledger();
    eventually("the ledger has a line for every job", ALL_DONE, async || {
        Ok((ledger.len()? >= ids.len()).then_some(()))
    })
    .await?;
    let jobs = eventually("every job is SUCCESS", ALL_DONE, async || {
        let jobs = api.jobs(ids).await?;
        Ok(jobs.iter().all(|job| job["status"] == "SUCCESS").then_some(jobs))
    })
    .await?;
    let executions: HashSet<String> = jobs
        .iter()
        .map(|job| text(&job["lastExecution"], "executionId").context("a job without an execution"))
        .collect::<Result<_>>()?;
    assert_eq!(executions.len(), ids.len(), "two jobs name one execution");
    let runs = ledger.runs()?;
    assert_eq!(runs.keys().cloned().collect::<HashSet<_>>(), executions);
    for (execution, attempts) in runs {
        assert_eq!(attempts, [1], "execution {execution}");
    }
    Ok(())
}
