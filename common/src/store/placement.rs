//! Placing: pending executions become dispatched, each owned by one worker incarnation under the next `dispatch_seq`.
//! The one change of state beside [`transitions`](super::transitions), because it is the one that happens in bulk on the
//! leader's decision alone.

use super::{BulkUpdate, Connection, Dialect, Row, StoreError, Tx, key_chunks, placeholders};
use crate::{
    execution::{Claim, ExecutionStatus},
    id::{AppId, ExecutionId, IncarnationId, JobId, WorkerId},
    job::Selector,
    raw_json::RawJson,
    time::EpochMillis,
    trace_parent::TraceParent,
};
use sqlx::{AssertSqlSafe, any::AnyRow};
use std::collections::HashMap;

/// Executions that compete for the same workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    /// `class_key`.
    pub key: String,
    /// The tenant.
    pub app: AppId,
    /// The handler.
    pub handler: String,
    /// The labels a worker must carry.
    pub selector: Selector,
}

/// The classes that have pending executions, by key. Jumps from class to class along the index instead of walking every
/// pending row: MySQL and MariaDB do so by themselves when the grouping names the whole beginning of the index, and
/// would walk in a recursion; SQLite is the other way round.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn pending_classes(connection: &mut Connection) -> Result<Vec<String>, StoreError> {
    let pending = ExecutionStatus::Pending.code();
    let sql = match connection.dialect() {
        Dialect::MySql => {
            format!(
                "select class_key from job_execution /*! force index (idx_execution_class) */
              where status = {pending} group by status, class_key"
            )
        }
        Dialect::Sqlite => format!(
            "with recursive found (class_key) as (
                select min(class_key) from job_execution where status = {pending}
                union all
                select (select min(job_execution.class_key) from job_execution
                         where job_execution.status = {pending} and job_execution.class_key > found.class_key)
                  from found where found.class_key is not null)
             select class_key from found where class_key is not null"
        ),
    };
    let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(connection).await?;
    rows.iter().map(|row| Row(row).text("class_key")).collect()
}

/// What these executions' classes are, each class once.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn classes_of(
    connection: &mut Connection,
    executions: &[ExecutionId],
) -> Result<Vec<Class>, StoreError> {
    let mut classes: HashMap<String, Class> = HashMap::new();
    for chunk in key_chunks(executions) {
        let sql = format!(
            "select job_execution.class_key, job_execution.app_id, job_execution.handler, job_info.selector
               from job_execution join job_info on job_info.id = job_execution.job_id
              where job_execution.id in ({})",
            placeholders(chunk.len(), 0)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for id in chunk {
            query = query.bind(id.to_string());
        }
        for row in query.fetch_all(&mut *connection).await? {
            let class = read_class(&row)?;
            classes.entry(class.key.clone()).or_insert(class);
        }
    }
    Ok(classes.into_values().collect())
}

/// One class, as its first execution in line tells it; none when nothing of it is pending any more.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn pending_class(connection: &mut Connection, key: &str) -> Result<Option<Class>, StoreError> {
    let sql = format!(
        "select job_execution.class_key, job_execution.app_id, job_execution.handler, job_info.selector
           from job_execution join job_info on job_info.id = job_execution.job_id
          where job_execution.status = {} and job_execution.class_key = ? limit 1",
        ExecutionStatus::Pending.code()
    );
    let row = sqlx::query(AssertSqlSafe(sql))
        .bind(key)
        .fetch_optional(connection)
        .await?;
    row.as_ref().map(read_class).transpose()
}

fn read_class(row: &AnyRow) -> Result<Class, StoreError> {
    let row = Row(row);
    Ok(Class {
        key: row.text("class_key")?,
        app: row.parsed("app_id")?,
        handler: row.text("handler")?,
        selector: row.json_or_default("selector")?,
    })
}

/// A pending execution, locked.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The execution.
    pub id: ExecutionId,
    /// Its job.
    pub job: JobId,
    /// The number of its last handover; 0 before the first.
    pub dispatch_seq: i64,
    /// Starts so far.
    pub attempt: u32,
    /// When it became due for the first time.
    pub due_at: Option<EpochMillis>,
}

/// Locks the first `limit` pending executions of a class, in the order of their rank; those that somebody else has
/// locked, or that are to be cancelled or have expired, are left out.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn lock_pending(
    tx: &mut Tx,
    class_key: &str,
    now: EpochMillis,
    limit: u32,
) -> Result<Vec<Waiting>, StoreError> {
    let sql = format!(
        "select id, job_id, dispatch_seq, attempt, due_at from job_execution /*! force index (idx_execution_class) */
          where status = {} and class_key = ? and cancel_requested_at is null
            and (start_deadline_at is null or start_deadline_at > ? or attempt > interruptions)
          order by rank_time, id limit ?{}",
        ExecutionStatus::Pending.code(),
        tx.dialect().for_update_skip_locked()
    );
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(class_key.to_owned())
        .bind(now.0)
        .bind(i64::from(limit))
        .fetch_all(&mut **tx)
        .await?;
    rows.iter().map(read_waiting).collect()
}

