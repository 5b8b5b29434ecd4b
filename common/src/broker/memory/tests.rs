//! What is special about the in-process broker: its bounds, its outages, its timers. What it has in common with RabbitMQ
//! is in `tests/broker_contract`.

use super::*;
use crate::broker::{Delivery, Message, Queue, QueueKind};

fn topology(queues: Vec<Queue>) -> Topology {
    Topology {
        queues,
        ..Topology::default()
    }
}

fn classic(name: &str) -> Queue {
    Queue::new(name.to_owned(), QueueKind::Classic)
}

/// A message of about `size` bytes to a queue.
fn sized(queue: &str, size: usize) -> Publication {
    Publication {
        exchange: String::new(),
        routing_key: queue.to_owned(),
        mandatory: true,
        message: Message::json("test", &"x".repeat(size)),
    }
}

async fn consume(broker: &MemoryBroker, queue: &str) -> Box<dyn Consumer> {
    let options = ConsumeOptions {
        prefetch: 1_000,
        exclusive: false,
    };
    broker.consume(queue, options).await.expect("the queue exists")
}

async fn take(consumer: &mut dyn Consumer) -> Delivery {
    let delivery = consumer.next().await.expect("the consumer runs");
    consumer.acker().ack(&[delivery.tag]).await;
    delivery
}

#[tokio::test(start_paused = true)]
async fn a_full_broker_lets_publications_wait_until_there_is_room() {
    let broker = MemoryBroker::with_memory_limit(10_000);
    broker
        .declare(&topology(vec![classic("q")]))
        .await
        .expect("declared");
    let batch: Vec<_> = (0..100).map(|_| sized("q", 1_000)).collect();
    let publishing = {
        let broker = Arc::clone(&broker);
        tokio::spawn(async move { broker.publish(batch).await })
    };
    let mut health = broker.health();
    health
        .wait_for(|health| matches!(health, BrokerHealth::Blocked(_)))
        .await
        .expect("the broker lives");
    let queued = broker.inspect("q").await.expect("inspected").expect("it exists");
    assert!(queued.messages <= 10, "{} messages were let in", queued.messages);

    let mut consumer = consume(&broker, "q").await;
    for _ in 0..100 {
        take(&mut *consumer).await;
    }
    let outcomes = publishing.await.expect("published");
    assert_eq!(outcomes, vec![PublishOutcome::Confirmed; 100]);
    assert_eq!(*health.borrow_and_update(), BrokerHealth::Ready);
}

#[tokio::test(start_paused = true)]
async fn publications_into_a_broker_that_stays_full_are_nacked_at_the_deadline() {
    let broker = MemoryBroker::with_memory_limit(5_000);
    broker
        .declare(&topology(vec![classic("q")]))
        .await
        .expect("declared");
    let begun = Instant::now();
    let outcomes = broker.publish((0..10).map(|_| sized("q", 1_000)).collect()).await;
    assert_eq!(begun.elapsed(), PUBLISH_DEADLINE);
    let confirmed = outcomes
        .iter()
        .filter(|outcome| **outcome == PublishOutcome::Confirmed)
        .count();
    assert!((1..10).contains(&confirmed));
    assert_eq!(
        outcomes[confirmed..],
        vec![PublishOutcome::Nacked; 10 - confirmed]
    );
    // What was nacked is not there.
    let queued = broker.inspect("q").await.expect("inspected").expect("it exists");
    assert_eq!(queued.messages, confirmed as u64);
}

