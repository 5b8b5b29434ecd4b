//! `concurrency_slot`: how many executions hold a concurrency key. Written only under its row lock.

use super::{Connection, Dialect, StoreError};
use crate::id::{AppId, JobId};
use sqlx::AssertSqlSafe;

/// The key under which the executions of one job take turns.
#[must_use]
pub fn job_key(job: JobId) -> String {
    format!("job:{job}")
}

/// The key under which executions of several jobs of an app take turns.
#[must_use]
pub fn shared_key(app: AppId, concurrency_key: &str) -> String {
    format!("key:{app}:{concurrency_key}")
}

/// Takes one of the slots of `key`, which has `limit` of them. False when all are held.
/// Lock order: slots come before jobs and executions.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn try_take(
    connection: &mut Connection,
    dialect: Dialect,
    key: &str,
    limit: i64,
) -> Result<bool, StoreError> {
    let insert = format!(
        "{} concurrency_slot (slot_key, holders, slot_limit) values (?, 0, ?)",
        dialect.insert_ignore()
    );
    sqlx::query(AssertSqlSafe(insert))
        .bind(key)
        .bind(limit)
        .execute(&mut *connection)
        .await?;
    let taken = sqlx::query(
        "update concurrency_slot set holders = holders + 1 where slot_key = ? and holders < slot_limit",
    )
    .bind(key)
    .execute(connection)
    .await?;
    Ok(taken.rows_affected() == 1)
}

/// Gives one slot back.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn give_back(connection: &mut Connection, key: &str) -> Result<(), StoreError> {
    sqlx::query("update concurrency_slot set holders = holders - 1 where slot_key = ? and holders > 0")
        .bind(key)
        .execute(connection)
        .await?;
    Ok(())
}
