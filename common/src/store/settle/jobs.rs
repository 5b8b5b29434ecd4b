//! What the end of executions means for their jobs: a final status, or the next firing of a fixed delay.
//!
//! A one-shot is SUCCESS once every shard has succeeded, by its schedule or by a retry, so a successful retry turns
//! FAILED into SUCCESS; runs by hand never change the status of a finished one-shot. CANCELLED is kept whatever ends
//! later. A recurring job is COMPLETED when nothing is planned and nothing is open; a job that follows another one, when
//! that one can fire no more. PAUSED is kept, except by a one-shot that has fired and ended: there is nothing to resume.

use super::{Ended, EndedJob, Firing};
use crate::{
    execution::ExecutionStatus as Status,
    id::JobId,
    job::{JobStatus, Trigger},
    store::{
        BulkUpdate, Connection, Row, StoreError, Tx, executions::TriggerKind, key_chunks, placeholders,
        transitions::Applied,
    },
    time::EpochMillis,
};
use sqlx::AssertSqlSafe;
use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

/// How the executions of a job stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Counts {
    /// Not terminal.
    open: i64,
    /// Shards with a success by schedule or retry.
    succeeded_shards: i64,
    /// Of the schedule: ended without success, cancelled ones left out.
    failed: i64,
    /// Of the schedule: cancelled.
    cancelled: i64,
    /// Of the schedule.
    fired: i64,
}

