//! The way of a message: from its publisher into queues, to consumers, and on when it dies.

use super::{Published, State};
use crate::broker::{
    Publication, PublishOutcome,
    memory::{
        consumer::ConsumerState,
        queue::{ConnectionId, DeathReason, QueueId, Stored, would_circle},
    },
};
use std::sync::Arc;
use tokio::time::Instant;

impl State {
    /// Settles publications in order until all are done or the broker is full.
    pub(in crate::broker::memory) fn publish(
        &mut self,
        connection: ConnectionId,
        publications: &mut dyn Iterator<Item = Publication>,
        outcomes: &mut Vec<PublishOutcome>,
        now: Instant,
    ) -> Published {
        if self.check_connected(connection).is_err() {
            return Published::Disconnected;
        }
        loop {
            if self.blocked {
                return Published::Blocked;
            }
            let Some(publication) = publications.next() else {
                return Published::All;
            };
            outcomes.push(self.publish_one(publication, now));
        }
    }

    fn publish_one(&mut self, publication: Publication, now: Instant) -> PublishOutcome {
        let Publication {
            exchange,
            routing_key,
            mandatory,
            message,
        } = publication;
        let Some(targets) = self.targets(&exchange, &routing_key) else {
            return PublishOutcome::Nacked;
        };
        if targets.is_empty() {
            return if mandatory {
                PublishOutcome::Returned
            } else {
                PublishOutcome::Confirmed
            };
        }
        let stored = Arc::new(Stored {
            exchange,
            routing_key,
            message,
        });
        for target in targets {
            self.enqueue(target, Arc::clone(&stored), Vec::new(), now);
        }
        self.finish(now);
        PublishOutcome::Confirmed
    }

    /// The queues an address leads to; none for an exchange that does not exist.
    fn targets(&self, exchange: &str, routing_key: &str) -> Option<Vec<QueueId>> {
        let mut targets = Vec::new();
        if exchange.is_empty() {
            targets.extend(self.queue_names.get(routing_key));
        } else {
            self.exchanges.get(exchange)?.route(routing_key, &mut targets);
        }
        Some(targets)
    }

    fn enqueue(
        &mut self,
        id: QueueId,
        stored: Arc<Stored>,
        deaths: Vec<(QueueId, DeathReason)>,
        now: Instant,
    ) {
        let Some(queue) = self.queues.get_mut(&id) else {
            return;
        };
        let entry = queue.entry(stored, deaths, now);
        self.used_bytes += entry.weight();
        queue.put(entry);
        self.serve(id, now);
        if let Some(queue) = self.queues.get_mut(&id) {
            while let Some(entry) = queue.take_excess() {
                self.dead.push_back((id, entry, DeathReason::MaxLength));
            }
        }
        if !self.blocked && self.used_bytes > self.limit_bytes {
            self.blocked = true;
            self.announce_health();
        }
    }

    /// Hands ready messages to consumers that have room, in turn, and drops what is over its time.
    pub(super) fn serve(&mut self, id: QueueId, now: Instant) {
        let Some(queue) = self.queues.get_mut(&id) else {
            return;
        };
        loop {
            // Strictly: a message with a zero TTL still reaches a consumer that has room at that moment.
            while let Some(entry) = queue.take_expired(|at| at < now) {
                self.dead.push_back((id, entry, DeathReason::Expired));
            }
            if queue.ready() == 0 {
                break;
            }
            let roomy = queue
                .consumers
                .iter()
                .position(|consumer| self.consumers.get(consumer).is_some_and(ConsumerState::has_room));
            let Some(turn) = roomy else { break };
            let consumer = self.consumers.get_mut(&queue.consumers[turn]);
            if let (Some(consumer), Some(entry)) = (consumer, queue.take()) {
                consumer.hand_out(entry);
            }
            queue.consumers.rotate_left(turn + 1);
        }
        while let Some(entry) = queue.take_expired(|at| at <= now) {
            self.dead.push_back((id, entry, DeathReason::Expired));
        }
        self.arm(id);
    }

    /// Routes what died in this step, and what dies of that in turn. Every public function ends with it.
    pub(super) fn finish(&mut self, now: Instant) {
        while let Some((id, entry, reason)) = self.dead.pop_front() {
            self.release(entry.weight());
            let Some(queue) = self.queues.get(&id) else {
                continue;
            };
            let Some((exchange, routing_key)) = queue.definition.dead_letter.clone() else {
                continue;
            };
            let stored = entry
                .stored
                .after_death(&queue.definition.name, reason, exchange, routing_key);
            let mut deaths = entry.deaths;
            if !deaths.contains(&(id, reason)) {
                deaths.push((id, reason));
            }
            let targets = self.targets(&stored.exchange, &stored.routing_key);
            let stored = Arc::new(stored);
            for target in targets.unwrap_or_default() {
                if !would_circle(&deaths, target) {
                    self.enqueue(target, Arc::clone(&stored), deaths.clone(), now);
                }
            }
        }
    }
}