fn read_waiting(row: &AnyRow) -> Result<Waiting, StoreError> {
    let row = Row(row);
    Ok(Waiting {
        id: row.parsed("id")?,
        job: row.parsed("job_id")?,
        dispatch_seq: row.int("dispatch_seq")?,
        attempt: row.number("attempt")?,
        due_at: row.opt_instant("due_at")?,
    })
}

/// One decision of the leader: this execution goes to this incarnation.
#[derive(Debug, Clone)]
pub struct Placed {
    /// The execution and the number of the new handover.
    pub claim: Claim,
    /// The worker.
    pub worker: WorkerId,
    /// Its incarnation.
    pub incarnation: IncarnationId,
}

/// What all placements of one transaction share.
#[derive(Debug, Clone, Copy)]
pub struct Handover {
    /// The leader's epoch.
    pub epoch: i64,
    /// When they were placed.
    pub placed_at: EpochMillis,
    /// Until when their workers may take them.
    pub not_after: EpochMillis,
}

/// Makes locked pending executions dispatched.
///
/// # Errors
/// [`StoreError`] of the database; [`StoreError::Corrupt`] when a locked row changed all the same, which means a bug.
pub async fn place(tx: &mut Tx, placed: &[Placed], handover: Handover) -> Result<(), StoreError> {
    let set = format!(
        "status = {}, epoch = ?, not_after = ?, dispatched_at = ?",
        ExecutionStatus::Dispatched.code()
    );
    let guard = format!(
        "job_execution.status = {} and job_execution.dispatch_seq = v.dispatch_seq - 1",
        ExecutionStatus::Pending.code()
    );
    let dialect = tx.dialect();
    let changed = BulkUpdate {
        table: "job_execution",
        columns: &["id", "dispatch_seq", "worker_id", "incarnation"],
        set: &set,
        set_values: &[handover.epoch, handover.not_after.0, handover.placed_at.0],
        guard: &guard,
    }
    .execute(tx, dialect, placed, |query, placed| {
        query
            .bind(placed.claim.execution.to_string())
            .bind(placed.claim.dispatch_seq)
            .bind(placed.worker.as_str().to_owned())
            .bind(placed.incarnation.to_string())
    })
    .await?;
    if changed != placed.len() as u64 {
        return Err(StoreError::Corrupt(format!(
            "{changed} of {} locked executions were still pending",
            placed.len()
        )));
    }
    Ok(())
}

/// What a worker is told about an execution, as the tables hold it.
#[derive(Debug, Clone)]
pub struct Order {
    /// The execution and the number of its handover.
    pub claim: Claim,
    /// Its job.
    pub job: JobId,
    /// Its tenant.
    pub app: AppId,
    /// The handler.
    pub handler: String,
    /// The job's name.
    pub job_name: String,
    /// The instant it was planned for.
    pub scheduled_time: EpochMillis,
    /// Its part of a sharded firing.
    pub shard: u32,
    /// Parts of the firing.
    pub shards: u32,
    /// Starts so far.
    pub attempt: u32,
    /// Run time allowed, in milliseconds.
    pub timeout_ms: i64,
    /// 0 to 9, higher first.
    pub priority: u8,
    /// Its own params, or those of the job.
    pub params: RawJson,
    /// The trace of the job's submission.
    pub traceparent: Option<TraceParent>,
}

/// Reads what workers are told about these executions, whatever their state; in no special order.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn orders(
    connection: &mut Connection,
    executions: &[ExecutionId],
) -> Result<Vec<Order>, StoreError> {
    let mut orders = Vec::with_capacity(executions.len());
    for chunk in key_chunks(executions) {
        let sql = format!(
            "select job_execution.id, job_execution.dispatch_seq, job_execution.job_id, job_execution.app_id,
                    job_execution.handler, job_execution.scheduled_time, job_execution.shard,
                    job_execution.attempt, job_execution.timeout_ms, job_info.name, job_info.shards,
                    job_info.priority, job_info.traceparent, coalesce(job_execution.params, job_info.params) as params
               from job_execution join job_info on job_info.id = job_execution.job_id
              where job_execution.id in ({})",
            placeholders(chunk.len(), 0)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for id in chunk {
            query = query.bind(id.to_string());
        }
        for row in query.fetch_all(&mut *connection).await? {
            orders.push(read_order(&row)?);
        }
    }
    Ok(orders)
}

fn read_order(row: &AnyRow) -> Result<Order, StoreError> {
    let row = Row(row);
    let params = row.text("params")?;
    Ok(Order {
        claim: Claim {
            execution: row.parsed("id")?,
            dispatch_seq: row.int("dispatch_seq")?,
        },
        job: row.parsed("job_id")?,
        app: row.parsed("app_id")?,
        handler: row.text("handler")?,
        job_name: row.text("name")?,
        scheduled_time: row.instant("scheduled_time")?,
        shard: row.number("shard")?,
        shards: row.number("shards")?,
        attempt: row.number("attempt")?,
        timeout_ms: row.int("timeout_ms")?,
        priority: row.number("priority")?,
        traceparent: row.opt_parsed("traceparent")?,
        params: RawJson::parse(params).map_err(|error| StoreError::Corrupt(format!("params: {error}")))?,
    })
}
