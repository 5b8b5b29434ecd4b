//! Exchanges and queues in AMQP's arguments: one set that RabbitMQ 3.10 to 4.3 takes.
//!
//! - `x-queue-type` is always explicit, since the default may be configured per virtual host.
//! - `x-delivery-limit` goes to quorum queues only and is always given there by the topology: without it RabbitMQ 4 uses
//!   20. Classic queues refuse it.
//! - `x-max-priority` goes to classic queues only: quorum queues refuse it.
//! - Exclusive queues are transient: exclusive ones are spared when RabbitMQ 4 refuses transient queues. They are not
//!   auto-delete, or a consumer that ends would take its queue along, and what it missed.

use crate::broker::{ExchangeKind, Queue, QueueKind};
use lapin::{
    options::{ExchangeDeclareOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable, LongString},
};
use std::time::Duration;

/// RabbitMQ takes no longer time to live or expiry, in milliseconds.
const MAX_MILLIS: u128 = 0xFFFF_FFFF;

pub(super) fn exchange_kind(kind: ExchangeKind) -> lapin::ExchangeKind {
    match kind {
        ExchangeKind::Direct => lapin::ExchangeKind::Direct,
        ExchangeKind::Fanout => lapin::ExchangeKind::Fanout,
        ExchangeKind::Topic => lapin::ExchangeKind::Topic,
    }
}

pub(super) fn exchange_options() -> ExchangeDeclareOptions {
    ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    }
}

pub(super) fn queue_options(kind: QueueKind) -> QueueDeclareOptions {
    QueueDeclareOptions {
        durable: kind != QueueKind::Exclusive,
        exclusive: kind == QueueKind::Exclusive,
        ..QueueDeclareOptions::default()
    }
}

pub(super) fn queue_arguments(queue: &Queue) -> FieldTable {
    let quorum = queue.kind == QueueKind::Quorum;
    let mut arguments = FieldTable::default();
    let mut text = |name: &str, value: &str| {
        arguments.insert(name.into(), AMQPValue::LongString(LongString::from(value)));
    };
    text("x-queue-type", if quorum { "quorum" } else { "classic" });
    if let Some((exchange, routing_key)) = &queue.dead_letter {
        text("x-dead-letter-exchange", exchange);
        text("x-dead-letter-routing-key", routing_key);
    }
    if queue.max_length.is_some() {
        text("x-overflow", "drop-head");
    }
    let numbers = [
        ("x-expires", queue.expires.map(|expires| millis(expires).max(1))),
        ("x-message-ttl", queue.message_ttl.map(millis)),
        (
            "x-max-length",
            queue
                .max_length
                .map(|length| i64::try_from(length).unwrap_or(i64::MAX)),
        ),
        (
            "x-max-priority",
            queue.max_priority.filter(|_| !quorum).map(i64::from),
        ),
        (
            "x-delivery-limit",
            queue.delivery_limit.filter(|_| quorum).map(i64::from),
        ),
    ];
    for (name, value) in numbers {
        if let Some(value) = value {
            arguments.insert(name.into(), AMQPValue::LongLongInt(value));
        }
    }
    if queue.single_active_consumer {
        arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
    }
    arguments
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis().min(MAX_MILLIS)).unwrap_or(i64::MAX)
}
