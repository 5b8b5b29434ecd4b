//! What is kept of the past: finished executions, their steps, lines and callbacks, and jobs that have ended, are
//! deleted a while after. In small batches, so that nothing waits for it.

use super::{
    AnyQuery, Connection, Row, Store, StoreError, Tx, callbacks::DeliveryStatus, execute_for_keys,
    key_chunks, placeholders, slots,
};
use crate::{
    id::{ExecutionId, JobId},
    job::JobStatus,
    time::EpochMillis,
};
use sqlx::AssertSqlSafe;
use std::fmt::Display;
use uuid::Uuid;

/// Executions or jobs deleted in one transaction.
pub const PRUNE_BATCH: u32 = 200;

/// Deletes executions that ended before `before`, with everything that hangs on them; a callback that has not ended
/// keeps its execution. Returns how many, at most [`PRUNE_BATCH`]: call again while it is that many.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn prune_executions(store: &Store, before: EpochMillis) -> Result<usize, StoreError> {
    store
        .transact(|| async {
            let mut tx = store.begin().await?;
            let pruned = prune_executions_in(&mut tx, before).await?;
            tx.commit().await?;
            Ok(pruned)
        })
        .await
}

async fn prune_executions_in(tx: &mut Tx, before: EpochMillis) -> Result<usize, StoreError> {
    // One look into an index for each. With `not exists` all deliveries that are under way would be read first.
    let sql = format!(
        "select id as pruned_id from job_execution /*! force index (idx_execution_finished) */ where finished_at < ? \
         and (select 1 from callback_delivery where callback_delivery.execution_id = job_execution.id \
              and callback_delivery.status < {} limit 1) is null \
         order by finished_at limit ?{}",
        DeliveryStatus::Delivered.code(),
        tx.dialect().for_update_skip_locked()
    );
    let ids: Vec<ExecutionId> =
        select(tx, sql, |query| query.bind(before.0).bind(i64::from(PRUNE_BATCH))).await?;
    delete(tx, "execution_log_line where execution_id", &ids).await?;
    delete(tx, "job_log where execution_id", &ids).await?;
    delete_attempts(tx, &ids).await?;
    delete(tx, "callback_delivery where execution_id", &ids).await?;
    delete(tx, "job_execution where id", &ids).await?;
    Ok(ids.len())
}

/// Deletes jobs that ended before `before` and have no execution left, with their labels, events and slot. Their client
/// request ids are free again from then on. Returns how many, at most [`PRUNE_BATCH`].
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn prune_jobs(store: &Store, before: EpochMillis) -> Result<usize, StoreError> {
    store
        .transact(|| async {
            let mut tx = store.begin().await?;
            let pruned = prune_jobs_in(&mut tx, before).await?;
            tx.commit().await?;
            Ok(pruned)
        })
        .await
}

async fn prune_jobs_in(tx: &mut Tx, before: EpochMillis) -> Result<usize, StoreError> {
    let ended: Vec<String> = JobStatus::ALL
        .into_iter()
        .filter(|status| status.is_terminal())
        .map(|status| status.code().to_string())
        .collect();
    // Ids sort by age, so the primary key leads to the oldest jobs without an index of its own for this.
    let sql = format!(
        "select id as pruned_id from job_info where id < ? and status in ({}) and updated_at < ? \
         and (select 1 from job_execution where job_execution.job_id = job_info.id limit 1) is null \
         order by id limit ?{}",
        ended.join(", "),
        tx.dialect().for_update_skip_locked()
    );
    let ids: Vec<JobId> = select(tx, sql, |query| {
        let query = query.bind(first_id_of(before).to_string());
        query.bind(before.0).bind(i64::from(PRUNE_BATCH))
    })
    .await?;
    let slot_keys: Vec<String> = ids.iter().map(|job| slots::job_key(*job)).collect();
    delete(tx, "concurrency_slot where holders = 0 and slot_key", &slot_keys).await?;
    delete(tx, "job_label where job_id", &ids).await?;
    delete(tx, "job_log where job_id", &ids).await?;
    delete(tx, "job_info where id", &ids).await?;
    Ok(ids.len())
}

/// Deletes audit entries and ended worker incarnations from before `before`.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn prune_records(store: &Store, before: EpochMillis) -> Result<(), StoreError> {
    store
        .transact(|| async {
            let mut tx = store.begin().await?;
            for sql in [
                "delete from audit where at < ?",
                "delete from worker_node where ended_at < ?",
            ] {
                sqlx::query(sql).bind(before.0).execute(&mut *tx).await?;
            }
            tx.commit().await
        })
        .await
}

/// The smallest id that could have been made at `instant`.
fn first_id_of(instant: EpochMillis) -> JobId {
    let millis = u128::try_from(instant.0).unwrap_or(0);
    JobId::from_uuid(Uuid::from_u128(millis << 80))
}

async fn select<T: std::str::FromStr>(
    connection: &mut Connection,
    sql: String,
    bind: impl FnOnce(AnyQuery<'static>) -> AnyQuery<'static>,
) -> Result<Vec<T>, StoreError> {
    let rows = bind(sqlx::query(AssertSqlSafe(sql)))
        .fetch_all(connection)
        .await?;
    rows.iter().map(|row| Row(row).parsed("pruned_id")).collect()
}

/// Deletes the rows of a table whose column, the last word of `rows`, is one of the keys.
async fn delete(connection: &mut Connection, rows: &str, keys: &[impl Display]) -> Result<(), StoreError> {
    execute_for_keys(connection, keys, |list| {
        sqlx::query(AssertSqlSafe(format!("delete from {rows} in ({list})")))
    })
    .await
}

/// By the deliveries' ids, which are read first: a DELETE with a subquery would walk the whole table.
async fn delete_attempts(connection: &mut Connection, executions: &[ExecutionId]) -> Result<(), StoreError> {
    let mut deliveries: Vec<String> = Vec::new();
    for chunk in key_chunks(executions) {
        let sql = format!(
            "select id from callback_delivery where execution_id in ({})",
            placeholders(chunk.len(), 0)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for execution in chunk {
            query = query.bind(execution.to_string());
        }
        for row in query.fetch_all(&mut *connection).await? {
            deliveries.push(Row(&row).text("id")?);
        }
    }
    delete(connection, "callback_attempt where delivery_id", &deliveries).await
}
