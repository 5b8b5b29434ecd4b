//! Placing: which class is served when, by whom, and the transaction that says so.
//!
//! Executions that cannot be placed wait in the database, by class. Only classes that somebody has room for are read, in
//! turn, so a flood of one handler or app never hides another's work.

use crate::{
    balancer::{affinity, home_key},
    held::Held,
    leader::Leader,
    publish::Parcel,
};
use isocost_common::{
    crash_point::{CrashPoint, reach},
    execution::{Claim, ExecutionEvent, ExecutionStatus},
    id::{ExecutionId, IncarnationId, JobId, WorkerId},
    message::DispatchedExecution,
    store::{
        StoreError, claim, epoch,
        executions::ExecutionRow,
        job_log::{self, LogEntry},
        placement::{self, Class, Handover, Order, Placed, Waiting},
        transitions::{self, Applied, Change},
    },
    time::EpochMillis,
};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};
use tokio::time::Instant;
use tracing::debug;

/// Executions placed in one transaction.
const MOST_PLACED: usize = 500;
/// Executions of one class before the next class has its turn.
const TURN: usize = 8;
/// Classes kept in memory without anything waiting.
const KNOWN_CLASSES: usize = 10_000;
/// Executions that change state by time in one transaction.
const MOST_MOVED: u32 = 400;

/// The classes that have pending executions.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    waiting: BTreeMap<String, Arc<Class>>,
    known: HashMap<String, Arc<Class>>,
    /// Something may wait that is not listed here.
    pub(crate) is_stale: bool,
    /// The class that was served last.
    last: String,
}

impl Backlog {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// True when executions of the class wait: newer ones go behind them.
    pub(crate) fn contains(&self, key: &str) -> bool {
        self.waiting.contains_key(key)
    }

    /// The class with this key, remembered from now on.
    pub(crate) fn class_or(&mut self, key: &str, class: impl FnOnce() -> Class) -> Arc<Class> {
        if let Some(class) = self.known.get(key) {
            return Arc::clone(class);
        }
        if self.known.len() >= KNOWN_CLASSES {
            self.known.clear();
        }
        let class = Arc::new(class());
        self.known.insert(key.to_owned(), Arc::clone(&class));
        class
    }

    pub(crate) fn class(&self, key: &str) -> Option<Arc<Class>> {
        self.known.get(key).map(Arc::clone)
    }

    /// An execution of the class waits.
    pub(crate) fn waits(&mut self, key: &str) {
        match self.class(key) {
            Some(class) => {
                self.waiting.insert(key.to_owned(), class);
            }
            None => self.is_stale = true,
        }
    }

    /// The waiting classes, beginning behind the one that was served last.
    fn in_turn(&self) -> Vec<Line> {
        let line = |class: &Arc<Class>| Line::new(Arc::clone(class), MOST_PLACED);
        let (before, after): (Vec<_>, Vec<_>) = self.waiting.iter().partition(|(key, _)| **key <= self.last);
        after
            .into_iter()
            .chain(before)
            .map(|(_, class)| line(class))
            .collect()
    }
}

/// Executions of one class that want a seat, and the seats they got.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) class: Arc<Class>,
    wanted: usize,
    /// [`home_key`] of the job of each execution, in the order of the seats; empty while they are not known.
    pub(crate) jobs: Vec<u64>,
    pub(crate) seats: Vec<TakenSeat>,
}

/// A place on an incarnation, counted already.
#[derive(Debug, Clone)]
pub(crate) struct TakenSeat {
    pub(crate) worker: WorkerId,
    pub(crate) incarnation: IncarnationId,
    /// A slot that is free now, not a place in the queue behind the slots.
    pub(crate) is_free: bool,
}

impl Line {
    pub(crate) fn new(class: Arc<Class>, wanted: usize) -> Self {
        Self {
            class,
            wanted,
            jobs: Vec::new(),
            seats: Vec::new(),
        }
    }

