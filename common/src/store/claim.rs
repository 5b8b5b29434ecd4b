//! The leader's claim: due jobs under their row locks, and what a claim writes to them.

use super::{
    AnyQuery, BulkUpdate, Connection, Row, StoreError, Tx, key_chunks, placeholders,
    slots::{self, LockedSlots},
};
use crate::{
    execution::ExecutionStatus,
    id::{AppId, ExecutionId, JobId},
    job::{Backoff, ConcurrencyPolicy, JobStatus, Misfire, MisfirePolicy, Selector, Trigger, Window},
    raw_json::RawJson,
    time::EpochMillis,
    trace_parent::TraceParent,
};
use sqlx::AssertSqlSafe;
use std::collections::{BTreeMap, HashSet};

/// What the leader has to do by time: for each kind of work the earliest instant, none when there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Agenda {
    /// A job fires.
    pub next_trigger: Option<EpochMillis>,
    /// An execution becomes pending.
    pub next_not_before: Option<EpochMillis>,
    /// An execution that nobody has started runs out of its start deadline.
    pub next_deadline: Option<EpochMillis>,
}

impl Agenda {
    /// The earliest of all.
    #[must_use]
    pub fn earliest(&self) -> Option<EpochMillis> {
        [self.next_trigger, self.next_not_before, self.next_deadline]
            .into_iter()
            .flatten()
            .min()
    }
}

/// Reads the agenda: one statement, each part the head of an index.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn agenda(connection: &mut Connection) -> Result<Agenda, StoreError> {
    let sql = format!(
        "select (select next_trigger_time from job_info where status = {} and next_trigger_time is not null
                  order by next_trigger_time limit 1) as next_trigger,
                (select not_before from job_execution where status = {} order by not_before limit 1)
                  as next_not_before,
                (select start_deadline_at from job_execution /*! force index (idx_execution_deadline) */
                  where start_deadline_at is not null and {}
                  order by start_deadline_at limit 1) as next_deadline",
        JobStatus::Waiting.code(),
        ExecutionStatus::Scheduled.code(),
        awaits_its_start()
    );
    let row = sqlx::query(AssertSqlSafe(sql)).fetch_one(connection).await?;
    let row = Row(&row);
    Ok(Agenda {
        next_trigger: row.opt_instant("next_trigger")?,
        next_not_before: row.opt_instant("next_not_before")?,
        next_deadline: row.opt_instant("next_deadline")?,
    })
}

/// A job that is due: what a claim needs of it, and no more, for a claim reads hundreds of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueJob {
    /// The job.
    pub id: JobId,
    /// Its tenant.
    pub app: AppId,
    /// For people.
    pub name: String,
    /// What runs it.
    pub handler: String,
    /// Given to its executions.
    pub params: RawJson,
    /// The trace of its submission.
    pub traceparent: Option<TraceParent>,
    /// What makes it fire.
    pub trigger: Trigger,
    /// When it may fire.
    pub window: Window,
    /// The instant it is due for.
    pub due: EpochMillis,
    /// When it was submitted: what was planned for an instant before that is not late by it.
    pub submitted_at: EpochMillis,
    /// 0 to 9, higher first.
    pub priority: u8,
    /// Run time allowed, in milliseconds.
    pub timeout_ms: i64,
    /// Time from due to start after which it expires, in milliseconds.
    pub start_deadline_ms: Option<i64>,
    /// Starts allowed.
    pub max_attempts: u32,
    /// What happens to missed firings.
    pub misfire: Misfire,
    /// What happens to overlapping firings.
    pub concurrency: ConcurrencyPolicy,
    /// The slot key its executions hold while open, if its policies ask for one.
    pub slot_key: Option<String>,
    /// Executions a firing is split into.
    pub shards: u32,
    /// Labels a worker must carry.
    pub selector: Selector,
    /// The class its executions wait in.
    pub class_key: String,
}

/// The row of a job that is due, locked.
#[derive(Debug)]
pub struct DueRow {
    /// Its id, as text: a row that cannot be read must still be named.
    pub id: String,
    /// Guard of the write that follows.
    pub version: i64,
    /// The job, or why its row cannot be used.
    pub job: Result<DueJob, String>,
}

const DUE: &str = "id, app_id, version, name, handler, params, traceparent, trigger_spec, start_at, end_at, next_trigger_time, \
     created_at, priority, timeout_ms, start_deadline_ms, retry_max_attempts, retry_backoff, misfire_policy, \
     misfire_max_catch_up, concurrency_policy, concurrency_key, shards, selector, class_key";

