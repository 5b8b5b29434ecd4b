//! The database says nothing, dies, or takes no writes, under load: processes say so, requests are answered in time, and
//! when it is back everything goes on by itself.

use super::producer::{Producer, each_ran_once};
use super::{all_succeed, leader, ledger};
use anyhow::{Result, ensure};
use isocost_common::test_support::proxy::{Proxy, Traffic};
use isocost_tests::api::Api;
use isocost_tests::bounds;
use isocost_tests::cluster::{Cluster, Process, Role};
use isocost_tests::jobs::{LONG, with};
use isocost_tests::patience::eventually;
use reqwest::StatusCode;
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// More than the processes have connections, so that some find none.
const REQUESTS: usize = 40;
const ALL_DONE: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_silent_dead_or_read_only_is_noticed_and_survived() -> Result<()> {
    let cluster = Cluster::new().await?;
    let mariadb = &cluster.servers().mariadb;
    let proxy = Proxy::start(mariadb.address()).await?;
    let behind = mariadb.options_at(proxy.address()).url;
    let cluster = cluster.with("ISOCOST__STORE__URL", &behind);
    let _worker = cluster.start(Role::LedgerWorker, "worker").await?;
    let mut processes = vec![
        cluster.start(Role::Dispatcher, "dispatcher").await?,
        cluster.start(Role::Relay, "relay").await?,
        cluster.start(Role::Api, "api").await?,
    ];
    let api = cluster.api(&processes[2])?;
    leader(&processes[..1], LONG).await?;
    let producer = Producer::start(std::slice::from_ref(&api), &ledger(20));
    sleep(Duration::from_secs(2)).await;

    proxy.set(Traffic::BlackHole).await?;
    let noticed = bounds::time_on_a_busy_machine("database-silent-noticed")?;
    nobody_is_ready(&processes, noticed).await?;
    requests_are_answered(&api).await?;
    eventually("the leader gives its office up", LONG, async || {
        Ok((!processes[0].is_leader().await?).then_some(()))
    })
    .await?;
    proxy.set(Traffic::Pass).await?;
    let mut ids = vec![goes_on(&processes, &api, "silence").await?];

    for time in ["first", "second"] {
        cluster.servers().mariadb.kill().await?;
        cluster.servers().mariadb.restart().await?;
        ids.push(goes_on(&processes, &api, &format!("{time} death")).await?);
    }

    cluster
        .servers()
        .mariadb
        .execute("set global read_only = 1")
        .await?;
    let noticed = bounds::time_on_a_busy_machine("database-read-only-noticed")?;
    nobody_is_ready(&processes[2..], noticed).await?;
    cluster
        .servers()
        .mariadb
        .execute("set global read_only = 0")
        .await?;
    ids.push(goes_on(&processes, &api, "read-only time").await?);

    let produced = producer.stop().await?;
    println!(
        "{} jobs accepted, {} refusals, the slowest answer after {:.1?}",
        produced.ids.len(),
        produced.refused,
        produced.slowest
    );
    ensure!(produced.refused > 0, "nobody was refused: there was no fault");
    let answered = bounds::time_on_a_busy_machine("database-silent-answered")?;
    ensure!(produced.slowest < answered, "{:?}", produced.slowest);
    ids.extend(produced.ids);
    each_ran_once(&cluster, &api, &ids, ALL_DONE).await?;
    for process in &mut processes {
        process.stop().await?;
    }
    Ok(())
}

async fn nobody_is_ready(processes: &[Process], within: Duration) -> Result<()> {
    let from = Instant::now();
    for process in processes {
        eventually(
            "a process without its database is not ready",
            within,
            async || {
                let (ready, said) = process.readiness().await?;
                Ok((!ready && said.to_string().contains("database")).then_some(()))
            },
        )
        .await?;
    }
    println!("nobody is ready {:.1?} later", from.elapsed());
    Ok(())
}

/// All at once, reading and writing: each is told to come back.
async fn requests_are_answered(api: &Api) -> Result<()> {
    let within = bounds::time_on_a_busy_machine("database-silent-answered")?;
    let mut requests = JoinSet::new();
    for number in 0..REQUESTS {
        let api = api.clone();
        requests.spawn(async move {
            let from = Instant::now();
            let answer = if number % 2 == 0 {
                api.get("/openapi/jobs").await?
            } else {
                api.post("/openapi/jobs", &ledger(0)).await?
            };
            ensure!(
                answer.status == StatusCode::SERVICE_UNAVAILABLE,
                "{}",
                answer.text
            );
            ensure!(answer.headers.contains_key("retry-after"), "{:?}", answer.headers);
            Ok(from.elapsed())
        });
    }
    let mut slowest = Duration::ZERO;
    while let Some(answered) = requests.join_next().await {
        slowest = slowest.max(answered??);
    }
    println!("database-silent-answered: {slowest:.1?}");
    ensure!(slowest < within, "{slowest:?}");
    Ok(())
}

/// Ready, and a job that is submitted now runs.
async fn goes_on(processes: &[Process], api: &Api, after: &str) -> Result<String> {
    let within = bounds::time_on_a_busy_machine("database-healed")?;
    let from = Instant::now();
    for process in processes {
        eventually("a process is ready again", within, async || {
            Ok(process.readiness().await?.0.then_some(()))
        })
        .await?;
    }
    let job = with(
        ledger(0),
        json!({ "clientRequestId": format!("after the {after}") }),
    );
    let id = eventually("a job is accepted", within, async || {
        Ok(api.submit(&job).await.ok())
    })
    .await?;
    all_succeed(api, std::slice::from_ref(&id), within).await?;
    let took = from.elapsed();
    println!("after the {after} of the database: a new job had run {took:.1?} after the heal");
    ensure!(took < within, "{took:?}");
    Ok(id)
}
