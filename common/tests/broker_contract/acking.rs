//! What happens to a delivery after it was received.

use crate::under_test::{
    UnderTest, classic, consume, declare, eventually, next, nothing_but_a_marker, send_texts, take,
    take_many, text,
};
use anyhow::{Result, ensure};

pub(crate) async fn an_acked_message_is_gone(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let queue = classic("acked");
    declare(&*broker, &[&queue]).await?;
    send_texts(&*broker, &queue, &["1", "2", "3"]).await?;
    let mut consumer = consume(&*broker, &queue, 10).await?;
    let mut tags = Vec::new();
    for _ in 0..3 {
        tags.push(next(&mut *consumer).await?.tag);
    }
    // Out of order and together.
    consumer.acker().ack(&[tags[2], tags[0], tags[1]]).await;
    drop(consumer);
    let mut consumer = consume(&*broker, &queue, 10).await?;
    nothing_but_a_marker(&*broker, &queue, &mut *consumer).await
}

pub(crate) async fn a_dropped_consumer_gives_back_in_order_and_redelivered(
    under_test: &dyn UnderTest,
) -> Result<()> {
    let broker = under_test.connect().await?;
    let queue = classic("dropped");
    declare(&*broker, &[&queue]).await?;
    send_texts(&*broker, &queue, &["1", "2", "3", "4"]).await?;
    let mut consumer = consume(&*broker, &queue, 3).await?;
    let first = next(&mut *consumer).await?;
    let second = next(&mut *consumer).await?;
    ensure!(!first.redelivered && !second.redelivered);
    consumer.acker().ack(&[second.tag]).await;
    drop(consumer);
    eventually(&*broker, &queue, "all but the acked one are ready", |state| {
        state.is_some_and(|state| state.messages == 3)
    })
    .await?;
    let mut consumer = consume(&*broker, &queue, 1).await?;
    let again = next(&mut *consumer).await?;
    ensure!(again.redelivered && text(&again) == "1");
    consumer.acker().ack(&[again.tag]).await;
    ensure!(take_many(&mut *consumer, 2).await? == ["3", "4"]);
    Ok(())
}

pub(crate) async fn a_requeued_message_returns_to_its_place(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let queue = classic("requeued");
    declare(&*broker, &[&queue]).await?;
    send_texts(&*broker, &queue, &["1", "2", "3"]).await?;
    let mut consumer = consume(&*broker, &queue, 1).await?;
    let first = next(&mut *consumer).await?;
    consumer.acker().requeue(first.tag).await;
    let again = next(&mut *consumer).await?;
    ensure!(
        again.redelivered && text(&again) == "1",
        "{} came first",
        text(&again)
    );
    ensure!(again.tag != first.tag);
    consumer.acker().ack(&[again.tag]).await;
    ensure!(take_many(&mut *consumer, 2).await? == ["2", "3"]);
    Ok(())
}

pub(crate) async fn acks_after_the_end_change_nothing(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let queue = classic("late");
    declare(&*broker, &[&queue]).await?;
    send_texts(&*broker, &queue, &["held"]).await?;
    let mut consumer = consume(&*broker, &queue, 1).await?;
    let held = next(&mut *consumer).await?;
    let acker = consumer.acker();
    drop(consumer);
    acker.ack(&[held.tag]).await;
    acker.requeue(held.tag).await;
    acker.dead_letter(held.tag).await;
    let mut consumer = consume(&*broker, &queue, 1).await?;
    ensure!(take(&mut *consumer).await? == "held");
    nothing_but_a_marker(&*broker, &queue, &mut *consumer).await
}

pub(crate) async fn acking_twice_changes_nothing(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let queue = classic("twice");
    declare(&*broker, &[&queue]).await?;
    send_texts(&*broker, &queue, &["1", "2"]).await?;
    let mut consumer = consume(&*broker, &queue, 1).await?;
    let first = next(&mut *consumer).await?;
    consumer.acker().ack(&[first.tag]).await;
    consumer.acker().ack(&[first.tag, first.tag]).await;
    consumer.acker().requeue(first.tag).await;
    ensure!(take(&mut *consumer).await? == "2");
    nothing_but_a_marker(&*broker, &queue, &mut *consumer).await
}
