//! Everything the broker knows, behind one lock. Every function is short and never waits; waiting is done outside, on
//! the notifications that [`super::Server`] holds.

use super::{
    consumer::{ConsumerEnd, ConsumerId, ConsumerState},
    exchange::Exchange,
    queue::{ConnectionId, DeathReason, Entry, Queue, QueueId, Stored, difference, would_circle},
};
use crate::broker::{
    BrokerError, BrokerHealth, ConsumeOptions, Publication, PublishOutcome, QueueKind, QueueState, Topology,
    topology,
};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    sync::Arc,
};
use tokio::{sync::watch, time::Instant};

/// The broker takes publications again when it is this far below its limit, so that it does not flicker.
const RESUME_PERCENT: usize = 80;

pub(super) struct State {
    exchanges: HashMap<String, Exchange>,
    queues: HashMap<QueueId, Queue>,
    queue_names: HashMap<String, QueueId>,
    pub(super) consumers: HashMap<ConsumerId, ConsumerState>,
    connections: HashMap<ConnectionId, watch::Sender<BrokerHealth>>,
    /// When to look at which queue; entries that no longer match [`Queue::armed`] are void.
    timers: BinaryHeap<Reverse<(Instant, QueueId)>>,
    /// Messages that died and are not yet routed on.
    dead: VecDeque<(QueueId, Entry, DeathReason)>,
    next_id: u64,
    used_bytes: usize,
    limit_bytes: usize,
    blocked: bool,
    /// True while the broker plays dead.
    outage: bool,
    /// Set when publications that wait should try again: there is room, or nothing to wait for.
    room_made: bool,
}

/// How far a batch of publications came.
pub(super) enum Published {
    /// Every one is settled.
    All,
    /// The broker is full; the rest has to wait.
    Blocked,
    /// There is no connection.
    Disconnected,
}

