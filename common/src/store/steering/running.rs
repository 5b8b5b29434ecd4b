use super::{SteerError, cancelling::find, lock_job, rerun};
use crate::{
    execution::ExecutionStatus,
    id::{ExecutionId, JobId},
    job::{ConcurrencyPolicy, JobStatus},
    raw_json::RawJson,
    store::{
        Connection, Row, Store, StoreError, Tx,
        audit::{self, AuditEntry},
        deletion,
        executions::{self, ExecutionRow, TriggerKind, rank_time},
        job_log::{self, LogEntry},
        jobs::{self, JobRow},
        slots::LockedSlots,
    },
    time::EpochMillis,
};
use std::{ops::Range, time::Duration};

/// How a run by hand is asked for.
#[derive(Debug, Clone, Default)]
pub struct RunRequest {
    /// In place of the params of the job.
    pub params: Option<RawJson>,
    /// Makes the call idempotent within the job.
    pub client_request_id: Option<String>,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The executions, one a shard.
    pub executions: Vec<ExecutionId>,
    /// True when they had been made before, by the same request.
    pub replayed: bool,
    /// True when they wait for a concurrency slot.
    pub blocked: bool,
    /// The params they were made with, when the job's own do not count.
    pub params: Option<RawJson>,
}

/// What the new executions have in common.
struct Origin {
    kind: TriggerKind,
    key: String,
    scheduled_time: EpochMillis,
    shards: Range<u32>,
    params: Option<RawJson>,
    message: String,
}

/// Makes a job run now. Its schedule is untouched.
///
/// # Errors
/// [`SteerError`]; the job's concurrency policy may forbid it.
pub async fn run_job(
    store: &Store,
    id: JobId,
    request: &RunRequest,
    by: &AuditEntry,
) -> Result<Run, SteerError> {
    // Without a key of the caller's, one of its own keeps runs of one instant apart.
    let key = match &request.client_request_id {
        // By its hash: MySQL passes over trailing blanks when it compares, and its column has an end.
        Some(key) => format!("run:{}", jobs::client_request_hash(key)),
        None => ExecutionId::generate().to_string(),
    };
    rerun(async || {
        let job = jobs::get(&mut *store.reader().await?, id).await?;
        let job = job.filter(|job| job.app == by.app).ok_or(SteerError::NotFound)?;
        let origin = Origin {
            kind: TriggerKind::Manual,
            key: key.clone(),
            scheduled_time: by.at,
            shards: 0..job.shards,
            params: request.params.clone(),
            message: "run on request".into(),
        };
        make(store, &job, origin, by).await
    })
    .await
}

/// Runs a terminal execution again, as a new execution beside it. Asked for twice, it is made once.
///
/// # Errors
/// [`SteerError`].
pub async fn retry_execution(store: &Store, id: ExecutionId, by: &AuditEntry) -> Result<Run, SteerError> {
    rerun(async || {
        let mut connection = store.reader().await?;
        let ended = find(&mut connection, by, id).await?;
        if !ended.status.is_terminal() {
            let detail = format!("the execution has not ended: it is {}", ended.status);
            return Err(SteerError::not_possible("execution.open", detail));
        }
        let job = jobs::get(&mut connection, ended.job).await?;
        drop(connection);
        let job = job
            .ok_or_else(|| SteerError::not_possible("job.deleted", "the job of the execution was deleted"))?;
        let origin = Origin {
            kind: TriggerKind::Retry,
            key: format!("retry:{id}"),
            scheduled_time: ended.scheduled_time,
            shards: ended.shard..ended.shard + 1,
            params: ended.params,
            message: format!("runs execution {id} again, on request"),
        };
        make(store, &job, origin, by).await
    })
    .await
}

