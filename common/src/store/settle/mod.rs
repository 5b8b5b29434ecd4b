//! What hangs on the end of an execution, in the transaction that ends it: the job's status, the successor of a fixed
//! delay, the slot and the next blocked execution, child jobs, the callback row.
//!
//! Every path to a terminal state comes through here. Callers hold the locks of
//! [`transitions::lock`](super::transitions::lock), or made the rows in this transaction.

mod children;
mod jobs;
mod turns;
mod webhook;

use super::{
    Connection, Row, StoreError, Tx,
    executions::{ExecutionRow, TriggerKind},
    followers, key_chunks, placeholders,
    transitions::Applied,
};
use crate::{
    execution::ExecutionStatus,
    id::{AppId, JobId},
    job::{JobStatus, Trigger, Window},
    time::EpochMillis,
    trace_parent::TraceParent,
};
use sqlx::AssertSqlSafe;
use std::collections::{BTreeMap, HashMap};

/// An execution that has just become terminal.
#[derive(Debug, Clone)]
pub struct Ended {
    /// The row as it stands now.
    pub row: ExecutionRow,
    /// It held its slot. False when it was still waiting for it, or was skipped for want of it.
    pub held_slot: bool,
}

/// Settles executions whose terminal rows are written in this transaction. A job fired by a claim that skips all of
/// its executions is settled the same way, after its `next_trigger_time` was advanced.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn settle(tx: &mut Tx, ended: &[Ended]) -> Result<Applied, StoreError> {
    let mut applied = Applied::default();
    if ended.is_empty() {
        return Ok(applied);
    }
    let jobs = read_jobs(tx, ended).await?;
    let firings = firings_over(tx, ended, &jobs).await?;
    turns::pass_on(tx, ended, &mut applied).await?;
    jobs::advance(tx, &jobs, ended, &firings, &mut applied).await?;
    let mut parents: Vec<JobId> = jobs.keys().copied().collect();
    parents.sort_unstable();
    let followed = children::fire(tx, &parents, &firings, &mut applied).await?;
    if let Some(at) = ended.iter().filter_map(|ended| ended.row.finished_at).max() {
        followers::end(tx, &followed, at, &mut applied).await?;
    }
    webhook::queue(tx, ended, &jobs, &mut applied).await?;
    Ok(applied)
}

/// What settling needs of a job; its params, for instance, it does not.
struct EndedJob {
    id: JobId,
    app: AppId,
    name: String,
    trigger: Trigger,
    window: Window,
    next_trigger_time: Option<EpochMillis>,
    status: JobStatus,
    version: i64,
    client_request_id: Option<String>,
    callback_url: Option<String>,
    traceparent: Option<TraceParent>,
    shards: u32,
    /// Of the job it follows; none when it follows none, or one that was deleted.
    parent_status: Option<JobStatus>,
}

async fn read_jobs(
    connection: &mut Connection,
    ended: &[Ended],
) -> Result<HashMap<JobId, EndedJob>, StoreError> {
    let mut ids: Vec<_> = ended.iter().map(|ended| ended.row.job).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut jobs = HashMap::with_capacity(ids.len());
    for chunk in key_chunks(&ids) {
        let sql = format!(
            "select job_info.id, job_info.app_id, job_info.name, job_info.trigger_spec, job_info.start_at, \
             job_info.end_at, job_info.next_trigger_time, job_info.status, job_info.version, \
             job_info.client_request_id, job_info.callback_url, job_info.traceparent, job_info.shards, parent.status as parent_status \
             from job_info left join job_info parent on parent.id = job_info.parent_job_id \
             where job_info.id in ({})",
            placeholders(chunk.len(), 0)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for id in chunk {
            query = query.bind(id.to_string());
        }
        for row in query.fetch_all(&mut *connection).await? {
            let job = read_job(&Row(&row))?;
            jobs.insert(job.id, job);
        }
    }
    Ok(jobs)
}

fn read_job(row: &Row<'_>) -> Result<EndedJob, StoreError> {
    let parent_status = row.opt_int("parent_status")?;
    Ok(EndedJob {
        id: row.parsed("id")?,
        app: row.parsed("app_id")?,
        name: row.text("name")?,
        // A trigger that cannot be read plans nothing; it must not keep an execution from ending.
        trigger: row.json("trigger_spec").unwrap_or(Trigger::Manual {}),
        window: Window {
            start_at: row.opt_instant("start_at")?,
            end_at: row.opt_instant("end_at")?,
        },
        next_trigger_time: row.opt_instant("next_trigger_time")?,
        status: row.coded("status", JobStatus::from_code)?,
        version: row.int("version")?,
        client_request_id: row.opt_text("client_request_id")?,
        callback_url: row.opt_text("callback_url")?,
        traceparent: row.opt_parsed("traceparent")?,
        shards: row.number("shards")?,
        parent_status: parent_status.and_then(JobStatus::from_code),
    })
}

/// A firing all of whose shards have ended.
struct Firing<'a> {
    /// The execution that ended last.
    last: &'a ExecutionRow,
    /// Every shard succeeded.
    succeeded: bool,
}