    /// Hands the seats out so that each execution, in order, gets the one that its job is drawn to most; free slots come
    /// first, as always.
    fn seat_at_homes(&mut self, jobs: impl Iterator<Item = JobId>) {
        for (place, job) in jobs.enumerate().take(self.seats.len()) {
            let job = job_key(job);
            let left = &self.seats[place..];
            let any_free = left.iter().any(|seat| seat.is_free);
            let best = left
                .iter()
                .enumerate()
                .filter(|(_, seat)| seat.is_free || !any_free)
                .max_by_key(|(_, seat)| affinity(job, home_key(seat.worker.as_str().as_bytes())));
            if let Some((offset, _)) = best {
                self.seats.swap(place, place + offset);
            }
        }
    }
}

/// [`home_key`] of a job.
pub(crate) fn job_key(job: JobId) -> u64 {
    home_key(job.as_uuid().as_bytes())
}

impl Leader {
    /// What the placements of a transaction share.
    pub(crate) fn handover(&self, now: EpochMillis) -> Handover {
        Handover {
            epoch: self.tenure.epoch,
            placed_at: now,
            not_after: now + self.leases.not_after(),
        }
    }

    /// Takes seats for the lines, a few for each in turn, until they have what they want or nobody has room.
    pub(crate) fn take_seats(&mut self, mut lines: Vec<&mut Line>) {
        let now = Instant::now();
        let turn = if lines.len() == 1 { MOST_PLACED } else { TURN };
        let mut left = MOST_PLACED;
        while left > 0 && !lines.is_empty() {
            lines.retain_mut(|line| {
                let owned = self.fleet.owned_by(line.class.app);
                let limit = self.app_limits.get(&line.class.app);
                let allowed = limit.map_or(usize::MAX, |limit| limit.saturating_sub(owned) as usize);
                let wanted = line.wanted - line.seats.len();
                let count = turn.min(wanted).min(allowed).min(left);
                let taken = self.take_turn(line, count, now);
                left -= taken;
                // Served in full, and with something left to wish for.
                taken == turn && wanted > turn
            });
        }
    }

    /// Takes up to `count` seats for one line; returns how many.
    fn take_turn(&mut self, line: &mut Line, count: usize, now: Instant) -> usize {
        if count == 0 {
            return 0;
        }
        let (incarnations, mut offers): (Vec<_>, Vec<_>) =
            self.fleet.offers(&line.class, now).into_iter().unzip();
        for taken in 0..count {
            let job = line.jobs.get(line.seats.len()).copied();
            let Some(index) = self.balancer.choose(&offers, job) else {
                return taken;
            };
            let is_free = offers[index].free > 0;
            offers[index] = offers[index].taken();
            let incarnation = incarnations[index];
            self.fleet.reserve(incarnation, &line.class);
            if let Some(member) = self.fleet.member_mut(incarnation) {
                line.seats.push(TakenSeat {
                    worker: member.worker.clone(),
                    incarnation,
                    is_free,
                });
            }
        }
        count
    }