async fn make(store: &Store, job: &JobRow, origin: Origin, by: &AuditEntry) -> Result<Run, SteerError> {
    let mut tx = store.begin().await?;
    let slot_key = job.slot_key();
    let mut slots = lock_slot(&mut tx, job, slot_key.as_deref()).await?;
    let locked = lock_job(&mut tx, by.app, job.id).await?;
    if let Some(made) = made_before(&mut tx, job.id, &origin.key).await? {
        return Ok(made);
    }
    if locked.status == JobStatus::Cancelled {
        let detail = "the job is CANCELLED; submit it again to run it";
        return Err(SteerError::not_possible("job.cancelled", detail));
    }
    if deletion::is_requested(&mut tx, job.id).await? {
        let detail = "the job is being deleted; submit a new one to run it";
        return Err(SteerError::not_possible("job.deleting", detail));
    }
    if job.concurrency == ConcurrencyPolicy::Discard
        && slot_key.as_ref().is_some_and(|key| slots.any_held(key))
    {
        let detail = "an earlier execution is still open and the concurrency policy is discard; wait for its end, or cancel it";
        return Err(SteerError::not_possible("concurrency.discarded", detail));
    }
    let rows: Vec<ExecutionRow> = origin
        .shards
        .clone()
        .map(|shard| {
            let has_slot = slot_key.as_ref().is_none_or(|key| slots.take(key));
            new_execution(&locked, &origin, shard, has_slot, by.at)
        })
        .collect();
    slots.write(&mut tx).await?;
    executions::insert_many(&mut tx, &rows).await?;
    let log: Vec<LogEntry> = rows.iter().map(|row| made_entry(row, &origin.message)).collect();
    job_log::append(&mut tx, &log).await?;
    audit::append(&mut tx, by).await?;
    tx.commit().await?;
    Ok(Run {
        executions: rows.iter().map(|row| row.id).collect(),
        replayed: false,
        blocked: rows.iter().any(|row| row.status == ExecutionStatus::Blocked),
        params: origin.params,
    })
}

async fn made_before(connection: &mut Connection, job: JobId, key: &str) -> Result<Option<Run>, StoreError> {
    let rows = sqlx::query(
        "select id, status, params from job_execution where job_id = ? and trigger_key = ? order by shard",
    )
    .bind(job.to_string())
    .bind(key.to_owned())
    .fetch_all(connection)
    .await?;
    if rows.is_empty() {
        return Ok(None);
    }
    let mut run = Run {
        executions: Vec::with_capacity(rows.len()),
        replayed: true,
        blocked: false,
        params: None,
    };
    for row in &rows {
        let row = Row(row);
        if let Some(params) = row.opt_text("params")? {
            let corrupt = |error| StoreError::Corrupt(format!("params: {error}"));
            run.params = Some(RawJson::parse(params).map_err(corrupt)?);
        }
        run.executions.push(row.parsed("id")?);
        run.blocked |= row.int("status")? == ExecutionStatus::Blocked.code();
    }
    Ok(Some(run))
}

/// Locks the slot of the job, if its executions need one.
async fn lock_slot(tx: &mut Tx, job: &JobRow, key: Option<&str>) -> Result<LockedSlots, StoreError> {
    // Every shard of a firing holds a slot of the job's own key, so one firing fits.
    let limit = if job.concurrency_key.is_some() {
        1
    } else {
        i64::from(job.shards)
    };
    let wanted = key.map(|key| (key.to_owned(), limit)).into_iter().collect();
    LockedSlots::lock(tx, &wanted).await
}

fn new_execution(
    job: &JobRow,
    origin: &Origin,
    shard: u32,
    has_slot: bool,
    now: EpochMillis,
) -> ExecutionRow {
    let status = if has_slot {
        ExecutionStatus::Pending
    } else {
        ExecutionStatus::Blocked
    };
    let deadline = |ms: i64| now + Duration::from_millis(ms.unsigned_abs());
    ExecutionRow {
        id: ExecutionId::generate(),
        job: job.id,
        app: job.app,
        handler: job.handler.clone(),
        scheduled_time: origin.scheduled_time,
        shard,
        trigger_key: origin.key.clone(),
        trigger_kind: origin.kind,
        status,
        not_before: now,
        class_key: job.class_key(),
        rank_time: rank_time(now, job.priority),
        attempt: 0,
        interruptions: 0,
        max_attempts: job.retry.max_attempts,
        dispatch_seq: 0,
        worker: None,
        incarnation: None,
        epoch: None,
        not_after: None,
        slot_key: job.slot_key(),
        params: origin.params.clone(),
        created_at: now,
        due_at: has_slot.then_some(now),
        dispatched_at: None,
        started_at: None,
        finished_at: None,
        start_deadline_at: job.start_deadline_ms.map(deadline),
        timeout_ms: job.timeout_ms,
        cancel_requested_at: None,
        progress_percent: None,
        progress_message: None,
        result: None,
        error: None,
    }
}

fn made_entry(row: &ExecutionRow, message: &str) -> LogEntry {
    let waits = if row.status == ExecutionStatus::Blocked {
        "; waits for its concurrency slot"
    } else {
        ""
    };
    LogEntry {
        job: row.job,
        execution: Some(row.id),
        attempt: 0,
        dispatch_seq: 0,
        from: None,
        to: Some(row.status),
        worker: None,
        message: Some(format!("{message}{waits}")),
        at: row.created_at,
    }
}
