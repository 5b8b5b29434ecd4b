//! Everything the broker knows, behind one lock. Every function is short and never waits; waiting is done outside, on
//! the notifications that [`super::Server`] holds.

mod consuming;
mod declaring;
mod routing;

use super::{
    consumer::{ConsumerId, ConsumerState},
    exchange::Exchange,
    queue::{ConnectionId, DeathReason, Entry, Queue, QueueId},
};
use crate::broker::{BrokerError, BrokerHealth};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
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

    fn release(&mut self, bytes: usize) {
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
        if self.blocked && self.used_bytes <= self.limit_bytes / 100 * RESUME_PERCENT {
            self.blocked = false;
            self.room_made = true;
            self.announce_health();
        }
    }
}
