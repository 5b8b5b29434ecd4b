//! Consumers: what each holds unacked, and the two handles a client has on it.

use super::{
    Server,
    queue::{ConnectionId, Entry, QueueId, Stored},
};
use crate::broker::{Acker, Consumer, ConsumerEnded, Delivery, DeliveryTag};
use async_trait::async_trait;
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, OnceLock},
};
use tokio::sync::Notify;

/// Names a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ConsumerId(pub(super) u64);

/// What the broker and the client's handle share.
#[derive(Debug, Default)]
pub(super) struct ConsumerEnd {
    /// One permit is enough: only one task can wait, for `next` takes the consumer mutably.
    changed: Notify,
    ended: OnceLock<String>,
}

/// A consumer as the broker sees it.
pub(super) struct ConsumerState {
    pub(super) queue: QueueId,
    pub(super) connection: ConnectionId,
    prefetch: usize,
    unacked: HashMap<u64, Entry>,
    /// Tags handed out and not yet seen by the client.
    inbox: VecDeque<u64>,
    last_tag: u64,
    end: Arc<ConsumerEnd>,
}

impl ConsumerState {
    pub(super) fn new(
        queue: QueueId,
        connection: ConnectionId,
        prefetch: u16,
        end: Arc<ConsumerEnd>,
    ) -> Self {
        Self {
            queue,
            connection,
            prefetch: usize::from(prefetch.max(1)),
            unacked: HashMap::new(),
            inbox: VecDeque::new(),
            last_tag: 0,
            end,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.unacked.len() < self.prefetch
    }

    pub(super) fn hand_out(&mut self, entry: Entry) {
        self.last_tag += 1;
        self.unacked.insert(self.last_tag, entry);
        self.inbox.push_back(self.last_tag);
        self.end.changed.notify_one();
    }

    /// Takes an unacked delivery out.
    pub(super) fn settle(&mut self, tag: u64) -> Option<Entry> {
        self.unacked.remove(&tag)
    }

    fn receive(&mut self) -> Option<(u64, bool, Arc<Stored>)> {
        loop {
            let tag = self.inbox.pop_front()?;
            if let Some(entry) = self.unacked.get(&tag) {
                return Some((tag, entry.returns > 0, Arc::clone(&entry.stored)));
            }
        }
    }

    /// Tells the client that it is over, and returns what it had not acked.
    pub(super) fn end(self, reason: &str) -> impl Iterator<Item = Entry> {
        // Set once by construction: the broker forgets the consumer with this call.
        let _ = self.end.ended.set(reason.to_owned());
        self.end.changed.notify_one();
        self.unacked.into_values()
    }
}

/// The receiving handle.
pub(super) struct MemoryConsumer {
    pub(super) server: Arc<Server>,
    pub(super) id: ConsumerId,
    pub(super) queue: String,
    pub(super) end: Arc<ConsumerEnd>,
}

#[async_trait]
impl Consumer for MemoryConsumer {
    async fn next(&mut self) -> Result<Delivery, ConsumerEnded> {
        // A full queue would otherwise never let the other tasks of this thread run.
        tokio::task::coop::consume_budget().await;
        loop {
            if let Some(reason) = self.end.ended.get() {
                return Err(ConsumerEnded {
                    queue: self.queue.clone(),
                    reason: reason.clone(),
                });
            }
            let received = {
                let mut state = self.server.state.lock();
                state.consumers.get_mut(&self.id).and_then(ConsumerState::receive)
            };
            if let Some((tag, redelivered, stored)) = received {
                return Ok(Delivery {
                    tag: DeliveryTag(tag),
                    redelivered,
                    routing_key: stored.routing_key.clone(),
                    message: stored.message.clone(),
                });
            }
            self.end.changed.notified().await;
        }
    }

    fn acker(&self) -> Arc<dyn Acker> {
        Arc::new(MemoryAcker {
            server: Arc::clone(&self.server),
            consumer: self.id,
        })
    }
}

impl Drop for MemoryConsumer {
    fn drop(&mut self) {
        self.server
            .change(|state, now| state.end_consumers(&[self.id], "it was dropped", now));
    }
}

/// The settling handle.
struct MemoryAcker {
    server: Arc<Server>,
    consumer: ConsumerId,
}

#[async_trait]
impl Acker for MemoryAcker {
    async fn ack(&self, tags: &[DeliveryTag]) {
        let tags: Vec<_> = tags.iter().map(|tag| tag.0).collect();
        self.server
            .change(|state, now| state.ack(self.consumer, &tags, now));
    }

    async fn dead_letter(&self, tag: DeliveryTag) {
        self.server
            .change(|state, now| state.dead_letter(self.consumer, tag.0, now));
    }

    async fn requeue(&self, tag: DeliveryTag) {
        self.server
            .change(|state, now| state.requeue(self.consumer, tag.0, now));
    }
}
