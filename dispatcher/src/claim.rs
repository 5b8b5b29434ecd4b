//! The claim: one transaction that turns due jobs into executions, and places those that have room at once.

use crate::{
    leader::Leader,
    misfire::{self, FiringPlan},
    placement::{Line, job_key},
};
use isocost_common::{
    crash_point::{CrashPoint, reach},
    execution::ExecutionStatus,
    id::{ExecutionId, JobId},
    job::{ConcurrencyPolicy, JobStatus},
    store::{
        StoreError, Tx,
        claim::{self, Advance, DueJob, DueRow},
        epoch,
        executions::{self, ExecutionRow, TriggerKind, rank_time},
        followers,
        job_log::{self, LogEntry},
        placement::{Class, Handover, Order},
        settle::{self, Ended},
        slots::LockedSlots,
    },
    time::EpochMillis,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    time::Duration,
};
use tokio::time::Instant;
use tracing::{debug, warn};

/// Without a claim for this long, the leader looks behind what it has no room for.
const LOOK_BEHIND: Duration = Duration::from_millis(50);
/// The same while what it has no room for goes away by itself, and fast.
const LOOK_BEHIND_WHILE_BUSY: Duration = Duration::from_millis(500);
/// Executions placed since the last claim that count as fast.
const BUSY: usize = 100;
/// Classes of the last claim whose room decides about the size of the next.
const REMEMBERED_CLASSES: usize = 16;

/// What a claim is about to write.
#[derive(Debug, Default)]
struct Batch {
    jobs: Vec<DueJob>,
    executions: Vec<ClaimedExecution>,
    advances: Vec<Advance>,
    log: Vec<LogEntry>,
    /// Jobs for which nothing is planned and nothing was made: completed, unless something of them is still open.
    exhausted: Vec<JobId>,
}

#[derive(Debug)]
struct ClaimedExecution {
    /// Index of its job in the batch.
    job: usize,
    row: ExecutionRow,
    message: Option<String>,
}

impl Leader {
    /// Claims due jobs, as many as the classes of the last claim have room for: what is placed by its claim is written
    /// once, what has to wait is written twice. When nothing was claimed for a while because those classes are full, a
    /// whole batch is, so that others are found behind a flood of theirs.
    ///
    /// True when there may be more.
    pub(crate) async fn claim(&mut self) -> Result<bool, StoreError> {
        let now = Instant::now();
        let room = self.room_for_last_claim(now);
        let pause = if self.placed >= BUSY {
            LOOK_BEHIND_WHILE_BUSY
        } else {
            LOOK_BEHIND
        };
        let look_behind_at = self.claimed_at + pause;
        self.holds_back = (room == 0 && now < look_behind_at).then_some(look_behind_at);
        if self.holds_back.is_some() {
            return Ok(false);
        }
        let limit = if room == 0 { u32::MAX } else { room }.min(self.config.claim_batch);
        self.placed = 0;
        let claimed = match self.claim_once(limit, false).await {
            // A firing of this instant stands already, for instance of a job that was restored from a copy: it stands
            // for itself, and its neighbours must not wait for it.
            Err(StoreError::Duplicate(_)) => self.claim_once(limit, true).await?,
            other => other?,
        };
        self.claimed_at = now;
        // The agenda is read again: it knows what is due next, and whether the batch left something behind.
        self.agenda = None;
        Ok(claimed > 0)
    }

    fn room_for_last_claim(&mut self, now: Instant) -> u32 {
        let mut room = 0;
        for class in &self.last_claimed {
            let offers = self.fleet.offers(class, now);
            room += offers
                .iter()
                .map(|(_, offer)| offer.free + offer.extra)
                .sum::<u32>();
        }
        room
    }

