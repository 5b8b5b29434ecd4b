use super::{
    Cancelled, SteerError, cancel_job,
    lifecycle::{finish, has_open_executions},
    lock_job, rerun,
};
use crate::{
    crash_point::{CrashPoint, reach},
    id::JobId,
    job::Trigger,
    store::{
        Store, Tx,
        audit::AuditEntry,
        deletion,
        followers::{self, Beginning},
        jobs,
        jobs::JobRow,
        slots,
        transitions::Applied,
    },
};

/// What a request to delete came to.
#[derive(Debug, Clone)]
pub enum Deletion {
    /// The job is gone; what follows from it.
    Done(Applied),
    /// A worker has to stop something first.
    Stopping(Cancelled),
}

/// Writes a changed definition, if the row still has `version`, and returns the row as written; none when it has moved
/// on. A job that from now on follows one that has ended as wanted fires at once, as if it were new.
///
/// # Errors
/// [`SteerError`].
pub async fn replace_definition(
    store: &Store,
    job: &JobRow,
    version: i64,
    by: &AuditEntry,
) -> Result<Option<JobRow>, SteerError> {
    rerun(async || {
        let mut tx = store.begin().await?;
        let mut row = job.clone();
        let before = jobs::get(&mut tx, job.id).await?;
        if before.is_none_or(|before| before.trigger != job.trigger) {
            check_parent(&mut tx, job, by).await?;
            follow(&mut tx, &mut row, by).await?;
        }
        if !jobs::replace(&mut tx, &row, version).await? {
            return Ok(None);
        }
        finish(tx, job.id, "changed", by).await?;
        Ok(Some(row))
    })
    .await
}

/// Plans the first firing of a job that begins to follow another one, which is kept from ending unseen meanwhile.
async fn follow(tx: &mut Tx, job: &mut JobRow, by: &AuditEntry) -> Result<(), SteerError> {
    let Trigger::After { job_id, .. } = job.trigger else {
        return Ok(());
    };
    let lock = tx.dialect().for_share();
    let leading = followers::leading(tx, &[job_id], lock).await?;
    match Beginning::of(job, &leading, by.at) {
        None | Some(Beginning::Waits) => Ok(()),
        Some(Beginning::FiresAt(at)) => {
            job.next_trigger_time = Some(at);
            Ok(())
        }
        Some(Beginning::NoSuchJob) => Err(no_such_job()),
        Some(Beginning::Never(reason)) => {
            let detail = format!("it would never fire: {reason}");
            Err(SteerError::not_possible("trigger.never-fires", detail))
        }
    }
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
            None if generations == 1 => return Err(no_such_job()),
            None => break,
        };
    }
    Ok(())
}

fn no_such_job() -> SteerError {
    SteerError::not_possible("trigger.no-such-job", "the job to follow is no job of this app")
}

/// Deletes a job of which nothing is open; its executions stay until history is pruned. With `cancel`, what is open is
/// cancelled first; what a worker has to stop keeps the job in place until [`finish_deletions`] finds that it has ended.
/// The job's client request id stays taken for [`deletion::KEY_KEPT_FOR`].
///
/// # Errors
/// [`SteerError`].
pub async fn delete_job(
    store: &Store,
    id: JobId,
    cancel: bool,
    by: &AuditEntry,
) -> Result<Deletion, SteerError> {
    if let Some(applied) = delete_idle(store, id, by).await? {
        return Ok(Deletion::Done(applied));
    }
    if cancel {
        request_deletion(store, id, by).await?;
        reach(CrashPoint::DeletionRequested);
    } else if !deletion::is_requested(&mut *store.reader().await?, id).await? {
        let detail = "executions of the job are open; wait for their end, or delete with cancel=true";
        return Err(SteerError::not_possible("job.open", detail));
    }
    let mut cancelled = match cancel_job(store, id, by).await {
        Ok(cancelled) => cancelled,
        // It has ended, and everything of it that is open was told to stop before.
        Err(SteerError::NotPossible { .. }) => Cancelled {
            stopping: true,
            ..Cancelled::default()
        },
        Err(error) => return Err(error),
    };
    if !cancelled.stopping
        && let Some(applied) = delete_idle(store, id, by).await?
    {
        cancelled.applied.add(applied);
        return Ok(Deletion::Done(cancelled.applied));
    }
    // What is open was told to stop, by this call or an earlier one.
    cancelled.stopping = true;
    Ok(Deletion::Stopping(cancelled))
}

/// From now on the job is deleted as soon as nothing of it is open.
async fn request_deletion(store: &Store, id: JobId, by: &AuditEntry) -> Result<(), SteerError> {
    rerun(async || {
        let mut tx = store.begin().await?;
        let job = lock_job(&mut tx, by.app, id).await?;
        deletion::request(&mut tx, &job, by).await?;
        tx.commit().await?;
        Ok(())
    })
    .await
}

/// Deletes the jobs that were waiting for the end of what was open. Returns how many.
///
/// # Errors
/// [`SteerError`] of the database.
pub async fn finish_deletions(store: &Store) -> Result<usize, SteerError> {
    let mut deleted = 0;
    for (id, by) in deletion::waiting(store).await? {
        match delete_idle(store, id, &by).await {
            Ok(None) => {}
            Ok(Some(_)) => {
                reach(CrashPoint::DeletionDone);
                deleted += 1;
            }
            Err(SteerError::NotFound) => {
                let mut tx = store.begin().await?;
                deletion::forget(&mut tx, id).await?;
                tx.commit().await?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(deleted)
}

/// None when something of it is open.
async fn delete_idle(store: &Store, id: JobId, by: &AuditEntry) -> Result<Option<Applied>, SteerError> {
    rerun(async || {
        let mut tx = store.begin().await?;
        let job = lock_job(&mut tx, by.app, id).await?;
        if has_open_executions(&mut tx, by.app, id).await? {
            return Ok(None);
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
        deletion::record(&mut tx, &job, by).await?;
        let mut applied = Applied::default();
        followers::end(&mut tx, &[id], by.at, &mut applied).await?;
        finish(tx, id, "deleted", by).await?;
        Ok(Some(applied))
    })
    .await
}