    /// Gives seats back whose executions were not placed after all.
    pub(crate) fn release_seats<'a>(&mut self, lines: impl Iterator<Item = &'a Line>) {
        for line in lines {
            for seat in &line.seats {
                self.fleet.unreserve(seat.incarnation, &line.class);
            }
        }
    }

    /// Takes an execution, placed and committed, into the set, and makes the parcel for its worker.
    pub(crate) fn adopt(
        &mut self,
        order: Order,
        seat: &TakenSeat,
        class: &Arc<Class>,
        handover: Handover,
    ) -> Parcel {
        self.fleet.adopt(Held {
            claim: order.claim,
            worker: seat.worker.clone(),
            incarnation: seat.incarnation,
            class: Arc::clone(class),
            status: ExecutionStatus::Dispatched,
            placed_at: handover.placed_at,
            not_after: handover.not_after,
            epoch: handover.epoch,
            since: Instant::now(),
            started_at: None,
            timeout_ms: order.timeout_ms,
            cancel_requested: false,
            published: false,
            unnamed: 0,
            asked_at: None,
        });
        parcel(order, seat, handover)
    }

    /// Places what waits and has room. True when something was placed.
    pub(crate) async fn place(&mut self) -> Result<bool, StoreError> {
        if self.backlog.is_stale {
            self.read_backlog().await?;
        }
        let mut lines = self.backlog.in_turn();
        self.take_seats(lines.iter_mut().collect());
        lines.retain(|line| !line.seats.is_empty());
        let Some(last) = lines.last() else {
            return Ok(false);
        };
        self.backlog.last.clone_from(&last.class.key);
        match self.place_lines(&mut lines).await {
            Ok(placed) => Ok(placed > 0),
            Err(failure) => {
                self.release_seats(lines.iter());
                Err(failure)
            }
        }
    }

    async fn place_lines(&mut self, lines: &mut [Line]) -> Result<usize, StoreError> {
        let now = self.store.now();
        let handover = self.handover(now);
        let mut tx = self.store.begin().await?;
        epoch::guard(&mut tx, handover.epoch).await?;
        let mut waiting: Vec<Vec<Waiting>> = Vec::with_capacity(lines.len());
        for line in lines.iter() {
            let limit = u32::try_from(line.seats.len()).unwrap_or(u32::MAX);
            waiting.push(placement::lock_pending(&mut tx, &line.class.key, now, limit).await?);
        }
        if self.balancer.prefers_homes() {
            for (line, rows) in lines.iter_mut().zip(&waiting) {
                line.seat_at_homes(rows.iter().map(|row| row.job));
            }
        }
        let seated = || {
            lines.iter().zip(&waiting).flat_map(|(line, rows)| {
                rows.iter()
                    .zip(&line.seats)
                    .map(move |(row, seat)| (row, seat, &line.class))
            })
        };
        let mut placed: Vec<Placed> = seated().map(|(row, seat, _)| place_on(row, seat)).collect();
        placed.sort_by_key(|placed| placed.claim);
        placement::place(&mut tx, &placed, handover).await?;
        let log: Vec<LogEntry> = seated()
            .map(|(row, seat, _)| placed_entry(row, seat, now))
            .collect();
        job_log::append(&mut tx, &log).await?;
        let ids: Vec<ExecutionId> = placed.iter().map(|placed| placed.claim.execution).collect();
        let orders = placement::orders(&mut tx, &ids).await?;
        reach(CrashPoint::PlacementUncommitted);
        tx.commit().await?;
        reach(CrashPoint::PlacementCommitted);

        let mut orders: HashMap<_, _> = orders
            .into_iter()
            .map(|order| (order.claim.execution, order))
            .collect();
        let queue_wait = metrics::histogram!("isocost_queue_wait_seconds");
        let mut parcels = Vec::with_capacity(placed.len());
        for (line, rows) in lines.iter_mut().zip(waiting) {
            let surplus = Line {
                seats: line.seats.split_off(rows.len()),
                ..Line::new(Arc::clone(&line.class), 0)
            };
            if !surplus.seats.is_empty() {
                self.backlog.waiting.remove(&line.class.key);
                self.release_seats(std::iter::once(&surplus));
            }
            for (row, seat) in rows.iter().zip(&line.seats) {
                queue_wait.record(row.due_at.map_or(0.0, |due| now.since(due).as_secs_f64()));
                if let Some(order) = orders.remove(&row.id) {
                    parcels.push(self.adopt(order, seat, &line.class, handover));
                }
            }
        }
        self.placed += parcels.len();
        self.publisher.dispatch(parcels);
        Ok(placed.len())
    }

    async fn read_backlog(&mut self) -> Result<(), StoreError> {
        let mut reader = self.store.reader().await?;
        let keys = placement::pending_classes(&mut reader).await?;
        let mut waiting = BTreeMap::new();
        for key in keys {
            let class = match self.backlog.class(&key) {
                Some(class) => class,
                None => match placement::pending_class(&mut reader, &key).await? {
                    Some(class) => self.backlog.class_or(&key, || class),
                    None => continue,
                },
            };
            waiting.insert(key, class);
        }
        self.backlog.waiting = waiting;
        self.backlog.is_stale = false;
        Ok(())
    }

    /// Makes executions pending whose `not_before` is reached. True when there may be more.
    pub(crate) async fn promote(&mut self, now: EpochMillis) -> Result<bool, StoreError> {
        let mut reader = self.store.reader().await?;
        let ids = claim::due_executions(&mut reader, now, MOST_MOVED).await?;
        drop(reader);
        self.change(&ids, now, &ExecutionEvent::Due, |row| row.not_before <= now)
            .await
    }

    /// Ends executions whose start deadline has passed before they started. True when there may be more.
    pub(crate) async fn expire(&mut self, now: EpochMillis) -> Result<bool, StoreError> {
        let mut reader = self.store.reader().await?;
        let ids = claim::past_start_deadline(&mut reader, now, MOST_MOVED).await?;
        drop(reader);
        let event = ExecutionEvent::StartDeadlinePassed;
        self.change(&ids, now, &event, |row| {
            row.start_deadline_at.is_some_and(|at| at <= now)
        })
        .await
    }

    /// Applies one event to executions, as far as it still concerns them under their locks. True when some changed.
    pub(crate) async fn change(
        &mut self,
        ids: &[ExecutionId],
        now: EpochMillis,
        event: &ExecutionEvent<'_>,
        concerns: impl Fn(&ExecutionRow) -> bool,
    ) -> Result<bool, StoreError> {
        self.agenda = None;
        if ids.is_empty() {
            return Ok(false);
        }
        let mut tx = self.store.begin().await?;
        epoch::guard(&mut tx, self.tenure.epoch).await?;
        let rows = transitions::lock(&mut tx, ids).await?;
        let changes: Vec<Change> = rows
            .into_iter()
            .filter(|row| concerns(row))
            .filter_map(|row| match row.status.after(event, row.facts()) {
                Ok(step) => Some(Change {
                    before: row,
                    step,
                    at: now,
                    started_at: None,
                    not_before: None,
                    result: None,
                    error: None,
                    message: None,
                }),
                Err(stale) => {
                    debug!(execution.id = %row.id, %stale, "nothing to change");
                    None
                }
            })
            .collect();
        let applied = transitions::apply(&mut tx, &changes).await?;
        tx.commit().await?;
        reach(CrashPoint::ChangeCommitted);
        self.note_changed(&changes, &applied);
        Ok(!changes.is_empty())
    }

    /// After the commit of changes made here: the set follows, callbacks are on their way, and what became due is seen.
    pub(crate) fn note_changed(&mut self, changes: &[Change], applied: &Applied) {
        for change in changes {
            if !change.step.to.is_owned() {
                self.fleet.let_go(change.before.claim());
            }
        }
        self.backlog.is_stale = true;
        self.agenda = None;
        self.publisher.send_tickets(&applied.callbacks);
    }
}