    async fn claim_once(&mut self, limit: u32, leave_out_standing: bool) -> Result<usize, StoreError> {
        let now = self.store.now();
        let mut tx = self.store.begin().await?;
        epoch::guard(&mut tx, self.tenure.epoch).await?;
        let (due, mut slots) = claim::lock_due(&mut tx, now, limit).await?;
        if due.is_empty() {
            return Ok(0);
        }
        let jobs = due.len();
        let standing = if leave_out_standing {
            standing_firings(&mut tx, &due).await?
        } else {
            HashSet::new()
        };
        let misfire_after = Duration::from_millis(self.config.misfire_after_ms);
        let mut batch = Batch::default();
        for job in due {
            batch.fire(job, now, misfire_after, &standing, &mut slots);
        }
        let handover = self.handover(now);
        let seated = self.seat(&mut batch, handover);
        match write(tx, &batch, &slots, now).await {
            Ok(something_due) => {
                self.backlog.is_stale |= something_due;
                self.adopt_claimed(&batch, &seated, handover);
                Ok(jobs)
            }
            Err(failure) => {
                self.release_seats(seated.iter().map(|(line, _)| line));
                Err(failure)
            }
        }
    }

    /// Gives those executions of the batch a seat whose class has room and nobody waiting before them. Returns the
    /// lines, each with the indices of its executions, of which the first ones got the seats.
    fn seat(&mut self, batch: &mut Batch, handover: Handover) -> Vec<(Line, Vec<usize>)> {
        let mut by_class: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, execution) in batch.executions.iter().enumerate() {
            let row = &execution.row;
            let expired = row.start_deadline_at.is_some_and(|at| at <= handover.placed_at);
            if row.status == ExecutionStatus::Pending && !expired && !self.backlog.contains(&row.class_key) {
                by_class.entry(&row.class_key).or_default().push(index);
            }
        }
        let mut seated: Vec<(Line, Vec<usize>)> = Vec::with_capacity(by_class.len());
        for mut indices in by_class.into_values() {
            indices.sort_by_key(|index| batch.executions[*index].row.rank_time);
            let first = &batch.executions[indices[0]];
            let class = self.backlog.class_or(&first.row.class_key, || Class {
                key: first.row.class_key.clone(),
                app: first.row.app,
                handler: first.row.handler.clone(),
                selector: batch.jobs[first.job].selector.clone(),
            });
            let mut line = Line::new(class, indices.len());
            if self.balancer.prefers_homes() {
                let jobs = indices.iter().map(|index| batch.executions[*index].row.job);
                line.jobs = jobs.map(job_key).collect();
            }
            seated.push((line, indices));
        }
        self.take_seats(seated.iter_mut().map(|(line, _)| line).collect());
        for (line, indices) in &seated {
            for (seat, index) in line.seats.iter().zip(indices) {
                let row = &mut batch.executions[*index].row;
                row.status = ExecutionStatus::Dispatched;
                row.dispatch_seq = 1;
                row.worker = Some(seat.worker.clone());
                row.incarnation = Some(seat.incarnation);
                row.epoch = Some(handover.epoch);
                row.not_after = Some(handover.not_after);
                row.dispatched_at = Some(handover.placed_at);
            }
        }
        seated
    }

    /// After the commit: what was placed is ours to publish, what was not waits in its class.
    fn adopt_claimed(&mut self, batch: &Batch, seated: &[(Line, Vec<usize>)], handover: Handover) {
        let lateness = metrics::histogram!("isocost_trigger_lateness_seconds");
        for ClaimedExecution { job, row, .. } in &batch.executions {
            let expected = row.scheduled_time.max(batch.jobs[*job].submitted_at);
            lateness.record(row.created_at.since(expected).as_secs_f64());
            if row.status == ExecutionStatus::Pending {
                self.backlog.waits(&row.class_key);
            }
        }
        let mut parcels = Vec::new();
        for (line, indices) in seated {
            for (seat, index) in line.seats.iter().zip(indices) {
                let ClaimedExecution { job, row, .. } = &batch.executions[*index];
                let order = order(row, &batch.jobs[*job]);
                parcels.push(self.adopt(order, seat, &line.class, handover));
            }
        }
        self.placed += parcels.len();
        self.publisher.dispatch(parcels);
        let classes = batch.executions.iter().map(|execution| &execution.row.class_key);
        let classes: BTreeSet<&String> = classes.collect();
        let classes = classes.into_iter().take(REMEMBERED_CLASSES);
        self.last_claimed = classes.filter_map(|key| self.backlog.class(key)).collect();
    }
}

