use super::{
    Cancelled, SteerError, cancel_job,
    lifecycle::{finish, has_open_executions},
    lock_job, rerun,
};
use crate::{
    id::JobId,
    job::Trigger,
    store::{Store, Tx, audit::AuditEntry, jobs, jobs::JobRow, slots},
};

/// Writes a changed definition, if the row still has `version`; false when it has moved on.
///
/// # Errors
/// [`SteerError`].
pub async fn replace_definition(
    store: &Store,
    job: &JobRow,
    version: i64,
    by: &AuditEntry,
) -> Result<bool, SteerError> {
    rerun(async || {
        let mut tx = store.begin().await?;
        check_parent(&mut tx, job, by).await?;
        if !jobs::replace(&mut tx, job, version).await? {
            return Ok(false);
        }
        finish(tx, job.id, "changed", by).await?;
        Ok(true)
    })
    .await
}

/// The job it follows must be one of the app, and must not follow it in turn.
async fn check_parent(tx: &mut Tx, job: &JobRow, by: &AuditEntry) -> Result<(), SteerError> {
    let mut trigger = job.trigger.clone();
    let mut generations = 0;
    while let Trigger::After { job_id, .. } = trigger {
        generations += 1;
        let parent = jobs::get(tx, job_id).await?.filter(|parent| parent.app == by.app);
        trigger = match parent {
            Some(parent) if job_id != job.id && generations <= 100 => parent.trigger,
            Some(_) => {
                let detail = "the job would follow itself, by way of the jobs it follows";
                return Err(SteerError::not_possible("trigger.cycle", detail));
            }
            None if generations == 1 => {
                let detail = "the job to follow is no job of this app";
                return Err(SteerError::not_possible("trigger.no-such-job", detail));
            }
            None => break,
        };
    }
    Ok(())
}

/// Deletes a job of which nothing is open; its executions stay until history is pruned. With `cancel`, what is open is
/// cancelled first; what a worker has to stop keeps the job in place, and `Some` is returned.
///
/// # Errors
/// [`SteerError`].
pub async fn delete_job(
    store: &Store,
    id: JobId,
    cancel: bool,
    by: &AuditEntry,
) -> Result<Option<Cancelled>, SteerError> {
    if delete_idle(store, id, by).await? {
        return Ok(None);
    }
    if !cancel {
        let detail = "executions of the job are open; wait for their end, or delete with cancel=true";
        return Err(SteerError::not_possible("job.open", detail));
    }
    let cancelled = cancel_job(store, id, by).await?;
    if !cancelled.stopping && delete_idle(store, id, by).await? {
        return Ok(None);
    }
    Ok(Some(cancelled))
}

/// False when something of it is open.
async fn delete_idle(store: &Store, id: JobId, by: &AuditEntry) -> Result<bool, SteerError> {
    rerun(async || {
        let mut tx = store.begin().await?;
        lock_job(&mut tx, by.app, id).await?;
        if has_open_executions(&mut tx, by.app, id).await? {
            return Ok(false);
        }
        for statement in [
            "delete from job_label where job_id = ?",
            "delete from job_info where id = ?",
        ] {
            sqlx::query(statement)
                .bind(id.to_string())
                .execute(&mut *tx)
                .await?;
        }
        sqlx::query("delete from concurrency_slot where slot_key = ? and holders = 0")
            .bind(slots::job_key(id))
            .execute(&mut *tx)
            .await?;
        finish(tx, id, "deleted", by).await?;
        Ok(true)
    })
    .await
}