fn place_on(row: &Waiting, seat: &TakenSeat) -> Placed {
    Placed {
        claim: Claim {
            execution: row.id,
            dispatch_seq: row.dispatch_seq + 1,
        },
        worker: seat.worker.clone(),
        incarnation: seat.incarnation,
    }
}

fn placed_entry(row: &Waiting, seat: &TakenSeat, now: EpochMillis) -> LogEntry {
    LogEntry {
        job: row.job,
        execution: Some(row.id),
        attempt: row.attempt,
        dispatch_seq: row.dispatch_seq + 1,
        from: Some(ExecutionStatus::Pending),
        to: Some(ExecutionStatus::Dispatched),
        worker: Some(seat.worker.clone()),
        message: None,
        at: now,
    }
}

/// What an order is to its worker.
pub(crate) fn parcel(order: Order, seat: &TakenSeat, handover: Handover) -> Parcel {
    Parcel {
        worker: seat.worker.clone(),
        incarnation: seat.incarnation,
        execution: DispatchedExecution {
            claim: order.claim,
            job: order.job,
            app: order.app,
            epoch: handover.epoch,
            attempt: order.attempt + 1,
            not_after: handover.not_after,
            placed_at: handover.placed_at,
            scheduled_time: order.scheduled_time,
            handler: order.handler,
            job_name: order.job_name,
            params: order.params,
            shard: order.shard,
            shards: order.shards,
            timeout_ms: order.timeout_ms,
            priority: order.priority,
            traceparent: order.traceparent.map(|parent| parent.to_string()),
        },
    }
}
