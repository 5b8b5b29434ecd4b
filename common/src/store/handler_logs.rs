//! `execution_log_line` and the progress columns of `job_execution`: what handlers say while they run.

use super::{BulkUpdate, Connection, Dialect, Row, StoreError, placeholders, row_chunks};
use crate::{
    execution::{ExecutionStatus, limit_text},
    id::ExecutionId,
    message::{LogLevel, LogLine, Progress},
    time::EpochMillis,
};
use sqlx::AssertSqlSafe;
use std::collections::BTreeMap;

/// Longest line kept, in bytes.
const LINE_LIMIT: usize = 16 * 1024;
/// Longest progress message kept, in bytes.
const PROGRESS_LIMIT: usize = 1_000;

/// A stored line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLine {
    /// Order of arrival among all lines: the cursor for reading on.
    pub seq: i64,
    /// Of which start of the execution.
    pub attempt: u32,
    /// Number within the attempt.
    pub line: u32,
    /// When it was written, by the worker's estimate of the database's clock.
    pub at: EpochMillis,
    /// How serious.
    pub level: LogLevel,
    /// What.
    pub message: String,
}

const fn level_code(level: LogLevel) -> i64 {
    match level {
        LogLevel::Info => 0,
        LogLevel::Warn => 1,
        LogLevel::Error => 2,
    }
}

const fn level_from_code(code: i64) -> Option<LogLevel> {
    match code {
        0 => Some(LogLevel::Info),
        1 => Some(LogLevel::Warn),
        2 => Some(LogLevel::Error),
        _ => None,
    }
}

/// Stores lines; one that is stored already is left as it is.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn insert_lines(
    connection: &mut Connection,
    dialect: Dialect,
    lines: &[LogLine],
) -> Result<(), StoreError> {
    for chunk in row_chunks(lines) {
        let sql = format!(
            "{} execution_log_line (execution_id, attempt, line, at, level, message) values {}",
            dialect.insert_ignore(),
            placeholders(chunk.len(), 6)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for line in chunk {
            query = query
                .bind(line.execution.to_string())
                .bind(i64::from(line.attempt))
                .bind(i64::from(line.line))
                .bind(line.at.0)
                .bind(level_code(line.level))
                .bind(limit_text(&line.message, LINE_LIMIT).into_owned());
        }
        query.execute(&mut *connection).await?;
    }
    Ok(())
}

/// Stores the newest progress of executions that are still with the worker that reports it.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn set_progress(
    connection: &mut Connection,
    dialect: Dialect,
    progress: &[Progress],
) -> Result<(), StoreError> {
    let mut newest: BTreeMap<ExecutionId, &Progress> = BTreeMap::new();
    for said in progress {
        let kept = newest.entry(said.execution).or_insert(said);
        if said.dispatch_seq >= kept.dispatch_seq {
            *kept = said;
        }
    }
    let rows: Vec<&Progress> = newest.into_values().collect();
    let guard = format!(
        "job_execution.dispatch_seq = v.dispatch_seq and job_execution.status in ({}, {})",
        ExecutionStatus::Dispatched.code(),
        ExecutionStatus::Running.code()
    );
    BulkUpdate {
        table: "job_execution",
        columns: &["id", "dispatch_seq", "progress_percent", "progress_message"],
        set: "",
        set_values: &[],
        guard: &guard,
    }
    .execute(connection, dialect, &rows, |query, progress| {
        query
            .bind(progress.execution.to_string())
            .bind(progress.dispatch_seq)
            .bind(i64::from(progress.percent.min(100)))
            .bind(limit_text(&progress.message, PROGRESS_LIMIT).into_owned())
    })
    .await?;
    Ok(())
}

/// The lines of an execution that arrived after the one numbered `after` (0: from the start), oldest first.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn lines_after(
    connection: &mut Connection,
    execution: ExecutionId,
    after: i64,
    limit: u32,
) -> Result<Vec<StoredLine>, StoreError> {
    let rows = sqlx::query(
        "select seq, attempt, line, at, level, message from execution_log_line \
         where execution_id = ? and seq > ? order by seq limit ?",
    )
    .bind(execution.to_string())
    .bind(after)
    .bind(i64::from(limit))
    .fetch_all(connection)
    .await?;
    rows.iter().map(|row| read_line(&Row(row))).collect()
}

fn read_line(row: &Row<'_>) -> Result<StoredLine, StoreError> {
    Ok(StoredLine {
        seq: row.int("seq")?,
        attempt: row.number("attempt")?,
        line: row.number("line")?,
        at: row.instant("at")?,
        level: row.coded("level", level_from_code)?,
        message: row.text("message")?,
    })
}