impl Batch {
    /// Adds what one due job does.
    fn fire(
        &mut self,
        due: DueRow,
        now: EpochMillis,
        misfire_after: Duration,
        standing: &HashSet<(JobId, EpochMillis)>,
        slots: &mut LockedSlots,
    ) {
        let DueRow { id, version, job } = due;
        let mut advance = Advance {
            id,
            version,
            next_trigger_time: None,
            status: JobStatus::Waiting,
            invalid_reason: None,
        };
        let planned = job.and_then(|job| {
            let plan = misfire::plan(&job, now, misfire_after).map_err(|error| error.to_string())?;
            Ok((job, plan))
        });
        let (job, plan) = match planned {
            Ok(planned) => planned,
            Err(reason) => {
                warn!(
                    job.id = advance.id,
                    reason, "job {} cannot be evaluated", advance.id
                );
                advance.status = JobStatus::Invalid;
                advance.invalid_reason = Some(reason);
                return self.advances.push(advance);
            }
        };
        // Locked a moment after its slots were looked up: it changed in between, and is left for the next claim.
        if job.slot_key.as_ref().is_some_and(|key| !slots.contains(key)) {
            return;
        }
        advance.next_trigger_time = plan.next;
        let before = self.executions.len();
        self.execute(&job, &plan, now, standing, slots);
        if plan.next.is_none() && job.trigger.is_recurring() && self.executions.len() == before {
            self.exhausted.push(job.id);
        }
        self.advances.push(advance);
        self.jobs.push(job);
    }

    /// Adds the executions of a plan, one a firing and shard, with the slots they start with.
    fn execute(
        &mut self,
        job: &DueJob,
        plan: &FiringPlan,
        now: EpochMillis,
        standing: &HashSet<(JobId, EpochMillis)>,
        slots: &mut LockedSlots,
    ) {
        if let Some(from) = plan.left_out_from {
            self.log.push(left_out(job, from, now));
        }
        let slot_key = &job.slot_key;
        for firing in &plan.firings {
            if standing.contains(&(job.id, firing.scheduled)) {
                debug!(job.id = %job.id, scheduled_time = %firing.scheduled, "this firing stands already");
                continue;
            }
            let discarded = job.concurrency == ConcurrencyPolicy::Discard
                && slot_key.as_ref().is_some_and(|key| slots.any_held(key));
            for shard in 0..job.shards {
                let (status, why) = if discarded {
                    let why = "skipped: an earlier execution is still open";
                    (ExecutionStatus::Skipped, Some(why))
                } else if slot_key.as_ref().is_some_and(|key| !slots.take(key)) {
                    (ExecutionStatus::Blocked, Some("waits for its concurrency slot"))
                } else {
                    (ExecutionStatus::Pending, None)
                };
                // Both are worth a word: what a missed firing stands for is recorded nowhere else.
                let missed = firing.missed.then_some("missed; made up for by policy");
                let words: Vec<&str> = missed.into_iter().chain(why).collect();
                self.executions.push(ClaimedExecution {
                    job: self.jobs.len(),
                    row: new_execution(job, firing.scheduled, shard, status, now),
                    message: (!words.is_empty()).then(|| words.join("; ")),
                });
            }
        }
    }

    fn log(&self) -> Vec<LogEntry> {
        let made = self
            .executions
            .iter()
            .map(|ClaimedExecution { row, message, .. }| LogEntry {
                job: row.job,
                execution: Some(row.id),
                attempt: 0,
                dispatch_seq: row.dispatch_seq,
                from: None,
                to: Some(row.status),
                worker: row.worker.clone(),
                message: message.clone(),
                at: row.created_at,
            });
        self.log.iter().cloned().chain(made).collect()
    }
}

fn left_out(job: &DueJob, from: EpochMillis, now: EpochMillis) -> LogEntry {
    LogEntry {
        job: job.id,
        execution: None,
        attempt: 0,
        dispatch_seq: 0,
        from: None,
        to: None,
        worker: None,
        message: Some(format!(
            "firings missed from {from} on were left out by the misfire policy"
        )),
        at: now,
    }
}

