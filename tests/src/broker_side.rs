//! The broker from outside: who listens to outcomes and answers, and who submits.

use anyhow::{Context, Result, ensure};
use isocost_common::{
    broker::{
        Binding, Broker, ConsumeOptions, Message, Publication, PublishOutcome, Queue, QueueKind, Topology,
        rabbitmq::RabbitBroker,
    },
    config::BrokerConfig,
};
use parking_lot::Mutex;
use serde_json::Value;
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::task::JoinHandle;

use crate::patience::eventually;

/// Far more than anything here takes, for a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// Hears everything that comes into a queue, until it is dropped.
pub struct Listener {
    heard: Arc<Mutex<HashMap<String, usize>>>,
    listening: JoinHandle<()>,
}

impl Listener {
    /// Binds a queue to an exchange, which must be there.
    ///
    /// # Errors
    /// When the broker does not take part.
    pub async fn follow(config: &BrokerConfig, exchange: &str) -> Result<Self> {
        let queue = format!("follows.{exchange}");
        let binding = Binding {
            exchange: exchange.to_owned(),
            queue: queue.clone(),
            routing_key: "#".into(),
        };
        Self::consume(config, queue, vec![binding], |message| message.message_id).await
    }

    /// A queue for answers, which are known by what they answer.
    ///
    /// # Errors
    /// When the broker does not take part.
    pub async fn answers(config: &BrokerConfig, queue: &str) -> Result<Self> {
        let id = |message: Message| message.correlation_id.unwrap_or_default();
        Self::consume(config, queue.to_owned(), Vec::new(), id).await
    }

    async fn consume(
        config: &BrokerConfig,
        queue: String,
        bindings: Vec<Binding>,
        id: fn(Message) -> String,
    ) -> Result<Self> {
        let broker = RabbitBroker::start(config, "a listener of the tests")?;
        let topology = Topology {
            queues: vec![Queue::new(queue.clone(), QueueKind::Classic)],
            bindings,
            ..Topology::default()
        };
        eventually("the queue is there", LONG, async || {
            broker.declare(&topology).await?;
            Ok(Some(()))
        })
        .await?;
        let heard = Arc::<Mutex<HashMap<String, usize>>>::default();
        let counted = Arc::clone(&heard);
        let options = ConsumeOptions {
            prefetch: 100,
            exclusive: true,
        };
        let listening = tokio::spawn(async move {
            // The server stays as it is: a consumer that ends is one whose test is over.
            let Ok(mut consumer) = broker.consume(&queue, options).await else {
                return;
            };
            let acker = consumer.acker();
            while let Ok(delivery) = consumer.next().await {
                *counted.lock().entry(id(delivery.message)).or_default() += 1;
                acker.ack(&[delivery.tag]).await;
            }
        });
        Ok(Self { heard, listening })
    }

    /// Waits until a message is heard that is known by this.
    ///
    /// # Errors
    /// When it is not in time.
    pub async fn wait_for(&self, id: &str, within: Duration) -> Result<()> {
        eventually(&format!("{id} is published"), within, async || {
            Ok(self.heard.lock().get(id).map(drop))
        })
        .await
    }
}

/// Publishes a job with the rights of an API key, confirmed. The answer is known by `id` as well.
///
/// # Errors
/// When the broker does not take it.
pub async fn submit(
    config: &BrokerConfig,
    exchange: &str,
    key: &str,
    job: &Value,
    (id, answers): (&str, &str),
) -> Result<()> {
    let broker = RabbitBroker::start(config, "a producer of the tests")?;
    let mut message = Message::json("submission", job);
    message.message_id = id.to_owned();
    message
        .headers
        .insert("authorization".into(), format!("Bearer {key}"));
    message.reply_to = Some(answers.to_owned());
    message.correlation_id = Some(id.to_owned());
    let publication = Publication {
        exchange: exchange.to_owned(),
        routing_key: String::new(),
        mandatory: true,
        message,
    };
    let outcome = broker.publish(vec![publication]).await;
    broker.close().await;
    let outcome = outcome.first().context("an outcome")?;
    ensure!(*outcome == PublishOutcome::Confirmed, "{outcome:?}");
    Ok(())
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.listening.abort();
    }
}
