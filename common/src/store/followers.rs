//! Jobs that follow a job which is over. Nothing would ever make them fire again, so they end too, visibly: COMPLETED
//! when they have fired, CANCELLED with the reason when they never did. One that still waits for an ending which did
//! come fires now.

use super::{
    BulkUpdate, Connection, Row, StoreError, Tx,
    claim::with_open_executions,
    executions::TriggerKind,
    job_log::{self, LogEntry},
    jobs::{self, JobRow},
    key_chunks, placeholders,
    transitions::Applied,
};
use crate::{
    id::{AppId, JobId},
    job::{JobStatus, ParentOutcome, Trigger},
    time::EpochMillis,
};
use sqlx::AssertSqlSafe;
use std::collections::{BTreeSet, HashMap, HashSet};

/// A job that others follow, as far as that concerns them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Leading {
    app: AppId,
    status: JobStatus,
    /// It fires once.
    once: bool,
    /// An execution of it stands in the table.
    has_run: bool,
}

/// What a job that follows another one, and has not fired yet, can expect of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prospect {
    /// The other one may still end as wanted.
    Open,
    /// It has ended as wanted.
    Met,
    /// It will never end as wanted.
    Lost,
}

impl Leading {
    /// A CANCELLED job has ended without success if it fires once or never ran; of other jobs only executions end, and
    /// there will be no more of them.
    fn prospect(self, wanted: ParentOutcome) -> Prospect {
        let succeeded = match self.status {
            JobStatus::Waiting | JobStatus::Running | JobStatus::Paused | JobStatus::Invalid => {
                return Prospect::Open;
            }
            JobStatus::Success => true,
            JobStatus::Failed => false,
            JobStatus::Cancelled if self.once || !self.has_run => false,
            JobStatus::Cancelled | JobStatus::Completed => return Prospect::Lost,
        };
        match wanted {
            ParentOutcome::Any => Prospect::Met,
            ParentOutcome::Success if succeeded => Prospect::Met,
            ParentOutcome::Failure if !succeeded => Prospect::Met,
            ParentOutcome::Success | ParentOutcome::Failure => Prospect::Lost,
        }
    }
}

/// How a job begins that follows another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Beginning {
    /// It waits for the other one to end.
    Waits,
    /// The other one has ended as wanted already.
    FiresAt(EpochMillis),
    /// There is no such job in its app.
    NoSuchJob,
    /// The other one is over and can no longer end as wanted: why.
    Never(String),
}

impl Beginning {
    /// Of a job accepted at `at`; nothing for one that follows no other.
    pub(super) fn of(job: &JobRow, leading: &HashMap<JobId, Leading>, at: EpochMillis) -> Option<Self> {
        let Trigger::After { job_id, on } = job.trigger else {
            return None;
        };
        let parent = leading.get(&job_id).filter(|parent| parent.app == job.app);
        Some(match parent.map(|parent| (parent.status, parent.prospect(on))) {
            None => Self::NoSuchJob,
            Some((_, Prospect::Open)) => Self::Waits,
            Some((_, Prospect::Met)) => Self::FiresAt(job.start_at.map_or(at, |start| start.max(at))),
            Some((status, Prospect::Lost)) => Self::Never(over_reason(job_id, status, on)),
        })
    }
}

/// How `job` would begin if it were accepted at `at`; none when it follows no other.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn beginning(
    connection: &mut Connection,
    job: &JobRow,
    at: EpochMillis,
) -> Result<Option<Beginning>, StoreError> {
    let Trigger::After { job_id, .. } = job.trigger else {
        return Ok(None);
    };
    let leading = leading(connection, &[job_id], "").await?;
    Ok(Beginning::of(job, &leading, at))
}

/// Reads jobs that others follow; those that were deleted are left out. With a `lock`, they stay as they are until the
/// end of the transaction.
pub(super) async fn leading(
    connection: &mut Connection,
    ids: &[JobId],
    lock: &str,
) -> Result<HashMap<JobId, Leading>, StoreError> {
    let mut found = HashMap::with_capacity(ids.len());
    for chunk in key_chunks(ids) {
        let sql = format!(
            "select id, app_id, status, trigger_type, case when exists \
             (select 1 from job_execution where job_execution.job_id = job_info.id) then 1 else 0 end as has_run \
             from job_info where id in ({}) order by id{lock}",
            placeholders(chunk.len(), 0)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for id in chunk {
            query = query.bind(id.to_string());
        }
        for row in query.fetch_all(&mut *connection).await? {
            let row = Row(&row);
            let job = Leading {
                app: row.parsed("app_id")?,
                status: row.coded("status", JobStatus::from_code)?,
                once: row.int("trigger_type")? == Trigger::ONCE_CODE,
                has_run: row.int("has_run")? != 0,
            };
            found.insert(row.parsed("id")?, job);
        }
    }
    Ok(found)
}

/// What becomes of one follower.
struct Turn<'a> {
    job: &'a JobRow,
    status: JobStatus,
    next: Option<EpochMillis>,
    reason: Option<String>,
}

