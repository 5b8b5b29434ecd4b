//! Consumers. Each has a channel of its own: what ends the channel ends the consumer and nothing else, and a delivery tag
//! can never mean a delivery of another consumer.

use super::{
    control::{Control, short},
    error::{Failure, text},
    link::Session,
    message,
};
use crate::broker::{Acker, BrokerError, ConsumeOptions, Consumer, ConsumerEnded, Delivery, DeliveryTag};
use async_trait::async_trait;
use futures_util::{StreamExt, future::join_all};
use lapin::{
    Channel,
    options::{BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, BasicRejectOptions},
    types::FieldTable,
};
use parking_lot::Mutex;
use std::{
    collections::BTreeSet,
    pin::Pin,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

/// Longest wait for the broker to start a consumer.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct RabbitConsumer {
    queue: String,
    /// None once it has ended.
    stream: Option<lapin::Consumer>,
    held: Arc<Held>,
    /// Why it ended.
    reason: String,
}

impl RabbitConsumer {
    pub(super) async fn start(
        session: &Session,
        control: &Control,
        queue: &str,
        options: ConsumeOptions,
    ) -> Result<Self, BrokerError> {
        let started = async {
            let channel = session.connection.create_channel().await?;
            // For this consumer, not for the channel: quorum queues refuse the latter.
            let qos = BasicQosOptions { global: false };
            channel.basic_qos(options.prefetch.max(1), qos).await?;
            let consume = BasicConsumeOptions {
                exclusive: options.exclusive,
                ..BasicConsumeOptions::default()
            };
            let tag = short("")?;
            let stream = channel
                .basic_consume(short(queue)?, tag, consume, FieldTable::default())
                .await?;
            Ok((channel, stream))
        };
        let started = tokio::time::timeout(PATIENCE, started).await;
        match started.unwrap_or_else(|_| Err(Failure::silence(PATIENCE))) {
            Ok((channel, stream)) => Ok(Self {
                queue: queue.to_owned(),
                stream: Some(stream),
                held: Arc::new(Held::new(channel)),
                reason: String::new(),
            }),
            Err(Failure::Locked(reason)) if control.owns(queue).await => {
                Err(BrokerError::Unavailable(reason))
            }
            Err(failure) => Err(failure.about(queue)),
        }
    }

    fn end(&mut self, reason: String) {
        self.reason = reason;
        self.stream = None;
        self.held.end();
    }
}

#[async_trait]
impl Consumer for RabbitConsumer {
    async fn next(&mut self) -> Result<Delivery, ConsumerEnded> {
        while let Some(stream) = &mut self.stream {
            match stream.next().await {
                // What was received before the end is delivered again: this one would be a duplicate.
                Some(Ok(delivery)) => {
                    if self.held.add(delivery.delivery_tag) {
                        return Ok(Delivery {
                            tag: DeliveryTag(delivery.delivery_tag),
                            redelivered: delivery.redelivered,
                            routing_key: delivery.routing_key.as_str().to_owned(),
                            message: message::read(&delivery.properties, delivery.data),
                        });
                    }
                }
                Some(Err(error)) => self.end(text(&error)),
                None => self.end("the broker cancelled it: its queue was deleted or is not available".into()),
            }
        }
        Err(ConsumerEnded {
            queue: self.queue.clone(),
            reason: self.reason.clone(),
        })
    }

    fn acker(&self) -> Arc<dyn Acker> {
        Arc::clone(&self.held) as Arc<dyn Acker>
    }
}

impl Drop for RabbitConsumer {
    fn drop(&mut self) {
        self.held.end();
    }
}

/// The deliveries handed out and not yet settled, and the channel to settle them on.
///
/// RabbitMQ closes a channel that acknowledges a tag it does not know. So only tags that stand here are sent, and they
/// are sent in the order in which they were taken out.
struct Held {
    state: Mutex<HeldState>,
    unacked: metrics::Gauge,
}

struct HeldState {
    /// None once the consumer has ended: the last handle closes the channel, which gives back what is unacked.
    channel: Option<Arc<Channel>>,
    tags: BTreeSet<u64>,
}

type Sending = Pin<Box<dyn Future<Output = lapin::Result<()>> + Send>>;

impl Held {
    fn new(channel: Channel) -> Self {
        Self {
            state: Mutex::new(HeldState {
                channel: Some(Arc::new(channel)),
                tags: BTreeSet::new(),
            }),
            unacked: metrics::gauge!("isocost_broker_unacked_messages"),
        }
    }

