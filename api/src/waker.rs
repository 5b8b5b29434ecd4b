//! Nudges the leader when something is due, coalesced and best effort: it never delays or fails an answer, since the
//! leader also looks by itself.

use isocost_common::{
    broker::{Broker, Message, Publication, PublishOutcome, topology::Names},
    message::{Wake, kind},
    time::EpochMillis,
};
use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::debug;

const NOTHING: i64 = i64::MAX;

/// Where requests say what is due.
pub struct Waker {
    pending: Arc<Pending>,
}

struct Pending {
    earliest: AtomicI64,
    arrived: Notify,
}

/// The task that publishes.
pub struct Nudging {
    pending: Arc<Pending>,
    broker: Arc<dyn Broker>,
    names: Names,
}

impl Waker {
    pub(crate) fn new(broker: Arc<dyn Broker>, names: Names) -> (Self, Nudging) {
        let pending = Arc::new(Pending {
            earliest: AtomicI64::new(NOTHING),
            arrived: Notify::new(),
        });
        let nudging = Nudging {
            pending: Arc::clone(&pending),
            broker,
            names,
        };
        (Self { pending }, nudging)
    }

    /// Something is due at `instant`. Returns at once.
    pub fn wake(&self, instant: EpochMillis) {
        let before = self.pending.earliest.fetch_min(instant.0, Ordering::AcqRel);
        if instant.0 < before {
            self.pending.arrived.notify_one();
        }
    }
}

impl Nudging {
    /// Publishes until `stop`, and once more what is pending then.
    pub(crate) async fn run(self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = self.pending.arrived.notified() => self.publish().await,
                () = stop.cancelled() => break,
            }
        }
        self.publish().await;
    }

    async fn publish(&self) {
        let earliest = self.pending.earliest.swap(NOTHING, Ordering::AcqRel);
        if earliest == NOTHING {
            return;
        }
        let wake = Wake {
            due: EpochMillis(earliest),
        };
        let publication = Publication {
            exchange: self.names.wake_exchange(),
            routing_key: String::new(),
            mandatory: false,
            message: Message::json(kind::WAKE, &wake),
        };
        let outcomes = self.broker.publish(vec![publication]).await;
        if outcomes != [PublishOutcome::Confirmed] {
            debug!(
                ?outcomes,
                "a wake-up did not get through; the leader looks by itself"
            );
        }
    }
}