/// Writes the new status and next firing of the jobs that these ends change.
pub(super) async fn advance(
    tx: &mut Tx,
    jobs: &HashMap<JobId, EndedJob>,
    ended: &[Ended],
    firings: &[Firing<'_>],
    applied: &mut Applied,
) -> Result<(), StoreError> {
    let successors: HashMap<JobId, EpochMillis> = firings
        .iter()
        .filter_map(|firing| {
            let job = jobs.get(&firing.last.job)?;
            Some((job.id, job.successor(firing)?))
        })
        .collect();
    let retried: BTreeSet<JobId> = ended
        .iter()
        .filter(|ended| ended.row.trigger_kind == TriggerKind::Retry)
        .map(|ended| ended.row.job)
        .collect();
    let mut undecided: Vec<JobId> = jobs
        .values()
        .filter(|job| !successors.contains_key(&job.id) && job.may_be_over(retried.contains(&job.id)))
        .map(|job| job.id)
        .collect();
    undecided.sort_unstable();
    let counts = count(tx, &undecided).await?;
    let mut changes: Vec<(&EndedJob, JobStatus, Option<EpochMillis>)> = Vec::new();
    for (id, next) in &successors {
        applied.due_at(*next);
        let job = &jobs[id];
        changes.push((job, job.status, Some(*next)));
    }
    for id in &undecided {
        let job = &jobs[id];
        let counts = counts.get(id).copied().unwrap_or_default();
        changes.extend(
            job.final_status(counts)
                .filter(|status| *status != job.status)
                .map(|status| (job, status, None)),
        );
    }
    changes.sort_by_key(|(job, ..)| job.id);
    write(tx, &changes, ended).await
}

impl EndedJob {
    /// The next firing of a fixed delay, if this end is what it waits for. A run by hand leaves the schedule alone.
    fn successor(&self, firing: &Firing<'_>) -> Option<EpochMillis> {
        let Trigger::FixedDelay { every_ms } = self.trigger else {
            return None;
        };
        let waits = self.next_trigger_time.is_none()
            && matches!(self.status, JobStatus::Waiting | JobStatus::Paused)
            && firing.last.trigger_kind == TriggerKind::Schedule;
        let finished_at = firing.last.finished_at.filter(|_| waits)?;
        let next = finished_at + Duration::from_millis(u64::try_from(every_ms).unwrap_or(1));
        let open = self.window.end_at.is_none_or(|end| next <= end);
        open.then_some(next)
    }

    /// True when its executions have to be counted to know whether it is over.
    fn may_be_over(&self, retried: bool) -> bool {
        let nothing_planned = self.next_trigger_time.is_none();
        match (&self.trigger, self.status) {
            (Trigger::Manual {}, _) => false,
            (Trigger::Once { .. }, JobStatus::Waiting | JobStatus::Paused) => nothing_planned,
            (Trigger::Once { .. }, JobStatus::Failed) => retried,
            (Trigger::After { .. }, JobStatus::Waiting) => {
                nothing_planned && self.parent_status.is_none_or(JobStatus::is_terminal)
            }
            (_, JobStatus::Waiting) => nothing_planned,
            _ => false,
        }
    }

    /// Its status when nothing of it is open any more; none while it is not over.
    fn final_status(&self, counts: Counts) -> Option<JobStatus> {
        if counts.open > 0 {
            return None;
        }
        if self.trigger.is_recurring() {
            return Some(JobStatus::Completed);
        }
        // Only runs by hand so far: the one shot itself is still to come.
        if counts.fired == 0 {
            return None;
        }
        Some(if counts.succeeded_shards >= i64::from(self.shards) {
            JobStatus::Success
        } else if counts.cancelled > 0 && counts.failed == 0 {
            JobStatus::Cancelled
        } else {
            JobStatus::Failed
        })
    }
}

async fn count(connection: &mut Connection, jobs: &[JobId]) -> Result<HashMap<JobId, Counts>, StoreError> {
    let succeeded = Status::Succeeded.code();
    let cancelled = Status::Cancelled.code();
    let scheduled = TriggerKind::Schedule.code();
    let retry = TriggerKind::Retry.code();
    let mut counts = HashMap::with_capacity(jobs.len());
    for chunk in key_chunks(jobs) {
        let sql = format!(
            "select job_id, count(case when status < {succeeded} then 1 end) as open_count, \
             count(distinct case when status = {succeeded} and trigger_kind in ({scheduled}, {retry}) \
                            then shard end) as succeeded_shards, \
             count(case when status > {succeeded} and status <> {cancelled} and trigger_kind = {scheduled} \
                   then 1 end) as failed_count, \
             count(case when status = {cancelled} and trigger_kind = {scheduled} then 1 end) as cancelled_count, \
             count(case when trigger_kind = {scheduled} then 1 end) as fired_count \
             from job_execution where job_id in ({}) group by job_id",
            placeholders(chunk.len(), 0)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for job in chunk {
            query = query.bind(job.to_string());
        }
        for row in query.fetch_all(&mut *connection).await? {
            let row = Row(&row);
            let of_job = Counts {
                open: row.int("open_count")?,
                succeeded_shards: row.int("succeeded_shards")?,
                failed: row.int("failed_count")?,
                cancelled: row.int("cancelled_count")?,
                fired: row.int("fired_count")?,
            };
            counts.insert(row.parsed("job_id")?, of_job);
        }
    }
    Ok(counts)
}

async fn write(
    tx: &mut Tx,
    changes: &[(&EndedJob, JobStatus, Option<EpochMillis>)],
    ended: &[Ended],
) -> Result<(), StoreError> {
    let at = ended
        .iter()
        .filter_map(|ended| ended.row.finished_at)
        .max()
        .map_or(0, |at| at.0);
    let dialect = tx.dialect();
    let changed = BulkUpdate {
        table: "job_info",
        columns: &["id", "version", "status", "next_trigger_time", "updated_at"],
        set: "",
        set_values: &[],
        guard: "job_info.version = v.version - 1",
    }
    .execute(tx, dialect, changes, |query, (job, status, next)| {
        query
            .bind(job.id.to_string())
            .bind(job.version + 1)
            .bind(status.code())
            .bind(next.map(|next| next.0))
            .bind(at)
    })
    .await?;
    if changed == changes.len() as u64 {
        Ok(())
    } else {
        Err(StoreError::Corrupt(format!(
            "{changed} of {} locked jobs still had their version",
            changes.len()
        )))
    }
}