/// Locks the jobs that are due, the longest due first, and the slots they need; jobs that somebody else has locked are
/// left for the next claim.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn lock_due(
    tx: &mut Tx,
    now: EpochMillis,
    limit: u32,
) -> Result<(Vec<DueRow>, LockedSlots), StoreError> {
    let lock = tx.dialect().for_update_skip_locked();
    let sql = |columns: &str, lock: &str| {
        let sql = format!(
            "select {columns} from job_info /*! force index (idx_status_next_time) */
              where status = {} and next_trigger_time <= ?
              order by next_trigger_time limit ?{lock}",
            JobStatus::Waiting.code()
        );
        AssertSqlSafe(sql)
    };
    // Slots are locked before jobs, and only the jobs tell which: so they are read twice, first without a lock. Where
    // the transaction itself is the lock, in SQLite, once is enough.
    let mut wanted = BTreeMap::new();
    if !lock.is_empty() {
        let columns = "id, app_id, concurrency_policy, concurrency_key, shards";
        let query = sqlx::query(sql(columns, "")).bind(now.0).bind(i64::from(limit));
        for row in query.fetch_all(&mut **tx).await? {
            // What cannot be read here is found out, and named, below.
            wanted.extend(slot_of(&Row(&row)).ok().flatten());
        }
    }
    let mut slots = LockedSlots::lock(tx, &wanted).await?;
    let query = sqlx::query(sql(DUE, lock)).bind(now.0).bind(i64::from(limit));
    let rows: Vec<DueRow> = query
        .fetch_all(&mut **tx)
        .await?
        .iter()
        .map(|row| read_due(&Row(row)))
        .collect::<Result<_, _>>()?;
    if lock.is_empty() {
        let jobs = rows.iter().filter_map(|row| row.job.as_ref().ok());
        wanted.extend(jobs.filter_map(|job| Some((job.slot_key.clone()?, slot_limit(job)))));
        slots = LockedSlots::lock(tx, &wanted).await?;
    }
    Ok((rows, slots))
}

/// Every shard of a firing holds a slot of its job's own key, so that one firing fits; a key across jobs has one slot.
fn slot_limit(job: &DueJob) -> i64 {
    if job.slot_key == Some(slots::job_key(job.id)) {
        i64::from(job.shards)
    } else {
        1
    }
}

fn slot_of(row: &Row<'_>) -> Result<Option<(String, i64)>, StoreError> {
    if let Some(key) = row.opt_text("concurrency_key")? {
        return Ok(Some((slots::shared_key(row.parsed("app_id")?, &key), 1)));
    }
    let policy = row.coded("concurrency_policy", ConcurrencyPolicy::from_code)?;
    Ok((policy != ConcurrencyPolicy::Parallel)
        .then_some((slots::job_key(row.parsed("id")?), row.int("shards")?)))
}

fn read_due(row: &Row<'_>) -> Result<DueRow, StoreError> {
    Ok(DueRow {
        id: row.text("id")?,
        version: row.int("version")?,
        job: match read_job(row) {
            Ok(job) => Ok(job),
            Err(StoreError::Corrupt(reason)) => Err(reason),
            Err(error) => return Err(error),
        },
    })
}

fn read_job(row: &Row<'_>) -> Result<DueJob, StoreError> {
    let params = row.text("params")?;
    // Settling reads it when an attempt failed; better to say now that it cannot be.
    row.coded("retry_backoff", Backoff::from_code)?;
    Ok(DueJob {
        id: row.parsed("id")?,
        app: row.parsed("app_id")?,
        name: row.text("name")?,
        handler: row.text("handler")?,
        traceparent: row.opt_parsed("traceparent")?,
        params: RawJson::parse(params).map_err(|error| StoreError::Corrupt(format!("params: {error}")))?,
        trigger: row.json("trigger_spec")?,
        window: Window {
            start_at: row.opt_instant("start_at")?,
            end_at: row.opt_instant("end_at")?,
        },
        due: row.instant("next_trigger_time")?,
        submitted_at: row.instant("created_at")?,
        priority: row.number("priority")?,
        timeout_ms: row.int("timeout_ms")?,
        start_deadline_ms: row.opt_int("start_deadline_ms")?,
        max_attempts: row.number("retry_max_attempts")?,
        misfire: Misfire {
            policy: row.coded("misfire_policy", MisfirePolicy::from_code)?,
            max_catch_up: row.number("misfire_max_catch_up")?,
        },
        concurrency: row.coded("concurrency_policy", ConcurrencyPolicy::from_code)?,
        slot_key: slot_of(row)?.map(|(key, _)| key),
        shards: row.number("shards")?,
        selector: row.json_or_default("selector")?,
        class_key: row.text("class_key")?,
    })
}

/// What a claim writes to a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advance {
    /// The job.
    pub id: String,
    /// The version it was locked with: the guard.
    pub version: i64,
    /// When it fires next; none when that is not known yet or nothing is left.
    pub next_trigger_time: Option<EpochMillis>,
    /// Its status from now on.
    pub status: JobStatus,
    /// Why it is [`JobStatus::Invalid`].
    pub invalid_reason: Option<String>,
}

