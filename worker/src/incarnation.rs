//! One life of a worker: everything it knows about what it was given, shared by its tasks.
//!
//! A fencing or a lost lease ends the incarnation, not the process: all of this is dropped and made anew.

use crate::{
    acks::{Acks, Delivered},
    bulkhead::Bulkhead,
    handler_log::HandlerLog,
    lease::Lease,
    outbox::{Item, Outbox},
    ownership::{Confirmed, Ownership, Promise, Say},
    run_control::{RunControl, StopReason},
    runtime::Runtime,
    start_keys::StartKeys,
};
use isocost_common::{
    broker::{Broker, Message, Publication},
    execution::Claim,
    id::{IncarnationId, WorkerId},
    message::{HandlerLoad, Heartbeat, Report, ReportEvent},
    time::EpochMillis,
};
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::warn;

/// Why an incarnation ended before its worker did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// A heartbeat was answered *fenced*: the leader has called it dead.
    Fenced,
    /// No heartbeat was acknowledged for so long that the leader may call it dead soon.
    LeaseLost,
}

/// What this incarnation holds, and the handles on what runs. One lock, never held across a wait.
pub(crate) struct Books {
    /// The table of handovers.
    pub(crate) table: Ownership<Arc<Report>>,
    /// The runs, for stopping them.
    pub(crate) runs: HashMap<Claim, Arc<RunControl>>,
}

/// The shared state.
pub(crate) struct Incarnation {
    /// Its id.
    pub(crate) id: IncarnationId,
    /// The process it lives in.
    pub(crate) runtime: Arc<Runtime>,
    /// What it holds.
    pub(crate) books: Mutex<Books>,
    /// What it has to say.
    pub(crate) outbox: Outbox,
    /// What it has to ack.
    pub(crate) acks: Arc<Acks>,
    /// Where its handlers write.
    pub(crate) log: HandlerLog,
    /// Its right to run.
    pub(crate) lease: Lease,
    /// The second guard against running a trigger twice.
    pub(crate) start_keys: StartKeys,
    /// Slots by handler.
    pub(crate) bulkheads: BTreeMap<String, Arc<Bulkhead>>,
    /// The tasks that run handlers.
    pub(crate) runs: TaskTracker,
    /// Wakes the heartbeat when what it says should not wait for the next beat.
    pub(crate) changed: Notify,
    /// Wakes the watch over those who wait for a slot.
    pub(crate) line_formed: Notify,
    /// Set when the first heartbeat was acknowledged.
    pub(crate) registered: CancellationToken,
    /// True while a consumer is attached to its queue.
    pub(crate) consuming: AtomicBool,
    confirmations: Notify,
    draining: AtomicBool,
    beats: AtomicU64,
    end: OnceLock<End>,
    ended: CancellationToken,
}

impl Incarnation {
    /// A new incarnation, which holds nothing and has no lease yet.
    pub(crate) fn new(runtime: &Arc<Runtime>, log: HandlerLog) -> Arc<Self> {
        let table = Ownership::new(runtime.config.leases.not_after());
        Arc::new(Self {
            id: IncarnationId::generate(),
            runtime: Arc::clone(runtime),
            books: Mutex::new(Books {
                table,
                runs: HashMap::new(),
            }),
            outbox: Outbox::default(),
            acks: Arc::default(),
            log,
            lease: Lease::new(&runtime.config.leases),
            start_keys: StartKeys::new(runtime.config.leases.not_after()),
            bulkheads: runtime.bulkheads(),
            runs: TaskTracker::new(),
            changed: Notify::new(),
            line_formed: Notify::new(),
            registered: CancellationToken::new(),
            consuming: AtomicBool::new(false),
            confirmations: Notify::new(),
            draining: AtomicBool::new(false),
            beats: AtomicU64::new(0),
            end: OnceLock::new(),
            ended: CancellationToken::new(),
        })
    }

    /// The worker's name.
    pub(crate) fn worker(&self) -> &WorkerId {
        &self.runtime.worker
    }

    /// The broker.
    pub(crate) fn broker(&self) -> &dyn Broker {
        self.runtime.broker.as_ref()
    }

    /// Makes sure of the exchanges and queues that all roles share; a failure shows at the next publication.
    pub(crate) async fn redeclare_shared(&self) {
        if let Err(error) = self.broker().declare(&self.runtime.shared_topology()).await {
            warn!(error = %error, "declaring the shared exchanges and queues");
        }
    }

    /// A message for the results queue.
    pub(crate) fn mandatory_result(&self, message: Message) -> Publication {
        Publication {
            exchange: self.runtime.names.results_exchange(),
            routing_key: self.runtime.names.results_queue(),
            mandatory: true,
            message,
        }
    }

    /// A message for the logs queue.
    pub(crate) fn log_publication(&self, message: Message) -> Publication {
        Publication {
            exchange: self.runtime.names.logs_exchange(),
            routing_key: self.runtime.names.logs_queue(),
            mandatory: false,
            message,
        }
    }

