//! Who receives what, and how consumers end.

use crate::under_test::{
    DEADLINE, UnderTest, classic, consume, declare, declare_bound, eventually, exchange, message, next,
    nothing_but_a_marker, publication, send, send_texts, take, take_many, text, unique,
};
use anyhow::{Context, Result, ensure};
use isocost_common::broker::{
    BrokerError, ConsumeOptions, ExchangeKind, Message, PublishOutcome, Queue, QueueKind,
};
use std::time::{Duration, Instant};

pub(crate) async fn a_missing_queue_cannot_be_consumed(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let queue = classic("nowhere");
    let error = consume(&*broker, &queue, 1)
        .await
        .err()
        .context("it was consumed")?;
    ensure!(
        error.downcast_ref() == Some(&BrokerError::NoSuchQueue(queue.name.clone())),
        "{error:?}"
    );
    Ok(())
}

pub(crate) async fn prefetch_bounds_what_is_unacked(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let queue = classic("prefetch");
    declare(&*broker, &[&queue]).await?;
    send_texts(&*broker, &queue, &["1", "2", "3", "4", "5"]).await?;
    let mut consumer = consume(&*broker, &queue, 2).await?;
    let first = next(&mut *consumer).await?;
    let second = next(&mut *consumer).await?;
    ensure!((text(&first).as_str(), text(&second).as_str()) == ("1", "2"));
    eventually(&*broker, &queue, "three stay ready", |state| {
        state.is_some_and(|state| state.messages == 3)
    })
    .await?;
    ensure!(
        tokio::time::timeout(Duration::from_millis(100), consumer.next())
            .await
            .is_err()
    );
    // One ack makes room for exactly one.
    consumer.acker().ack(&[second.tag]).await;
    ensure!(text(&next(&mut *consumer).await?) == "3");
    ensure!(
        tokio::time::timeout(Duration::from_millis(100), consumer.next())
            .await
            .is_err()
    );
    Ok(())
}

pub(crate) async fn consumers_take_turns(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let queue = classic("turns");
    declare(&*broker, &[&queue]).await?;
    let mut one = consume(&*broker, &queue, 50).await?;
    let mut other = consume(&*broker, &queue, 50).await?;
    let texts: Vec<_> = (0..100).map(|number| message(&number.to_string())).collect();
    send(&*broker, &queue, texts).await?;
    // Each has room for half and only by turns do both get it.
    take_many(&mut *one, 50).await?;
    take_many(&mut *other, 50).await?;
    Ok(())
}

pub(crate) async fn a_full_consumer_is_passed_over(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let queue = classic("full");
    declare(&*broker, &[&queue]).await?;
    let mut slow = consume(&*broker, &queue, 1).await?;
    send_texts(&*broker, &queue, &["held"]).await?;
    let held = next(&mut *slow).await?;
    let mut quick = consume(&*broker, &queue, 1).await?;
    send_texts(&*broker, &queue, &["1", "2", "3"]).await?;
    ensure!(take_many(&mut *quick, 3).await? == ["1", "2", "3"]);
    slow.acker().ack(&[held.tag]).await;
    Ok(())
}

pub(crate) async fn an_exclusive_consumer_shuts_others_out(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let queue = classic("alone");
    declare(&*broker, &[&queue]).await?;
    let exclusive = ConsumeOptions {
        prefetch: 1,
        exclusive: true,
    };
    let shared = ConsumeOptions {
        exclusive: false,
        ..exclusive
    };
    let alone = broker.consume(&queue.name, exclusive).await?;
    for options in [shared, exclusive] {
        let refused = broker.consume(&queue.name, options).await.err();
        ensure!(
            matches!(&refused, Some(BrokerError::Conflict { .. })),
            "{refused:?}"
        );
    }
    drop(alone);
    let deadline = Instant::now() + DEADLINE;
    let second = loop {
        match broker.consume(&queue.name, shared).await {
            Ok(consumer) => break consumer,
            Err(error) => ensure!(Instant::now() < deadline, "still refused after its end: {error}"),
        }
    };
    let refused = broker.consume(&queue.name, exclusive).await.err();
    ensure!(
        matches!(&refused, Some(BrokerError::Conflict { .. })),
        "{refused:?}"
    );
    drop(second);
    Ok(())
}

