//! `outcome_outbox`: outcomes on their way to the exchange of outcomes. Settling writes it, where
//! [`Store::recording_outcomes`](super::Store::recording_outcomes) says so; the relay publishes and deletes.

use super::{
    Connection, Row, StoreError, Tx, key_chunks, placeholders, row_chunks, sql::AnyQuery,
    transitions::by_weight,
};
use crate::{
    execution::ExecutionStatus,
    id::{AppId, ExecutionId},
    time::EpochMillis,
    trace_parent::TraceParent,
};
use sqlx::AssertSqlSafe;

/// The outcome of one execution. An execution ends once, so its id names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutcomeRow {
    /// The execution that ended.
    pub execution: ExecutionId,
    /// Whose it is.
    pub app: AppId,
    /// What ran it.
    pub handler: String,
    /// How it ended.
    pub status: ExecutionStatus,
    /// JSON: the body of its webhook, published byte for byte.
    pub body: String,
    /// The trace of the job's submission.
    pub traceparent: Option<TraceParent>,
    /// When it ended.
    pub created_at: EpochMillis,
}

/// Writes outcomes that are due at once.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn insert_many(connection: &mut Connection, outcomes: &[OutcomeRow]) -> Result<(), StoreError> {
    for part in by_weight(outcomes, |outcome| outcome.body.len()) {
        for chunk in row_chunks(part) {
            let sql = format!(
                "insert into outcome_outbox (execution_id, app_id, handler, status, body, traceparent, created_at, due_at) \
                 values {}",
                placeholders(chunk.len(), 8)
            );
            let mut query = sqlx::query(AssertSqlSafe(sql));
            for outcome in chunk {
                query = query
                    .bind(outcome.execution.to_string())
                    .bind(outcome.app.to_string())
                    .bind(outcome.handler.clone())
                    .bind(outcome.status.code())
                    .bind(outcome.body.clone())
                    .bind(outcome.traceparent.as_ref().map(ToString::to_string))
                    .bind(outcome.created_at.0)
                    .bind(outcome.created_at.0);
            }
            query.execute(&mut *connection).await?;
        }
    }
    Ok(())
}

/// Takes the outcomes that have been due longest, at most `limit`, passing over what another relay is taking. They
/// are due again at `until`, should this relay not get to delete them.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn claim(
    tx: &mut Tx,
    now: EpochMillis,
    until: EpochMillis,
    limit: u32,
) -> Result<Vec<OutcomeRow>, StoreError> {
    let sql = format!(
        "select execution_id, app_id, handler, status, body, traceparent, created_at from outcome_outbox where due_at <= ? \
         order by due_at limit {limit}{}",
        tx.dialect().for_update_skip_locked()
    );
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(now.0)
        .fetch_all(&mut **tx)
        .await?;
    let outcomes = rows
        .iter()
        .map(|row| {
            let row = Row(row);
            Ok(OutcomeRow {
                execution: row.parsed("execution_id")?,
                app: row.parsed("app_id")?,
                handler: row.text("handler")?,
                status: row.coded("status", ExecutionStatus::from_code)?,
                body: row.text("body")?,
                traceparent: row.opt_parsed("traceparent")?,
                created_at: row.instant("created_at")?,
            })
        })
        .collect::<Result<Vec<_>, StoreError>>()?;
    let ids: Vec<_> = outcomes.iter().map(|outcome| outcome.execution).collect();
    postpone(tx, &ids, until).await?;
    Ok(outcomes)
}

/// Makes outcomes due at `until`.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn postpone(
    connection: &mut Connection,
    ids: &[ExecutionId],
    until: EpochMillis,
) -> Result<(), StoreError> {
    for_each_chunk(connection, ids, |list| {
        sqlx::query(AssertSqlSafe(format!(
            "update outcome_outbox set due_at = ? where execution_id in ({list})"
        )))
        .bind(until.0)
    })
    .await
}

/// Deletes outcomes that the broker has.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn delete(connection: &mut Connection, ids: &[ExecutionId]) -> Result<(), StoreError> {
    for_each_chunk(connection, ids, |list| {
        sqlx::query(AssertSqlSafe(format!(
            "delete from outcome_outbox where execution_id in ({list})"
        )))
    })
    .await
}

/// The end of the execution that has been due longest, if any is due.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn oldest_due(
    connection: &mut Connection,
    now: EpochMillis,
) -> Result<Option<EpochMillis>, StoreError> {
    let row = sqlx::query("select created_at from outcome_outbox where due_at <= ? order by due_at limit 1")
        .bind(now.0)
        .fetch_optional(connection)
        .await?;
    row.map(|row| Row(&row).instant("created_at")).transpose()
}

/// Runs the statement that `write` makes of a list of placeholders; ascending, so that two writers lock alike.
async fn for_each_chunk(
    connection: &mut Connection,
    ids: &[ExecutionId],
    write: impl Fn(&str) -> AnyQuery<'static>,
) -> Result<(), StoreError> {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    for chunk in key_chunks(&ids) {
        let mut query = write(&placeholders(chunk.len(), 0));
        for id in chunk {
            query = query.bind(id.to_string());
        }
        query.execute(&mut *connection).await?;
    }
    Ok(())
}
