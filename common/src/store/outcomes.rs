//! `outcome_batch`: outcomes on their way to the exchange of outcomes, those of one settling in one row. Settling writes
//! it, where [`Store::recording_outcomes`](super::Store::recording_outcomes) says so; the relay publishes and deletes.

use super::{Connection, Row, StoreError, Tx, execute_for_keys};
use crate::{
    execution::ExecutionStatus,
    id::{AppId, ExecutionId, OutcomeBatchId},
    raw_json::RawJson,
    time::EpochMillis,
    trace_parent::TraceParent,
};
use serde::{Deserialize, Serialize};
use sqlx::AssertSqlSafe;

/// Outcomes in one row.
const MOST_OUTCOMES: usize = 256;
/// Bytes of bodies in one row, unless a single outcome has more.
const MOST_BYTES: usize = 1 << 20;

/// The outcome of one execution. An execution ends once, so its id names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The execution that ended.
    pub execution: ExecutionId,
    /// Whose it is.
    pub app: AppId,
    /// What ran it.
    pub handler: String,
    /// How it ended.
    pub status: ExecutionStatus,
    /// The body of its webhook, published byte for byte.
    pub body: RawJson,
    /// The trace of the job's submission.
    pub traceparent: Option<TraceParent>,
    /// When it ended.
    pub created_at: EpochMillis,
}

/// Outcomes that were written, are claimed, and go together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutcomeBatch {
    /// Names the row.
    pub id: OutcomeBatchId,
    /// What is still to be published of it.
    pub outcomes: Vec<Outcome>,
}

/// An outcome as it is stored, numbers as in every other table.
#[derive(Serialize, Deserialize)]
struct Stored {
    execution: ExecutionId,
    app: AppId,
    handler: String,
    status: i64,
    traceparent: Option<String>,
    created_at: i64,
    body: RawJson,
}

/// Writes outcomes that are due at once.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn insert(connection: &mut Connection, outcomes: &[Outcome]) -> Result<(), StoreError> {
    for part in batches(outcomes) {
        let ended_at = part.iter().map(|outcome| outcome.created_at.0).min();
        sqlx::query("insert into outcome_batch (id, outcomes, created_at, due_at) values (?, ?, ?, ?)")
            .bind(OutcomeBatchId::generate().to_string())
            .bind(pack(part)?)
            .bind(ended_at)
            .bind(ended_at)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

fn batches(outcomes: &[Outcome]) -> Vec<&[Outcome]> {
    let mut parts = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, outcome) in outcomes.iter().enumerate() {
        let size = outcome.body.as_str().len();
        if index > start && (index - start >= MOST_OUTCOMES || bytes + size > MOST_BYTES) {
            parts.push(&outcomes[start..index]);
            (start, bytes) = (index, 0);
        }
        bytes += size;
    }
    if start < outcomes.len() {
        parts.push(&outcomes[start..]);
    }
    parts
}

/// Takes the batches that have been due longest, at most `limit`, passing over what another relay is taking. They are
/// due again at `until`, should this relay not get to delete them.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn claim(
    tx: &mut Tx,
    now: EpochMillis,
    until: EpochMillis,
    limit: u32,
) -> Result<Vec<OutcomeBatch>, StoreError> {
    let sql = format!(
        "select id, outcomes from outcome_batch where due_at <= ? order by due_at limit {limit}{}",
        tx.dialect().for_update_skip_locked()
    );
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(now.0)
        .fetch_all(&mut **tx)
        .await?;
    let batches = rows
        .iter()
        .map(|row| {
            let row = Row(row);
            Ok(OutcomeBatch {
                id: row.parsed("id")?,
                outcomes: unpack(row.json("outcomes")?)?,
            })
        })
        .collect::<Result<Vec<_>, StoreError>>()?;
    let mut ids: Vec<_> = batches.iter().map(|batch| batch.id).collect();
    ids.sort_unstable();
    execute_for_keys(tx, &ids, |list| {
        sqlx::query(AssertSqlSafe(format!(
            "update outcome_batch set due_at = ? where id in ({list})"
        )))
        .bind(until.0)
    })
    .await?;
    Ok(batches)
}

/// Leaves of a batch what could not be published, due at `until`.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn postpone(
    connection: &mut Connection,
    rest: &OutcomeBatch,
    until: EpochMillis,
) -> Result<(), StoreError> {
    sqlx::query("update outcome_batch set outcomes = ?, due_at = ? where id = ?")
        .bind(pack(&rest.outcomes)?)
        .bind(until.0)
        .bind(rest.id.to_string())
        .execute(connection)
        .await?;
    Ok(())
}

/// Deletes batches that the broker has.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn delete(connection: &mut Connection, ids: &[OutcomeBatchId]) -> Result<(), StoreError> {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    execute_for_keys(connection, &ids, |list| {
        sqlx::query(AssertSqlSafe(format!(
            "delete from outcome_batch where id in ({list})"
        )))
    })
    .await
}

/// The first end in the batch that has been due longest, if any is due.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn oldest_due(
    connection: &mut Connection,
    now: EpochMillis,
) -> Result<Option<EpochMillis>, StoreError> {
    let row = sqlx::query("select created_at from outcome_batch where due_at <= ? order by due_at limit 1")
        .bind(now.0)
        .fetch_optional(connection)
        .await?;
    row.map(|row| Row(&row).instant("created_at")).transpose()
}

fn pack(outcomes: &[Outcome]) -> Result<String, StoreError> {
    let stored: Vec<Stored> = outcomes
        .iter()
        .map(|outcome| Stored {
            execution: outcome.execution,
            app: outcome.app,
            handler: outcome.handler.clone(),
            status: outcome.status.code(),
            traceparent: outcome.traceparent.as_ref().map(ToString::to_string),
            created_at: outcome.created_at.0,
            body: outcome.body.clone(),
        })
        .collect();
    serde_json::to_string(&stored).map_err(|error| StoreError::Corrupt(error.to_string()))
}

fn unpack(stored: Vec<Stored>) -> Result<Vec<Outcome>, StoreError> {
    let read = |outcome: Stored| {
        let status = ExecutionStatus::from_code(outcome.status)
            .ok_or_else(|| StoreError::Corrupt(format!("outcomes: status = {}", outcome.status)))?;
        Ok(Outcome {
            execution: outcome.execution,
            app: outcome.app,
            handler: outcome.handler,
            status,
            body: outcome.body,
            traceparent: outcome.traceparent.and_then(|text| text.parse().ok()),
            created_at: EpochMillis(outcome.created_at),
        })
    };
    stored.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(bytes: usize) -> Outcome {
        Outcome {
            execution: ExecutionId::generate(),
            app: AppId::generate(),
            handler: "noop".into(),
            status: ExecutionStatus::Succeeded,
            body: RawJson::from_value(&"x".repeat(bytes)).expect("a text"),
            traceparent: None,
            created_at: EpochMillis(1),
        }
    }

    #[test]
    fn no_row_grows_too_large_and_none_is_lost() {
        let light = vec![outcome(10); 2 * MOST_OUTCOMES + 1];
        let heavy: Vec<_> = (0..5).map(|_| outcome(MOST_BYTES * 2 / 5)).collect();
        let giant = vec![outcome(2 * MOST_BYTES), outcome(1), outcome(1)];
        for (outcomes, parts) in [(light, 3), (heavy, 3), (giant, 2), (Vec::new(), 0)] {
            let cut = batches(&outcomes);
            assert_eq!(cut.len(), parts);
            assert_eq!(cut.concat(), outcomes);
        }
    }
}
