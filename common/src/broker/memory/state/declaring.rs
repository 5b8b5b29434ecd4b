//! Exchanges and queues: declared, looked at, removed.

use super::State;
use crate::broker::{
    BrokerError, QueueKind, QueueState, Topology,
    memory::{
        exchange::Exchange,
        queue::{ConnectionId, Queue, QueueId, difference},
    },
    topology,
};
use tokio::time::Instant;

impl State {
    pub(in crate::broker::memory) fn declare(
        &mut self,
        connection: ConnectionId,
        topology: &Topology,
        now: Instant,
    ) -> Result<(), BrokerError> {
        self.check_connected(connection)?;
        for exchange in &topology.exchanges {
            self.declare_exchange(exchange)?;
        }
        for queue in &topology.queues {
            self.declare_queue(connection, queue, now)?;
        }
        for binding in &topology.bindings {
            let queue = *self
                .queue_names
                .get(&binding.queue)
                .ok_or_else(|| BrokerError::NoSuchQueue(binding.queue.clone()))?;
            let exchange =
                self.exchanges
                    .get_mut(&binding.exchange)
                    .ok_or_else(|| BrokerError::Conflict {
                        name: binding.exchange.clone(),
                        reason: format!("no such exchange to bind queue `{}` to", binding.queue),
                    })?;
            exchange.bind(&binding.routing_key, queue);
        }
        Ok(())
    }

    fn declare_exchange(&mut self, wanted: &topology::Exchange) -> Result<(), BrokerError> {
        let exchange = self
            .exchanges
            .entry(wanted.name.clone())
            .or_insert_with(|| Exchange::new(wanted.kind));
        if exchange.kind() == wanted.kind {
            Ok(())
        } else {
            Err(BrokerError::Conflict {
                name: wanted.name.clone(),
                reason: format!("its kind is {:?}, not {:?}", exchange.kind(), wanted.kind),
            })
        }
    }

    fn declare_queue(
        &mut self,
        connection: ConnectionId,
        wanted: &topology::Queue,
        now: Instant,
    ) -> Result<(), BrokerError> {
        if let Some(id) = self.queue_names.get(&wanted.name).copied() {
            self.check_accessible(id, connection)?;
            let Some(queue) = self.queues.get_mut(&id) else {
                return Ok(());
            };
            if let Some(reason) = difference(&queue.definition, wanted) {
                return Err(BrokerError::Conflict {
                    name: wanted.name.clone(),
                    reason,
                });
            }
            queue.unused_since = now;
            return Ok(());
        }
        let id = QueueId(self.fresh_id());
        let owner = (wanted.kind == QueueKind::Exclusive).then_some(connection);
        self.queues.insert(id, Queue::new(wanted.clone(), owner, now));
        self.queue_names.insert(wanted.name.clone(), id);
        self.arm(id);
        Ok(())
    }

    pub(super) fn check_accessible(&self, id: QueueId, connection: ConnectionId) -> Result<(), BrokerError> {
        match self.queues.get(&id) {
            Some(queue) if queue.owner.is_some_and(|owner| owner != connection) => {
                Err(BrokerError::Conflict {
                    name: queue.definition.name.clone(),
                    reason: "it is exclusive to another connection".into(),
                })
            }
            _ => Ok(()),
        }
    }

    pub(in crate::broker::memory) fn delete_queue(
        &mut self,
        connection: ConnectionId,
        name: &str,
        now: Instant,
    ) -> Result<(), BrokerError> {
        self.check_connected(connection)?;
        if let Some(id) = self.queue_names.get(name).copied() {
            self.check_accessible(id, connection)?;
            self.remove_queue(id, "the queue was deleted", now);
            self.finish(now);
        }
        Ok(())
    }

    /// Takes a queue out with its bindings, its messages and its consumers. Nothing of it is dead-lettered.
    pub(super) fn remove_queue(&mut self, id: QueueId, reason: &str, now: Instant) {
        let Some(mut queue) = self.queues.remove(&id) else {
            return;
        };
        self.queue_names.remove(&queue.definition.name);
        for exchange in self.exchanges.values_mut() {
            exchange.unbind_everywhere(id);
        }
        let mut freed: usize = queue.drain().map(|entry| entry.weight()).sum();
        for consumer in queue.consumers {
            if let Some(consumer) = self.consumers.remove(&consumer) {
                freed += consumer.end(reason).map(|entry| entry.weight()).sum::<usize>();
            }
        }
        self.release(freed);
        self.finish(now);
    }

    pub(in crate::broker::memory) fn inspect(
        &mut self,
        connection: ConnectionId,
        name: &str,
        now: Instant,
    ) -> Result<Option<QueueState>, BrokerError> {
        self.check_connected(connection)?;
        self.advance(now);
        let Some(id) = self.queue_names.get(name).copied() else {
            return Ok(None);
        };
        self.check_accessible(id, connection)?;
        Ok(self.queues.get(&id).map(|queue| QueueState {
            messages: queue.ready() as u64,
            consumers: queue.consumers.len() as u64,
        }))
    }
}
