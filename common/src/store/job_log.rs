//! `job_log`: one row a transition, append-only. It is what `steps` shows.

use super::{Connection, Row, StoreError, placeholders, row_chunks};
use crate::{
    execution::{ExecutionStatus, limit_text},
    id::{ExecutionId, JobId, WorkerId},
    time::EpochMillis,
};
use sqlx::AssertSqlSafe;

/// Longest message kept, in bytes.
const MESSAGE_LIMIT: usize = 1_000;

/// One transition of an execution, or one event of its job (then without an execution).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// The job.
    pub job: JobId,
    /// The execution; none for an event of the job itself, such as a pause.
    pub execution: Option<ExecutionId>,
    /// Starts of the execution so far.
    pub attempt: u32,
    /// Its handover.
    pub dispatch_seq: i64,
    /// The state before; none when it was made.
    pub from: Option<ExecutionStatus>,
    /// The state after; none when the state stayed.
    pub to: Option<ExecutionStatus>,
    /// The worker concerned.
    pub worker: Option<WorkerId>,
    /// Why, for people.
    pub message: Option<String>,
    /// When.
    pub at: EpochMillis,
}

/// Appends entries in order.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn append(connection: &mut Connection, entries: &[LogEntry]) -> Result<(), StoreError> {
    for chunk in row_chunks(entries) {
        let sql = format!(
            "insert into job_log (job_id, execution_id, attempt, dispatch_seq, from_status, to_status, worker_id, \
             message, at) values {}",
            placeholders(chunk.len(), 9)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for entry in chunk {
            query = query
                .bind(entry.job.to_string())
                .bind(entry.execution.map(|id| id.to_string()))
                .bind(i64::from(entry.attempt))
                .bind(entry.dispatch_seq)
                .bind(entry.from.map(ExecutionStatus::code))
                .bind(entry.to.map(ExecutionStatus::code))
                .bind(entry.worker.as_ref().map(|worker| worker.as_str().to_owned()))
                .bind(
                    entry
                        .message
                        .as_deref()
                        .map(|text| limit_text(text, MESSAGE_LIMIT).into_owned()),
                )
                .bind(entry.at.0);
        }
        query.execute(&mut *connection).await?;
    }
    Ok(())
}

/// The transitions of one execution, oldest first.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn of_execution(connection: &mut Connection, id: ExecutionId) -> Result<Vec<LogEntry>, StoreError> {
    let rows = sqlx::query(
        "select job_id, execution_id, attempt, dispatch_seq, from_status, to_status, worker_id, message, at
           from job_log where execution_id = ? order by seq",
    )
    .bind(id.to_string())
    .fetch_all(connection)
    .await?;
    rows.iter().map(|row| read(&Row(row))).collect()
}

fn read(row: &Row<'_>) -> Result<LogEntry, StoreError> {
    let status = |column: &str| -> Result<Option<ExecutionStatus>, StoreError> {
        Ok(row.opt_int(column)?.and_then(ExecutionStatus::from_code))
    };
    Ok(LogEntry {
        job: row.parsed("job_id")?,
        execution: row.opt_parsed("execution_id")?,
        attempt: row.number("attempt")?,
        dispatch_seq: row.int("dispatch_seq")?,
        from: status("from_status")?,
        to: status("to_status")?,
        worker: row
            .opt_text("worker_id")?
            .and_then(|name| WorkerId::parse(&name).ok()),
        message: row.opt_text("message")?,
        at: row.instant("at")?,
    })
}
