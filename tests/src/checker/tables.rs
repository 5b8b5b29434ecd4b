//! The product's tables, as far as a run is judged by them.

use super::record::{read, write};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, FromRow, any::AnyRow};
use std::path::Path;

/// Code of `callback_delivery.status` DELIVERED.
pub const DELIVERED: i64 = 2;

/// Codes of `job_execution.status`.
pub mod status {
    /// Not due yet, or backing off.
    pub const SCHEDULED: i64 = 0;
    /// Waits for a slot.
    pub const BLOCKED: i64 = 1;
    /// Waits for a worker.
    pub const PENDING: i64 = 2;
    /// Given to a worker.
    pub const DISPATCHED: i64 = 3;
    /// Started.
    pub const RUNNING: i64 = 4;
    /// The first of the final ones.
    pub const SUCCEEDED: i64 = 5;
    /// Final.
    pub const FAILED: i64 = 6;
    /// Final.
    pub const TIMED_OUT: i64 = 7;
    /// Final.
    pub const CANCELLED: i64 = 8;
    /// Final.
    pub const LOST: i64 = 9;
    /// Final.
    pub const EXPIRED: i64 = 10;
    /// Final.
    pub const SKIPPED: i64 = 11;
    /// The words of webhooks and the API, by code.
    pub const NAMES: [&str; 12] = [
        "PENDING",
        "PENDING",
        "PENDING",
        "DISPATCHED",
        "RUNNING",
        "SUCCEEDED",
        "FAILED",
        "TIMED_OUT",
        "CANCELLED",
        "LOST",
        "EXPIRED",
        "SKIPPED",
    ];
}

/// All of them.
#[derive(Debug, Clone, Default)]
pub struct Tables {
    /// `job_info`.
    pub jobs: Vec<JobRow>,
    /// `job_execution`.
    pub executions: Vec<ExecutionRow>,
    /// `job_log`, oldest first.
    pub log: Vec<LogRow>,
    /// `callback_delivery`.
    pub deliveries: Vec<DeliveryRow>,
    /// `callback_attempt`.
    pub attempts: Vec<AttemptRow>,
    /// `worker_node`.
    pub workers: Vec<WorkerRow>,
    /// `leader_epoch`.
    pub epochs: Vec<EpochRow>,
}

/// A job.
#[derive(Debug, Clone, Serialize, Deserialize, FromRow)]
#[expect(missing_docs, reason = "the columns")]
pub struct JobRow {
    pub id: String,
    pub client_request_id: Option<String>,
    pub callback_url: Option<String>,
    pub status: i64,
    pub next_trigger_time: Option<i64>,
}

/// An execution.
#[derive(Debug, Clone, Serialize, Deserialize, FromRow)]
#[expect(missing_docs, reason = "the columns")]
pub struct ExecutionRow {
    pub id: String,
    pub job_id: String,
    pub scheduled_time: i64,
    pub shard: i64,
    pub trigger_key: String,
    pub trigger_kind: i64,
    pub status: i64,
    pub attempt: i64,
    pub interruptions: i64,
    pub max_attempts: i64,
    pub dispatch_seq: i64,
    pub epoch: Option<i64>,
    pub created_at: i64,
    pub dispatched_at: Option<i64>,
    pub finished_at: Option<i64>,
    pub result: Option<String>,
    pub error_code: Option<String>,
    pub error_message: Option<String>,
}

/// A step of an execution, or a word about its job.
#[derive(Debug, Clone, Serialize, Deserialize, FromRow)]
#[expect(missing_docs, reason = "the columns")]
pub struct LogRow {
    pub seq: i64,
    pub job_id: String,
    pub execution_id: Option<String>,
    pub attempt: i64,
    pub dispatch_seq: i64,
    pub from_status: Option<i64>,
    pub to_status: Option<i64>,
    pub worker_id: Option<String>,
    pub message: Option<String>,
    pub at: i64,
}

/// A callback.
#[derive(Debug, Clone, Serialize, Deserialize, FromRow)]
#[expect(missing_docs, reason = "the columns")]
pub struct DeliveryRow {
    pub id: String,
    pub execution_id: String,
    pub status: i64,
    pub attempt: i64,
    pub next_attempt_at: i64,
    pub finished_at: Option<i64>,
    pub last_error: Option<String>,
}

