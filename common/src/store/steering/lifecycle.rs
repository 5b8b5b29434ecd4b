use super::{SteerError, lock_any_job, lock_job, rerun, set_status};
use crate::{
    crash_point::{CrashPoint, reach},
    execution::ExecutionStatus,
    id::{AppId, JobId},
    job::{JobStatus, Trigger, Window},
    store::{
        Connection, Row, Store, StoreError, Tx,
        audit::{self, AuditEntry},
        followers,
        job_log::{self, LogEntry},
        jobs::JobRow,
        transitions::Applied,
    },
    time::EpochMillis,
};
use sqlx::AssertSqlSafe;
use std::time::Duration;

/// Jobs that wait for nothing, planned in one go.
const MOST_FORGOTTEN: u32 = 1_000;

/// Stops a job from firing. What has fired goes on. Pausing a paused job changes nothing.
///
/// # Errors
/// [`SteerError`].
pub async fn pause_job(store: &Store, id: JobId, by: &AuditEntry) -> Result<(), SteerError> {
    rerun(async || {
        let mut tx = store.begin().await?;
        let mut job = lock_job(&mut tx, by.app, id).await?;
        let fired_once = matches!(job.trigger, Trigger::Once { .. }) && job.next_trigger_time.is_none();
        match job.status {
            JobStatus::Paused => return Ok(()),
            JobStatus::Waiting if !fired_once => {}
            JobStatus::Waiting => {
                let detail = "the job has fired and will not fire again, so there is nothing to pause; cancel stops what runs";
                return Err(SteerError::not_possible("job.already-fired", detail));
            }
            other => return Err(wrong_status(other, "paused")),
        }
        job.status = JobStatus::Paused;
        set_status(&mut tx, &job, by.at).await?;
        finish(tx, id, "paused", by).await
    })
    .await
}

/// Lets a paused job fire again. Firings that fell into the pause are left out, but a one-shot that came due in it fires
/// now. Resuming a job that is not paused changes nothing. Returns when something fires next by this.
///
/// # Errors
/// [`SteerError`].
pub async fn resume_job(
    store: &Store,
    id: JobId,
    by: &AuditEntry,
) -> Result<Option<EpochMillis>, SteerError> {
    rerun(async || {
        let mut tx = store.begin().await?;
        let mut job = lock_job(&mut tx, by.app, id).await?;
        match job.status {
            JobStatus::Paused => {}
            JobStatus::Waiting => return Ok(job.next_trigger_time),
            other => return Err(wrong_status(other, "resumed")),
        }
        replan(&mut tx, &mut job, by.at).await?;
        set_status(&mut tx, &job, by.at).await?;
        let mut applied = Applied::default();
        if let Trigger::After { job_id, .. } = job.trigger {
            // What it follows may have ended meanwhile.
            followers::end(&mut tx, &[job_id], by.at, &mut applied).await?;
        }
        if job.status == JobStatus::Completed {
            followers::end(&mut tx, &[id], by.at, &mut applied).await?;
        }
        let next = job.next_trigger_time.into_iter().chain(applied.due).min();
        finish(tx, id, "resumed", by).await?;
        Ok(next)
    })
    .await
}

/// Plans jobs that wait for nothing: WAITING, nothing planned and nothing open. This program leaves none behind; rows that
/// were written by hand, or restored from a copy, may be so. Returns how many.
///
/// # Errors
/// [`SteerError`] of the database.
pub async fn plan_forgotten(store: &Store) -> Result<usize, SteerError> {
    let sql = format!(
        "select id from job_info where status = {} and next_trigger_time is null and trigger_type <= {} \
         and not exists (select 1 from job_execution \
                         where job_execution.job_id = job_info.id and job_execution.status < {}) limit {MOST_FORGOTTEN}",
        JobStatus::Waiting.code(),
        Trigger::FixedDelay { every_ms: 1 }.code(),
        ExecutionStatus::Succeeded.code(),
    );
    let rows = sqlx::query(AssertSqlSafe(sql))
        .fetch_all(&mut *store.reader().await?)
        .await?;
    let mut planned = 0;
    for row in &rows {
        let id = Row(row).parsed("id")?;
        planned += usize::from(rerun(async || plan_one(store, id).await).await?);
    }
    Ok(planned)
}

