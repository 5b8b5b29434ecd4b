//! `job_execution`: the row as a type, inserting and reading it.

use super::{Connection, Row, StoreError, Tx, key_chunks, placeholders, row_chunks};
use crate::{
    execution::{Claim, ExecutionError, ExecutionStatus, Facts},
    id::{AppId, ExecutionId, IncarnationId, JobId, WorkerId},
    job::MAX_PRIORITY,
    raw_json::RawJson,
    time::EpochMillis,
};
use sqlx::{AssertSqlSafe, any::AnyRow};

/// Milliseconds of earlier due time that one step of priority is worth: priorities order, and age wins in the end.
const RANK_STEP_MS: i64 = 60_000;

/// What made an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TriggerKind {
    /// The job's own trigger.
    Schedule,
    /// A call that asked to run it now.
    Manual,
    /// A call that asked to run a finished execution again.
    Retry,
    /// The end of a parent job.
    Parent,
}

impl TriggerKind {
    /// The number stored in the table.
    #[must_use]
    pub const fn code(self) -> i64 {
        self as i64
    }

    /// The kind with this stored number.
    #[must_use]
    pub const fn from_code(code: i64) -> Option<Self> {
        match code {
            0 => Some(Self::Schedule),
            1 => Some(Self::Manual),
            2 => Some(Self::Retry),
            3 => Some(Self::Parent),
            _ => None,
        }
    }
}

/// An execution as it stands in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionRow {
    /// The execution.
    pub id: ExecutionId,
    /// Its job.
    pub job: JobId,
    /// Its tenant.
    pub app: AppId,
    /// What runs it.
    pub handler: String,
    /// The instant it was planned for.
    pub scheduled_time: EpochMillis,
    /// Its part of a sharded firing, from 0.
    pub shard: u32,
    /// Empty for a firing of the schedule; else what tells this run from others of the same instant. Never ends in a
    /// blank: MySQL passes over trailing blanks when it compares.
    pub trigger_key: String,
    /// What made it.
    pub trigger_kind: TriggerKind,
    /// Where it stands.
    pub status: ExecutionStatus,
    /// Not to be placed before this instant.
    pub not_before: EpochMillis,
    /// Handler, app and selector as one key.
    pub class_key: String,
    /// Order within its class: see [`rank_time`].
    pub rank_time: i64,
    /// Starts so far.
    pub attempt: u32,
    /// Starts that cost nothing.
    pub interruptions: u32,
    /// Starts allowed.
    pub max_attempts: u32,
    /// Number of the last handover; 0 before the first.
    pub dispatch_seq: i64,
    /// The worker of the last handover.
    pub worker: Option<WorkerId>,
    /// Its incarnation.
    pub incarnation: Option<IncarnationId>,
    /// The epoch of the leader that placed it.
    pub epoch: Option<i64>,
    /// The instant after which the last handover may not be taken any more.
    pub not_after: Option<EpochMillis>,
    /// The concurrency slot it holds or waits for.
    pub slot_key: Option<String>,
    /// Params of its own; those of the job when absent.
    pub params: Option<RawJson>,
    /// When the row was made.
    pub created_at: EpochMillis,
    /// When it became due for the first time.
    pub due_at: Option<EpochMillis>,
    /// Instant of the last handover.
    pub dispatched_at: Option<EpochMillis>,
    /// Start of the last attempt.
    pub started_at: Option<EpochMillis>,
    /// When it became terminal.
    pub finished_at: Option<EpochMillis>,
    /// Not to be started after this instant.
    pub start_deadline_at: Option<EpochMillis>,
    /// Run time allowed, in milliseconds.
    pub timeout_ms: i64,
    /// When a cancel was requested.
    pub cancel_requested_at: Option<EpochMillis>,
    /// Progress as the handler reported it, 0 to 100.
    pub progress_percent: Option<i64>,
    /// Progress in words.
    pub progress_message: Option<String>,
    /// What the handler returned.
    pub result: Option<RawJson>,
    /// Why it did not succeed.
    pub error: Option<ExecutionError>,
}

