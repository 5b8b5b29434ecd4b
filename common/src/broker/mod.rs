//! The broker port: what Isocost needs of a message broker, in AMQP 0-9-1 terms. RabbitMQ stands behind it in a
//! cluster, `memory` in standalone mode; one contract suite runs against both.
//!
//! What the port promises:
//! - A publication is settled as exactly one [`PublishOutcome`]; only [`PublishOutcome::Confirmed`] means the broker
//!   has it. [`PublishOutcome::Unknown`] may have arrived: publish the same again and let the receiver drop duplicates.
//!   While the broker is [`BrokerHealth::Blocked`] publications wait, for a bounded time, and are then nacked where it is
//!   certain that they did not arrive (in-process), else unknown (RabbitMQ). One to an exchange that does not exist is
//!   nacked.
//! - Deliveries stay with their consumer until acked or rejected. When a consumer ends, what it had not acked is
//!   delivered again, marked redelivered, to whoever consumes next. Acks of an ended consumer change nothing.
//! - Connections come back by themselves; [`Consumer::next`] ends with [`ConsumerEnded`] and the caller consumes anew.

pub mod doctor;
pub mod memory;
mod message;
pub mod rabbitmq;
pub mod subscription;
pub mod topology;

pub use message::{Message, MessageHeaders, SCHEMA_VERSION, SCHEMA_VERSION_HEADER, Unreadable};
pub use topology::{Binding, Exchange, ExchangeKind, Queue, QueueKind, Topology};

use async_trait::async_trait;
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;

/// What happened to one publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishOutcome {
    /// The broker has it, in at least one queue.
    Confirmed,
    /// It was mandatory and no queue is bound for it.
    Returned,
    /// The broker refused it: a length limit, or an internal error. It may sit in some of several queues.
    Nacked,
    /// No answer came in time, or the connection broke: it may or may not have arrived.
    Unknown,
}

/// A message with its address.
#[derive(Debug, Clone)]
pub struct Publication {
    /// Exchange name; empty for the default exchange, which routes by queue name.
    pub exchange: String,
    /// Routing key.
    pub routing_key: String,
    /// Return it when no queue is bound for it. Without this, such a message is confirmed and gone.
    pub mandatory: bool,
    /// The message.
    pub message: Message,
}

/// Names a delivery within its consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeliveryTag(pub u64);

/// A message handed to a consumer.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// For acking.
    pub tag: DeliveryTag,
    /// True when it was handed to a consumer before.
    pub redelivered: bool,
    /// The key it was published with.
    pub routing_key: String,
    /// The message.
    pub message: Message,
}

/// The consumer is gone: the connection or channel broke, the queue was deleted, or the broker cancelled it. Its
/// unacked deliveries come again. Consume anew.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the consumer of queue `{queue}` ended: {reason}")]
pub struct ConsumerEnded {
    /// Its queue.
    pub queue: String,
    /// Why.
    pub reason: String,
}

/// A broker operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BrokerError {
    /// The broker cannot be reached at the moment.
    #[error("the broker is not available: {0}")]
    Unavailable(String),
    /// The queue does not exist.
    #[error("queue `{0}` does not exist")]
    NoSuchQueue(String),
    /// The broker's user may not do this.
    #[error("the broker does not allow its user `{name}`: {reason}")]
    Forbidden {
        /// The queue or exchange.
        name: String,
        /// The broker's words.
        reason: String,
    },
    /// It exists with other arguments, or belongs to another connection.
    #[error("`{name}` exists and is different: {reason}")]
    Conflict {
        /// The queue or exchange.
        name: String,
        /// How it differs.
        reason: String,
    },
}

/// How to consume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsumeOptions {
    /// Most unacked deliveries held at once; at least 1.
    pub prefetch: u16,
    /// Refuse to share the queue with another consumer.
    pub exclusive: bool,
}

/// A look at a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueState {
    /// Messages ready for delivery.
    pub messages: u64,
    /// Consumers attached.
    pub consumers: u64,
}

/// Whether the broker can be worked with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerHealth {
    /// Publishing and consuming work.
    Ready,
    /// Connected, but the broker refuses publications for now (an alarm); consuming and acks go on.
    Blocked(String),
    /// Not connected.
    Down(String),
}

/// A message broker.
#[async_trait]
pub trait Broker: Send + Sync + 'static {
    /// Makes sure that everything in `topology` exists. Idempotent; the port does it again by itself for every topology
    /// it was ever given: after a lost connection, when an exchange turns out to be missing, and twice a minute, because
    /// nobody is told of a lost binding.
    async fn declare(&self, topology: &Topology) -> Result<(), BrokerError>;

    /// Deletes a queue with what is in it. No error when there is none.
    async fn delete_queue(&self, queue: &str) -> Result<(), BrokerError>;

    /// Publishes all, pipelined, and waits until each is settled or the port's deadline has passed. The outcomes are in
    /// the order of the publications. Not cancelled by dropping: a dropped call leaves outcomes unknown.
    async fn publish(&self, publications: Vec<Publication>) -> Vec<PublishOutcome>;

    /// Starts consuming.
    async fn consume(&self, queue: &str, options: ConsumeOptions) -> Result<Box<dyn Consumer>, BrokerError>;

    /// Looks at a queue; none when it does not exist.
    async fn inspect(&self, queue: &str) -> Result<Option<QueueState>, BrokerError>;

    /// Follows the broker's health.
    fn health(&self) -> watch::Receiver<BrokerHealth>;

    /// Ends every consumer and connection; what was not acked stays in its queues.
    async fn close(&self);
}

/// A running consumer. Dropping it ends it.
#[async_trait]
pub trait Consumer: Send {
    /// Waits for the next delivery. Cancel-safe.
    async fn next(&mut self) -> Result<Delivery, ConsumerEnded>;

    /// The handle that settles deliveries of this consumer, from any task.
    fn acker(&self) -> Arc<dyn Acker>;
}

/// Settles deliveries of one consumer. Calls after its end change nothing.
#[async_trait]
pub trait Acker: Send + Sync {
    /// The messages are done with.
    async fn ack(&self, tags: &[DeliveryTag]);

    /// The message goes to the queue's dead-letter exchange, or nowhere when it has none.
    async fn dead_letter(&self, tag: DeliveryTag);

    /// The message goes back to its queue, to be delivered again. Never used for an outage: then one backs off and
    /// keeps what is unacked.
    async fn requeue(&self, tag: DeliveryTag);
}

/// Waits for one delivery, then takes what else is there within `linger`, at most `limit` in all.
///
/// # Errors
/// [`ConsumerEnded`] when the consumer ends before the first; a later end shows at the next call.
pub async fn next_batch(
    consumer: &mut dyn Consumer,
    limit: usize,
    linger: Duration,
) -> Result<Vec<Delivery>, ConsumerEnded> {
    let mut batch = vec![consumer.next().await?];
    let deadline = tokio::time::Instant::now() + linger;
    while batch.len() < limit {
        match tokio::time::timeout_at(deadline, consumer.next()).await {
            Ok(Ok(delivery)) => batch.push(delivery),
            Ok(Err(_)) | Err(_) => break,
        }
    }
    Ok(batch)
}
