//! What only a real broker does: it is killed, blocks publishers, times out, and takes a while to notice.

use crate::under_test::{
    DEADLINE, RabbitUnderTest, classic, confirmed, consume, declare, declare_bound, exchange, message, next,
    publication, rabbit, send, send_texts, shared_rabbit, shared_url, take, take_many, text, unique,
};
use anyhow::{Context, Result, ensure};
use isocost_common::{
    broker::{Broker, BrokerHealth, ConsumerEnded, ExchangeKind, Message, PublishOutcome, Queue, QueueKind},
    test_support::{eventually, proxy::Traffic, rabbitmq_server::RabbitMqServer},
};
use std::time::{Duration, Instant};

/// The broker's answer, or the deadline of a publication, with some air.
const ANSWER: Duration = Duration::from_secs(15);
/// When a dead connection must have been noticed at the latest, with some air.
const NOTICED: Duration = Duration::from_secs(25);
/// Everything is declared again within half a minute, with some air.
const BOUND_AGAIN: Duration = Duration::from_secs(45);
/// RabbitMQ looks for held deliveries now and then only.
const ACKNOWLEDGEMENT_NOTICED: Duration = Duration::from_secs(90);

async fn is(
    broker: &dyn Broker,
    what: &str,
    within: Duration,
    wanted: fn(&BrokerHealth) -> bool,
) -> Result<()> {
    let mut health = broker.health();
    let became = tokio::time::timeout(within, health.wait_for(wanted)).await;
    became.with_context(|| format!("not {what} within {within:?}: {:?}", broker.health().borrow()))??;
    Ok(())
}

