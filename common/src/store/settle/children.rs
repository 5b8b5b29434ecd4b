//! Jobs that follow another job: the end of a firing of the parent makes an execution of each child it concerns.

use super::Firing;
use crate::{
    execution::ExecutionStatus,
    id::{ExecutionId, JobId},
    job::{ConcurrencyPolicy, JobStatus, ParentOutcome, Trigger},
    store::{
        BulkUpdate, CHUNK, Connection, Row, StoreError, Tx,
        executions::{self, ExecutionRow, TriggerKind, rank_time},
        job_log::{self, LogEntry},
        jobs::{self, JobRow},
        placeholders,
        transitions::Applied,
    },
    time::EpochMillis,
};
use sqlx::AssertSqlSafe;
use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

/// Fires the children of the jobs whose firings are over. A child that is paused, cancelled or past its window does not
/// fire, and says so in its log.
pub(super) async fn fire(
    tx: &mut Tx,
    firings: &[Firing<'_>],
    applied: &mut Applied,
) -> Result<(), StoreError> {
    let children = read_children(tx, firings).await?;
    if children.is_empty() {
        return Ok(());
    }
    let mut slots = Slots::lock(tx, &children).await?;
    let (mut rows, mut log) = (Vec::new(), Vec::new());
    let mut reopened = BTreeSet::new();
    for firing in firings {
        for child in children.iter().filter(|child| follows(child, firing)) {
            match firing_time(child, firing) {
                Ok(time) => {
                    if child.status == JobStatus::Completed {
                        reopened.insert(child.id);
                    }
                    let made = slots.executions(child, firing, time);
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
    job_log::append(tx, &log).await
}

async fn read_children(
    connection: &mut Connection,
    firings: &[Firing<'_>],
) -> Result<Vec<JobRow>, StoreError> {
    let parents: BTreeSet<JobId> = firings.iter().map(|firing| firing.last.job).collect();
    let parents: Vec<_> = parents.into_iter().collect();
    let mut children = Vec::new();
    for chunk in parents.chunks(CHUNK) {
        let sql = format!(
            "select {} from job_info where parent_job_id in ({}) order by id",
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

/// The end of the parent, or the start of the child's window if that is later; else why it does not fire. A completed
/// child fires again when its parent was retried.
fn firing_time(child: &JobRow, firing: &Firing<'_>) -> Result<EpochMillis, &'static str> {
    match child.status {
        JobStatus::Waiting | JobStatus::Completed => {}
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

/// The slots that the children need, as they stand under their locks.
struct Slots {
    before: HashMap<String, Holders>,
    now: HashMap<String, Holders>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Holders {
    held: i64,
    limit: i64,
}

impl Slots {
    async fn lock(tx: &mut Tx, children: &[JobRow]) -> Result<Self, StoreError> {
        // A sharded firing of a job holds one slot of the job's key for every shard.
        let wanted: HashMap<String, i64> = children
            .iter()
            .filter_map(|child| {
                let shared = child.concurrency_key.is_some();
                let limit = if shared { 1 } else { i64::from(child.shards) };
                Some((child.slot_key()?, limit))
            })
            .collect();
        let mut keys: Vec<_> = wanted.keys().cloned().collect();
        keys.sort_unstable();
        let mut before = HashMap::with_capacity(keys.len());
        for chunk in keys.chunks(CHUNK) {
            let insert = format!(
                "{} concurrency_slot (slot_key, holders, slot_limit) values {}",
                tx.dialect().insert_ignore(),
                vec!["(?, 0, ?)"; chunk.len()].join(", ")
            );
            let mut query = sqlx::query(AssertSqlSafe(insert));
            for key in chunk {
                query = query.bind(key.clone()).bind(wanted[key]);
            }
            query.execute(&mut **tx).await?;
            let select = format!(
                "select slot_key, holders, slot_limit from concurrency_slot where slot_key in ({}) \
                 order by slot_key{}",
                placeholders(chunk.len(), 0),
                tx.dialect().for_update()
            );
            let mut query = sqlx::query(AssertSqlSafe(select));
            for key in chunk {
                query = query.bind(key.clone());
            }
            for row in query.fetch_all(&mut **tx).await? {
                let row = Row(&row);
                let holders = Holders {
                    held: row.int("holders")?,
                    limit: row.int("slot_limit")?,
                };
                before.insert(row.text("slot_key")?, holders);
            }
        }
        Ok(Self {
            now: before.clone(),
            before,
        })
    }

    /// The executions of one firing of a child; takes the slots they start with.
    fn executions(&mut self, child: &JobRow, firing: &Firing<'_>, time: EpochMillis) -> Vec<ExecutionRow> {
        let slot_key = child.slot_key();
        let discarded = child.concurrency == ConcurrencyPolicy::Discard
            && slot_key
                .as_ref()
                .and_then(|key| self.now.get(key))
                .is_some_and(|slot| slot.held > 0);
        (0..child.shards)
            .map(|shard| {
                let status = if discarded {
                    ExecutionStatus::Skipped
                } else if !self.take(slot_key.as_deref()) {
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

    fn take(&mut self, key: Option<&str>) -> bool {
        let Some(slot) = key.and_then(|key| self.now.get_mut(key)) else {
            return true;
        };
        let free = slot.held < slot.limit;
        slot.held += i64::from(free);
        free
    }

    async fn write(&self, tx: &mut Tx) -> Result<(), StoreError> {
        let mut taken: Vec<(&String, i64)> = self
            .now
            .iter()
            .filter(|(key, slot)| self.before[*key] != **slot)
            .map(|(key, slot)| (key, slot.held))
            .collect();
        taken.sort_unstable();
        let dialect = tx.dialect();
        BulkUpdate {
            table: "concurrency_slot",
            columns: &["slot_key", "holders"],
            set: "",
            guard: "1 = 1",
        }
        .execute(tx, dialect, &taken, |query, (key, held)| {
            query.bind((*key).clone()).bind(*held)
        })
        .await?;
        Ok(())
    }
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
        set: "",
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
