//! Messages that leave their queue undelivered: rejected, expired, too many, too often.

use crate::under_test::{
    UnderTest, classic, consume, declare, eventually, message, next, nothing_but_a_marker, send, send_texts,
    take, take_many, text, unique,
};
use anyhow::{Result, ensure};
use isocost_common::broker::{Message, Queue, QueueKind};
use std::time::{Duration, Instant};

/// A queue whose dead letters go to `dead`.
fn dying_into(dead: &Queue) -> Queue {
    Queue {
        dead_letter: Some((String::new(), dead.name.clone())),
        ..classic("dying")
    }
}

pub(crate) async fn a_rejected_message_is_dead_lettered(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let dead = classic("dead");
    let queue = dying_into(&dead);
    declare(&*broker, &[&dead, &queue]).await?;
    send_texts(&*broker, &queue, &["bad", "good"]).await?;
    let mut consumer = consume(&*broker, &queue, 1).await?;
    let bad = next(&mut *consumer).await?;
    consumer.acker().dead_letter(bad.tag).await;
    ensure!(take(&mut *consumer).await? == "good");
    let letter = next(&mut *consume(&*broker, &dead, 1).await?).await?;
    ensure!(text(&letter) == "bad" && letter.message.message_id == bad.message.message_id);
    ensure!(letter.routing_key == dead.name);
    let headers = &letter.message.headers;
    ensure!(
        headers.get("x-first-death-queue") == Some(&queue.name),
        "{headers:?}"
    );
    ensure!(
        headers.get("x-first-death-reason").map(String::as_str) == Some("rejected"),
        "{headers:?}"
    );
    Ok(())
}

pub(crate) async fn a_rejected_message_without_a_dead_letter_exchange_is_dropped(
    under_test: &dyn UnderTest,
) -> Result<()> {
    let broker = under_test.connect().await?;
    let queue = classic("dropping");
    declare(&*broker, &[&queue]).await?;
    send_texts(&*broker, &queue, &["bad"]).await?;
    let mut consumer = consume(&*broker, &queue, 1).await?;
    let bad = next(&mut *consumer).await?;
    consumer.acker().dead_letter(bad.tag).await;
    nothing_but_a_marker(&*broker, &queue, &mut *consumer).await
}

pub(crate) async fn a_delay_queue_delivers_after_its_ttl(under_test: &dyn UnderTest) -> Result<()> {
    const DELAY: Duration = Duration::from_millis(300);
    let broker = under_test.connect().await?;
    let lane = classic("lane");
    let delay = Queue {
        message_ttl: Some(DELAY),
        ..dying_into(&lane)
    };
    declare(&*broker, &[&lane, &delay]).await?;
    let mut consumer = consume(&*broker, &lane, 10).await?;
    let sent_at = Instant::now();
    send_texts(&*broker, &delay, &["1", "2", "3"]).await?;
    ensure!(take_many(&mut *consumer, 3).await? == ["1", "2", "3"]);
    let waited = sent_at.elapsed();
    ensure!(
        (DELAY..Duration::from_secs(2)).contains(&waited),
        "delivered after {waited:?}"
    );
    Ok(())
}

pub(crate) async fn expiration_of_a_message_counts_when_shorter(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let dead = classic("dead");
    let queue = Queue {
        message_ttl: Some(Duration::from_secs(60)),
        ..dying_into(&dead)
    };
    declare(&*broker, &[&dead, &queue]).await?;
    let brief = Message {
        expiration_ms: Some(100),
        ..message("brief")
    };
    send(&*broker, &queue, vec![brief, message("long")]).await?;
    let letter = next(&mut *consume(&*broker, &dead, 1).await?).await?;
    ensure!(text(&letter) == "brief");
    // Or it would expire again wherever it goes.
    ensure!(letter.message.expiration_ms.is_none());
    ensure!(take(&mut *consume(&*broker, &queue, 1).await?).await? == "long");
    Ok(())
}

pub(crate) async fn an_expired_message_is_never_delivered(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let queue = Queue {
        message_ttl: Some(Duration::from_millis(100)),
        ..classic("expiring")
    };
    declare(&*broker, &[&queue]).await?;
    send_texts(&*broker, &queue, &["over"]).await?;
    eventually(&*broker, &queue, "it expired", |state| {
        state.is_some_and(|state| state.messages == 0)
    })
    .await?;
    let mut consumer = consume(&*broker, &queue, 1).await?;
    nothing_but_a_marker(&*broker, &queue, &mut *consumer).await
}

pub(crate) async fn the_oldest_goes_beyond_the_length_limit(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let queue = Queue {
        max_length: Some(3),
        ..classic("capped")
    };
    declare(&*broker, &[&queue]).await?;
    send_texts(&*broker, &queue, &["1", "2", "3", "4", "5"]).await?;
    let mut consumer = consume(&*broker, &queue, 10).await?;
    ensure!(take_many(&mut *consumer, 3).await? == ["3", "4", "5"]);
    nothing_but_a_marker(&*broker, &queue, &mut *consumer).await
}

pub(crate) async fn a_poison_message_ends_at_the_delivery_limit(under_test: &dyn UnderTest) -> Result<()> {
    const LIMIT: u32 = 3;
    let broker = under_test.connect().await?;
    let dead = classic("dead");
    let queue = Queue {
        delivery_limit: Some(LIMIT),
        dead_letter: Some((String::new(), dead.name.clone())),
        ..Queue::new(unique("poison"), QueueKind::Quorum)
    };
    declare(&*broker, &[&dead, &queue]).await?;
    send_texts(&*broker, &queue, &["poison"]).await?;
    let mut letters = consume(&*broker, &dead, 1).await?;
    let mut deliveries = 0;
    // Its consumer dies of it every time.
    let letter = loop {
        let mut consumer = consume(&*broker, &queue, 1).await?;
        tokio::select! {
            delivery = next(&mut *consumer) => {
                delivery?;
                deliveries += 1;
            }
            letter = letters.next() => break letter?,
        }
        ensure!(deliveries <= 2 * LIMIT, "it was delivered {deliveries} times");
    };
    ensure!(text(&letter) == "poison");
    ensure!(
        (LIMIT..=LIMIT + 1).contains(&deliveries),
        "it ended after {deliveries} deliveries"
    );
    broker.delete_queue(&queue.name).await?;
    Ok(())
}

pub(crate) async fn unacked_messages_do_not_expire(under_test: &dyn UnderTest) -> Result<()> {
    const TTL: Duration = Duration::from_millis(150);
    let broker = under_test.connect().await?;
    let dead = classic("dead");
    let queue = Queue {
        message_ttl: Some(TTL),
        ..dying_into(&dead)
    };
    let witness = Queue {
        message_ttl: Some(3 * TTL),
        ..dying_into(&dead)
    };
    declare(&*broker, &[&dead, &queue, &witness]).await?;
    let mut consumer = consume(&*broker, &queue, 1).await?;
    send_texts(&*broker, &queue, &["held"]).await?;
    let held = next(&mut *consumer).await?;
    send_texts(&*broker, &witness, &["witness"]).await?;
    let mut letters = consume(&*broker, &dead, 10).await?;
    ensure!(take(&mut *letters).await? == "witness");
    consumer.acker().ack(&[held.tag]).await;
    nothing_but_a_marker(&*broker, &dead, &mut *letters).await
}
