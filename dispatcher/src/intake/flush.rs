//! Waiting until everything that workers sent is taken in.

use isocost_common::{
    broker::{Broker, BrokerError, ConsumeOptions, Message, Publication, PublishOutcome, topology::Names},
    id::MessageId,
    message::{Marker, kind},
};
use std::collections::HashSet;
use tracing::warn;

/// Returns once every report and log line that the broker confirmed before this call is taken in and committed, by sending
/// a [`Marker`] after them. An empty queue would not show it: what the intake holds, unacked, is in no queue. For a process
/// that takes its broker along when it ends.
///
/// Waits for as long as no intake runs, so the caller limits the time.
///
/// # Errors
/// [`BrokerError`] when the broker is away, or goes away meanwhile.
pub async fn all_taken_in(broker: &dyn Broker, names: &Names) -> Result<(), BrokerError> {
    let exchange = names.settled_exchange();
    let listener = format!("flush-{}", MessageId::generate().as_uuid().simple());
    let queue = names.listener_queue(&exchange, &listener);
    broker
        .declare(&names.listener_topology(&exchange, &listener))
        .await?;
    let outcome = send_markers_and_wait(broker, names, &queue).await;
    if let Err(error) = broker.delete_queue(&queue).await {
        // It is exclusive, and goes with its connection.
        warn!(queue, %error, "deleting the queue");
    }
    outcome
}

async fn send_markers_and_wait(broker: &dyn Broker, names: &Names, queue: &str) -> Result<(), BrokerError> {
    let options = ConsumeOptions {
        prefetch: 64,
        exclusive: true,
    };
    let mut consumer = broker.consume(queue, options).await?;
    let acker = consumer.acker();
    let (results, logs) = (Marker::generate(), Marker::generate());
    let sent = [
        (names.results_exchange(), names.results_queue(), &results),
        (names.logs_exchange(), names.logs_queue(), &logs),
    ]
    .map(|(exchange, routing_key, marker)| Publication {
        exchange,
        routing_key,
        mandatory: true,
        message: Message::json(kind::MARKER, marker),
    });
    let mut awaited = HashSet::from([results, logs]);
    let outcomes = broker.publish(sent.into()).await;
    if outcomes
        .iter()
        .any(|outcome| *outcome != PublishOutcome::Confirmed)
    {
        return Err(BrokerError::Unavailable("a marker was not confirmed".into()));
    }
    while !awaited.is_empty() {
        let delivery = consumer
            .next()
            .await
            .map_err(|ended| BrokerError::Unavailable(ended.to_string()))?;
        acker.ack(&[delivery.tag]).await;
        if delivery.message.kind == kind::MARKER
            && let Ok(marker) = delivery.message.parse()
        {
            awaited.remove(&marker);
        }
    }
    Ok(())
}