type FiringKey = (JobId, EpochMillis, String);

fn firing_key(row: &ExecutionRow) -> FiringKey {
    (row.job, row.scheduled_time, row.trigger_key.clone())
}

/// The firings that ended with these executions. Skipped ones are none: they did not run.
async fn firings_over<'a>(
    connection: &mut Connection,
    ended: &'a [Ended],
    jobs: &HashMap<JobId, EndedJob>,
) -> Result<Vec<Firing<'a>>, StoreError> {
    let mut single = Vec::new();
    let mut sharded: BTreeMap<FiringKey, &ExecutionRow> = BTreeMap::new();
    for Ended { row, .. } in ended {
        if row.status == ExecutionStatus::Skipped {
            continue;
        }
        // Retries of one shard are firings of their own, with one execution.
        let split = jobs.get(&row.job).is_some_and(|job| job.shards > 1);
        if split && row.trigger_kind != TriggerKind::Retry {
            let last = sharded.entry(firing_key(row)).or_insert(row);
            if row.finished_at >= last.finished_at {
                *last = row;
            }
        } else {
            single.push(Firing {
                last: row,
                succeeded: row.status == ExecutionStatus::Succeeded,
            });
        }
    }
    let mut states = shard_states(connection, &sharded).await?;
    single.extend(sharded.into_iter().filter_map(|(key, last)| {
        let (open, failed) = states.remove(&key)?;
        (open == 0).then_some(Firing {
            last,
            succeeded: failed == 0,
        })
    }));
    Ok(single)
}

/// Of each sharded firing: how many shards are open, and how many ended without success.
async fn shard_states(
    connection: &mut Connection,
    firings: &BTreeMap<FiringKey, &ExecutionRow>,
) -> Result<HashMap<FiringKey, (i64, i64)>, StoreError> {
    let mut instants: Vec<_> = firings.keys().map(|(job, time, _)| (*job, *time)).collect();
    instants.dedup();
    let mut states = HashMap::with_capacity(firings.len());
    let (first_closed, succeeded) = (
        ExecutionStatus::Succeeded.code(),
        ExecutionStatus::Succeeded.code(),
    );
    for chunk in key_chunks(&instants) {
        let one = "(job_id = ? and scheduled_time = ?)";
        let sql = format!(
            "select job_id, scheduled_time, trigger_key, \
             count(case when status < {first_closed} then 1 end) as open_count, \
             count(case when status > {succeeded} then 1 end) as failed_count \
             from job_execution where {} group by job_id, scheduled_time, trigger_key",
            vec![one; chunk.len()].join(" or ")
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for (job, time) in chunk {
            query = query.bind(job.to_string()).bind(time.0);
        }
        for row in query.fetch_all(&mut *connection).await? {
            let row = Row(&row);
            let key = (
                row.parsed("job_id")?,
                row.instant("scheduled_time")?,
                row.text("trigger_key")?,
            );
            states.insert(key, (row.int("open_count")?, row.int("failed_count")?));
        }
    }
    Ok(states)
}
