//! One incarnation as the leader knows it: what it offers, what it owns, how it answered so far.

use crate::{
    balancer::home_key,
    cost::{CostSummary, CostWindow},
};
use isocost_common::{
    id::{IncarnationId, WorkerId},
    job::Selector,
    message::HandlerLoad,
    store::workers::{WorkerRow, WorkerStatus},
    time::EpochMillis,
};
use std::{collections::BTreeMap, time::Duration};
use tokio::time::Instant;

const FIRST_REFUSAL_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_REFUSAL_PAUSE: Duration = Duration::from_secs(5);

/// One handler of one incarnation.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) slots: u32,
    /// Slots whose run was told to stop and goes on: they are not in the leader's set any more.
    pub(super) stuck: u32,
    pub(super) active: u32,
    pub(super) costs: CostWindow,
    /// For how long its oldest run has gone on, in milliseconds, as of the last round.
    pub(super) oldest_run_ms: f64,
    pub(super) refusal: Option<Refusal>,
}

/// It refused something: left out for a while.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refusal {
    pub(super) until: Instant,
    pause: Duration,
}

/// One incarnation.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) worker: WorkerId,
    pub(crate) incarnation: IncarnationId,
    /// By which jobs find it again.
    pub(super) home: u64,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(super) labels: Selector,
    pub(super) seats: BTreeMap<String, Seat>,
    pub(super) costs: CostWindow,
    pub(super) cpu_idle_percent: u8,
    /// Executions it owns, of all handlers.
    pub(crate) active: u32,
    /// As its last heartbeat said.
    pub(crate) draining: bool,
    /// As its row says; none before the row was read.
    pub(crate) drain_requested: Option<bool>,
    /// A drain was withdrawn in this term, and the worker has not followed yet.
    pub(crate) undraining: bool,
    /// How it ended, once it has.
    pub(crate) ended: Option<WorkerStatus>,
    /// Its row stands in the table: nothing is placed on it before.
    pub(crate) registered: bool,
    /// Its row lags behind.
    pub(crate) changed: bool,
    /// The database refuses its row: it is not written any more.
    pub(crate) unfit: bool,
    /// The status its row shows.
    pub(crate) stored_status: WorkerStatus,
    pub(super) registered_at: EpochMillis,
    pub(super) last_heartbeat: EpochMillis,
    pub(super) first_known: Instant,
    /// When a heartbeat of it last came to this leader.
    pub(super) heard_at: Option<Instant>,
    /// Its lease counts from here: its last arrival, or whatever restarted all leases since.
    pub(crate) lease_from: Instant,
    pub(crate) report_number: u64,
}

impl Seat {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            slots: 0,
            stuck: 0,
            active: 0,
            costs: CostWindow::new(now),
            oldest_run_ms: 0.0,
            refusal: None,
        }
    }

    /// Slots free now, and how many executions may queue behind the slots.
    pub(super) fn room(&mut self, now: Instant) -> (u32, u32) {
        let usable = self.slots.saturating_sub(self.stuck);
        if self.refusal.is_some_and(|refusal| now < refusal.until) || usable == 0 {
            return (0, 0);
        }
        let costs = self.costs.summary(now).or_running_for(self.oldest_run_ms);
        let extra = costs.extra(usable);
        let most = usable + extra;
        (
            usable.saturating_sub(self.active),
            most.saturating_sub(self.active.max(usable)),
        )
    }

    pub(super) fn refuse(&mut self, now: Instant) {
        let pause = self.refusal.map_or(FIRST_REFUSAL_PAUSE, |last| {
            // Several refusals of one pause are one event: they crossed on their way.
            let pause = if now < last.until {
                last.pause
            } else {
                last.pause * 2
            };
            pause.min(LONGEST_REFUSAL_PAUSE)
        });
        self.refusal = Some(Refusal {
            until: now + pause,
            pause,
        });
    }
}

impl Member {
    pub(super) fn new(worker: WorkerId, incarnation: IncarnationId, now: Instant) -> Self {
        Self {
            home: home_key(worker.as_str().as_bytes()),
            worker,
            incarnation,
            host: String::new(),
            port: 0,
            labels: Selector::new(),
            seats: BTreeMap::new(),
            costs: CostWindow::new(now),
            cpu_idle_percent: 100,
            active: 0,
            draining: false,
            drain_requested: None,
            undraining: false,
            ended: None,
            registered: false,
            changed: false,
            unfit: false,
            stored_status: WorkerStatus::Online,
            registered_at: EpochMillis(0),
            last_heartbeat: EpochMillis(0),
            first_known: now,
            heard_at: None,
            lease_from: now,
            report_number: 0,
        }
    }

    pub(super) fn offer_handlers(&mut self, handlers: &[HandlerLoad], now: Instant) {
        for seat in self.seats.values_mut() {
            seat.slots = 0;
        }
        for handler in handlers {
            let seat = self
                .seats
                .entry(handler.name.clone())
                .or_insert_with(|| Seat::new(now));
            (seat.slots, seat.stuck) = (handler.slots, handler.stuck);
        }
    }

    pub(super) fn takes_work(&self, now: Instant, silence_limit: Duration) -> bool {
        now.duration_since(self.lease_from) < silence_limit
            && self.registered
            && self.ended.is_none()
            && !self.draining
            && self.drain_requested != Some(true)
    }

    pub(super) fn carries(&self, selector: &Selector) -> bool {
        selector
            .iter()
            .all(|(key, value)| self.labels.get(key) == Some(value))
    }

    /// The status its row should show.
    pub(crate) fn status(&self) -> WorkerStatus {
        match self.ended {
            Some(status) => status,
            None if self.draining || self.drain_requested == Some(true) => WorkerStatus::Draining,
            None => WorkerStatus::Online,
        }
    }

    /// Run times over all handlers.
    pub(crate) fn costs(&mut self, now: Instant) -> CostSummary {
        self.costs.summary(now)
    }

    /// Its row as it should stand.
    pub(crate) fn row(&mut self, now: Instant) -> WorkerRow {
        let handlers = self.seats.iter().filter(|(_, seat)| seat.slots > 0);
        WorkerRow {
            worker: self.worker.clone(),
            incarnation: self.incarnation,
            host: self.host.clone(),
            port: self.port,
            handlers: handlers
                .map(|(name, seat)| HandlerLoad {
                    name: name.clone(),
                    slots: seat.slots,
                    busy: seat.active.min(seat.slots),
                    stuck: seat.stuck,
                })
                .collect(),
            labels: self.labels.clone(),
            status: self.status(),
            drain_requested: self.drain_requested.unwrap_or(false),
            active: self.active,
            cpu_idle_percent: self.cpu_idle_percent,
            mean_cost_ms: self.costs.summary(now).mean_ms.round() as i64,
            registered_at: self.registered_at,
            last_heartbeat: self.last_heartbeat,
        }
    }
}
