//! Nudges others after a commit: the leader when something is due, the relay when a callback is. Coalesced and best
//! effort: it never delays or fails an answer, since both also look by themselves.

use isocost_common::{
    broker::{Broker, Message, Publication, PublishOutcome, topology::Names},
    message::{CallbackTicket, Wake, kind},
    time::EpochMillis,
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicI64, Ordering},
};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tracing::debug;

const NOTHING: i64 = i64::MAX;
/// Tickets that may wait to be published. The relay's sweep finds the rows of those that find no room.
const TICKETS: usize = 4_096;

/// Where requests say what is due.
pub(crate) struct Waker {
    pending: Arc<Pending>,
    tickets: mpsc::Sender<CallbackTicket>,
}

struct Pending {
    earliest: AtomicI64,
    orders: AtomicBool,
    arrived: Notify,
}

/// The task that publishes.
pub(crate) struct Nudging {
    pending: Arc<Pending>,
    tickets: mpsc::Receiver<CallbackTicket>,
    broker: Arc<dyn Broker>,
    names: Names,
}

impl Waker {
    pub(crate) fn new(broker: Arc<dyn Broker>, names: Names) -> (Self, Nudging) {
        let pending = Arc::new(Pending {
            earliest: AtomicI64::new(NOTHING),
            orders: AtomicBool::new(false),
            arrived: Notify::new(),
        });
        let (sender, receiver) = mpsc::channel(TICKETS);
        let nudging = Nudging {
            pending: Arc::clone(&pending),
            tickets: receiver,
            broker,
            names,
        };
        let waker = Self {
            pending,
            tickets: sender,
        };
        (waker, nudging)
    }

    /// Something is due at `instant`. Returns at once.
    pub(crate) fn wake(&self, instant: EpochMillis) {
        let before = self.pending.earliest.fetch_min(instant.0, Ordering::AcqRel);
        if instant.0 < before {
            self.pending.arrived.notify_one();
        }
    }

    /// Settings, or orders to workers, were changed at `now`: the leader reads them at once. Returns at once.
    pub(crate) fn orders(&self, now: EpochMillis) {
        self.pending.orders.store(true, Ordering::Release);
        self.wake(now);
    }

    /// Callbacks are due. Returns at once.
    pub(crate) fn callbacks(&self, tickets: Vec<CallbackTicket>) {
        for ticket in tickets {
            if self.tickets.try_send(ticket).is_err() {
                debug!("no room for callback tickets; the relay's sweep finds the rest");
                return;
            }
        }
    }
}

impl Nudging {
    /// Publishes until `stop`, and once more what is pending then.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut tickets = Vec::new();
        loop {
            tokio::select! {
                () = self.pending.arrived.notified() => {}
                received = self.tickets.recv_many(&mut tickets, TICKETS) => {
                    // Nobody is left who could ask for anything: a closed channel answers at once, for ever.
                    if received == 0 {
                        break;
                    }
                }
                () = stop.cancelled() => break,
            }
            self.publish(&mut tickets).await;
        }
        while let Ok(ticket) = self.tickets.try_recv() {
            tickets.push(ticket);
        }
        self.publish(&mut tickets).await;
    }

    async fn publish(&self, tickets: &mut Vec<CallbackTicket>) {
        let mut publications: Vec<Publication> =
            tickets.drain(..).map(|ticket| self.ticket(ticket)).collect();
        publications.extend(self.due_wake());
        if publications.is_empty() {
            return;
        }
        let outcomes = self.broker.publish(publications).await;
        if outcomes
            .iter()
            .any(|outcome| *outcome != PublishOutcome::Confirmed)
        {
            debug!(
                ?outcomes,
                "a nudge did not get through; the others look by themselves"
            );
        }
    }

    fn due_wake(&self) -> Option<Publication> {
        let earliest = self.pending.earliest.swap(NOTHING, Ordering::AcqRel);
        if earliest == NOTHING {
            return None;
        }
        let orders = self.pending.orders.swap(false, Ordering::AcqRel);
        Some(Publication {
            exchange: self.names.wake_exchange(),
            routing_key: String::new(),
            mandatory: false,
            message: Message::json(
                kind::WAKE,
                &Wake {
                    due: EpochMillis(earliest),
                    orders,
                },
            ),
        })
    }

    fn ticket(&self, ticket: CallbackTicket) -> Publication {
        Publication {
            exchange: self.names.callbacks_exchange(),
            routing_key: self.names.first_callbacks_queue(),
            mandatory: true,
            message: Message::json(kind::CALLBACK, &ticket),
        }
    }
}