/// False when it is not forgotten any more.
async fn plan_one(store: &Store, id: JobId) -> Result<bool, SteerError> {
    let now = store.now();
    let mut tx = store.begin().await?;
    let Some((mut job, unreadable)) = lock_any_job(&mut tx, id).await? else {
        return Ok(false);
    };
    let waits = job.status == JobStatus::Waiting && job.next_trigger_time.is_none();
    if !waits || has_open_executions(&mut tx, job.app, id).await? {
        return Ok(false);
    }
    match unreadable {
        Some(reason) => {
            job.status = JobStatus::Invalid;
            job.invalid_reason = Some(reason);
        }
        None => replan(&mut tx, &mut job, now).await?,
    }
    set_status(&mut tx, &job, now).await?;
    if job.status == JobStatus::Completed {
        followers::end(&mut tx, &[id], now, &mut Applied::default()).await?;
    }
    let message = "nothing was planned and nothing was open: planned anew";
    job_log::append(&mut tx, &[job_event(id, message.into(), now)]).await?;
    tx.commit().await?;
    Ok(true)
}

async fn replan(connection: &mut Connection, job: &mut JobRow, now: EpochMillis) -> Result<(), StoreError> {
    let window = Window {
        start_at: job.start_at,
        end_at: job.end_at,
    };
    job.status = JobStatus::Waiting;
    let open = has_open_executions(connection, job.app, job.id).await?;
    let missed = job.next_trigger_time.is_none_or(|next| next <= now);
    match &job.trigger {
        Trigger::Cron { .. } | Trigger::FixedRate { .. } if missed => {
            match job.trigger.next_firing(now, window) {
                Ok(next) => job.next_trigger_time = next,
                Err(error) => {
                    job.status = JobStatus::Invalid;
                    job.invalid_reason = Some(error.to_string());
                }
            }
        }
        Trigger::Once { .. } if job.next_trigger_time.is_none() && !open => {
            job.next_trigger_time = job.trigger.first_firing(now, window).ok().flatten();
        }
        // While an execution is open, its end plans the next firing.
        Trigger::FixedDelay { every_ms } if job.next_trigger_time.is_none() && !open => {
            let next = now + Duration::from_millis(every_ms.unsigned_abs());
            job.next_trigger_time = window.end_at.is_none_or(|end| next <= end).then_some(next);
        }
        _ => {}
    }
    let plans_by_time = matches!(
        job.trigger,
        Trigger::Once { .. } | Trigger::Cron { .. } | Trigger::FixedRate { .. } | Trigger::FixedDelay { .. }
    );
    if job.status == JobStatus::Waiting && plans_by_time && job.next_trigger_time.is_none() && !open {
        job.status = JobStatus::Completed;
    }
    Ok(())
}

/// True when an execution of the job is not terminal. (About the `+` see [`crate::store::listing`]: a job may have a
/// million ended executions, and the open ones of its app are fewer.)
pub(super) async fn has_open_executions(
    connection: &mut Connection,
    app: AppId,
    id: JobId,
) -> Result<bool, StoreError> {
    let row = sqlx::query(
        "select count(*) as open_count from job_execution
          where app_id = ? and status in (0, 1, 2, 3, 4) and +job_id = ?",
    )
    .bind(app.to_string())
    .bind(id.to_string())
    .fetch_one(connection)
    .await?;
    Ok(Row(&row).int("open_count")? > 0)
}

pub(super) fn wrong_status(status: JobStatus, wanted: &str) -> SteerError {
    SteerError::not_possible(
        "job.wrong-status",
        format!("a job that is {} cannot be {wanted}", status.name()),
    )
}

fn job_event(job: JobId, message: String, at: EpochMillis) -> LogEntry {
    LogEntry {
        job,
        execution: None,
        attempt: 0,
        dispatch_seq: 0,
        from: None,
        to: None,
        worker: None,
        message: Some(message),
        at,
    }
}

/// Writes the event of the job and the audit entry, and commits.
pub(super) async fn finish(mut tx: Tx, job: JobId, event: &str, by: &AuditEntry) -> Result<(), SteerError> {
    let entry = job_event(job, format!("{event} on request"), by.at);
    job_log::append(&mut tx, &[entry]).await?;
    audit::append(&mut tx, by).await?;
    tx.commit().await?;
    reach(CrashPoint::SteeringCommitted);
    Ok(())
}