    /// Takes a delivery in, unless its channel has ended.
    fn add(&self, tag: u64) -> bool {
        let mut state = self.state.lock();
        let is_open = state
            .channel
            .as_ref()
            .is_some_and(|channel| channel.status().connected());
        if is_open {
            state.tags.insert(tag);
            self.unacked.increment(1.0);
        }
        is_open
    }

    fn end(&self) {
        let mut state = self.state.lock();
        state.channel = None;
        self.unacked
            .decrement(std::mem::take(&mut state.tags).len() as f64);
    }

    /// Takes the tags that are held out and sends what `send` makes of them.
    async fn settle(
        &self,
        tags: &[DeliveryTag],
        send: impl FnOnce(&Arc<Channel>, &BTreeSet<u64>, Vec<u64>) -> Vec<Sending>,
    ) {
        let mut sendings = {
            let mut state = self.state.lock();
            let Some(channel) = state.channel.clone() else {
                return;
            };
            let mut tags: Vec<u64> = tags
                .iter()
                .map(|tag| tag.0)
                .filter(|tag| state.tags.remove(tag))
                .collect();
            if tags.is_empty() {
                return;
            }
            self.unacked.decrement(tags.len() as f64);
            tags.sort_unstable();
            let mut sendings = send(&channel, &state.tags, tags);
            // The first poll puts the frame into lapin's queue: under the lock, or an acknowledgement of several could
            // overtake one of them.
            sendings.retain_mut(|sending| {
                sending
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_pending()
            });
            sendings
        };
        // An error means that the channel has ended: what was not settled comes again.
        join_all(sendings.iter_mut()).await;
    }
}

#[async_trait]
impl Acker for Held {
    async fn ack(&self, tags: &[DeliveryTag]) {
        self.settle(tags, |channel, still_held, tags| {
            let acks = acks(still_held, &tags);
            acks.into_iter()
                .map(|(tag, multiple)| send_ack(Arc::clone(channel), tag, multiple))
                .collect()
        })
        .await;
    }

    async fn dead_letter(&self, tag: DeliveryTag) {
        self.settle(&[tag], |channel, _, tags| {
            let reject = |tag| {
                let channel = Arc::clone(channel);
                let sending = async move {
                    channel
                        .basic_reject(tag, BasicRejectOptions { requeue: false })
                        .await
                };
                Box::pin(sending) as Sending
            };
            tags.into_iter().map(reject).collect()
        })
        .await;
    }

    async fn requeue(&self, tag: DeliveryTag) {
        self.settle(&[tag], |channel, _, tags| {
            let requeue = |tag| {
                let channel = Arc::clone(channel);
                let options = BasicNackOptions {
                    multiple: false,
                    requeue: true,
                };
                Box::pin(async move { channel.basic_nack(tag, options).await }) as Sending
            };
            tags.into_iter().map(requeue).collect()
        })
        .await;
    }
}

fn send_ack(channel: Arc<Channel>, tag: u64, multiple: bool) -> Sending {
    Box::pin(async move { channel.basic_ack(tag, BasicAckOptions { multiple }).await })
}

/// Fewest acknowledgements for `tags` (ascending): those below every tag that is still held go together.
fn acks(still_held: &BTreeSet<u64>, tags: &[u64]) -> Vec<(u64, bool)> {
    let below = match still_held.first() {
        Some(first) => tags.partition_point(|tag| tag < first),
        None => tags.len(),
    };
    let (together, single) = tags.split_at(below);
    let together = together.last().map(|last| (*last, together.len() > 1));
    together
        .into_iter()
        .chain(single.iter().map(|tag| (*tag, false)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::acks;
    use std::collections::BTreeSet;

    #[test]
    fn only_tags_below_every_held_one_are_acked_together() {
        let held = |tags: &[u64]| BTreeSet::from_iter(tags.iter().copied());
        assert_eq!(acks(&held(&[]), &[3, 5, 9]), [(9, true)]);
        assert_eq!(acks(&held(&[]), &[3]), [(3, false)]);
        assert_eq!(
            acks(&held(&[4]), &[2, 3, 5, 9]),
            [(3, true), (5, false), (9, false)]
        );
        assert_eq!(acks(&held(&[1]), &[2, 3]), [(2, false), (3, false)]);
        assert_eq!(acks(&held(&[3]), &[2, 5]), [(2, false), (5, false)]);
    }
}
