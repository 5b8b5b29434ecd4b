//! `setting`: what can be changed while everything runs. Values are JSON.

use super::{Connection, Dialect, Row, StoreError};
use crate::time::EpochMillis;
use sqlx::AssertSqlSafe;
use std::collections::HashMap;

/// Strategy and weights of the balancer.
pub const BALANCER: &str = "balancer";
/// `true` stops claims and placements.
pub const MAINTENANCE: &str = "maintenance";

/// Every setting, by name.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn all(connection: &mut Connection) -> Result<HashMap<String, String>, StoreError> {
    let rows = sqlx::query("select name, value from setting")
        .fetch_all(connection)
        .await?;
    rows.iter()
        .map(|row| {
            let row = Row(row);
            Ok((row.text("name")?, row.text("value")?))
        })
        .collect()
}

/// True when these settings keep anything from being claimed or placed.
#[must_use]
pub fn is_maintenance(settings: &HashMap<String, String>) -> bool {
    settings
        .get(MAINTENANCE)
        .is_some_and(|text| text.trim() == "true")
}

/// Writes a setting.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn put(
    connection: &mut Connection,
    dialect: Dialect,
    name: &str,
    value: &str,
    now: EpochMillis,
) -> Result<(), StoreError> {
    let sql = format!(
        "insert into setting (name, value, updated_at) values (?, ?, ?){}",
        dialect.on_conflict_update(&["name"], &["value", "updated_at"])
    );
    sqlx::query(AssertSqlSafe(sql))
        .bind(name.to_owned())
        .bind(value.to_owned())
        .bind(now.0)
        .execute(connection)
        .await?;
    Ok(())
}

/// The running limits of the apps that have one.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn running_limits(
    connection: &mut Connection,
) -> Result<HashMap<crate::id::AppId, u32>, StoreError> {
    let rows =
        sqlx::query("select id, max_running_executions from app where max_running_executions is not null")
            .fetch_all(connection)
            .await?;
    rows.iter()
        .map(|row| {
            let row = Row(row);
            Ok((row.parsed("id")?, row.number("max_running_executions")?))
        })
        .collect()
}
