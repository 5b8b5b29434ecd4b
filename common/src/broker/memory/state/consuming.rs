//! Consumers: begun and ended, and what they do with their deliveries.

use super::State;
use crate::broker::{
    BrokerError, ConsumeOptions,
    memory::{
        consumer::{ConsumerEnd, ConsumerId, ConsumerState},
        queue::{ConnectionId, DeathReason, Entry, QueueId},
    },
};
use std::sync::Arc;
use tokio::time::Instant;

impl State {
    pub(in crate::broker::memory) fn consume(
        &mut self,
        connection: ConnectionId,
        queue_name: &str,
        options: ConsumeOptions,
        now: Instant,
    ) -> Result<(ConsumerId, Arc<ConsumerEnd>), BrokerError> {
        self.check_connected(connection)?;
        let Some(queue_id) = self.queue_names.get(queue_name).copied() else {
            return Err(BrokerError::NoSuchQueue(queue_name.to_owned()));
        };
        self.check_accessible(queue_id, connection)?;
        let id = ConsumerId(self.fresh_id());
        let Some(queue) = self.queues.get_mut(&queue_id) else {
            return Err(BrokerError::NoSuchQueue(queue_name.to_owned()));
        };
        if queue.exclusively_consumed || (options.exclusive && !queue.consumers.is_empty()) {
            return Err(BrokerError::Conflict {
                name: queue_name.to_owned(),
                reason: "it has another consumer, and one of the two is exclusive".into(),
            });
        }
        queue.exclusively_consumed = options.exclusive;
        queue.consumers.push_back(id);
        let end = Arc::new(ConsumerEnd::default());
        let consumer = ConsumerState::new(queue_id, connection, options.prefetch, Arc::clone(&end));
        self.consumers.insert(id, consumer);
        self.serve(queue_id, now);
        self.finish(now);
        Ok((id, end))
    }

    pub(super) fn end_consumers_of(&mut self, connection: ConnectionId, reason: &str, now: Instant) {
        let of_connection = self
            .consumers
            .iter()
            .filter(|(_, consumer)| consumer.connection == connection);
        let ids: Vec<_> = of_connection.map(|(id, _)| *id).collect();
        self.end_consumers(&ids, reason, now);
    }

    /// Ends consumers; what they held goes back to its places in the queues. All leave before anything is handed out
    /// again, so that nothing goes to one that is about to end as well.
    pub(in crate::broker::memory) fn end_consumers(
        &mut self,
        ids: &[ConsumerId],
        reason: &str,
        now: Instant,
    ) {
        let mut touched = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(consumer) = self.consumers.remove(id) else {
                continue;
            };
            let queue_id = consumer.queue;
            touched.push(queue_id);
            if let Some(queue) = self.queues.get_mut(&queue_id) {
                queue.consumers.retain(|other| other != id);
                queue.exclusively_consumed = false;
                queue.unused_since = now;
            }
            for entry in consumer.end(reason) {
                self.give_back(queue_id, entry);
            }
        }
        for queue in touched {
            self.serve(queue, now);
        }
        self.finish(now);
    }

    /// Counts a return, and puts the message back or lets it die of too many.
    fn give_back(&mut self, id: QueueId, mut entry: Entry) {
        let Some(queue) = self.queues.get_mut(&id) else {
            self.release(entry.weight());
            return;
        };
        entry.returns += 1;
        match queue.definition.delivery_limit {
            Some(limit) if entry.returns > limit => {
                self.dead.push_back((id, entry, DeathReason::DeliveryLimit));
            }
            _ => queue.put(entry),
        }
    }

    /// Removes deliveries from the broker, and refills their consumer.
    pub(in crate::broker::memory) fn ack(&mut self, id: ConsumerId, tags: &[u64], now: Instant) {
        let Some(consumer) = self.consumers.get_mut(&id) else {
            return;
        };
        let queue = consumer.queue;
        let settled = tags.iter().filter_map(|tag| consumer.settle(*tag));
        let freed: usize = settled.map(|entry| entry.weight()).sum();
        self.release(freed);
        self.serve(queue, now);
        self.finish(now);
    }

    /// Puts one delivery back into its queue.
    pub(in crate::broker::memory) fn requeue(&mut self, id: ConsumerId, tag: u64, now: Instant) {
        if let Some((queue, entry)) = self.settle(id, tag) {
            self.give_back(queue, entry);
            self.serve(queue, now);
            self.finish(now);
        }
    }

    /// Sends one delivery to the dead-letter exchange of its queue.
    pub(in crate::broker::memory) fn dead_letter(&mut self, id: ConsumerId, tag: u64, now: Instant) {
        if let Some((queue, entry)) = self.settle(id, tag) {
            self.dead.push_back((queue, entry, DeathReason::Rejected));
            self.serve(queue, now);
            self.finish(now);
        }
    }

    fn settle(&mut self, id: ConsumerId, tag: u64) -> Option<(QueueId, Entry)> {
        let consumer = self.consumers.get_mut(&id)?;
        Some((consumer.queue, consumer.settle(tag)?))
    }
}