pub(crate) async fn an_abandoned_wait_loses_nothing(under_test: &dyn UnderTest) -> Result<()> {
    const COUNT: usize = 300;
    let broker = under_test.connect().await?;
    let queue = classic("abandoned");
    declare(&*broker, &[&queue]).await?;
    let mut consumer = consume(&*broker, &queue, 7).await?;
    let expected: Vec<_> = (0..COUNT).map(|number| number.to_string()).collect();
    let sender = {
        let (broker, queue, expected) = (broker.clone(), queue.clone(), expected.clone());
        tokio::spawn(async move {
            for text in &expected {
                send_texts(&*broker, &queue, &[text]).await?;
            }
            anyhow::Ok(())
        })
    };
    let mut received = Vec::new();
    let deadline = Instant::now() + DEADLINE;
    while received.len() < COUNT {
        // Given up at once, again and again, at whatever point it stands.
        if let Ok(delivery) = tokio::time::timeout(Duration::ZERO, consumer.next()).await {
            let delivery = delivery?;
            consumer.acker().ack(&[delivery.tag]).await;
            received.push(text(&delivery));
        }
        ensure!(
            Instant::now() < deadline,
            "only {} of {COUNT} came",
            received.len()
        );
        tokio::task::yield_now().await;
    }
    sender.await??;
    ensure!(received == expected);
    Ok(())
}

pub(crate) async fn higher_priority_is_delivered_first(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let queue = Queue {
        max_priority: Some(9),
        ..classic("priority")
    };
    declare(&*broker, &[&queue]).await?;
    let with_priority = |priority: u8, text: &str| Message {
        priority,
        ..message(text)
    };
    let messages = vec![
        with_priority(0, "low, first"),
        with_priority(5, "middle"),
        with_priority(0, "low, second"),
        with_priority(9, "high"),
    ];
    send(&*broker, &queue, messages).await?;
    let received = take_many(&mut *consume(&*broker, &queue, 1).await?, 4).await?;
    ensure!(
        received == ["high", "middle", "low, first", "low, second"],
        "{received:?}"
    );
    Ok(())
}

pub(crate) async fn a_closed_connection_ends_its_consumers(under_test: &dyn UnderTest) -> Result<()> {
    let closing = under_test.connect().await?;
    let staying = under_test.connect().await?;
    let queue = classic("closing");
    declare(&*closing, &[&queue]).await?;
    send_texts(&*closing, &queue, &["unacked"]).await?;
    let mut consumer = consume(&*closing, &queue, 1).await?;
    next(&mut *consumer).await?;
    closing.close().await;
    let ended = tokio::time::timeout(DEADLINE, consumer.next()).await?;
    ensure!(ended.is_err_and(|ended| ended.queue == queue.name));
    let again = next(&mut *consume(&*staying, &queue, 1).await?).await?;
    ensure!(again.redelivered && text(&again) == "unacked");
    let outcomes = closing
        .publish(vec![publication("", &queue.name, message("late"))])
        .await;
    ensure!(outcomes == [PublishOutcome::Unknown], "{outcomes:?}");
    Ok(())
}

pub(crate) async fn a_lost_connection_ends_consumers_and_restores_topology(
    under_test: &dyn UnderTest,
) -> Result<()> {
    let broker = under_test.connect().await?;
    let fanout = exchange(ExchangeKind::Fanout);
    let durable = classic("durable");
    let listener = Queue::new(unique("listener"), QueueKind::Exclusive);
    let bindings = [(&fanout, &durable, ""), (&fanout, &listener, "")];
    declare_bound(&*broker, &[&fanout], &[&durable, &listener], &bindings).await?;
    let news = |text: &str| publication(&fanout.name, "", message(text));
    ensure!(broker.publish(vec![news("before")]).await == [PublishOutcome::Confirmed]);
    let mut consumer = consume(&*broker, &durable, 10).await?;
    next(&mut *consumer).await?;

    under_test.lose_connections().await?;
    ensure!(tokio::time::timeout(DEADLINE, consumer.next()).await?.is_err());

    // It comes back by itself, with the exclusive queue, which is empty, and its binding.
    let deadline = Instant::now() + DEADLINE;
    let (mut durable_consumer, mut listener_consumer) = loop {
        match (
            consume(&*broker, &durable, 10).await,
            consume(&*broker, &listener, 10).await,
        ) {
            (Ok(durable), Ok(listener)) => break (durable, listener),
            (durable, listener) => ensure!(
                Instant::now() < deadline,
                "still not back: {:?} {:?}",
                durable.err(),
                listener.err()
            ),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let again = next(&mut *durable_consumer).await?;
    ensure!(again.redelivered && text(&again) == "before");
    durable_consumer.acker().ack(&[again.tag]).await;
    ensure!(broker.publish(vec![news("after")]).await == [PublishOutcome::Confirmed]);
    ensure!(take(&mut *listener_consumer).await? == "after");
    ensure!(take(&mut *durable_consumer).await? == "after");
    nothing_but_a_marker(&*broker, &listener, &mut *listener_consumer).await
}
