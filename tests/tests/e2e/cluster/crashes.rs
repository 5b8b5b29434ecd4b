//! Everything dies once during a run, with the leases of production: nothing is lost, and only what ran on the killed
//! worker runs a second time.

use super::{all_succeed, leader, ledger, start_many};
use anyhow::{Result, ensure};
use isocost_tests::api::{Api, text};
use isocost_tests::bounds;
use isocost_tests::cluster::{Cluster, Role};
use isocost_tests::jobs::{LONG, with};
use isocost_tests::patience::eventually;
use isocost_tests::receiver::Receiver;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

const ALL_DONE: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_a_worker_the_relay_and_the_broker_die_and_nothing_is_lost() -> Result<()> {
    let cluster = Cluster::new().await?;
    let mut dispatchers = start_many(&cluster, Role::Dispatcher, "dispatcher", 2).await?;
    let mut workers = start_many(&cluster, Role::LedgerWorker, "worker", 3).await?;
    let mut relay = cluster.start(Role::Relay, "relay").await?;
    let api_process = cluster.start(Role::Api, "api").await?;
    let api = cluster.api(&api_process)?;
    let receiver = Receiver::start([]).await?;
    let enough = CancellationToken::new();
    let submitting = tokio::spawn(submit_until(
        enough.clone(),
        api.clone(),
        receiver.url().to_owned(),
    ));
    sleep(Duration::from_secs(3)).await;

    let place = leader(&dispatchers, LONG).await?;
    dispatchers[place].kill().await?;
    let from = Instant::now();
    let job = api.submit(&ledger(0)).await?;
    all_succeed(&api, &[job], LONG).await?;
    let leaderless = from.elapsed();
    println!("the leader was killed → the next job had run: {leaderless:.1?}");
    dispatchers[place].restart().await?;

    relay.kill().await?;
    cluster.servers().rabbitmq.stop().await?;
    cluster.servers().rabbitmq.restart().await?;
    relay.restart().await?;
    let from = Instant::now();
    let job = api.submit(&ledger(0)).await?;
    all_succeed(&api, &[job], ALL_DONE).await?;
    println!(
        "broker and relay are back → a job submitted then had run: {:.1?}",
        from.elapsed()
    );
    // After the broker, whose interruption would give every worker a new full lease.
    eventually("much runs on the worker", LONG, async || {
        Ok((workers[0].metric("isocost_worker_running").await? >= 5.0).then_some(()))
    })
    .await?;
    workers[0].kill().await?;
    let killed_at = chrono::Utc::now().timestamp_millis();
    sleep(Duration::from_secs(3)).await;
    enough.cancel();
    let ids = submitting.await??;
    all_succeed(&api, &ids, ALL_DONE).await?;

    let again = second_runs(&cluster, killed_at)?;
    println!(
        "{} jobs, {} of them ran twice, the last again {} ms after the worker's death",
        ids.len(),
        again.len(),
        again.iter().max().unwrap_or(&0)
    );
    let leader_bound = bounds::time_on_a_busy_machine("leader-killed")?;
    assert!(leaderless < leader_bound, "{leaderless:?}");
    let worker_bound = bounds::time_on_a_busy_machine("worker-killed")?.as_millis();
    assert!(
        again
            .iter()
            .all(|ms| u128::from(ms.unsigned_abs()) < worker_bound),
        "{again:?}"
    );
    all_called_back(&receiver, &ids).await
}

/// Submits batch after batch; returns the ids.
async fn submit_until(enough: CancellationToken, api: Api, callback_url: String) -> Result<Vec<String>> {
    let mut random = StdRng::seed_from_u64(11);
    let mut ids = Vec::new();
    while !enough.is_cancelled() {
        let jobs: Vec<Value> = (0..25)
            .map(|_| {
                with(
                    ledger(random.random_range(0..800)),
                    json!({ "callbackUrl": callback_url }),
                )
            })
            .collect();
        ids.extend(api.submit_batch(&jobs).await?);
        sleep(Duration::from_millis(250)).await;
    }
    Ok(ids)
}

/// How long after the worker's death each second run began. Every one of them must have its first on that worker, before
/// it died.
fn second_runs(cluster: &Cluster, killed_at: i64) -> Result<Vec<i64>> {
    let mut again = Vec::new();
    for (execution, runs) in cluster.ledger().details()? {
        ensure!(runs.len() <= 2, "{execution} ran {} times: {runs:?}", runs.len());
        if let [first, second] = runs.as_slice() {
            ensure!(
                first.worker == "worker1" && first.at_ms <= killed_at,
                "{execution} ran twice although nobody died under it: {runs:?}"
            );
            again.push(second.at_ms - killed_at);
        }
    }
    ensure!(!again.is_empty(), "nothing ran on the worker that was killed");
    Ok(again)
}

/// Every job is called back about, under one id however often.
async fn all_called_back(receiver: &Receiver, ids: &[String]) -> Result<()> {
    let asked: HashSet<&str> = ids.iter().map(String::as_str).collect();
    let deadline = Instant::now() + Duration::from_secs(90);
    loop {
        let mut called = HashSet::new();
        let mut deliveries = HashSet::new();
        for hit in receiver.hits() {
            let body: Value = serde_json::from_slice(&hit.body)?;
            called.insert(text(&body["data"], "jobId")?);
            deliveries.insert(hit.header("webhook-id")?.to_owned());
        }
        let missing: Vec<_> = asked.iter().filter(|id| !called.contains(**id)).collect();
        if missing.is_empty() {
            ensure!(
                deliveries.len() == asked.len(),
                "{} deliveries of {} jobs",
                deliveries.len(),
                asked.len()
            );
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "{} jobs are not called back, such as {}",
            missing.len(),
            missing[0]
        );
        sleep(Duration::from_millis(250)).await;
    }
}
