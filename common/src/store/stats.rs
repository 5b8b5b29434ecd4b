//! Counts and samples of what an app's jobs did lately. About the `+` before a column see [`super::listing`].

use super::{Connection, Row, StoreError};
use crate::{execution::ExecutionStatus, id::AppId, job::JobStatus, time::EpochMillis};

/// How many jobs of the app are in which stored status.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn jobs_by_status(
    connection: &mut Connection,
    app: AppId,
) -> Result<Vec<(JobStatus, i64)>, StoreError> {
    let rows =
        sqlx::query("select status, count(*) as amount from job_info where app_id = ? group by status")
            .bind(app.to_string())
            .fetch_all(connection)
            .await?;
    rows.iter()
        .map(|row| {
            let row = Row(row);
            Ok((row.coded("status", JobStatus::from_code)?, row.int("amount")?))
        })
        .collect()
}

/// How many executions of the app are open, by state.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn open_by_status(
    connection: &mut Connection,
    app: AppId,
) -> Result<Vec<(ExecutionStatus, i64)>, StoreError> {
    let rows = sqlx::query(
        "select status, count(*) as amount from job_execution where app_id = ? and status in (0, 1, 2, 3, 4)
          group by status",
    )
    .bind(app.to_string())
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            let row = Row(row);
            Ok((
                row.coded("status", ExecutionStatus::from_code)?,
                row.int("amount")?,
            ))
        })
        .collect()
}

/// What of the app waits: jobs that have a firing planned or due and fire once, and executions that no worker has yet.
/// Counts up to a little over `most` of each kind, so that a flood does not make the count slow.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn waiting(connection: &mut Connection, app: AppId, most: i64) -> Result<i64, StoreError> {
    let row = sqlx::query(
        "select (select count(*) from (select id from job_info
                   where app_id = ? and status = 0 and trigger_type = 0 and next_trigger_time is not null
                   limit ?) planned) +
                (select count(*) from (select id from job_execution
                   where app_id = ? and status in (0, 1, 2) limit ?) open_ones) as amount",
    )
    .bind(app.to_string())
    .bind(most + 1)
    .bind(app.to_string())
    .bind(most + 1)
    .fetch_one(connection)
    .await?;
    Row(&row).int("amount")
}

/// Executions of one handler on one worker that ended in one way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutcomeCount {
    /// The handler.
    pub handler: String,
    /// The worker of the last handover, if there was one.
    pub worker: Option<String>,
    /// How they ended.
    pub status: ExecutionStatus,
    /// How many.
    pub amount: i64,
}

/// What ended at `since` or later, counted.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn outcomes_since(
    connection: &mut Connection,
    app: AppId,
    since: EpochMillis,
) -> Result<Vec<OutcomeCount>, StoreError> {
    let rows = sqlx::query(
        "select handler, worker_id, status, count(*) as amount from job_execution
          where finished_at >= ? and +app_id = ? group by handler, worker_id, status",
    )
    .bind(since.0)
    .bind(app.to_string())
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            let row = Row(row);
            Ok(OutcomeCount {
                handler: row.text("handler")?,
                worker: row.opt_text("worker_id")?,
                status: row.coded("status", ExecutionStatus::from_code)?,
                amount: row.int("amount")?,
            })
        })
        .collect()
}

/// The instants of one execution that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timing {
    /// The handler.
    pub handler: String,
    /// The worker of the last handover, if there was one.
    pub worker: Option<String>,
    /// When it was planned for.
    pub scheduled_time: EpochMillis,
    /// When its job was accepted: an instant before that could not be kept. None when the job is deleted.
    pub submitted_at: Option<EpochMillis>,
    /// When the row was made.
    pub created_at: EpochMillis,
    /// When it became due.
    pub due_at: Option<EpochMillis>,
    /// Start of its last attempt.
    pub started_at: Option<EpochMillis>,
    /// Its end.
    pub finished_at: EpochMillis,
}

/// The newest executions that ended at `since` or later, at most `limit`.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn timings_since(
    connection: &mut Connection,
    app: AppId,
    since: EpochMillis,
    limit: i64,
) -> Result<Vec<Timing>, StoreError> {
    // The jobs are looked up behind the limit: one row each, whatever else has ended.
    let rows = sqlx::query(
        "select newest.handler, newest.worker_id, newest.scheduled_time, newest.created_at, newest.due_at,
                newest.started_at, newest.finished_at, job_info.created_at as submitted_at
           from (select job_id, handler, worker_id, scheduled_time, created_at, due_at, started_at, finished_at
                   from job_execution where finished_at >= ? and +app_id = ? order by finished_at desc limit ?) newest
           left join job_info on job_info.id = newest.job_id",
    )
    .bind(since.0)
    .bind(app.to_string())
    .bind(limit)
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            let row = Row(row);
            Ok(Timing {
                handler: row.text("handler")?,
                worker: row.opt_text("worker_id")?,
                scheduled_time: row.instant("scheduled_time")?,
                submitted_at: row.opt_instant("submitted_at")?,
                created_at: row.instant("created_at")?,
                due_at: row.opt_instant("due_at")?,
                started_at: row.opt_instant("started_at")?,
                finished_at: row.instant("finished_at")?,
            })
        })
        .collect()
}
