//! Where publications go, and what their publisher is told.

use crate::under_test::{
    UnderTest, classic, confirmed, consume, declare, declare_bound, exchange, message, next,
    nothing_but_a_marker, publication, send_texts, take, take_many, unique,
};
use anyhow::{Result, ensure};
use isocost_common::{
    broker::{ExchangeKind, Message, MessageHeaders, PublishOutcome, Queue},
    time::EpochMillis,
};

pub(crate) async fn the_default_exchange_routes_by_queue_name(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let (one, other) = (classic("one"), classic("other"));
    declare(&*broker, &[&one, &other]).await?;
    send_texts(&*broker, &one, &["for one"]).await?;
    let mut consumer = consume(&*broker, &one, 1).await?;
    let delivery = next(&mut *consumer).await?;
    ensure!(delivery.routing_key == one.name && !delivery.redelivered);
    let mut consumer = consume(&*broker, &other, 1).await?;
    nothing_but_a_marker(&*broker, &other, &mut *consumer).await
}

pub(crate) async fn a_direct_exchange_routes_by_equal_key(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let direct = exchange(ExchangeKind::Direct);
    let (one, both) = (classic("one"), classic("both"));
    let bindings = [
        (&direct, &one, "red"),
        (&direct, &both, "red"),
        (&direct, &both, "blue"),
    ];
    declare_bound(&*broker, &[&direct], &[&one, &both], &bindings).await?;
    let red = publication(&direct.name, "red", message("red"));
    let blue = publication(&direct.name, "blue", message("blue"));
    confirmed(&*broker, vec![red, blue]).await?;
    ensure!(take_many(&mut *consume(&*broker, &both, 10).await?, 2).await? == ["red", "blue"]);
    let mut consumer = consume(&*broker, &one, 10).await?;
    ensure!(take(&mut *consumer).await? == "red");
    nothing_but_a_marker(&*broker, &one, &mut *consumer).await
}

pub(crate) async fn a_fanout_exchange_reaches_every_queue(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let fanout = exchange(ExchangeKind::Fanout);
    let queues = [classic("a"), classic("b"), classic("c")];
    let bindings: Vec<_> = queues.iter().map(|queue| (&fanout, queue, "")).collect();
    declare_bound(&*broker, &[&fanout], &queues.each_ref(), &bindings).await?;
    confirmed(
        &*broker,
        vec![publication(&fanout.name, "any key", message("news"))],
    )
    .await?;
    for queue in &queues {
        ensure!(take(&mut *consume(&*broker, queue, 1).await?).await? == "news");
    }
    Ok(())
}

pub(crate) async fn a_topic_exchange_matches_words(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let topic = exchange(ExchangeKind::Topic);
    let patterns = ["shop.*.failed", "shop.#", "#.failed", "*"];
    let queues = patterns.map(classic);
    let bindings: Vec<_> = queues
        .iter()
        .zip(patterns)
        .map(|(queue, pattern)| (&topic, queue, pattern))
        .collect();
    declare_bound(&*broker, &[&topic], &queues.each_ref(), &bindings).await?;
    let keys = [
        "shop.mail.failed",
        "shop.mail.succeeded",
        "bank.http.big.failed",
        "shop",
    ];
    let publications = keys.map(|key| publication(&topic.name, key, message(key)));
    confirmed(&*broker, publications.to_vec()).await?;
    let expected: [&[&str]; 4] = [
        &["shop.mail.failed"],
        &["shop.mail.failed", "shop.mail.succeeded", "shop"],
        &["shop.mail.failed", "bank.http.big.failed"],
        &["shop"],
    ];
    for (queue, expected) in queues.iter().zip(expected) {
        let mut consumer = consume(&*broker, queue, 10).await?;
        let received = take_many(&mut *consumer, expected.len()).await?;
        ensure!(received == expected, "{} received {received:?}", queue.name);
        nothing_but_a_marker(&*broker, queue, &mut *consumer).await?;
    }
    Ok(())
}

pub(crate) async fn two_matching_bindings_deliver_once(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let topic = exchange(ExchangeKind::Topic);
    let queue = classic("twice");
    let bindings = [
        (&topic, &queue, "a.*"),
        (&topic, &queue, "#"),
        (&topic, &queue, "#"),
    ];
    declare_bound(&*broker, &[&topic], &[&queue], &bindings).await?;
    confirmed(&*broker, vec![publication(&topic.name, "a.b", message("once"))]).await?;
    let mut consumer = consume(&*broker, &queue, 10).await?;
    ensure!(take(&mut *consumer).await? == "once");
    nothing_but_a_marker(&*broker, &queue, &mut *consumer).await
}