impl ExecutionRow {
    /// What the transition table needs to know.
    #[must_use]
    pub const fn facts(&self) -> Facts {
        Facts {
            attempt: self.attempt,
            interruptions: self.interruptions,
            max_attempts: self.max_attempts,
            cancel_requested: self.cancel_requested_at.is_some(),
        }
    }

    /// Its last handover.
    #[must_use]
    pub const fn claim(&self) -> Claim {
        Claim {
            execution: self.id,
            dispatch_seq: self.dispatch_seq,
        }
    }
}

/// Order of executions within their class, smaller first: due time minus priority × 60 s, so that a high priority goes
/// first and nothing waits for ever.
#[must_use]
pub fn rank_time(due: EpochMillis, priority: u8) -> i64 {
    due.0
        .saturating_sub(i64::from(priority.min(MAX_PRIORITY)) * RANK_STEP_MS)
}

const COLUMNS: [&str; 37] = [
    "id",
    "job_id",
    "app_id",
    "handler",
    "scheduled_time",
    "shard",
    "trigger_key",
    "trigger_kind",
    "status",
    "not_before",
    "class_key",
    "rank_time",
    "attempt",
    "interruptions",
    "max_attempts",
    "dispatch_seq",
    "worker_id",
    "incarnation",
    "epoch",
    "not_after",
    "slot_key",
    "params",
    "created_at",
    "due_at",
    "dispatched_at",
    "started_at",
    "finished_at",
    "start_deadline_at",
    "timeout_ms",
    "cancel_requested_at",
    "progress_percent",
    "progress_message",
    "result",
    "error_code",
    "error_message",
    // Kept last: two names that other queries never select by accident.
    "id as execution_id",
    "job_id as execution_job_id",
];
const INSERTED: usize = 35;

/// Inserts executions, all or nothing.
///
/// # Errors
/// [`StoreError::Duplicate`] when one stands already: unique on (job, scheduled time, shard, trigger key).
pub async fn insert_many(tx: &mut Tx, rows: &[ExecutionRow]) -> Result<(), StoreError> {
    for chunk in row_chunks(rows) {
        let sql = format!(
            "insert into job_execution ({}) values {}",
            COLUMNS[..INSERTED].join(", "),
            placeholders(chunk.len(), INSERTED)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for row in chunk {
            query = bind_execution(query, row);
        }
        query.execute(&mut **tx).await?;
    }
    tx.become_of(rows.iter().map(|row| row.status));
    Ok(())
}

fn bind_execution<'q>(query: super::sql::AnyQuery<'q>, row: &ExecutionRow) -> super::sql::AnyQuery<'q> {
    query
        .bind(row.id.to_string())
        .bind(row.job.to_string())
        .bind(row.app.to_string())
        .bind(row.handler.clone())
        .bind(row.scheduled_time.0)
        .bind(i64::from(row.shard))
        .bind(row.trigger_key.clone())
        .bind(row.trigger_kind.code())
        .bind(row.status.code())
        .bind(row.not_before.0)
        .bind(row.class_key.clone())
        .bind(row.rank_time)
        .bind(i64::from(row.attempt))
        .bind(i64::from(row.interruptions))
        .bind(i64::from(row.max_attempts))
        .bind(row.dispatch_seq)
        .bind(row.worker.as_ref().map(|worker| worker.as_str().to_owned()))
        .bind(row.incarnation.map(|incarnation| incarnation.to_string()))
        .bind(row.epoch)
        .bind(row.not_after.map(|at| at.0))
        .bind(row.slot_key.clone().filter(|_| !row.status.is_terminal()))
        .bind(row.params.as_ref().map(|params| params.as_str().to_owned()))
        .bind(row.created_at.0)
        .bind(row.due_at.map(|at| at.0))
        .bind(row.dispatched_at.map(|at| at.0))
        .bind(row.started_at.map(|at| at.0))
        .bind(row.finished_at.map(|at| at.0))
        .bind(
            row.start_deadline_at
                .filter(|_| !row.status.is_terminal())
                .map(|at| at.0),
        )
        .bind(row.timeout_ms)
        .bind(row.cancel_requested_at.map(|at| at.0))
        .bind(row.progress_percent)
        .bind(row.progress_message.clone())
        .bind(row.result.as_ref().map(|result| result.as_str().to_owned()))
        .bind(row.error.as_ref().map(|error| error.code.clone()))
        .bind(row.error.as_ref().map(|error| error.message.clone()))
}

