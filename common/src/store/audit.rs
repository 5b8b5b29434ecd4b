//! `audit`: who did what. Append-only; written in the transaction that does it.

use super::{Connection, StoreError};
use crate::{
    id::{ApiKeyId, AppId},
    time::EpochMillis,
};

/// One deed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// When.
    pub at: EpochMillis,
    /// The app it was done for.
    pub app: AppId,
    /// The key it was done with.
    pub key: ApiKeyId,
    /// A stable word, such as `job.pause`.
    pub action: &'static str,
    /// The id or name of what it was done to.
    pub object: String,
    /// More, for people. Never a secret.
    pub detail: Option<String>,
}

/// Appends an entry.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn append(connection: &mut Connection, entry: &AuditEntry) -> Result<(), StoreError> {
    sqlx::query(
        "insert into audit (at, app_id, api_key_id, action, object, detail) values (?, ?, ?, ?, ?, ?)",
    )
    .bind(entry.at.0)
    .bind(entry.app.to_string())
    .bind(entry.key.to_string())
    .bind(entry.action)
    .bind(entry.object.clone())
    .bind(entry.detail.clone())
    .execute(connection)
    .await?;
    Ok(())
}