pub(crate) async fn an_unroutable_mandatory_message_is_returned(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let direct = exchange(ExchangeKind::Direct);
    declare_bound(&*broker, &[&direct], &[], &[]).await?;
    let publications = vec![
        publication("", &unique("nowhere"), message("lost")),
        publication(&direct.name, "no such key", message("lost")),
    ];
    let outcomes = broker.publish(publications).await;
    ensure!(outcomes == [PublishOutcome::Returned; 2], "{outcomes:?}");
    Ok(())
}

pub(crate) async fn an_unroutable_optional_message_is_confirmed(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let mut optional = publication("", &unique("nowhere"), message("gone"));
    optional.mandatory = false;
    confirmed(&*broker, vec![optional]).await
}

pub(crate) async fn outcomes_stand_in_the_order_of_publications(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let queue = classic("order");
    declare(&*broker, &[&queue]).await?;
    let nowhere = unique("nowhere");
    let is_routable = |number: usize| !number.is_multiple_of(3);
    let publications = (0..200).map(|number| {
        let key = if is_routable(number) {
            &queue.name
        } else {
            &nowhere
        };
        publication("", key, message(&number.to_string()))
    });
    let outcomes = broker.publish(publications.collect()).await;
    ensure!(outcomes.len() == 200);
    for (number, outcome) in outcomes.into_iter().enumerate() {
        let expected = if is_routable(number) {
            PublishOutcome::Confirmed
        } else {
            PublishOutcome::Returned
        };
        ensure!(outcome == expected, "publication {number} was {outcome:?}");
    }
    Ok(())
}

pub(crate) async fn every_property_arrives(under_test: &dyn UnderTest) -> Result<()> {
    let broker = under_test.connect().await?;
    let queue = Queue {
        max_priority: Some(9),
        ..classic("properties")
    };
    declare(&*broker, &[&queue]).await?;
    let sent = Message {
        priority: 7,
        expiration_ms: Some(60_000),
        reply_to: Some("answers".into()),
        correlation_id: Some("42".into()),
        // Whole seconds: AMQP has no finer timestamp.
        timestamp: EpochMillis(1_790_000_000_000),
        headers: MessageHeaders::from([
            (
                "traceparent".into(),
                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into(),
            ),
            ("schema-version".into(), "1".into()),
        ]),
        ..message("ünïcode \u{1F680} body")
    };
    confirmed(&*broker, vec![publication("", &queue.name, sent.clone())]).await?;
    let received = next(&mut *consume(&*broker, &queue, 1).await?).await?.message;
    ensure!(received == sent, "{received:?}");
    Ok(())
}

pub(crate) async fn a_large_batch_arrives_once_and_in_order(under_test: &dyn UnderTest) -> Result<()> {
    const COUNT: usize = 5_000;
    let broker = under_test.connect().await?;
    let queue = classic("batch");
    declare(&*broker, &[&queue]).await?;
    let expected: Vec<_> = (0..COUNT).map(|number| number.to_string()).collect();
    let publications = expected
        .iter()
        .map(|text| publication("", &queue.name, message(text)));
    let mut consumer = consume(&*broker, &queue, 500).await?;
    let (sent, received) = tokio::join!(
        confirmed(&*broker, publications.collect()),
        take_many(&mut *consumer, COUNT)
    );
    sent?;
    ensure!(received? == expected);
    nothing_but_a_marker(&*broker, &queue, &mut *consumer).await
}

pub(crate) async fn concurrent_publishers_lose_nothing(under_test: &dyn UnderTest) -> Result<()> {
    const PUBLISHERS: usize = 8;
    const EACH: usize = 500;
    let broker = under_test.connect().await?;
    let queue = classic("concurrent");
    declare(&*broker, &[&queue]).await?;
    let mut publishers = tokio::task::JoinSet::new();
    for publisher in 0..PUBLISHERS {
        let broker = under_test.connect().await?;
        let queue = queue.name.clone();
        publishers.spawn(async move {
            let publications =
                (0..EACH).map(|number| publication("", &queue, message(&format!("{publisher}/{number}"))));
            confirmed(&*broker, publications.collect()).await
        });
    }
    let mut received = take_many(&mut *consume(&*broker, &queue, 100).await?, PUBLISHERS * EACH).await?;
    while let Some(publisher) = publishers.join_next().await {
        publisher??;
    }
    received.sort_unstable();
    received.dedup();
    ensure!(received.len() == PUBLISHERS * EACH);
    Ok(())
}
