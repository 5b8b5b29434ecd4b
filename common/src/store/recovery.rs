//! What incarnations own, as the tables say: the leader's set is loaded from here, and whatever belongs to a dead
//! incarnation is found here. Recovery is a scan, not a memory.

use super::{Connection, Row, StoreError, key_chunks, placeholders, workers::WorkerStatus};
use crate::{
    execution::{Claim, ExecutionStatus},
    id::{AppId, ExecutionId, IncarnationId, WorkerId},
    time::EpochMillis,
};
use sqlx::{AssertSqlSafe, any::AnyRow};

/// An execution that is dispatched or running, and whose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owned {
    /// The execution and the number of its handover.
    pub claim: Claim,
    /// Its tenant.
    pub app: AppId,
    /// The handler.
    pub handler: String,
    /// Its class.
    pub class_key: String,
    /// Dispatched or running.
    pub status: ExecutionStatus,
    /// The worker.
    pub worker: WorkerId,
    /// Its incarnation.
    pub incarnation: IncarnationId,
    /// The epoch of the leader that placed it.
    pub epoch: i64,
    /// Until when it could be taken.
    pub not_after: EpochMillis,
    /// When it was placed.
    pub dispatched_at: EpochMillis,
    /// When it was started.
    pub started_at: Option<EpochMillis>,
    /// Run time allowed, in milliseconds.
    pub timeout_ms: i64,
    /// A cancel was requested.
    pub cancel_requested: bool,
    /// The status of its owner; none when the owner was never registered, or its row was pruned.
    pub owner: Option<WorkerStatus>,
}

/// Everything that is owned. As many rows as workers can hold, however many executions wait.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn owned(connection: &mut Connection) -> Result<Vec<Owned>, StoreError> {
    let sql = format!(
        "select job_execution.id, job_execution.dispatch_seq, job_execution.app_id, job_execution.handler,
                job_execution.class_key, job_execution.status, job_execution.worker_id,
                job_execution.incarnation, job_execution.epoch, job_execution.not_after,
                job_execution.dispatched_at, job_execution.started_at, job_execution.timeout_ms,
                job_execution.cancel_requested_at, worker_node.status as owner_status
           from job_execution
           left join worker_node on worker_node.incarnation = job_execution.incarnation
          where job_execution.status in ({}, {})",
        ExecutionStatus::Dispatched.code(),
        ExecutionStatus::Running.code()
    );
    let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(connection).await?;
    rows.iter().map(read_owned).collect()
}

fn read_owned(row: &AnyRow) -> Result<Owned, StoreError> {
    let row = Row(row);
    let worker = row.text("worker_id")?;
    Ok(Owned {
        claim: Claim {
            execution: row.parsed("id")?,
            dispatch_seq: row.int("dispatch_seq")?,
        },
        app: row.parsed("app_id")?,
        handler: row.text("handler")?,
        class_key: row.text("class_key")?,
        status: row.coded("status", ExecutionStatus::from_code)?,
        worker: WorkerId::parse(&worker).map_err(|error| StoreError::Corrupt(error.to_string()))?,
        incarnation: row.parsed("incarnation")?,
        epoch: row.opt_int("epoch")?.unwrap_or_default(),
        not_after: row.opt_instant("not_after")?.unwrap_or(EpochMillis(0)),
        dispatched_at: row.opt_instant("dispatched_at")?.unwrap_or(EpochMillis(0)),
        started_at: row.opt_instant("started_at")?,
        timeout_ms: row.int("timeout_ms")?,
        cancel_requested: row.opt_int("cancel_requested_at")?.is_some(),
        owner: row.opt_int("owner_status")?.and_then(WorkerStatus::from_code),
    })
}

/// How an execution stands now, for judging what a worker says it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// The execution and the number of its last handover.
    pub claim: Claim,
    /// Its state.
    pub status: ExecutionStatus,
    /// The incarnation of the last handover.
    pub incarnation: Option<IncarnationId>,
}

/// Reads how these executions stand; those without a row are left out.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn standings(
    connection: &mut Connection,
    executions: &[ExecutionId],
) -> Result<Vec<Standing>, StoreError> {
    let mut standings = Vec::with_capacity(executions.len());
    for chunk in key_chunks(executions) {
        let sql = format!(
            "select id, dispatch_seq, status, incarnation from job_execution where id in ({})",
            placeholders(chunk.len(), 0)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for id in chunk {
            query = query.bind(id.to_string());
        }
        for row in query.fetch_all(&mut *connection).await? {
            let row = Row(&row);
            standings.push(Standing {
                claim: Claim {
                    execution: row.parsed("id")?,
                    dispatch_seq: row.int("dispatch_seq")?,
                },
                status: row.coded("status", ExecutionStatus::from_code)?,
                incarnation: row.opt_parsed("incarnation")?,
            });
        }
    }
    Ok(standings)
}

/// The owned executions for which a cancel was requested.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn cancel_requested(connection: &mut Connection) -> Result<Vec<Claim>, StoreError> {
    let sql = format!(
        "select id, dispatch_seq from job_execution where status in ({}, {}) and cancel_requested_at is not null",
        ExecutionStatus::Dispatched.code(),
        ExecutionStatus::Running.code()
    );
    let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            let row = Row(row);
            Ok(Claim {
                execution: row.parsed("id")?,
                dispatch_seq: row.int("dispatch_seq")?,
            })
        })
        .collect()
}
