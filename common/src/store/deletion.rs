//! `job_deletion`: jobs that are to be deleted as soon as nothing of them is open, and jobs that were deleted: their
//! client request ids stay taken for a while, so that a submission that is sent again makes no second job.

use super::{
    Connection, Row, Store, StoreError, Tx, audit::AuditEntry, jobs, jobs::JobRow, key_chunks, placeholders,
};
use crate::{
    id::{AppId, JobId},
    time::EpochMillis,
};
use sqlx::AssertSqlSafe;
use std::{collections::BTreeMap, time::Duration};

/// How long the client request id of a deleted job stays taken.
pub const KEY_KEPT_FOR: Duration = Duration::from_secs(24 * 3_600);
/// Deletions that wait, looked at in one go.
const AT_ONCE: i64 = 200;

/// A job that was deleted, by its client request id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Deleted {
    pub(super) job: JobId,
    pub(super) hash: String,
    pub(super) content_hash: String,
}

/// Notes that a job is to be deleted once nothing of it is open; a second request changes nothing.
pub(super) async fn request(tx: &mut Tx, job: &JobRow, by: &AuditEntry) -> Result<(), StoreError> {
    if is_requested(tx, job.id).await? {
        return Ok(());
    }
    insert(tx, job, by, None).await
}

/// True when the job is to be deleted once nothing of it is open.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn is_requested(connection: &mut Connection, job: JobId) -> Result<bool, StoreError> {
    let row = sqlx::query("select count(*) as wanted from job_deletion where job_id = ?")
        .bind(job.to_string())
        .fetch_one(connection)
        .await?;
    Ok(Row(&row).int("wanted")? > 0)
}

/// Notes that a job is deleted by this transaction.
pub(super) async fn record(tx: &mut Tx, job: &JobRow, by: &AuditEntry) -> Result<(), StoreError> {
    forget(tx, job.id).await?;
    if job.client_request_id.is_none() {
        return Ok(());
    }
    insert(tx, job, by, Some(by.at)).await
}

/// Forgets what was noted of a job.
pub(super) async fn forget(connection: &mut Connection, job: JobId) -> Result<(), StoreError> {
    sqlx::query("delete from job_deletion where job_id = ?")
        .bind(job.to_string())
        .execute(connection)
        .await?;
    Ok(())
}

async fn insert(
    tx: &mut Tx,
    job: &JobRow,
    by: &AuditEntry,
    deleted_at: Option<EpochMillis>,
) -> Result<(), StoreError> {
    sqlx::query(
        "insert into job_deletion (job_id, app_id, api_key_id, client_request_hash, content_hash, requested_at, \
         deleted_at) values (?, ?, ?, ?, ?, ?, ?)",
    )
    .bind(job.id.to_string())
    .bind(job.app.to_string())
    .bind(by.key.to_string())
    .bind(job.client_request_id.as_deref().map(jobs::client_request_hash))
    .bind(job.content_hash.clone())
    .bind(by.at.0)
    .bind(deleted_at.map(|at| at.0))
    .execute(&mut **tx)
    .await?;
    Ok(())
}

/// The deletions that wait for the end of what is open, each with who asked for it.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn waiting(store: &Store) -> Result<Vec<(JobId, AuditEntry)>, StoreError> {
    let rows = sqlx::query(
        "select job_id, app_id, api_key_id from job_deletion where deleted_at is null order by job_id limit ?",
    )
    .bind(AT_ONCE)
    .fetch_all(&mut *store.reader().await?)
    .await?;
    rows.iter()
        .map(|row| {
            let row = Row(row);
            let job: JobId = row.parsed("job_id")?;
            let by = AuditEntry {
                at: store.now(),
                app: row.parsed("app_id")?,
                key: row.parsed("api_key_id")?,
                action: "job.delete",
                object: job.to_string(),
                detail: Some("nothing of it is open any more".into()),
            };
            Ok((job, by))
        })
        .collect()
}

/// The deleted jobs that hold one of these jobs' client request ids.
pub(super) async fn holding(
    connection: &mut Connection,
    jobs: &[JobRow],
) -> Result<BTreeMap<AppId, Vec<Deleted>>, StoreError> {
    let mut keys: BTreeMap<AppId, Vec<String>> = BTreeMap::new();
    for job in jobs {
        if let Some(key) = &job.client_request_id {
            keys.entry(job.app)
                .or_default()
                .push(jobs::client_request_hash(key));
        }
    }
    let mut held = BTreeMap::new();
    for (app, hashes) in keys {
        let mut deleted = Vec::new();
        for chunk in key_chunks(&hashes) {
            let sql = format!(
                "select job_id, client_request_hash, content_hash from job_deletion \
                 where app_id = ? and client_request_hash in ({}) and deleted_at is not null",
                placeholders(chunk.len(), 0)
            );
            let mut query = sqlx::query(AssertSqlSafe(sql)).bind(app.to_string());
            for hash in chunk {
                query = query.bind(hash.clone());
            }
            for row in query.fetch_all(&mut *connection).await? {
                let row = Row(&row);
                deleted.push(Deleted {
                    job: row.parsed("job_id")?,
                    hash: row.text("client_request_hash")?,
                    content_hash: row.text("content_hash")?,
                });
            }
        }
        if !deleted.is_empty() {
            held.insert(app, deleted);
        }
    }
    Ok(held)
}

/// Frees the client request ids of jobs that were deleted before `before`. Returns how many.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn free_keys(store: &Store, before: EpochMillis) -> Result<u64, StoreError> {
    store
        .transact(|| async {
            let mut tx = store.begin().await?;
            let freed = sqlx::query("delete from job_deletion where deleted_at < ?")
                .bind(before.0)
                .execute(&mut *tx)
                .await?;
            tx.commit().await?;
            Ok(freed.rows_affected())
        })
        .await
}