/// Ends, or fires, the waiting followers of those of `parents` that are over or deleted, and theirs in turn. The caller
/// has written what ended the parents, in this transaction.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn end(
    tx: &mut Tx,
    parents: &[JobId],
    at: EpochMillis,
    applied: &mut Applied,
) -> Result<(), StoreError> {
    let mut parents = parents.to_vec();
    // Every round ends or fires the followers it finds, so none is found twice.
    while !parents.is_empty() {
        let followers = lock_waiting(tx, &parents).await?;
        if followers.is_empty() {
            return Ok(());
        }
        let leading = leading(tx, &parents, "").await?;
        let mut involved = parents.clone();
        involved.extend(followers.iter().map(|job| job.id));
        let open = with_open_executions(tx, &involved).await?;
        let ids: Vec<JobId> = followers.iter().map(|job| job.id).collect();
        let fired = fired(tx, &ids).await?;
        let turns: Vec<Turn<'_>> = followers
            .iter()
            .filter(|job| !open.contains(&job.id))
            .filter_map(|job| turn(job, &leading, &open, fired.contains(&job.id), at))
            .collect();
        write(tx, &turns, at).await?;
        for next in turns.iter().filter_map(|turn| turn.next) {
            applied.due_at(next);
        }
        parents = turns
            .iter()
            .filter(|turn| turn.status.is_terminal())
            .map(|turn| turn.job.id)
            .collect();
    }
    Ok(())
}

fn turn<'a>(
    job: &'a JobRow,
    leading: &HashMap<JobId, Leading>,
    open: &HashSet<JobId>,
    has_fired: bool,
    at: EpochMillis,
) -> Option<Turn<'a>> {
    let Trigger::After { job_id, on } = job.trigger else {
        return None;
    };
    let parent = leading.get(&job_id);
    let prospect = parent.map_or(Prospect::Lost, |parent| parent.prospect(on));
    if prospect == Prospect::Open || open.contains(&job_id) {
        return None;
    }
    if has_fired {
        return Some(Turn {
            job,
            status: JobStatus::Completed,
            next: None,
            reason: None,
        });
    }
    let time = job.start_at.map_or(at, |start| start.max(at));
    let closed = job.end_at.is_some_and(|end| time > end);
    let reason = match parent {
        None => format!("job {job_id}, which it follows, was deleted"),
        Some(_) if prospect == Prospect::Met && closed => {
            format!("job {job_id}, which it follows, ended after endAt")
        }
        Some(parent) => over_reason(job_id, parent.status, on),
    };
    let fires = prospect == Prospect::Met && !closed;
    Some(Turn {
        job,
        status: if fires {
            JobStatus::Waiting
        } else {
            JobStatus::Cancelled
        },
        next: fires.then_some(time),
        reason: (!fires).then_some(reason),
    })
}

/// Says that a job that follows another one would wait for ever, and why.
fn over_reason(parent: JobId, status: JobStatus, on: ParentOutcome) -> String {
    let wanted = match on {
        ParentOutcome::Success => "with success",
        ParentOutcome::Failure => "without success",
        ParentOutcome::Any => "in any way",
    };
    format!(
        "job {parent}, which it follows, is {} and can no longer end {wanted}",
        status.name()
    )
}

async fn lock_waiting(tx: &mut Tx, parents: &[JobId]) -> Result<Vec<JobRow>, StoreError> {
    let lock = tx.dialect().for_update();
    let mut followers = Vec::new();
    for chunk in key_chunks(parents) {
        let sql = format!(
            "select {} from job_info /*! force index (idx_job_parent) */ \
             where parent_job_id in ({}) and status = {} and next_trigger_time is null \
             order by id{lock}",
            jobs::columns(),
            placeholders(chunk.len(), 0),
            JobStatus::Waiting.code()
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for parent in chunk {
            query = query.bind(parent.to_string());
        }
        for row in query.fetch_all(&mut **tx).await? {
            followers.push(jobs::read_lenient(&row)?.0);
        }
    }
    Ok(followers)
}

/// Those of the jobs that have fired by themselves; a run by hand is none.
async fn fired(tx: &mut Tx, ids: &[JobId]) -> Result<BTreeSet<JobId>, StoreError> {
    let mut fired = BTreeSet::new();
    for chunk in key_chunks(ids) {
        let sql = format!(
            "select distinct job_id from job_execution where job_id in ({}) and trigger_kind in ({}, {})",
            placeholders(chunk.len(), 0),
            TriggerKind::Schedule.code(),
            TriggerKind::Parent.code()
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for id in chunk {
            query = query.bind(id.to_string());
        }
        for row in query.fetch_all(&mut **tx).await? {
            fired.insert(Row(&row).parsed("job_id")?);
        }
    }
    Ok(fired)
}

async fn write(tx: &mut Tx, turns: &[Turn<'_>], at: EpochMillis) -> Result<(), StoreError> {
    let dialect = tx.dialect();
    let columns = ["id", "version", "status", "next_trigger_time", "invalid_reason"];
    let changed = BulkUpdate {
        table: "job_info",
        columns: &columns,
        set: "updated_at = ?",
        set_values: &[at.0],
        guard: "job_info.version = v.version - 1",
    }
    .execute(tx, dialect, turns, |query, turn| {
        query
            .bind(turn.job.id.to_string())
            .bind(turn.job.version + 1)
            .bind(turn.status.code())
            .bind(turn.next.map(|next| next.0))
            .bind(turn.reason.clone())
    })
    .await?;
    if changed != turns.len() as u64 {
        return Err(StoreError::Corrupt(format!(
            "{changed} of {} locked followers still had their version",
            turns.len()
        )));
    }
    let log: Vec<LogEntry> = turns.iter().map(|turn| turn.entry(at)).collect();
    job_log::append(tx, &log).await
}

impl Turn<'_> {
    fn entry(&self, at: EpochMillis) -> LogEntry {
        let message = match (&self.reason, self.next) {
            (Some(reason), _) => format!("cancelled without having fired: {reason}"),
            (None, Some(_)) => "fires: the job that it follows is over".to_owned(),
            (None, None) => "completed: the job that it follows is over".to_owned(),
        };
        LogEntry {
            job: self.job.id,
            execution: None,
            attempt: 0,
            dispatch_seq: 0,
            from: None,
            to: None,
            worker: None,
            message: Some(message),
            at,
        }
    }
}
