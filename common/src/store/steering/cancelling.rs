use super::{SteerError, lifecycle::finish, lifecycle::wrong_status, lock_job, rerun, set_status};
use crate::{
    execution::ExecutionEvent,
    id::{AppId, ExecutionId, JobId},
    job::{JobStatus, Trigger},
    store::{
        CHUNK, Connection, Row, Store, StoreError, Tx,
        audit::{self, AuditEntry},
        executions::{self, ExecutionRow},
        followers, placeholders,
        transitions::{self, Applied, Change},
    },
    time::EpochMillis,
};
use sqlx::AssertSqlSafe;

/// Open executions of one job that a cancel takes on in one transaction; the others follow in the next.
const AT_ONCE: i64 = 1_000;

/// What a cancel did.
#[derive(Debug, Clone, Default)]
pub struct Cancelled {
    /// What follows from executions that ended at once.
    pub applied: Applied,
    /// True when a worker has to stop something first.
    pub stopping: bool,
}

/// Cancels a job: it fires no more, what has not started ends now, and what a worker holds is stopped by the leader. A
/// one-shot whose execution is being stopped gets its final status from how that ends; every other job is CANCELLED at
/// once. Cancelling a cancelled job changes nothing.
///
/// # Errors
/// [`SteerError`].
pub async fn cancel_job(store: &Store, id: JobId, by: &AuditEntry) -> Result<Cancelled, SteerError> {
    let mut done = Cancelled::default();
    loop {
        let (part, more) = rerun(async || cancel_part(store, id, by).await).await?;
        done.stopping |= part.stopping;
        done.applied.add(part.applied);
        if !more {
            return Ok(done);
        }
    }
}

/// True beside the outcome when open executions are left to cancel.
async fn cancel_part(store: &Store, id: JobId, by: &AuditEntry) -> Result<(Cancelled, bool), SteerError> {
    let mut tx = store.begin().await?;
    let open = uncancelled(&mut tx, by.app, id).await?;
    // Takes the locks in their order: slots, jobs, executions.
    let rows = transitions::lock(&mut tx, &open).await?;
    let mut job = lock_job(&mut tx, by.app, id).await?;
    if rows.is_empty() && job.status == JobStatus::Cancelled {
        return Ok((Cancelled::default(), false));
    }
    if rows.is_empty() && job.status.is_terminal() {
        return Err(wrong_status(job.status, "cancelled"));
    }
    let mut done = stop(&mut tx, rows, by.at).await?;
    let fate_is_open = matches!(job.trigger, Trigger::Once { .. })
        && job.next_trigger_time.is_none()
        && job.status == JobStatus::Waiting
        && (done.stopping || is_stopping(&mut tx, by.app, id).await?);
    // Settling the executions above may have written the job.
    job = lock_job(&mut tx, by.app, id).await?;
    if !fate_is_open && !job.status.is_terminal() {
        job.status = JobStatus::Cancelled;
        job.next_trigger_time = None;
        job.invalid_reason = None;
        set_status(&mut tx, &job, by.at).await?;
        followers::end(&mut tx, &[id], by.at, &mut done.applied).await?;
    }
    let more = !uncancelled(&mut tx, by.app, id).await?.is_empty();
    finish(tx, id, "cancelled", by).await?;
    Ok((done, more))
}

async fn uncancelled(
    connection: &mut Connection,
    app: AppId,
    job: JobId,
) -> Result<Vec<ExecutionId>, StoreError> {
    let rows = sqlx::query(
        "select id from job_execution
          where app_id = ? and status in (0, 1, 2, 3, 4) and +job_id = ? and cancel_requested_at is null
          order by status, id limit ?",
    )
    .bind(app.to_string())
    .bind(job.to_string())
    .bind(AT_ONCE)
    .fetch_all(connection)
    .await?;
    rows.iter().map(|row| Row(row).parsed("id")).collect()
}

async fn is_stopping(connection: &mut Connection, app: AppId, job: JobId) -> Result<bool, StoreError> {
    let row = sqlx::query(
        "select count(*) as owned from job_execution where app_id = ? and status in (3, 4) and +job_id = ?",
    )
    .bind(app.to_string())
    .bind(job.to_string())
    .fetch_one(connection)
    .await?;
    Ok(Row(&row).int("owned")? > 0)
}

/// Cancels one execution: at once when it has not started, else as soon as its worker has stopped it. Cancelling a
/// cancelled execution changes nothing.
///
/// # Errors
/// [`SteerError`].
pub async fn cancel_execution(
    store: &Store,
    id: ExecutionId,
    by: &AuditEntry,
) -> Result<Cancelled, SteerError> {
    rerun(async || {
        let mut tx = store.begin().await?;
        let rows = transitions::lock(&mut tx, &[id]).await?;
        let row = rows
            .first()
            .filter(|row| row.app == by.app)
            .ok_or(SteerError::NotFound)?;
        if row.status == crate::execution::ExecutionStatus::Cancelled {
            return Ok(Cancelled::default());
        }
        if row.status.is_terminal() {
            let detail = format!("the execution has ended: it is {}", row.status);
            return Err(SteerError::not_possible("execution.ended", detail));
        }
        let done = stop(&mut tx, rows, by.at).await?;
        audit::append(&mut tx, by).await?;
        tx.commit().await?;
        Ok(done)
    })
    .await
}

/// Ends what no worker holds, and notes on the rest that it is to be stopped. Terminal rows are left alone.
async fn stop(tx: &mut Tx, rows: Vec<ExecutionRow>, at: EpochMillis) -> Result<Cancelled, SteerError> {
    let mut changes = Vec::new();
    let mut owned = Vec::new();
    for row in rows {
        match row.status.after(&ExecutionEvent::CancelRequested, row.facts()) {
            Ok(_) if row.status.is_owned() => owned.push(row),
            Ok(step) => changes.push(Change {
                before: row,
                step,
                at,
                started_at: None,
                not_before: None,
                result: None,
                error: None,
                message: Some("cancelled on request".into()),
            }),
            Err(_) => {}
        }
    }
    request_stop(tx, &owned, at).await?;
    Ok(Cancelled {
        applied: transitions::apply(tx, &changes).await?,
        stopping: !owned.is_empty(),
    })
}

async fn request_stop(tx: &mut Tx, owned: &[ExecutionRow], at: EpochMillis) -> Result<(), StoreError> {
    for chunk in owned.chunks(CHUNK) {
        let sql = format!(
            "update job_execution set cancel_requested_at = coalesce(cancel_requested_at, ?)
              where status in (3, 4) and id in ({})",
            placeholders(chunk.len(), 0)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql)).bind(at.0);
        for row in chunk {
            query = query.bind(row.id.to_string());
        }
        query.execute(&mut **tx).await?;
    }
    for row in owned {
        transitions::note(tx, row.claim(), "a cancel was requested", at).await?;
    }
    Ok(())
}

/// Reads an execution of this app.
pub(super) async fn find(
    connection: &mut Connection,
    by: &AuditEntry,
    id: ExecutionId,
) -> Result<ExecutionRow, SteerError> {
    let row = executions::get(connection, id).await?;
    row.filter(|row| row.app == by.app).ok_or(SteerError::NotFound)
}
