//! Redis forgets everything, says nothing, dies: while it is away nobody leads, and no run is lost or doubled.

use super::producer::{Producer, each_ran_once};
use super::{all_succeed, leader, ledger};
use anyhow::{Result, ensure};
use isocost_common::test_support::proxy::{Proxy, Traffic};
use isocost_tests::api::Api;
use isocost_tests::bounds;
use isocost_tests::cluster::{Cluster, Role};
use isocost_tests::jobs::{LONG, with};
use isocost_tests::patience::eventually;
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::time::sleep;

const ALL_DONE: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_flushed_silent_or_dead_costs_time_and_nothing_else() -> Result<()> {
    let cluster = Cluster::new().await?;
    let redis = &cluster.servers().redis;
    let proxy = Proxy::start(redis.address()).await?;
    let behind = redis.config_at(proxy.address()).url;
    let cluster = cluster.with("ISOCOST__COORDINATION__URL", behind.reveal());
    let dispatchers = [cluster.start(Role::Dispatcher, "dispatcher").await?];
    let worker = cluster.start(Role::LedgerWorker, "worker").await?;
    let api_process = cluster.start(Role::Api, "api").await?;
    let api = cluster.api(&api_process)?;
    leader(&dispatchers, LONG).await?;
    let producer = Producer::start(std::slice::from_ref(&api), &ledger(100));
    sleep(Duration::from_secs(1)).await;

    cluster.servers().redis.flush().await?;
    let mut ids = vec![goes_on(&api, "flush").await?];

    proxy.set(Traffic::BlackHole).await?;
    eventually("the leader gives its office up", LONG, async || {
        Ok((!dispatchers[0].is_leader().await?).then_some(()))
    })
    .await?;
    for process in [&dispatchers[0], &worker, &api_process] {
        let (ready, said) = process.readiness().await?;
        ensure!(ready, "it can do its job without Redis: {said}");
    }
    ids.push(says_why_it_waits(&api).await?);
    proxy.set(Traffic::Pass).await?;
    ids.push(goes_on(&api, "silence").await?);

    cluster.servers().redis.kill().await?;
    cluster.servers().redis.restart().await?;
    ids.push(goes_on(&api, "death").await?);

    let produced = producer.stop().await?;
    ensure!(
        produced.refused == 0,
        "{} submissions were refused",
        produced.refused
    );
    println!(
        "{} jobs, the slowest answer after {:.1?}",
        produced.ids.len(),
        produced.slowest
    );
    ids.extend(produced.ids);
    each_ran_once(&cluster, &api, &ids, ALL_DONE).await
}

/// Whoever looks at a job sees that nobody leads, instead of a word about workers.
async fn says_why_it_waits(api: &Api) -> Result<String> {
    let id = api.submit(&ledger(0)).await?;
    eventually("the reason names the leader", LONG, async || {
        let job = api.get(&format!("/openapi/jobs/{id}")).await?.success()?;
        let reason = job["waitingReason"].to_string();
        Ok(reason.contains("no dispatcher has led since").then_some(()))
    })
    .await?;
    Ok(id)
}

/// A job that is submitted now runs.
async fn goes_on(api: &Api, after: &str) -> Result<String> {
    let within = bounds::time_on_a_busy_machine("redis-healed")?;
    let from = Instant::now();
    let id = api
        .submit(&with(
            ledger(0),
            json!({ "jobName": format!("after the {after}") }),
        ))
        .await?;
    all_succeed(api, std::slice::from_ref(&id), within).await?;
    println!(
        "after the {after} of Redis: a new job had run {:.1?} later",
        from.elapsed()
    );
    Ok(id)
}
