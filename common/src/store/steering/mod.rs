//! What people do to jobs and executions that exist: pause, resume, run now, cancel, retry, change, delete. Each call
//! is one transaction with its audit entry; a refusal changes nothing.

mod cancelling;
mod definition;
mod lifecycle;
mod running;
mod workers;

pub use cancelling::{Cancelled, cancel_execution, cancel_job};
pub use definition::{Deletion, delete_job, finish_deletions, replace_definition};
pub use lifecycle::{pause_job, plan_forgotten, resume_job};
pub use running::{Run, RunRequest, retry_execution, run_job};
pub use workers::set_drain;

use super::{StoreError, Tx, jobs, jobs::JobRow};
use crate::{
    id::{AppId, JobId},
    time::EpochMillis,
};
use sqlx::AssertSqlSafe;
use std::time::Duration;

/// How often a transaction that the database rolled back runs again.
const MAX_RUNS: u32 = 5;

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
pub enum SteerError {
    /// There is no such object in this app.
    #[error("there is no such object in this app")]
    NotFound,
    /// Not possible in the state it is in.
    #[error("{detail}")]
    NotPossible {
        /// A stable word.
        code: &'static str,
        /// Which state, and what would help.
        detail: String,
    },
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SteerError {
    fn not_possible(code: &'static str, detail: impl Into<String>) -> Self {
        Self::NotPossible {
            code,
            detail: detail.into(),
        }
    }
}

impl From<sqlx::Error> for SteerError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

/// Runs a whole transaction again after a deadlock or a lock-wait timeout.
async fn rerun<T, F>(mut transaction: impl FnMut() -> F) -> Result<T, SteerError>
where
    F: Future<Output = Result<T, SteerError>>,
{
    let mut runs = 1;
    loop {
        match transaction().await {
            Err(SteerError::Store(StoreError::Retryable(_))) if runs < MAX_RUNS => {
                let pause = rand::random_range(1..=10 * u64::from(runs));
                tokio::time::sleep(Duration::from_millis(pause)).await;
                runs += 1;
            }
            other => return other,
        }
    }
}

/// Locks a job of this app until the end of the transaction. Slots are locked before, executions after.
async fn lock_job(tx: &mut Tx, app: AppId, id: JobId) -> Result<JobRow, SteerError> {
    let locked = lock_any_job(tx, id).await?;
    locked
        .map(|(job, _)| job)
        .filter(|job| job.app == app)
        .ok_or(SteerError::NotFound)
}

/// Locks a job, whoever's it is; with why its trigger cannot be read, if it cannot.
async fn lock_any_job(tx: &mut Tx, id: JobId) -> Result<Option<(JobRow, Option<String>)>, StoreError> {
    let lock = tx.dialect().for_update();
    let sql = format!("select {} from job_info where id = ?{lock}", jobs::columns());
    let row = sqlx::query(AssertSqlSafe(sql))
        .bind(id.to_string())
        .fetch_optional(&mut **tx)
        .await?;
    row.as_ref().map(jobs::read_lenient).transpose()
}

/// Writes status and next firing of a job that is locked.
async fn set_status(tx: &mut Tx, job: &JobRow, at: EpochMillis) -> Result<(), StoreError> {
    sqlx::query(
        "update job_info set status = ?, next_trigger_time = ?, invalid_reason = ?, version = version + 1,
                updated_at = ? where id = ? and version = ?",
    )
    .bind(job.status.code())
    .bind(job.next_trigger_time.map(|next| next.0))
    .bind(job.invalid_reason.clone())
    .bind(at.0)
    .bind(job.id.to_string())
    .bind(job.version)
    .execute(&mut **tx)
    .await?;
    Ok(())
}