/// Every column of `job_execution` that [`read`] needs, qualified, for `select`s of other modules.
#[must_use]
pub fn columns() -> String {
    COLUMNS.map(|column| format!("job_execution.{column}")).join(", ")
}

/// Turns a row of [`columns`] into the type.
///
/// # Errors
/// [`StoreError::Corrupt`] when the row holds what this program never writes.
pub fn read(row: &AnyRow) -> Result<ExecutionRow, StoreError> {
    let row = Row(row);
    let json = |column: &str| -> Result<Option<RawJson>, StoreError> {
        let Some(text) = row.opt_text(column)? else {
            return Ok(None);
        };
        RawJson::parse(text)
            .map(Some)
            .map_err(|error| StoreError::Corrupt(format!("{column}: {error}")))
    };
    let error = match (row.opt_text("error_code")?, row.opt_text("error_message")?) {
        (Some(code), message) => Some(ExecutionError {
            code,
            message: message.unwrap_or_default(),
        }),
        (None, _) => None,
    };
    let worker = row.opt_text("worker_id")?;
    Ok(ExecutionRow {
        id: row.parsed("execution_id")?,
        job: row.parsed("execution_job_id")?,
        app: row.parsed("app_id")?,
        handler: row.text("handler")?,
        scheduled_time: row.instant("scheduled_time")?,
        shard: row.number("shard")?,
        trigger_key: row.text("trigger_key")?,
        trigger_kind: row.coded("trigger_kind", TriggerKind::from_code)?,
        status: row.coded("status", ExecutionStatus::from_code)?,
        not_before: row.instant("not_before")?,
        class_key: row.text("class_key")?,
        rank_time: row.int("rank_time")?,
        attempt: row.number("attempt")?,
        interruptions: row.number("interruptions")?,
        max_attempts: row.number("max_attempts")?,
        dispatch_seq: row.int("dispatch_seq")?,
        worker: worker
            .map(|name| WorkerId::parse(&name))
            .transpose()
            .map_err(|error| StoreError::Corrupt(error.to_string()))?,
        incarnation: row.opt_parsed("incarnation")?,
        epoch: row.opt_int("epoch")?,
        not_after: row.opt_instant("not_after")?,
        slot_key: row.opt_text("slot_key")?,
        params: json("params")?,
        created_at: row.instant("created_at")?,
        due_at: row.opt_instant("due_at")?,
        dispatched_at: row.opt_instant("dispatched_at")?,
        started_at: row.opt_instant("started_at")?,
        finished_at: row.opt_instant("finished_at")?,
        start_deadline_at: row.opt_instant("start_deadline_at")?,
        timeout_ms: row.int("timeout_ms")?,
        cancel_requested_at: row.opt_instant("cancel_requested_at")?,
        progress_percent: row.opt_int("progress_percent")?,
        progress_message: row.opt_text("progress_message")?,
        result: json("result")?,
        error,
    })
}

/// Reads one execution.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn get(connection: &mut Connection, id: ExecutionId) -> Result<Option<ExecutionRow>, StoreError> {
    let sql = format!("select {} from job_execution where id = ?", columns());
    let row = sqlx::query(AssertSqlSafe(sql))
        .bind(id.to_string())
        .fetch_optional(connection)
        .await?;
    row.as_ref().map(read).transpose()
}

/// Reads many executions in ascending order of their ids, with `lock` (from [`super::Dialect`]) appended to each
/// statement; ids without a row are left out.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn get_many(
    connection: &mut Connection,
    ids: &[ExecutionId],
    lock: &str,
) -> Result<Vec<ExecutionRow>, StoreError> {
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut rows = Vec::with_capacity(sorted.len());
    for chunk in key_chunks(&sorted) {
        let sql = format!(
            "select {} from job_execution where id in ({}) order by id{lock}",
            columns(),
            placeholders(chunk.len(), 0)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for id in chunk {
            query = query.bind(id.to_string());
        }
        for row in query.fetch_all(&mut *connection).await? {
            rows.push(read(&row)?);
        }
    }
    Ok(rows)
}