fn quorum(name: &str) -> Queue {
    Queue {
        delivery_limit: Some(1_000_000),
        ..Queue::new(unique(name), QueueKind::Quorum)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_survives_the_death_of_the_broker() -> Result<()> {
    const COUNT: usize = 300;
    let mut server = RabbitMqServer::start().await?;
    let broker = rabbit(&server.url())?;
    let queues = [classic_for_good("classic"), quorum("quorum")];
    declare(&*broker, &queues.each_ref()).await?;
    // RabbitMQ 3.10 forgets a quorum queue when it is killed soon after the declaration: its table of queues is not on
    // disk yet. An orderly stop writes it.
    server.stop().await?;
    server.run().await?;
    is(&*broker, "ready", DEADLINE, |health| {
        *health == BrokerHealth::Ready
    })
    .await?;
    for queue in &queues {
        send(
            &*broker,
            queue,
            (0..COUNT).map(|number| message(&number.to_string())).collect(),
        )
        .await?;
    }
    let mut consumer = consume(&*broker, &queues[0], 10).await?;
    next(&mut *consumer).await?;

    server.kill().await?;
    is(&*broker, "down", DEADLINE, |health| {
        matches!(health, BrokerHealth::Down(_))
    })
    .await?;
    // What had come before may come first.
    let ended = async { while consumer.next().await.is_ok() {} };
    tokio::time::timeout(DEADLINE, ended).await?;
    let outcomes = broker
        .publish(vec![publication("", &queues[0].name, message("lost"))])
        .await;
    ensure!(outcomes == [PublishOutcome::Unknown], "{outcomes:?}");
    ensure!(broker.inspect(&queues[0].name).await.is_err());

    server.run().await?;
    is(&*broker, "ready", DEADLINE, |health| {
        *health == BrokerHealth::Ready
    })
    .await?;
    for queue in &queues {
        let mut consumer = consume(&*broker, queue, 100).await?;
        let texts = take_many(&mut *consumer, COUNT).await?;
        ensure!(texts == (0..COUNT).map(|number| number.to_string()).collect::<Vec<_>>());
        send_texts(&*broker, queue, &["after"]).await?;
        ensure!(take(&mut *consumer).await? == "after");
    }
    broker.close().await;
    server.stop().await
}

/// Outlives a restart of the broker, however long it takes.
fn classic_for_good(name: &str) -> Queue {
    Queue {
        expires: None,
        ..classic(name)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_holed_connection_is_noticed_and_replaced() -> Result<()> {
    let under_test = RabbitUnderTest::start().await?;
    let broker = under_test.broker()?;
    let own = Queue::new(unique("listener"), QueueKind::Exclusive);
    declare(&*broker, &[&own]).await?;
    let mut consumer = consume(&*broker, &own, 10).await?;
    send_texts(&*broker, &own, &["before"]).await?;
    ensure!(take(&mut *consumer).await? == "before");

    under_test.proxy().set(Traffic::BlackHole).await?;
    let from = Instant::now();
    let lost = broker
        .publish(vec![publication("", &own.name, message("lost"))])
        .await;
    ensure!(
        lost == [PublishOutcome::Unknown] && from.elapsed() < ANSWER,
        "{lost:?}"
    );
    let ended = tokio::time::timeout(NOTICED, consumer.next()).await;
    ensure!(ended.context("the silence was never noticed")?.is_err());
    is(&*broker, "down", NOTICED, |health| {
        matches!(health, BrokerHealth::Down(_))
    })
    .await?;

    under_test.proxy().set(Traffic::Pass).await?;
    is(&*broker, "ready", NOTICED, |health| {
        *health == BrokerHealth::Ready
    })
    .await?;
    // RabbitMQ may still believe that the dead connection holds the queue.
    let mut consumer = eventually("the exclusive queue is ours again", NOTICED, async || {
        Ok(consume(&*broker, &own, 10).await.ok())
    })
    .await?;
    send_texts(&*broker, &own, &["after"]).await?;
    ensure!(take(&mut *consumer).await? == "after");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alarm_blocks_publishing_and_nothing_else() -> Result<()> {
    let server = RabbitMqServer::start().await?;
    let broker = rabbit(&server.url())?;
    let queue = classic("blocked");
    declare(&*broker, &[&queue]).await?;
    let texts: Vec<_> = (0..100).map(|number| message(&number.to_string())).collect();
    send(&*broker, &queue, texts).await?;
    let mut consumer = consume(&*broker, &queue, 10).await?;

    server.memory_alarm(true).await?;
    let publishing = {
        let (broker, name) = (broker.clone(), queue.name.clone());
        tokio::spawn(async move {
            broker
                .publish(vec![publication("", &name, message("late"))])
                .await
        })
    };
    is(&*broker, "blocked", DEADLINE, |health| {
        matches!(health, BrokerHealth::Blocked(_))
    })
    .await?;
    take_many(&mut *consumer, 100).await?;
    ensure!(broker.inspect(&queue.name).await?.is_some());
    let outcomes = tokio::time::timeout(ANSWER, publishing).await??;
    ensure!(outcomes == [PublishOutcome::Unknown], "{outcomes:?}");
    // One that is never sent waits as long and no longer.
    let unsent = broker.publish(vec![publication("", &queue.name, message("unsent"))]);
    let outcomes = tokio::time::timeout(ANSWER, unsent).await?;
    ensure!(outcomes == [PublishOutcome::Unknown], "{outcomes:?}");

    server.memory_alarm(false).await?;
    is(&*broker, "ready", DEADLINE, |health| {
        *health == BrokerHealth::Ready
    })
    .await?;
    send_texts(&*broker, &queue, &["after"]).await?;
    // What was on its way when the alarm came arrives now; that is what unknown means.
    let mut received = take(&mut *consumer).await?;
    if received == "late" {
        received = take(&mut *consumer).await?;
    }
    ensure!(received == "after", "{received}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_unroutable_one_of_a_thousand_in_flight_is_found() -> Result<()> {
    const COUNT: usize = 1_000;
    let broker = shared_rabbit()?;
    let (queue, nowhere) = (classic("thousand"), unique("nowhere"));
    declare(&*broker, &[&queue]).await?;
    let mut calls = tokio::task::JoinSet::new();
    for call in 0..8_usize {
        let (broker, queue, nowhere) = (broker.clone(), queue.name.clone(), nowhere.clone());
        calls.spawn(async move {
            // All with the same id: only the address tells the unroutable one.
            let same = message("same");
            let odd = 100 * call + 7;
            let publications = (0..COUNT).map(|number| {
                let key = if number == odd { &nowhere } else { &queue };
                publication("", key, same.clone())
            });
            let outcomes = broker.publish(publications.collect()).await;
            let returned = outcomes
                .iter()
                .enumerate()
                .filter(|(_, outcome)| **outcome != PublishOutcome::Confirmed);
            (
                odd,
                returned
                    .map(|(number, outcome)| (number, *outcome))
                    .collect::<Vec<_>>(),
            )
        });
    }
    while let Some(call) = calls.join_next().await {
        let (odd, others) = call?;
        ensure!(
            others == [(odd, PublishOutcome::Returned)],
            "{others:?} instead of {odd}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_message_twice_in_flight_is_returned_once() -> Result<()> {
    let broker = shared_rabbit()?;
    let direct = exchange(ExchangeKind::Direct);
    let queue = classic("once");
    declare_bound(&*broker, &[&direct], &[&queue], &[(&direct, &queue, "bound")]).await?;
    let twice = message("twice");
    for _ in 0..200 {
        let publications = ["bound", "loose"].map(|key| publication(&direct.name, key, twice.clone()));
        let outcomes = broker.publish(publications.to_vec()).await;
        ensure!(
            outcomes == [PublishOutcome::Confirmed, PublishOutcome::Returned],
            "{outcomes:?}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_exchange_and_an_overlong_id_are_nacked_and_publishing_goes_on() -> Result<()> {
    let broker = shared_rabbit()?;
    let queue = classic("good");
    declare(&*broker, &[&queue]).await?;
    let lost = publication(&unique("no exchange"), "key", message("lost"));
    let outcomes = broker.publish(vec![lost]).await;
    ensure!(outcomes == [PublishOutcome::Nacked], "{outcomes:?}");
    let overlong = Message {
        message_id: "x".repeat(256),
        ..message("lost")
    };
    let outcomes = broker
        .publish(vec![
            publication("", &queue.name, overlong),
            publication("", &queue.name, message("good")),
        ])
        .await;
    ensure!(
        outcomes == [PublishOutcome::Nacked, PublishOutcome::Confirmed],
        "{outcomes:?}"
    );
    let mut consumer = consume(&*broker, &queue, 1).await?;
    ensure!(take(&mut *consumer).await? == "good");
    Ok(())
}

/// What an operator can do behind our back.
async fn operator() -> Result<lapin::Channel> {
    let connection = lapin::Connection::connect(&shared_url()?, Default::default()).await?;
    Ok(connection.create_channel().await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_that_is_deleted_is_declared_and_bound_again() -> Result<()> {
    let broker = shared_rabbit()?;
    let (exchange, queue) = (exchange(ExchangeKind::Direct), classic("bound"));
    declare_bound(&*broker, &[&exchange], &[&queue], &[(&exchange, &queue, "key")]).await?;
    let operator = operator().await?;
    operator
        .exchange_delete(exchange.name.as_str().into(), Default::default())
        .await?;
    let mut consumer = consume(&*broker, &queue, 1).await?;
    let send = || broker.publish(vec![publication(&exchange.name, "key", message("one"))]);
    ensure!(send().await == [PublishOutcome::Nacked]);
    eventually("the exchange is there again", DEADLINE, async || {
        Ok((send().await == [PublishOutcome::Confirmed]).then_some(()))
    })
    .await?;
    ensure!(take(&mut *consumer).await? == "one");
    Ok(())
}

/// Nothing tells of a lost binding, and a listener of a fanout exchange only hears nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_binding_that_is_deleted_comes_back() -> Result<()> {
    let broker = shared_rabbit()?;
    let (exchange, queue) = (exchange(ExchangeKind::Fanout), classic("unbound"));
    declare_bound(&*broker, &[&exchange], &[&queue], &[(&exchange, &queue, "")]).await?;
    let operator = operator().await?;
    operator
        .queue_unbind(
            queue.name.as_str().into(),
            exchange.name.as_str().into(),
            "".into(),
            Default::default(),
        )
        .await?;
    let send = || broker.publish(vec![publication(&exchange.name, "", message("one"))]);
    ensure!(send().await == [PublishOutcome::Returned]);
    eventually("the binding is there again", BOUND_AGAIN, async || {
        Ok((send().await == [PublishOutcome::Confirmed]).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tag_of_a_lost_connection_settles_nothing_on_the_next() -> Result<()> {
    let under_test = RabbitUnderTest::start().await?;
    let broker = under_test.broker()?;
    let queue = classic("stale");
    declare(&*broker, &[&queue]).await?;
    send_texts(&*broker, &queue, &["held"]).await?;
    let mut old = consume(&*broker, &queue, 1).await?;
    let first = next(&mut *old).await?;
    under_test.proxy().reset_all();
    let mut new = eventually("consuming again", DEADLINE, async || {
        Ok(consume(&*broker, &queue, 1).await.ok())
    })
    .await?;
    let again = next(&mut *new).await?;
    ensure!(again.tag == first.tag, "the tags differ: the test shows nothing");
    // Whether or not the old one has seen its end.
    old.acker().ack(&[first.tag]).await;
    ensure!(old.next().await.is_err());
    old.acker().dead_letter(first.tag).await;
    drop(new);
    let mut third = consume(&*broker, &queue, 1).await?;
    let back = next(&mut *third).await?;
    ensure!(back.redelivered && text(&back) == "held");
    Ok(())
}

/// RabbitMQ up to 4.2 closes the channel; from 4.3 on quorum queues alone have such a limit, and cancel the consumer. See
/// `consumer_timeouts.md` of rabbitmq-server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledgement_that_takes_too_long_ends_the_consumer_alone() -> Result<()> {
    let server = RabbitMqServer::start().await?;
    for (key, millis) in [("consumer_timeout", 1_000), ("channel_tick_interval", 200)] {
        let set = format!("application:set_env(rabbit, {key}, {millis}).");
        server.ctl(&["eval", &set]).await?;
    }
    let broker = rabbit(&server.url())?;
    let (slow, quick) = (quorum("slow"), classic("quick"));
    declare(&*broker, &[&slow, &quick]).await?;
    send_texts(&*broker, &slow, &["never acked"]).await?;
    let mut consumer = consume(&*broker, &slow, 1).await?;
    let mut other = consume(&*broker, &quick, 1).await?;
    let held = next(&mut *consumer).await?;
    let ended = tokio::time::timeout(ACKNOWLEDGEMENT_NOTICED, consumer.next())
        .await
        .context("it never timed out")?;
    let said = |ended: &ConsumerEnded| {
        ["timed out", "cancelled"]
            .iter()
            .any(|word| ended.reason.contains(word))
    };
    ensure!(ended.as_ref().is_err_and(said), "{ended:?}");
    consumer.acker().ack(&[held.tag]).await;
    let again = next(&mut *consume(&*broker, &slow, 1).await?).await?;
    ensure!(again.redelivered && text(&again) == "never acked");
    send_texts(&*broker, &quick, &["unharmed"]).await?;
    ensure!(take(&mut *other).await? == "unharmed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_starts_before_the_broker_does() -> Result<()> {
    let under_test = RabbitUnderTest::start().await?;
    under_test.proxy().set(Traffic::Refuse).await?;
    let broker = under_test.broker()?;
    let queue = classic("early");
    let from = Instant::now();
    ensure!(declare(&*broker, &[&queue]).await.is_err());
    ensure!(from.elapsed() < DEADLINE);
    under_test.proxy().set(Traffic::Pass).await?;
    is(&*broker, "ready", DEADLINE, |health| {
        *health == BrokerHealth::Ready
    })
    .await?;
    declare(&*broker, &[&queue]).await?;
    confirmed(&*broker, vec![publication("", &queue.name, message("on time"))]).await
}
