//! Each role as a process: start, readiness, signals; and `isocost doctor`.

use super::{all_succeed, leader, ledger, start_many};
use anyhow::{Result, ensure};
use isocost_tests::cluster::{Cluster, Role};
use isocost_tests::jobs::{LONG, once, wait_for_end, wait_for_execution, with};
use isocost_tests::patience::eventually;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn arguments(words: &[&str]) -> Vec<std::ffi::OsString> {
    words.iter().map(Into::into).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_waits_for_the_tables_and_says_who_makes_them() -> Result<()> {
    let cluster = Cluster::without_tables()
        .await?
        .with("ISOCOST__STORE__START_WAIT_MS", "3000");
    let mut hasty = cluster.spawn(Role::Dispatcher, "hasty", &[])?;
    let status = hasty.ended().await?;
    assert_eq!(status.code(), Some(1));
    let log = hasty.log()?;
    assert!(log.contains("run `isocost migrate` once"), "{log}");

    let cluster = cluster.with("ISOCOST__STORE__START_WAIT_MS", "60000");
    let (_, said) = cluster.run(arguments(&["doctor"])).await?;
    assert!(said.contains("run `isocost migrate` once"), "{said}");
    let mut patient = cluster.spawn(Role::Relay, "patient", &[])?;
    eventually("it says what it waits for", LONG, async || {
        let (ready, said) = patient.readiness().await?;
        ensure!(!ready, "ready without tables: {said}");
        let said = said.to_string();
        let is_complete = said.contains("first callbacks queue") && said.contains("not started yet");
        Ok((said.contains("isocost migrate") && is_complete).then_some(()))
    })
    .await?;
    cluster.migrate().await?;
    patient.wait_until_ready().await?;
    patient.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_role_runs_drains_and_hands_over() -> Result<()> {
    let cluster = Cluster::new().await?;
    let (healthy, said) = cluster.run(arguments(&["doctor", "--json"])).await?;
    ensure!(healthy, "{said}");
    let report: Value = serde_json::from_str(&said)?;
    assert_eq!(report["problems"], 0, "{report:#}");

    let mut dispatchers = start_many(&cluster, Role::Dispatcher, "dispatcher", 2).await?;
    let mut builtin = cluster.start(Role::Worker, "builtin").await?;
    let mut worker = cluster.start(Role::LedgerWorker, "own").await?;
    let mut relay = cluster.start(Role::Relay, "relay").await?;
    let mut api_process = cluster.start(Role::Api, "api").await?;
    let api = cluster.api(&api_process)?;

    // A clean stop of the leader: the other one dispatches at once.
    let first = leader(&dispatchers, LONG).await?;
    let other = 1 - first;
    wait_for_end(&api, &api.submit(&once("echo")).await?).await?;
    dispatchers[first].terminate()?;
    let from = Instant::now();
    let job = api.submit(&once("echo")).await?;
    let running = wait_for_execution(&api, &job, "SUCCEEDED").await?;
    let took = from.elapsed();
    println!("the leader was told to stop → the other one's first job had run: {took:.0?}");
    assert!(took < Duration::from_millis(1_500), "{took:?}: {running}");
    ensure!(dispatchers[first].ended().await?.success());
    assert!(dispatchers[other].is_leader().await?);

    // A worker that stops finishes what runs, and gives back what has not started.
    let long = api.submit(&ledger(2_000)).await?;
    wait_for_execution(&api, &long, "RUNNING").await?;
    worker.terminate()?;
    eventually("a draining worker is not ready", LONG, async || {
        Ok((!worker.readiness().await?.0).then_some(()))
    })
    .await?;
    ensure!(worker.ended().await?.success(), "{}", worker.log_tail());
    let done = wait_for_end(&api, &long).await?;
    assert_eq!(
        (&done["status"], &done["lastExecution"]["attempt"]),
        (&json!("SUCCESS"), &json!(1))
    );

    // Told twice, it goes at once, and not with success.
    let stuck = api
        .submit(&with(once("sleep"), json!({ "params": { "ms": 60_000 } })))
        .await?;
    wait_for_execution(&api, &stuck, "RUNNING").await?;
    let from = Instant::now();
    builtin.terminate()?;
    eventually("it drains", LONG, async || {
        Ok((!builtin.readiness().await?.0).then_some(()))
    })
    .await?;
    builtin.terminate()?;
    assert_eq!(builtin.ended().await?.code(), Some(130));
    assert!(from.elapsed() < Duration::from_secs(5), "{:?}", from.elapsed());

    dispatchers[other].stop().await?;
    relay.stop().await?;
    api_process.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn several_roles_share_one_process() -> Result<()> {
    let cluster = Cluster::new().await?;
    let mut process = cluster.start(Role::All, "all").await?;
    let api = cluster.api(&process)?;
    let ids = api.submit_batch(&vec![once("echo"); 200]).await?;
    all_succeed(&api, &ids, LONG).await?;
    process.stop().await
}
