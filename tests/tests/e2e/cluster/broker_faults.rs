//! RabbitMQ raises an alarm, and loses queues, while everybody works.

use super::producer::{Producer, each_ran_once};
use super::{leader, ledger, submit_all};
use anyhow::{Context, Result, ensure};
use isocost_tests::api::Api;
use isocost_tests::bounds;
use isocost_tests::cluster::{Cluster, Role};
use isocost_tests::jobs::{LONG, wait_for_execution};
use isocost_tests::patience::{eventually, never};
use std::time::{Duration, Instant};
use tokio::time::sleep;

const ALL_DONE: Duration = Duration::from_secs(90);
/// Long enough for several passes of a leader, and for what runs to end.
const BLOCKED_FOR: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn an_alarm_of_the_broker_pauses_dispatching_and_nothing_else() -> Result<()> {
    let cluster = Cluster::new().await?;
    let rabbitmq = &cluster.servers().rabbitmq;
    let dispatchers = [cluster.start(Role::Dispatcher, "dispatcher").await?];
    let worker = cluster.start(Role::LedgerWorker, "worker").await?;
    let api_process = cluster.start(Role::Api, "api").await?;
    let api = cluster.api(&api_process)?;
    leader(&dispatchers, LONG).await?;
    let running = api.submit(&ledger(2_000)).await?;
    wait_for_execution(&api, &running, "RUNNING").await?;

    rabbitmq.memory_alarm(true).await?;
    // RabbitMQ tells only who publishes. This one is on its way until the alarm is over.
    let mut ids = vec![api.submit(&ledger(0)).await?];
    let noticed = bounds::time_on_a_busy_machine("alarm-noticed")?;
    eventually("the dispatcher says what is wrong", noticed, async || {
        let (ready, said) = dispatchers[0].readiness().await?;
        Ok((!ready && said.to_string().contains("takes no messages")).then_some(()))
    })
    .await?;
    ids.extend(submit_all(&api, &vec![ledger(0); 50]).await?);
    let health = api.get("/readyz").await?;
    ensure!(health.status.is_success(), "{}", health.text);
    ensure!(
        worker.readiness().await?.0,
        "a worker has no need to publish at once"
    );
    never("a job starts", BLOCKED_FOR, async || {
        Ok((cluster.ledger().len()? > 1).then_some("it did"))
    })
    .await?;

    rabbitmq.memory_alarm(false).await?;
    let from = Instant::now();
    ids.push(running);
    each_ran_once(&cluster, &api, &ids, LONG).await?;
    let took = from.elapsed();
    println!("the alarm is over → what had waited had run: {took:.1?}");
    ensure!(took < bounds::time_on_a_busy_machine("alarm-over")?, "{took:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_that_are_deleted_under_load_come_back_and_cost_no_attempt() -> Result<()> {
    let cluster = Cluster::new().await?;
    let rabbitmq = &cluster.servers().rabbitmq;
    let dispatchers = [cluster.start(Role::Dispatcher, "dispatcher").await?];
    let _worker = cluster.start(Role::LedgerWorker, "worker").await?;
    let _relay = cluster.start(Role::Relay, "relay").await?;
    let api_process = cluster.start(Role::Api, "api").await?;
    let api = cluster.api(&api_process)?;
    leader(&dispatchers, LONG).await?;
    let producer = Producer::start(std::slice::from_ref(&api), &ledger(100));
    sleep(Duration::from_secs(1)).await;

    let listed = rabbitmq.ctl(&["list_queues", "--quiet", "name"]).await?;
    let queue = |start: &str| {
        let mut names = listed.lines().map(str::trim);
        let found = names.find(|name| name.starts_with(start));
        found.with_context(|| format!("no queue {start} in {listed}"))
    };
    for name in [
        queue("isocost.worker.")?,
        queue("isocost.results.v1")?,
        queue("isocost.logs.v1")?,
        queue("isocost.callbacks.first.v1")?,
        queue("isocost.submissions.v1")?,
    ] {
        rabbitmq.ctl(&["delete_queue", name]).await?;
        let from = Instant::now();
        eventually("the queue is there again", LONG, async || {
            let listed = rabbitmq.ctl(&["list_queues", "--quiet", "name"]).await?;
            Ok(listed.lines().any(|line| line.trim() == name).then_some(()))
        })
        .await?;
        println!(
            "{name} was deleted → it was there again {:.1?} later",
            from.elapsed()
        );
    }
    for process in &dispatchers {
        eventually("everybody consumes again", LONG, async || {
            Ok(process.readiness().await?.0.then_some(()))
        })
        .await?;
    }
    let produced = producer.stop().await?;
    let from = Instant::now();
    each_ran_once(&cluster, &api, &produced.ids, ALL_DONE).await?;
    let took = from.elapsed();
    println!("{} jobs; all had run {took:.1?} later", produced.ids.len());
    ensure!(
        took < bounds::time_on_a_busy_machine("queue-deleted")?,
        "{took:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn exchanges_and_bindings_that_are_deleted_come_back_and_cost_no_attempt() -> Result<()> {
    let cluster = Cluster::new().await?;
    let rabbitmq = &cluster.servers().rabbitmq;
    let dispatchers = [cluster.start(Role::Dispatcher, "dispatcher").await?];
    let _worker = cluster.start(Role::LedgerWorker, "worker").await?;
    let _relay = cluster.start(Role::Relay, "relay").await?;
    let api_process = cluster.start(Role::Api, "api").await?;
    let api = cluster.api(&api_process)?;
    leader(&dispatchers, LONG).await?;

    let producer = Producer::start(std::slice::from_ref(&api), &ledger(100));
    sleep(Duration::from_secs(1)).await;
    rabbitmq.delete_exchanges(&EXCHANGES).await?;
    sleep(Duration::from_secs(2)).await;
    let produced = producer.stop().await?;
    let took = all_have_run(&cluster, &api, &produced.ids).await?;
    println!(
        "every exchange was deleted → {} jobs had run {took:.1?} after the last",
        produced.ids.len()
    );

    // Nobody publishes in vain now, and the leader only hears nothing.
    rabbitmq.unbind_all("isocost.heartbeats").await?;
    // Longer than a worker that is not heard of is given work.
    sleep(Duration::from_secs(4)).await;
    let mut ids = produced.ids;
    ids.extend(submit_all(&api, &vec![ledger(0); 50]).await?);
    let took = all_have_run(&cluster, &api, &ids).await?;
    println!("the heartbeats were unbound → 50 jobs had run {took:.1?} later");
    Ok(())
}

const EXCHANGES: [&str; 10] = [
    "isocost.dispatch",
    "isocost.control",
    "isocost.results",
    "isocost.heartbeats",
    "isocost.logs",
    "isocost.settled",
    "isocost.wake",
    "isocost.submissions",
    "isocost.callbacks",
    "isocost.outcomes",
];

async fn all_have_run(cluster: &Cluster, api: &Api, ids: &[String]) -> Result<Duration> {
    let from = Instant::now();
    each_ran_once(cluster, api, ids, ALL_DONE).await?;
    let took = from.elapsed();
    ensure!(
        took < bounds::time_on_a_busy_machine("exchange-deleted")?,
        "{took:?}"
    );
    Ok(took)
}
