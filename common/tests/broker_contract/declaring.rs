//! Exchanges and queues: made, looked at, gone.

use crate::under_test::{
    DEADLINE, UnderTest, classic, consume, declare, declare_bound, eventually, exchange,
    nothing_but_a_marker, send_texts, take, unique,
};
use anyhow::{Context, Result, ensure};
use isocost_common::broker::{BrokerError, ExchangeKind, Queue, QueueKind, Topology};
use std::time::{Duration, Instant};

pub(crate) async fn declaring_twice_changes_nothing(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let queue = Queue {
        max_priority: Some(9),
        message_ttl: Some(Duration::from_secs(60)),
        max_length: Some(100),
        ..classic("twice")
    };
    declare(&*broker, &[&queue]).await?;
    send_texts(&*broker, &queue, &["kept"]).await?;
    declare(&*broker, &[&queue]).await?;
    declare(&*under_test.connect().await?, &[&queue]).await?;
    ensure!(take(&mut *consume(&*broker, &queue, 1).await?).await? == "kept");
    Ok(())
}

pub(crate) async fn other_arguments_conflict(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let queue = classic("arguments");
    declare(&*broker, &[&queue]).await?;
    let variants = [
        Queue {
            message_ttl: Some(Duration::from_secs(1)),
            ..queue.clone()
        },
        Queue {
            max_length: Some(1),
            ..queue.clone()
        },
        Queue {
            max_priority: Some(2),
            ..queue.clone()
        },
        Queue {
            dead_letter: Some((String::new(), unique("dead"))),
            ..queue.clone()
        },
    ];
    for variant in variants {
        let topology = Topology {
            queues: vec![variant],
            ..Topology::default()
        };
        let refused = broker.declare(&topology).await;
        ensure!(
            matches!(&refused, Err(BrokerError::Conflict { name, .. }) if *name == queue.name),
            "{refused:?}"
        );
    }
    // The connection survives the refusals.
    send_texts(&*broker, &queue, &["still here"]).await
}

pub(crate) async fn another_exchange_kind_conflicts(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let mut made = exchange(ExchangeKind::Direct);
    declare_bound(&*broker, &[&made], &[], &[]).await?;
    made.kind = ExchangeKind::Fanout;
    let refused = declare_bound(&*broker, &[&made], &[], &[]).await;
    let error = refused.err().context("the other kind was accepted")?;
    ensure!(
        matches!(error.downcast_ref(), Some(BrokerError::Conflict { .. })),
        "{error:?}"
    );
    Ok(())
}

pub(crate) async fn an_exclusive_queue_is_closed_to_other_connections(
    under_test: &dyn UnderTest,
) -> Result<()> {
    let owner = under_test.connect().await?;
    let stranger = under_test.connect().await?;
    let queue = Queue::new(unique("exclusive"), QueueKind::Exclusive);
    declare(&*owner, &[&queue]).await?;
    for refused in [
        declare(&*stranger, &[&queue]).await.err(),
        consume(&*stranger, &queue, 1).await.err(),
    ] {
        let error = refused.context("a stranger was let in")?;
        ensure!(
            matches!(error.downcast_ref(), Some(BrokerError::Conflict { .. })),
            "{error:?}"
        );
    }
    // Publishing to it is open to all.
    send_texts(&*stranger, &queue, &["hello"]).await?;
    ensure!(take(&mut *consume(&*owner, &queue, 1).await?).await? == "hello");
    Ok(())
}

pub(crate) async fn an_exclusive_queue_goes_with_its_connection(under_test: &dyn UnderTest) -> Result<()> {
    let owner = under_test.connect().await?;
    let stranger = under_test.connect().await?;
    let queue = Queue::new(unique("exclusive"), QueueKind::Exclusive);
    declare(&*owner, &[&queue]).await?;
    owner.close().await;
    eventually(&*stranger, &queue, "the queue is gone", |state| state.is_none()).await
}

pub(crate) async fn deleting_a_queue_twice_is_no_error(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let queue = classic("deleted");
    declare(&*broker, &[&queue]).await?;
    send_texts(&*broker, &queue, &["lost with it"]).await?;
    broker.delete_queue(&queue.name).await?;
    broker.delete_queue(&queue.name).await?;
    ensure!(broker.inspect(&queue.name).await?.is_none());
    declare(&*broker, &[&queue]).await?;
    let mut consumer = consume(&*broker, &queue, 1).await?;
    nothing_but_a_marker(&*broker, &queue, &mut *consumer).await
}

pub(crate) async fn a_queue_deleted_under_a_consumer_ends_it(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let queue = classic("deleted");
    declare(&*broker, &[&queue]).await?;
    let mut consumer = consume(&*broker, &queue, 1).await?;
    under_test.connect().await?.delete_queue(&queue.name).await?;
    let ended = tokio::time::timeout(DEADLINE, consumer.next()).await?;
    ensure!(ended.is_err_and(|ended| ended.queue == queue.name));
    Ok(())
}

pub(crate) async fn an_unused_queue_expires(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let queue = Queue {
        expires: Some(Duration::from_millis(300)),
        ..classic("unused")
    };
    let declared_at = Instant::now();
    declare(&*broker, &[&queue]).await?;
    // A look through `inspect` counts as use with some brokers, so ask the router: a mandatory message comes back.
    let deadline = declared_at + DEADLINE;
    while send_texts(&*broker, &queue, &["into it"]).await.is_ok() {
        ensure!(Instant::now() < deadline, "the queue never expired");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let lived = declared_at.elapsed();
    ensure!(lived >= Duration::from_millis(300), "it was gone after {lived:?}");
    Ok(())
}

pub(crate) async fn a_consumed_queue_does_not_expire(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let short = Queue {
        expires: Some(Duration::from_millis(200)),
        ..classic("consumed")
    };
    let witness = Queue {
        expires: Some(Duration::from_millis(600)),
        ..classic("witness")
    };
    declare(&*broker, &[&short, &witness]).await?;
    let mut consumer = consume(&*broker, &short, 1).await?;
    // Three times its expiry has passed once the witness is gone.
    let deadline = Instant::now() + DEADLINE;
    while send_texts(&*broker, &witness, &["into it"]).await.is_ok() {
        ensure!(Instant::now() < deadline, "the witness never expired");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    nothing_but_a_marker(&*broker, &short, &mut *consumer).await
}

pub(crate) async fn a_missing_queue_is_inspected_as_none(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    ensure!(broker.inspect(&unique("nowhere")).await?.is_none());
    let queue = classic("inspected");
    declare(&*broker, &[&queue]).await?;
    send_texts(&*broker, &queue, &["a", "b", "c"]).await?;
    eventually(&*broker, &queue, "three ready messages", |state| {
        state.is_some_and(|state| state.messages == 3 && state.consumers == 0)
    })
    .await?;
    let _consumer = consume(&*broker, &queue, 1).await?;
    eventually(&*broker, &queue, "one handed out", |state| {
        state.is_some_and(|state| state.messages == 2 && state.consumers == 1)
    })
    .await
}
