//! The in-process broker of standalone mode: RabbitMQ's semantics without RabbitMQ.
//!
//! Everything lives in memory and ends with the process; what must survive is in the tables, from which every role
//! recovers. Memory is bounded: when queued and unacked messages fill the limit, the broker is
//! [`Blocked`](crate::broker::BrokerHealth::Blocked) until consumers have made room: publications wait, and are nacked
//! after [`PUBLISH_DEADLINE`]. Consuming and acking go on.
//!
//! Where RabbitMQ's queue types differ, it behaves like this: a returned message goes back to its place; a message
//! expires when it is at the head of its queue; beyond the length limit the message that would be delivered next goes
//! first; a dead letter that circles without a client's rejection is dropped.

mod consumer;
mod exchange;
mod faults;
mod queue;
mod state;
#[cfg(test)]
mod tests;
mod timer;

use self::{
    consumer::MemoryConsumer,
    queue::ConnectionId,
    state::{Published, State},
};
use super::{
    Broker, BrokerError, BrokerHealth, ConsumeOptions, Consumer, Publication, PublishOutcome, QueueState,
    Topology,
};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

/// Longest wait of a publication for a broker whose memory is full.
pub const PUBLISH_DEADLINE: Duration = Duration::from_secs(5);

/// Default bound of all messages together, as the broker counts them: texts plus a fixed charge each.
pub const DEFAULT_MEMORY_LIMIT: usize = 256 << 20;

/// Publications settled under one hold of the lock, so that a large batch does not stop everybody else.
const LOCKED_BATCH: usize = 128;

/// One connection to an in-process broker. Further connections to the same one come from [`MemoryBroker::connect`]:
/// each owns its exclusive queues and consumers.
pub struct MemoryBroker {
    server: Arc<Server>,
    connection: ConnectionId,
    health: watch::Receiver<BrokerHealth>,
}

/// What all connections share.
struct Server {
    state: Mutex<State>,
    /// Wakes publications that wait for memory.
    room: Notify,
    timer: timer::Timer,
}

impl MemoryBroker {
    /// A new broker with [`DEFAULT_MEMORY_LIMIT`], and a first connection to it.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::with_memory_limit(DEFAULT_MEMORY_LIMIT)
    }

    /// A new broker that holds at most about `limit` bytes of messages, and a first connection to it.
    #[must_use]
    pub fn with_memory_limit(limit: usize) -> Arc<Self> {
        let server = Arc::new(Server {
            state: Mutex::new(State::new(limit)),
            room: Notify::new(),
            timer: timer::Timer::default(),
        });
        Self::connect_to(server)
    }

    /// Another connection to the same broker, as another process would have.
    #[must_use]
    pub fn connect(&self) -> Arc<Self> {
        Self::connect_to(Arc::clone(&self.server))
    }

    fn connect_to(server: Arc<Server>) -> Arc<Self> {
        let (connection, health) = server.state.lock().connect();
        Arc::new(Self {
            server,
            connection,
            health,
        })
    }
}

impl Server {
    /// Changes the state, then wakes whom it concerns: publications that may have room now, and the timer.
    fn change<T>(self: &Arc<Self>, work: impl FnOnce(&mut State, Instant) -> T) -> T {
        let mut state = self.state.lock();
        let value = work(&mut state, Instant::now());
        let next_timer = state.next_timer();
        let room_made = state.take_room_made();
        drop(state);
        if let Some(at) = next_timer {
            self.timer.set(self, at);
        }
        if room_made {
            self.room.notify_waiters();
        }
        value
    }
}

#[async_trait]
impl Broker for MemoryBroker {
    async fn declare(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.server
            .change(|state, now| state.declare(self.connection, topology, now))
    }

    async fn delete_queue(&self, queue: &str) -> Result<(), BrokerError> {
        self.server
            .change(|state, now| state.delete_queue(self.connection, queue, now))
    }

    async fn publish(&self, publications: Vec<Publication>) -> Vec<PublishOutcome> {
        let total = publications.len();
        let deadline = Instant::now() + PUBLISH_DEADLINE;
        let mut outcomes = Vec::with_capacity(total);
        let mut publications = publications.into_iter();
        while outcomes.len() < total {
            tokio::task::coop::consume_budget().await;
            // Registered before the look, so that room made in between is not missed.
            let mut room = std::pin::pin!(self.server.room.notified());
            room.as_mut().enable();
            let published = self.server.change(|state, now| {
                let mut some = publications.by_ref().take(LOCKED_BATCH);
                state.publish(self.connection, &mut some, &mut outcomes, now)
            });
            let unsettled = match published {
                Published::All => continue,
                Published::Disconnected => PublishOutcome::Unknown,
                Published::Blocked => match tokio::time::timeout_at(deadline, room).await {
                    Ok(()) => continue,
                    Err(_) => PublishOutcome::Nacked,
                },
            };
            outcomes.resize(total, unsettled);
        }
        outcomes
    }

    async fn consume(&self, queue: &str, options: ConsumeOptions) -> Result<Box<dyn Consumer>, BrokerError> {
        let (id, end) = self
            .server
            .change(|state, now| state.consume(self.connection, queue, options, now))?;
        Ok(Box::new(MemoryConsumer {
            server: Arc::clone(&self.server),
            id,
            queue: queue.to_owned(),
            end,
        }))
    }

    async fn inspect(&self, queue: &str) -> Result<Option<QueueState>, BrokerError> {
        self.server
            .change(|state, now| state.inspect(self.connection, queue, now))
    }

    fn health(&self) -> watch::Receiver<BrokerHealth> {
        self.health.clone()
    }

    async fn close(&self) {
        let last = self.server.change(|state, now| {
            state.disconnect(self.connection, now);
            !state.has_connections()
        });
        if last {
            self.server.timer.stop().await;
        }
    }
}