#[tokio::test(start_paused = true)]
async fn every_way_out_of_a_queue_frees_its_memory() {
    let broker = MemoryBroker::with_memory_limit(20_000);
    let capped = Queue {
        max_length: Some(1),
        ..classic("capped")
    };
    let fleeting = Queue {
        message_ttl: Some(Duration::from_millis(1)),
        ..classic("fleeting")
    };
    let all = topology(vec![
        capped,
        fleeting,
        classic("acked"),
        classic("deleted"),
        classic("rejected"),
    ]);
    // Far more than fits, were any of it kept.
    for _ in 0..50 {
        broker.declare(&all).await.expect("declared");
        let names = ["capped", "fleeting", "acked", "deleted", "rejected"];
        let outcomes = broker
            .publish(names.map(|queue| sized(queue, 1_000)).to_vec())
            .await;
        assert_eq!(outcomes, [PublishOutcome::Confirmed; 5]);
        take(&mut *consume(&broker, "acked").await).await;
        broker.delete_queue("deleted").await.expect("deleted");
        let mut consumer = consume(&broker, "rejected").await;
        let rejected = consumer.next().await.expect("the consumer runs");
        consumer.acker().dead_letter(rejected.tag).await;
        tokio::time::advance(Duration::from_millis(2)).await;
    }
    assert_eq!(*broker.health().borrow(), BrokerHealth::Ready);
}

#[tokio::test(start_paused = true)]
async fn an_outage_ends_consumers_and_keeps_durable_messages() {
    let broker = MemoryBroker::new();
    let exclusive = Queue::new("mine".into(), QueueKind::Exclusive);
    broker
        .declare(&topology(vec![classic("q"), exclusive]))
        .await
        .expect("declared");
    broker.publish(vec![sized("q", 1), sized("mine", 1)]).await;
    let mut consumer = consume(&broker, "q").await;
    let held = consumer.next().await.expect("delivered");

    broker.begin_outage();
    assert!(matches!(*broker.health().borrow(), BrokerHealth::Down(_)));
    assert!(consumer.next().await.is_err());
    assert_eq!(
        broker.publish(vec![sized("q", 1)]).await,
        [PublishOutcome::Unknown]
    );
    assert!(matches!(
        broker.inspect("q").await,
        Err(BrokerError::Unavailable(_))
    ));

    broker.end_outage();
    assert_eq!(*broker.health().borrow(), BrokerHealth::Ready);
    let again = take(&mut *consume(&broker, "q").await).await;
    assert!(again.redelivered);
    assert_eq!(again.message, held.message);
    let mine = broker
        .inspect("mine")
        .await
        .expect("inspected")
        .expect("declared again");
    assert_eq!(mine.messages, 0);
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_that_circles_is_dropped() {
    let broker = MemoryBroker::new();
    let circle = |name: &str, next: &str| Queue {
        message_ttl: Some(Duration::from_millis(10)),
        dead_letter: Some((String::new(), next.to_owned())),
        ..classic(name)
    };
    broker
        .declare(&topology(vec![circle("a", "b"), circle("b", "a")]))
        .await
        .expect("declared");
    broker.publish(vec![sized("a", 1)]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    for queue in ["a", "b"] {
        let state = broker
            .inspect(queue)
            .await
            .expect("inspected")
            .expect("it exists");
        assert_eq!(state.messages, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_zero_ttl_reaches_a_consumer_that_has_room() {
    let broker = MemoryBroker::new();
    let immediate = Queue {
        message_ttl: Some(Duration::ZERO),
        ..classic("now or never")
    };
    broker
        .declare(&topology(vec![immediate]))
        .await
        .expect("declared");
    broker.publish(vec![sized("now or never", 1)]).await;
    let mut consumer = consume(&broker, "now or never").await;
    broker.publish(vec![sized("now or never", 2)]).await;
    assert_eq!(take(&mut *consumer).await.message.body.as_ref(), b"\"xx\"");
}

#[tokio::test]
async fn the_last_connection_takes_the_timer_with_it() {
    let broker = MemoryBroker::new();
    let other = broker.connect();
    let expiring = Queue {
        expires: Some(Duration::from_secs(300)),
        ..classic("q")
    };
    broker.declare(&topology(vec![expiring])).await.expect("declared");
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!(tasks(), 1);
    broker.close().await;
    assert_eq!(tasks(), 1);
    other.close().await;
    assert_eq!(tasks(), 0);
}