/// One attempt of a callback.
#[derive(Debug, Clone, Serialize, Deserialize, FromRow)]
#[expect(missing_docs, reason = "the columns")]
pub struct AttemptRow {
    pub delivery_id: String,
    pub attempt: i64,
    pub status_code: Option<i64>,
    pub error: Option<String>,
}

/// An incarnation of a worker.
#[derive(Debug, Clone, Serialize, Deserialize, FromRow)]
#[expect(missing_docs, reason = "the columns")]
pub struct WorkerRow {
    pub worker_id: String,
    pub incarnation: String,
    pub status: i64,
    pub registered_at: i64,
    pub ended_at: Option<i64>,
}

/// The row of the leader.
#[derive(Debug, Clone, Serialize, Deserialize, FromRow)]
#[expect(missing_docs, reason = "the columns")]
pub struct EpochRow {
    pub epoch: i64,
    pub holder: String,
    pub taken_at: i64,
}

impl Tables {
    /// Reads them all, in one snapshot where the database has such a thing.
    ///
    /// # Errors
    /// What the database says.
    pub async fn read(url: &str) -> Result<Self> {
        sqlx::any::install_default_drivers();
        let mut connection = AnyConnection::connect(url).await?;
        let mut snapshot = connection.begin().await?;
        let tables = Self {
            jobs: all(&mut snapshot, "id, client_request_id, callback_url, status, next_trigger_time from job_info order by id").await?,
            executions: all(
                &mut snapshot,
                "id, job_id, scheduled_time, shard, trigger_key, trigger_kind, status, attempt, interruptions, \
                 max_attempts, dispatch_seq, epoch, created_at, dispatched_at, finished_at, result, error_code, \
                 error_message from job_execution order by id",
            )
            .await?,
            log: all(
                &mut snapshot,
                "seq, job_id, execution_id, attempt, dispatch_seq, from_status, to_status, worker_id, message, at \
                 from job_log order by seq",
            )
            .await?,
            deliveries: all(
                &mut snapshot,
                "id, execution_id, status, attempt, next_attempt_at, finished_at, last_error from callback_delivery order by id",
            )
            .await?,
            attempts: all(
                &mut snapshot,
                "delivery_id, attempt, status_code, error from callback_attempt order by delivery_id, attempt",
            )
            .await?,
            workers: all(&mut snapshot, "worker_id, incarnation, status, registered_at, ended_at from worker_node order by registered_at").await?,
            epochs: all(&mut snapshot, "epoch, holder, taken_at from leader_epoch").await?,
        };
        snapshot.rollback().await?;
        connection.close().await?;
        Ok(tables)
    }

    /// Writes them into a folder.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<()> {
        write(folder, "job_info", &self.jobs)?;
        write(folder, "job_execution", &self.executions)?;
        write(folder, "job_log", &self.log)?;
        write(folder, "callback_delivery", &self.deliveries)?;
        write(folder, "callback_attempt", &self.attempts)?;
        write(folder, "worker_node", &self.workers)?;
        write(folder, "leader_epoch", &self.epochs)
    }

    /// Reads them from a folder.
    ///
    /// # Errors
    /// When a file is missing or has something else in it.
    pub fn load(folder: &Path) -> Result<Self> {
        Ok(Self {
            jobs: read(folder, "job_info")?,
            executions: read(folder, "job_execution")?,
            log: read(folder, "job_log")?,
            deliveries: read(folder, "callback_delivery")?,
            attempts: read(folder, "callback_attempt")?,
            workers: read(folder, "worker_node")?,
            epochs: read(folder, "leader_epoch")?,
        })
    }
}

async fn all<T>(connection: &mut AnyConnection, selection: &str) -> Result<Vec<T>>
where
    T: for<'r> FromRow<'r, AnyRow> + Send + Unpin,
{
    let sql = format!("select {selection}");
    Ok(sqlx::query_as(AssertSqlSafe(sql)).fetch_all(connection).await?)
}
