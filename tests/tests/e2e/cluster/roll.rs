//! A rolling restart of everything under load, as an upgrade does it: nothing is lost, nothing runs twice, and no attempt
//! is spent. The database may be one migration ahead of the programs meanwhile.

use super::producer::{Producer, each_ran_once};
use super::{leader, ledger, start_many, submit_all};
use anyhow::{Context, Result, ensure};
use isocost_tests::api::{Api, text};
use isocost_tests::bounds;
use isocost_tests::cluster::{Cluster, Role};
use isocost_tests::jobs::{LONG, with};
use isocost_tests::patience::eventually;
use isocost_tests::receiver::Receiver;
use isocost_tests::steps;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tokio::time::sleep;

const ALL_DONE: Duration = Duration::from_secs(90);
/// Migrations add what older programs need not know.
const NEXT_MIGRATION: [&str; 4] = [
    "alter table job_info add column of_the_future varchar(64)",
    "alter table job_execution add column of_the_future bigint",
    "create table of_the_future (id int not null primary key)",
    "insert into _sqlx_migrations (version, description, success, checksum, execution_time) \
     values (9999, 'of the future', true, '', 0)",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_of_every_role_loses_doubles_and_spends_nothing() -> Result<()> {
    let cluster = Cluster::new().await?;
    let receiver = Receiver::start([]).await?;
    let mut apis = start_many(&cluster, Role::Api, "api", 2).await?;
    let mut dispatchers = start_many(&cluster, Role::Dispatcher, "dispatcher", 2).await?;
    let mut workers = start_many(&cluster, Role::LedgerWorker, "worker", 2).await?;
    let mut relay = cluster.start(Role::Relay, "relay").await?;
    let clients = [cluster.api(&apis[0])?, cluster.api(&apis[1])?];
    leader(&dispatchers, LONG).await?;
    let job = with(ledger(300), json!({ "callbackUrl": receiver.url() }));
    let producer = Producer::start(&clients, &job);
    sleep(Duration::from_secs(1)).await;

    let rolled = [&mut dispatchers, &mut workers, &mut apis]
        .into_iter()
        .flatten()
        .chain([&mut relay]);
    for process in rolled {
        process.stop().await?;
        process.restart().await?;
        sleep(Duration::from_millis(500)).await;
    }

    let produced = producer.stop().await?;
    println!(
        "{} jobs, {} refusals, the slowest answer after {:.1?}",
        produced.ids.len(),
        produced.refused,
        produced.slowest
    );
    each_ran_once(&cluster, &clients[0], &produced.ids, ALL_DONE).await?;
    eventually("every job is called back about", ALL_DONE, async || {
        let called = called(&receiver)?;
        Ok(produced.ids.iter().all(|id| called.contains(id)).then_some(()))
    })
    .await?;
    ensure!(
        receiver.hits().len() == produced.ids.len(),
        "a callback was sent twice"
    );

    the_tables_may_be_ahead(&cluster, &clients[0]).await
}

fn called(receiver: &Receiver) -> Result<HashSet<String>> {
    let id = |body: &[u8]| text(&serde_json::from_slice::<Value>(body)?["data"], "jobId");
    receiver.hits().iter().map(|hit| id(&hit.body)).collect()
}

/// What runs goes on; what starts says which version it needs.
async fn the_tables_may_be_ahead(cluster: &Cluster, api: &Api) -> Result<()> {
    for statement in NEXT_MIGRATION {
        cluster.servers().mariadb.execute(statement).await?;
    }
    let ids = submit_all(api, &vec![ledger(0); 50]).await?;
    super::all_succeed(api, &ids, LONG).await?;
    let mut late = cluster.spawn(Role::Dispatcher, "late", &[])?;
    let status = late.ended().await?;
    ensure!(status.code() == Some(1), "{status}");
    let log = late.log()?;
    ensure!(log.contains("newer than this program"), "{log}");
    Ok(())
}

/// More than the one worker can start: it holds some of it when it is told to stop.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_stops_gives_back_what_it_has_not_started_within_a_second() -> Result<()> {
    let cluster = Cluster::new()
        .await?
        .with("ISOCOST__WORKER__HANDLER_SLOTS__LEDGER", "2");
    let dispatchers = [cluster.start(Role::Dispatcher, "dispatcher").await?];
    let mut stopping = cluster.start(Role::LedgerWorker, "stopping").await?;
    let api_process = cluster.start(Role::Api, "api").await?;
    let api = cluster.api(&api_process)?;
    leader(&dispatchers, LONG).await?;
    // Short runs first: only for those does the leader send more than there are slots.
    let mut ids = submit_all(&api, &vec![ledger(0); 60]).await?;
    super::all_succeed(&api, &ids, LONG).await?;
    ids.extend(submit_all(&api, &vec![ledger(700); 12]).await?);
    let held = eventually("the worker holds what it cannot start", LONG, async || {
        let list = api
            .get("/openapi/executions?status=DISPATCHED&pageSize=500")
            .await?;
        let held = isocost_tests::api::items(list.success()?)?;
        Ok((held.len() > 2).then_some(held))
    })
    .await?;
    let told_ms = chrono::Utc::now().timestamp_millis();
    stopping.terminate()?;
    let _other = cluster.start(Role::LedgerWorker, "other").await?;
    ensure!(stopping.ended().await?.success(), "{}", stopping.log_tail());
    let from = Instant::now();
    each_ran_once(&cluster, &api, &ids, LONG).await?;
    println!("and all had run {:.1?} after the worker's end", from.elapsed());
    let mut given_back = Vec::new();
    for execution in held {
        let execution = api.execution(&text(&execution, "executionId")?).await?;
        for step in steps::taken_back(&steps::of(&execution)?) {
            given_back.push(step.at_ms - told_ms);
        }
    }
    let slowest = *given_back.iter().max().context("nothing was given back")?;
    println!(
        "{} were given back, the last {slowest} ms after the signal",
        given_back.len()
    );
    let within = bounds::time_on_a_busy_machine("drain-given-back")?;
    ensure!(
        i128::from(slowest) < i128::try_from(within.as_millis())?,
        "{given_back:?}"
    );
    Ok(())
}
