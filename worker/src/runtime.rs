//! What a worker process keeps over all its incarnations.

use crate::{
    WorkerPorts, bulkhead::Bulkhead, database_clock::DatabaseClock, handler::Handler, handler_log,
    incarnation::Incarnation, left_over::LeftOver, pool::HandlerPool,
};
use isocost_common::{
    broker::{Broker, Topology, topology::Names},
    config::Config,
    coordination::Coordination,
    id::{IncarnationId, WorkerId},
    message::Unfit,
};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

/// Dispatch messages stay in a worker's queue this much longer than they may be taken.
const QUEUE_TTL_BEYOND_NOT_AFTER: Duration = Duration::from_secs(60);

/// A handler and its slots.
pub(crate) struct Offer {
    /// What runs.
    pub(crate) handler: Handler,
    /// Runs at once.
    pub(crate) slots: u32,
}

/// Who the worker is, and where others reach its probe.
pub(crate) struct Identity {
    /// Its stable name.
    pub(crate) worker: WorkerId,
    /// Host name or address.
    pub(crate) host: String,
    /// Port.
    pub(crate) port: u16,
}

/// The process.
pub(crate) struct Runtime {
    /// The whole configuration.
    pub(crate) config: Config,
    /// Its stable name.
    pub(crate) worker: WorkerId,
    /// Names on the broker.
    pub(crate) names: Names,
    /// The broker.
    pub(crate) broker: Arc<dyn Broker>,
    /// The coordination service.
    pub(crate) coordination: Arc<dyn Coordination>,
    /// What it offers, by name.
    pub(crate) offers: BTreeMap<String, Offer>,
    /// Where handlers run.
    pub(crate) pool: HandlerPool,
    /// The database's clock as seen from here.
    pub(crate) clock: Arc<DatabaseClock>,
    /// Under which name others reach the probe.
    pub(crate) host: String,
    /// Where the probe listens.
    pub(crate) port: u16,
    current: Mutex<Weak<Incarnation>>,
    left_over: Mutex<Option<LeftOver>>,
}

impl Runtime {
    /// A process that has not lived yet.
    pub(crate) fn new(
        config: Config,
        identity: Identity,
        ports: WorkerPorts,
        offers: BTreeMap<String, Offer>,
        pool: HandlerPool,
    ) -> Arc<Self> {
        Arc::new(Self {
            names: Names::new(&config.broker.namespace),
            config,
            worker: identity.worker,
            broker: ports.broker,
            coordination: ports.coordination,
            offers,
            pool,
            clock: Arc::new(DatabaseClock::new()),
            host: identity.host,
            port: identity.port,
            current: Mutex::new(Weak::new()),
            left_over: Mutex::new(None),
        })
    }

    /// Free bulkheads for a new incarnation.
    pub(crate) fn bulkheads(&self) -> BTreeMap<String, Arc<Bulkhead>> {
        self.offers
            .iter()
            .map(|(name, offer)| {
                let bulkhead = Bulkhead::new(name.clone(), offer.handler.clone(), offer.slots);
                (name.clone(), bulkhead)
            })
            .collect()
    }

    /// Dispatch messages held at once: enough to refill every slot while acks are under way, and no more.
    pub(crate) fn prefetch(&self) -> u16 {
        let slots: u64 = self.offers.values().map(|offer| u64::from(offer.slots)).sum();
        u16::try_from(2 * slots + 64).unwrap_or(u16::MAX)
    }

    /// Whether the leader will be able to register this worker: found out before it says a word.
    pub(crate) fn check_registration(self: &Arc<Self>) -> Result<(), Unfit> {
        let (log, _unread) = handler_log::channel();
        Incarnation::new(self, log).heartbeat(100, false).check()
    }

    /// The queue of an incarnation's dispatches.
    pub(crate) fn dispatch_queue(&self, incarnation: IncarnationId) -> String {
        self.names.worker_queue(&self.worker, incarnation)
    }

    /// The queue of requests to an incarnation.
    pub(crate) fn control_queue(&self, incarnation: IncarnationId) -> String {
        self.names.control_queue(&self.worker, incarnation)
    }

    /// What all roles share.
    pub(crate) fn shared_topology(&self) -> Topology {
        self.names.shared_topology(&self.config.relay.delay_tiers())
    }

    /// What an incarnation adds.
    pub(crate) fn worker_topology(&self, incarnation: IncarnationId) -> Topology {
        let ttl = self.config.leases.not_after() + QUEUE_TTL_BEYOND_NOT_AFTER;
        self.names.worker_topology(&self.worker, incarnation, ttl)
    }

    /// The incarnation that lives now; none between two.
    pub(crate) fn current(&self) -> Option<Arc<Incarnation>> {
        self.current.lock().upgrade()
    }

    /// An incarnation has ended, with this left over. Nobody answers for it any more.
    pub(crate) fn leave(&self, left_over: Option<LeftOver>) {
        *self.current.lock() = Weak::new();
        *self.left_over.lock() = left_over;
    }

    /// What the incarnation before has left over.
    pub(crate) fn take_left_over(&self) -> Option<LeftOver> {
        self.left_over.lock().take()
    }

    /// What is missing for taking work; none when nothing is.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        match self.current() {
            None => Some("it is not registered with the broker yet"),
            Some(incarnation) => incarnation.missing(),
        }
    }

    /// A new incarnation lives.
    pub(crate) fn set_current(&self, incarnation: &Arc<Incarnation>) {
        *self.current.lock() = Arc::downgrade(incarnation);
    }
}