    /// Ends the incarnation; the first reason counts.
    pub(crate) fn end(&self, end: End) {
        self.lease.revoke();
        let _first_wins = self.end.set(end);
        self.ended.cancel();
    }

    /// Waits for the end.
    pub(crate) async fn ended(&self) -> End {
        self.ended.cancelled().await;
        self.end.get().copied().unwrap_or(End::LeaseLost)
    }

    /// What is missing for taking work; none while it consumes under a valid lease.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        if !self.lease.is_valid() {
            Some("no valid lease: no heartbeat was acknowledged lately")
        } else if !self.consuming.load(Ordering::Relaxed) {
            Some("its queue is not consumed")
        } else if self.is_draining() {
            Some("it is draining")
        } else {
            None
        }
    }

    /// True while it takes nothing new.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Takes nothing new from now on, and gives back what has not started.
    pub(crate) fn drain(&self) {
        // Set before the table is locked: a message that was decided on before is seen by the release below.
        self.draining.store(true, Ordering::Release);
        let released = self.books.lock().table.release_unstarted();
        self.outbox.push(
            released
                .into_iter()
                .map(|claim| self.promise(claim, Promise::Released, "")),
        );
        for bulkhead in self.bulkheads.values() {
            drop(bulkhead.clear_line());
        }
        self.changed.notify_one();
    }

    /// Takes work again, unless the worker stops.
    pub(crate) fn undrain(&self) {
        if self.runs.is_closed() {
            return;
        }
        self.draining.store(false, Ordering::Release);
        self.changed.notify_one();
    }

    /// What the table said, as a report to send.
    pub(crate) fn item(&self, claim: Claim, say: Say<Arc<Report>>) -> Item {
        match say {
            Say::Started(report) | Say::Finished(report) => Item {
                report,
                delivery: None,
            },
            Say::Promise(promise) => self.promise(claim, promise, "not held by this worker"),
        }
    }

    /// A promise as a report to send; `reason` is for a refusal.
    pub(crate) fn promise(&self, claim: Claim, promise: Promise, reason: &str) -> Item {
        let event = match promise {
            Promise::Refused => ReportEvent::Refused {
                reason: reason.to_owned(),
            },
            Promise::Released => ReportEvent::Released,
            Promise::Unknown => ReportEvent::Unknown,
        };
        metrics::counter!("isocost_worker_turned_away_total", "as" => promise.word()).increment(1);
        Item {
            report: Arc::new(Report { claim, event }),
            delivery: None,
        }
    }

    /// Refuses held work, unless something else was faster.
    pub(crate) fn refuse(&self, claim: Claim, reason: &str, delivery: Arc<Delivered>) {
        if let Some(promise) = self.books.lock().table.on_refused(claim) {
            self.outbox.push([Item {
                delivery: Some(delivery),
                ..self.promise(claim, promise, reason)
            }]);
        }
    }

    /// The broker has these reports.
    pub(crate) fn confirmed(&self, reports: impl Iterator<Item = (Claim, Confirmed)>) {
        let mut books = self.books.lock();
        for (claim, which) in reports {
            books.table.on_confirmed(claim, which);
        }
        drop(books);
        self.confirmations.notify_waiters();
    }

    /// Waits until the broker has everything there is to report; runs that go on do not count.
    pub(crate) async fn all_reported(&self) {
        loop {
            let confirmation = self.confirmations.notified();
            if self.books.lock().table.is_reported() {
                return;
            }
            confirmation.await;
        }
    }

    /// Asks every run to stop.
    pub(crate) fn stop_runs(&self, reason: StopReason, grace: Duration) {
        for run in self.books.lock().runs.values() {
            run.stop(reason, grace);
        }
    }

    /// The next heartbeat.
    pub(crate) fn heartbeat(&self, cpu_idle_percent: u8, bye: bool) -> Heartbeat {
        let (handlers, holdings) = {
            let books = self.books.lock();
            (self.handler_loads(&books), books.table.holdings())
        };
        Heartbeat {
            worker: self.worker().clone(),
            incarnation: self.id,
            report_number: self.beats.fetch_add(1, Ordering::Relaxed) + 1,
            host: self.runtime.host.clone(),
            port: self.runtime.port,
            handlers,
            labels: self.runtime.config.worker.labels.clone(),
            cpu_idle_percent,
            draining: bye || self.is_draining(),
            bye,
            sent_at: EpochMillis::system_now(),
            holdings,
        }
    }

    fn handler_loads(&self, books: &Books) -> Vec<HandlerLoad> {
        let now = Instant::now();
        let mut stuck: HashMap<&str, u32> = HashMap::new();
        for run in books.runs.values().filter(|run| run.is_stuck(now)) {
            *stuck.entry(&run.handler).or_default() += 1;
        }
        self.bulkheads
            .values()
            .map(|bulkhead| HandlerLoad {
                name: bulkhead.name.clone(),
                slots: bulkhead.slots,
                busy: bulkhead.busy(),
                stuck: stuck.get(bulkhead.name.as_str()).copied().unwrap_or(0),
            })
            .collect()
    }
}
