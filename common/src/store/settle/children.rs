//! Jobs that follow another job: the end of a firing of the parent makes an execution of each child it concerns.

use super::Firing;
use crate::{
    execution::ExecutionStatus,
    id::{ExecutionId, JobId},
    job::{ConcurrencyPolicy, JobStatus, ParentOutcome, Trigger},
    store::{
        BulkUpdate, Connection, StoreError, Tx,
        executions::{self, ExecutionRow, TriggerKind, rank_time},
        job_log::{self, LogEntry},
        jobs::{self, JobRow},
        key_chunks, placeholders,
        slots::LockedSlots,
        transitions::Applied,
    },
    time::EpochMillis,
};
use sqlx::AssertSqlSafe;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Fires the children of the jobs whose firings are over. A child that is paused, cancelled or past its window does not
/// fire, and says so in its log. Returns those of `parents` that have children.
pub(super) async fn fire(
    tx: &mut Tx,
    parents: &[JobId],
    firings: &[Firing<'_>],
    applied: &mut Applied,
) -> Result<Vec<JobId>, StoreError> {
    let children = read_children(tx, parents).await?;
    if children.is_empty() {
        return Ok(Vec::new());
    }
    let mut slots = lock_slots(tx, &children).await?;
    let (mut rows, mut log) = (Vec::new(), Vec::new());
    let mut reopened = BTreeSet::new();
    for firing in firings {
        for child in children.iter().filter(|child| follows(child, firing)) {
            match firing_time(child, firing) {
                Ok(time) => {
                    if child.status != JobStatus::Waiting {
                        reopened.insert(child.id);
                    }
                    let made = executions_of(child, firing, time, &mut slots);
                    log.extend(made.iter().map(|row| made_entry(row, firing)));
                    rows.extend(made);
                }
                Err(reason) => log.push(not_fired_entry(child, firing, reason)),
            }
        }
    }
    executions::insert_many(tx, &rows).await?;
    slots.write(tx).await?;
    reopen(tx, &children, &reopened).await?;
    let due = [ExecutionStatus::Pending, ExecutionStatus::Scheduled];
    for row in rows.iter().filter(|row| due.contains(&row.status)) {
        applied.due_at(row.not_before);
    }
    job_log::append(tx, &log).await?;
    let followed: BTreeSet<JobId> = children.iter().filter_map(parent_of).collect();
    Ok(followed.into_iter().collect())
}

fn parent_of(child: &JobRow) -> Option<JobId> {
    match child.trigger {
        Trigger::After { job_id, .. } => Some(job_id),
        _ => None,
    }
}

async fn read_children(connection: &mut Connection, parents: &[JobId]) -> Result<Vec<JobRow>, StoreError> {
    let mut children = Vec::new();
    for chunk in key_chunks(parents) {
        let sql = format!(
            "select {} from job_info /*! force index (idx_job_parent) */ where parent_job_id in ({}) order by id",
            jobs::columns(),
            placeholders(chunk.len(), 0)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for parent in chunk {
            query = query.bind(parent.to_string());
        }
        for row in query.fetch_all(&mut *connection).await? {
            children.push(jobs::read_lenient(&row)?.0);
        }
    }
    Ok(children)
}

fn follows(child: &JobRow, firing: &Firing<'_>) -> bool {
    let Trigger::After { job_id, on } = &child.trigger else {
        return false;
    };
    *job_id == firing.last.job
        && match on {
            ParentOutcome::Success => firing.succeeded,
            ParentOutcome::Failure => !firing.succeeded,
            ParentOutcome::Any => true,
        }
}

/// The end of the parent, or the start of the child's window if that is later; else why it does not fire. A child that
/// ended because its parent had fires again when its parent was retried.
fn firing_time(child: &JobRow, firing: &Firing<'_>) -> Result<EpochMillis, &'static str> {
    match child.status {
        JobStatus::Waiting | JobStatus::Completed => {}
        JobStatus::Cancelled if child.invalid_reason.is_some() => {}
        JobStatus::Paused => return Err("it is paused"),
        _ => return Err("it has ended"),
    }
    let ended = firing.last.finished_at.unwrap_or(firing.last.created_at);
    let time = child.start_at.map_or(ended, |start| start.max(ended));
    if child.end_at.is_some_and(|end| time > end) {
        return Err("its window is over");
    }
    Ok(time)
}

fn made_entry(row: &ExecutionRow, firing: &Firing<'_>) -> LogEntry {
    let mut message = format!(
        "fired by the end of execution {}: {}",
        firing.last.id, firing.last.status
    );
    match row.status {
        ExecutionStatus::Blocked => message.push_str("; waits for its concurrency slot"),
        ExecutionStatus::Skipped => message.push_str("; skipped, an earlier execution is still open"),
        _ => {}
    }
    LogEntry {
        job: row.job,
        execution: Some(row.id),
        attempt: 0,
        dispatch_seq: 0,
        from: None,
        to: Some(row.status),
        worker: None,
        message: Some(message),
        at: row.created_at,
    }
}

fn not_fired_entry(child: &JobRow, firing: &Firing<'_>, reason: &str) -> LogEntry {
    LogEntry {
        job: child.id,
        execution: None,
        attempt: 0,
        dispatch_seq: 0,
        from: None,
        to: None,
        worker: None,
        message: Some(format!(
            "not fired by the end of execution {}: {reason}",
            firing.last.id
        )),
        at: firing.last.finished_at.unwrap_or(firing.last.created_at),
    }
}

async fn lock_slots(tx: &mut Tx, children: &[JobRow]) -> Result<LockedSlots, StoreError> {
    // A sharded firing of a job holds one slot of the job's key for every shard.
    let wanted: BTreeMap<String, i64> = children
        .iter()
        .filter_map(|child| {
            let shared = child.concurrency_key.is_some();
            let limit = if shared { 1 } else { i64::from(child.shards) };
            Some((child.slot_key()?, limit))
        })
        .collect();
    LockedSlots::lock(tx, &wanted).await
}

/// The executions of one firing of a child; takes the slots they start with.
fn executions_of(
    child: &JobRow,
    firing: &Firing<'_>,
    time: EpochMillis,
    slots: &mut LockedSlots,
) -> Vec<ExecutionRow> {
    let slot_key = child.slot_key();
    let discarded = child.concurrency == ConcurrencyPolicy::Discard
        && slot_key.as_ref().is_some_and(|key| slots.any_held(key));
    (0..child.shards)
        .map(|shard| {
            let status = if discarded {
                ExecutionStatus::Skipped
            } else if slot_key.as_ref().is_some_and(|key| !slots.take(key)) {
                ExecutionStatus::Blocked
            } else if firing.last.finished_at < Some(time) {
                ExecutionStatus::Scheduled
            } else {
                ExecutionStatus::Pending
            };
            new_execution(child, firing, time, shard, status)
        })
        .collect()
}

fn new_execution(
    child: &JobRow,
    firing: &Firing<'_>,
    time: EpochMillis,
    shard: u32,
    status: ExecutionStatus,
) -> ExecutionRow {
    let made_at = firing.last.finished_at.unwrap_or(time);
    let deadline = child
        .start_deadline_ms
        .map(|ms| time + Duration::from_millis(u64::try_from(ms).unwrap_or(0)));
    ExecutionRow {
        id: ExecutionId::generate(),
        job: child.id,
        app: child.app,
        handler: child.handler.clone(),
        scheduled_time: time,
        shard,
        trigger_key: format!("parent:{}", firing.last.id),
        trigger_kind: TriggerKind::Parent,
        status,
        not_before: time,
        class_key: child.class_key(),
        rank_time: rank_time(time, child.priority),
        attempt: 0,
        interruptions: 0,
        max_attempts: child.retry.max_attempts,
        dispatch_seq: 0,
        worker: None,
        incarnation: None,
        epoch: None,
        not_after: None,
        slot_key: child.slot_key(),
        params: None,
        created_at: made_at,
        due_at: (status == ExecutionStatus::Pending).then_some(time),
        dispatched_at: None,
        started_at: None,
        finished_at: status.is_terminal().then_some(made_at),
        start_deadline_at: deadline,
        timeout_ms: child.timeout_ms,
        cancel_requested_at: None,
        progress_percent: None,
        progress_message: None,
        result: None,
        error: None,
    }
}

async fn reopen(tx: &mut Tx, children: &[JobRow], ids: &BTreeSet<JobId>) -> Result<(), StoreError> {
    let rows: Vec<_> = children.iter().filter(|child| ids.contains(&child.id)).collect();
    let dialect = tx.dialect();
    BulkUpdate {
        table: "job_info",
        columns: &["id", "version", "status"],
        set: "invalid_reason = null",
        set_values: &[],
        guard: "job_info.version = v.version - 1",
    }
    .execute(tx, dialect, &rows, |query, child| {
        query
            .bind(child.id.to_string())
            .bind(child.version + 1)
            .bind(JobStatus::Waiting.code())
    })
    .await?;
    Ok(())
}