fn new_execution(
    job: &DueJob,
    scheduled: EpochMillis,
    shard: u32,
    status: ExecutionStatus,
    now: EpochMillis,
) -> ExecutionRow {
    let millis = |ms: i64| Duration::from_millis(u64::try_from(ms).unwrap_or(0));
    ExecutionRow {
        id: ExecutionId::generate(),
        job: job.id,
        app: job.app,
        handler: job.handler.clone(),
        scheduled_time: scheduled,
        shard,
        trigger_key: String::new(),
        trigger_kind: TriggerKind::Schedule,
        status,
        not_before: scheduled,
        class_key: job.class_key.clone(),
        // An instant long before the submission gives no right to go before those who wait.
        rank_time: rank_time(scheduled.max(job.submitted_at), job.priority),
        attempt: 0,
        interruptions: 0,
        max_attempts: job.max_attempts,
        dispatch_seq: 0,
        worker: None,
        incarnation: None,
        epoch: None,
        not_after: None,
        slot_key: job.slot_key.clone(),
        params: None,
        created_at: now,
        due_at: Some(scheduled),
        dispatched_at: None,
        started_at: None,
        finished_at: status.is_terminal().then_some(now),
        start_deadline_at: job.start_deadline_ms.map(|ms| scheduled + millis(ms)),
        timeout_ms: job.timeout_ms,
        cancel_requested_at: None,
        progress_percent: None,
        progress_message: None,
        result: None,
        error: None,
    }
}

/// Writes the batch and commits. True when settling skipped executions made something due.
async fn write(mut tx: Tx, batch: &Batch, slots: &LockedSlots, now: EpochMillis) -> Result<bool, StoreError> {
    slots.write(&mut tx).await?;
    let open = claim::with_open_executions(&mut tx, &batch.exhausted).await?;
    let mut advances = batch.advances.clone();
    let mut completed = batch.exhausted.clone();
    completed.retain(|id| !open.contains(id));
    for id in &completed {
        let id = id.to_string();
        if let Some(advance) = advances.iter_mut().find(|advance| advance.id == id) {
            advance.status = JobStatus::Completed;
        }
    }
    claim::advance(&mut tx, &advances, now).await?;
    let rows: Vec<_> = batch
        .executions
        .iter()
        .map(|execution| execution.row.clone())
        .collect();
    executions::insert_many(&mut tx, &rows).await?;
    job_log::append(&mut tx, &batch.log()).await?;
    let skipped: Vec<_> = rows
        .into_iter()
        .filter(|row| row.status == ExecutionStatus::Skipped)
        .map(|row| Ended {
            row,
            held_slot: false,
        })
        .collect();
    let mut applied = settle::settle(&mut tx, &skipped).await?;
    followers::end(&mut tx, &completed, now, &mut applied).await?;
    reach(CrashPoint::ClaimUncommitted);
    tx.commit().await?;
    reach(CrashPoint::ClaimCommitted);
    Ok(applied.due.is_some())
}

async fn standing_firings(tx: &mut Tx, due: &[DueRow]) -> Result<HashSet<(JobId, EpochMillis)>, StoreError> {
    let jobs: Vec<_> = due.iter().filter_map(|due| due.job.as_ref().ok()).collect();
    let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
    let since = jobs.iter().map(|job| job.due).min();
    claim::standing_firings(tx, &ids, since.unwrap_or(EpochMillis(0))).await
}

fn order(row: &ExecutionRow, job: &DueJob) -> Order {
    Order {
        claim: row.claim(),
        job: row.job,
        app: row.app,
        handler: row.handler.clone(),
        job_name: job.name.clone(),
        scheduled_time: row.scheduled_time,
        shard: row.shard,
        shards: job.shards,
        attempt: row.attempt,
        timeout_ms: row.timeout_ms,
        priority: job.priority,
        params: job.params.clone(),
        traceparent: job.traceparent.clone(),
    }
}