/// Writes claimed jobs.
///
/// # Errors
/// [`StoreError`] of the database; [`StoreError::Corrupt`] when a locked row changed all the same, which means a bug.
pub async fn advance(tx: &mut Tx, jobs: &[Advance], now: EpochMillis) -> Result<(), StoreError> {
    let dialect = tx.dialect();
    let guard = format!(
        "job_info.version = v.version - 1 and job_info.status = {}",
        JobStatus::Waiting.code()
    );
    let (invalid, valid): (Vec<&Advance>, Vec<&Advance>) =
        jobs.iter().partition(|job| job.invalid_reason.is_some());
    let mut changed = 0;
    for (rows, columns) in [(valid, &COLUMNS[..COLUMNS.len() - 1]), (invalid, &COLUMNS[..])] {
        let with_reason = columns.len() == COLUMNS.len();
        let statement = BulkUpdate {
            table: "job_info",
            columns,
            set: "updated_at = ?",
            set_values: &[now.0],
            guard: &guard,
        };
        changed += statement
            .execute(tx, dialect, &rows, |query, job| {
                let query = query
                    .bind(job.id.clone())
                    .bind(job.version + 1)
                    .bind(job.status.code())
                    .bind(job.next_trigger_time.map(|at| at.0));
                if with_reason {
                    query.bind(job.invalid_reason.clone())
                } else {
                    query
                }
            })
            .await?;
    }
    if changed != jobs.len() as u64 {
        return Err(StoreError::Corrupt(format!(
            "{changed} of {} locked jobs still had their version",
            jobs.len()
        )));
    }
    Ok(())
}

/// What [`advance`] writes; the reason only where there is one.
const COLUMNS: [&str; 5] = ["id", "version", "status", "next_trigger_time", "invalid_reason"];

/// Which of these jobs have an execution that is not terminal.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn with_open_executions(
    connection: &mut Connection,
    jobs: &[JobId],
) -> Result<HashSet<JobId>, StoreError> {
    let mut open = HashSet::new();
    for chunk in key_chunks(jobs) {
        let sql = format!(
            "select distinct job_id from job_execution where status < {} and job_id in ({})",
            ExecutionStatus::Succeeded.code(),
            placeholders(chunk.len(), 0)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for job in chunk {
            query = query.bind(job.to_string());
        }
        for row in query.fetch_all(&mut *connection).await? {
            open.insert(Row(&row).parsed("job_id")?);
        }
    }
    Ok(open)
}

/// The firings of the schedule that stand already for these jobs from `since` on, as (job, scheduled time).
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn standing_firings(
    connection: &mut Connection,
    jobs: &[JobId],
    since: EpochMillis,
) -> Result<HashSet<(JobId, EpochMillis)>, StoreError> {
    let mut standing = HashSet::new();
    for chunk in key_chunks(jobs) {
        let sql = format!(
            "select distinct job_id, scheduled_time from job_execution /*! force index (uq_execution) */
              where trigger_key = '' and scheduled_time >= ? and job_id in ({})",
            placeholders(chunk.len(), 0)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql)).bind(since.0);
        for job in chunk {
            query = query.bind(job.to_string());
        }
        for row in query.fetch_all(&mut *connection).await? {
            let row = Row(&row);
            standing.insert((row.parsed("job_id")?, row.instant("scheduled_time")?));
        }
    }
    Ok(standing)
}

/// The executions that are due by their `not_before`, at most `limit`, the longest due first.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn due_executions(
    connection: &mut Connection,
    now: EpochMillis,
    limit: u32,
) -> Result<Vec<ExecutionId>, StoreError> {
    let sql = format!(
        "select id from job_execution /*! force index (idx_execution_due) */
          where status = {} and not_before <= ? order by not_before limit ?",
        ExecutionStatus::Scheduled.code()
    );
    ids(
        sqlx::query(AssertSqlSafe(sql)).bind(now.0).bind(i64::from(limit)),
        connection,
    )
    .await
}

/// The waiting executions whose start deadline has passed before any real start, at most `limit`.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn past_start_deadline(
    connection: &mut Connection,
    now: EpochMillis,
    limit: u32,
) -> Result<Vec<ExecutionId>, StoreError> {
    let sql = format!(
        "select id from job_execution /*! force index (idx_execution_deadline) */
          where start_deadline_at <= ? and {} order by start_deadline_at limit ?",
        awaits_its_start()
    );
    let query = sqlx::query(AssertSqlSafe(sql)).bind(now.0).bind(i64::from(limit));
    ids(query, connection).await
}

/// That an execution has yet to start for the first time. The index of deadlines has few others: those that workers own.
fn awaits_its_start() -> String {
    format!(
        "status in ({}, {}, {}) and attempt = interruptions",
        ExecutionStatus::Scheduled.code(),
        ExecutionStatus::Blocked.code(),
        ExecutionStatus::Pending.code()
    )
}

async fn ids(query: AnyQuery<'_>, connection: &mut Connection) -> Result<Vec<ExecutionId>, StoreError> {
    let rows = query.fetch_all(connection).await?;
    rows.iter().map(|row| Row(row).parsed("id")).collect()
}
