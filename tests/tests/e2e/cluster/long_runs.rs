//! Runs that outlast what usually ends runs: the broker's acknowledgement timeout, the limit after which a worker counts
//! as dead, and one leader after the other.

use super::{leader, ledger, start_many};
use anyhow::{Result, ensure};
use chrono::{DateTime, Timelike, Utc};
use isocost_common::broker::{
    Broker, ConsumeOptions, Message, Publication, Queue, QueueKind, Topology, rabbitmq::RabbitBroker,
};
use isocost_tests::api::{Api, instant_ms};
use isocost_tests::cluster::{Cluster, Role};
use isocost_tests::jobs::{LONG, cron, wait_for_end};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// With short leases a worker counts as dead after 2.6 s of silence.
const TWENTY_TIMES_THE_LIMIT: u64 = 52_000;
const KILLS: usize = 20;
/// Seconds between two firings.
const EVERY: i64 = 3;
const AHEAD_MS: i64 = 1_000;
/// RabbitMQ looks for held deliveries now and then only.
const CUT_OFF_WITHIN: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread")]
async fn leaders_die_twenty_times_beside_a_long_run() -> Result<()> {
    let cluster = Cluster::new().await?.with_short_leases();
    let _worker = cluster.start(Role::LedgerWorker, "worker").await?;
    let _builtin = cluster.start(Role::Worker, "builtin").await?;
    let api_process = cluster.start(Role::Api, "api").await?;
    let api = cluster.api(&api_process)?;
    let (planned, long) = tokio::join!(
        wk01_every_planned_instant_has_one_firing(&cluster, &api),
        wk04_a_long_run_is_never_taken_for_an_orphan(&api)
    );
    planned?;
    long
}

async fn wk04_a_long_run_is_never_taken_for_an_orphan(api: &Api) -> Result<()> {
    let job = api.submit(&ledger(TWENTY_TIMES_THE_LIMIT)).await?;
    sleep(Duration::from_millis(TWENTY_TIMES_THE_LIMIT)).await;
    let job = wait_for_end(api, &job).await?;
    assert_eq!(job["status"], "SUCCESS", "{job}");
    assert_eq!(job["lastExecution"]["attempt"], 1, "{job}");
    Ok(())
}

async fn wk01_every_planned_instant_has_one_firing(cluster: &Cluster, api: &Api) -> Result<()> {
    let mut dispatchers = start_many(cluster, Role::Dispatcher, "dispatcher", 3).await?;
    leader(&dispatchers, LONG).await?;
    let job = api.submit(&cron("noop", &format!("*/{EVERY} * * * * ?"))).await?;
    let first = next_instant(Utc::now());
    for _ in 0..KILLS {
        let planned = next_instant(Utc::now() + chrono::Duration::milliseconds(AHEAD_MS + 200));
        let kill_at = planned.timestamp_millis() - AHEAD_MS;
        sleep(Duration::from_millis(
            u64::try_from(kill_at - Utc::now().timestamp_millis()).unwrap_or(0),
        ))
        .await;
        let place = leader(&dispatchers, LONG).await?;
        dispatchers[place].kill().await?;
        dispatchers[place].restart().await?;
    }
    sleep(Duration::from_secs(4)).await;
    let last = Utc::now().timestamp_millis() - 4_000;
    let mut late: BTreeMap<i64, i64> = BTreeMap::new();
    for execution in api.executions(&job).await? {
        let (planned, started) = (
            instant_ms(&execution, "scheduledTime")?,
            execution.get("startedAt"),
        );
        ensure!(started.is_some() || planned > last, "not started: {execution}");
        let started = instant_ms(&execution, "startedAt").unwrap_or(planned);
        ensure!(
            late.insert(planned, started - planned).is_none(),
            "two firings of one instant: {execution}"
        );
    }
    let mut planned = first.timestamp_millis();
    while planned <= last {
        ensure!(
            late.contains_key(&planned),
            "nothing fired at {planned}: {late:?}"
        );
        planned += EVERY * 1_000;
    }
    let worst = late.values().copied().max().unwrap_or(0);
    println!(
        "{} planned instants, {KILLS} leaders killed 1 s before one: latest start {worst} ms late",
        late.len()
    );
    ensure!(worst < 15_000, "{late:?}");
    Ok(())
}

fn next_instant(after: DateTime<Utc>) -> DateTime<Utc> {
    let into = i64::from(after.second()) % EVERY;
    let whole = after.with_nanosecond(0).unwrap_or(after);
    whole + chrono::Duration::seconds(EVERY - into)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_outlasts_the_brokers_acknowledgement_timeout() -> Result<()> {
    let cluster = Cluster::new().await?;
    let rabbitmq = &cluster.servers().rabbitmq;
    // What a channel may hold unacked, and how often that is looked at: a minute at least in a configuration file.
    for setting in ["consumer_timeout, 3000", "channel_tick_interval, 1000"] {
        rabbitmq
            .ctl(&["eval", &format!("application:set_env(rabbit, {setting}).")])
            .await?;
    }
    let _dispatcher = cluster.start(Role::Dispatcher, "dispatcher").await?;
    let _worker = cluster.start(Role::LedgerWorker, "worker").await?;
    let api_process = cluster.start(Role::Api, "api").await?;
    let api = cluster.api(&api_process)?;
    let job = api.submit(&ledger(15_000)).await?;
    let (timed_out, done) = tokio::join!(who_does_not_ack_is_cut_off(&cluster), wait_for_end(&api, &job));
    timed_out?;
    let done = done?;
    assert_eq!(done["status"], "SUCCESS", "{done}");
    assert_eq!(done["lastExecution"]["attempt"], 1, "{done}");
    assert_eq!(cluster.ledger().len()?, 1);
    Ok(())
}

/// The shortened timeout really works: a consumer that holds a delivery loses it. (Of a quorum queue, since RabbitMQ 4.3 has
/// this limit for no other.)
async fn who_does_not_ack_is_cut_off(cluster: &Cluster) -> Result<()> {
    let broker = RabbitBroker::start(
        &cluster.servers().rabbitmq.config(),
        "a consumer that does not ack",
    )?;
    let queue = "held";
    let topology = Topology {
        queues: vec![Queue::new(queue.into(), QueueKind::Quorum)],
        ..Topology::default()
    };
    broker.declare(&topology).await?;
    let options = ConsumeOptions {
        prefetch: 1,
        exclusive: false,
    };
    let mut consumer = broker.consume(queue, options).await?;
    let publication = Publication {
        exchange: String::new(),
        routing_key: queue.into(),
        mandatory: true,
        message: Message::json("test", &true),
    };
    broker.publish(vec![publication]).await;
    consumer.next().await?;
    let ended = timeout(CUT_OFF_WITHIN, consumer.next()).await;
    ensure!(
        matches!(ended, Ok(Err(_))),
        "the timeout has no effect: {ended:?}"
    );
    broker.close().await;
    Ok(())
}