impl State {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self {
            exchanges: HashMap::new(),
            queues: HashMap::new(),
            queue_names: HashMap::new(),
            consumers: HashMap::new(),
            connections: HashMap::new(),
            timers: BinaryHeap::new(),
            dead: VecDeque::new(),
            next_id: 0,
            used_bytes: 0,
            limit_bytes,
            blocked: false,
            outage: false,
            room_made: false,
        }
    }

    fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(super) fn connect(&mut self) -> (ConnectionId, watch::Receiver<BrokerHealth>) {
        let id = ConnectionId(self.fresh_id());
        let (health, receiver) = watch::channel(self.current_health());
        self.connections.insert(id, health);
        (id, receiver)
    }

    fn current_health(&self) -> BrokerHealth {
        if self.outage {
            BrokerHealth::Down("the broker is stopped".into())
        } else if self.blocked {
            BrokerHealth::Blocked(format!(
                "queued messages fill the memory limit of {} bytes",
                self.limit_bytes
            ))
        } else {
            BrokerHealth::Ready
        }
    }

    fn announce_health(&self) {
        let health = self.current_health();
        for connection in self.connections.values() {
            connection.send_replace(health.clone());
        }
    }

    fn check_connected(&self, connection: ConnectionId) -> Result<(), BrokerError> {
        if self.outage {
            Err(BrokerError::Unavailable("the broker is stopped".into()))
        } else if self.connections.contains_key(&connection) {
            Ok(())
        } else {
            Err(BrokerError::Unavailable("the connection is closed".into()))
        }
    }

    /// Ends a connection with its consumers and its exclusive queues.
    pub(super) fn disconnect(&mut self, connection: ConnectionId, now: Instant) {
        self.end_consumers_of(connection, "the connection was closed", now);
        let owned: Vec<_> = self.queues_owned_by(connection);
        for queue in owned {
            self.remove_queue(queue, "its connection was closed", now);
        }
        if let Some(health) = self.connections.remove(&connection) {
            health.send_replace(BrokerHealth::Down("the connection is closed".into()));
        }
        self.room_made = true;
        self.finish(now);
    }

    /// What a lost and restored connection leaves: no consumers, and exclusive queues declared again, empty.
    pub(super) fn interrupt(&mut self, connection: ConnectionId, reason: &str, now: Instant) {
        self.end_consumers_of(connection, reason, now);
        for id in self.queues_owned_by(connection) {
            let Some(queue) = self.queues.get_mut(&id) else {
                continue;
            };
            let freed: usize = queue.drain().map(|entry| entry.weight()).sum();
            self.release(freed);
        }
        self.finish(now);
    }

    pub(super) fn interrupt_all(&mut self, reason: &str, now: Instant) {
        let connections: Vec<_> = self.connections.keys().copied().collect();
        for connection in connections {
            self.interrupt(connection, reason, now);
        }
    }

    pub(super) fn set_outage(&mut self, outage: bool) {
        self.outage = outage;
        self.room_made = true;
        self.announce_health();
    }

    /// True once after publications that wait should try again.
    pub(super) fn take_room_made(&mut self) -> bool {
        std::mem::take(&mut self.room_made)
    }

    pub(super) fn has_connections(&self) -> bool {
        !self.connections.is_empty()
    }

    fn queues_owned_by(&self, connection: ConnectionId) -> Vec<QueueId> {
        let owned = self
            .queues
            .iter()
            .filter(|(_, queue)| queue.owner == Some(connection));
        owned.map(|(id, _)| *id).collect()
    }

    pub(super) fn declare(
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

    fn check_accessible(&self, id: QueueId, connection: ConnectionId) -> Result<(), BrokerError> {
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

    pub(super) fn delete_queue(
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
    fn remove_queue(&mut self, id: QueueId, reason: &str, now: Instant) {
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

    pub(super) fn inspect(
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

    /// Settles publications in order until all are done or the broker is full.
    pub(super) fn publish(
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
    fn serve(&mut self, id: QueueId, now: Instant) {
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

    /// Makes sure that the queue is looked at when something in it expires.
    fn arm(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(&id) else {
            return;
        };
        let Some(deadline) = queue.next_deadline() else {
            return;
        };
        if queue.armed.is_none_or(|armed| deadline < armed) {
            queue.armed = Some(deadline);
            self.timers.push(Reverse((deadline, id)));
        }
    }

    /// Expires what is over, and returns when to look again.
    pub(super) fn advance(&mut self, now: Instant) -> Option<Instant> {
        while let Some(Reverse((at, id))) = self.timers.peek().copied() {
            if at > now {
                break;
            }
            self.timers.pop();
            let Some(queue) = self.queues.get_mut(&id).filter(|queue| queue.armed == Some(at)) else {
                continue;
            };
            queue.armed = None;
            if queue.ends_at().is_some_and(|end| end <= now) {
                self.remove_queue(id, "the queue expired", now);
            } else {
                self.serve(id, now);
            }
        }
        self.finish(now);
        self.next_timer()
    }

    /// The earliest instant at which something expires.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    pub(super) fn consume(
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

    fn end_consumers_of(&mut self, connection: ConnectionId, reason: &str, now: Instant) {
        let of_connection = self
            .consumers
            .iter()
            .filter(|(_, consumer)| consumer.connection == connection);
        let ids: Vec<_> = of_connection.map(|(id, _)| *id).collect();
        self.end_consumers(&ids, reason, now);
    }

    /// Ends consumers; what they held goes back to its places in the queues. All leave before anything is handed out
    /// again, so that nothing goes to one that is about to end as well.
    pub(super) fn end_consumers(&mut self, ids: &[ConsumerId], reason: &str, now: Instant) {
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
    pub(super) fn ack(&mut self, id: ConsumerId, tags: &[u64], now: Instant) {
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
    pub(super) fn requeue(&mut self, id: ConsumerId, tag: u64, now: Instant) {
        if let Some((queue, entry)) = self.settle(id, tag) {
            self.give_back(queue, entry);
            self.serve(queue, now);
            self.finish(now);
        }
    }

    /// Sends one delivery to the dead-letter exchange of its queue.
    pub(super) fn dead_letter(&mut self, id: ConsumerId, tag: u64, now: Instant) {
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

    /// Routes what died in this step, and what dies of that in turn. Every public function ends with it.
    fn finish(&mut self, now: Instant) {
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

    fn release(&mut self, bytes: usize) {
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
        if self.blocked && self.used_bytes <= self.limit_bytes / 100 * RESUME_PERCENT {
            self.blocked = false;
            self.room_made = true;
            self.announce_health();
        }
    }
}
