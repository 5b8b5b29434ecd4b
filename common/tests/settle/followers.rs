//! Jobs that follow a job which is over: none of them waits for ever.

use crate::{child_of, given::*, run_by};
use isocost_common::{
    execution::ExecutionStatus,
    id::{ApiKeyId, AppId, JobId},
    job::{JobStatus, ParentOutcome, Trigger},
    store::{
        Store,
        audit::AuditEntry,
        executions::TriggerKind,
        jobs::{self, JobRow},
        steering::{self, Deletion},
        submission::{Admission, admit},
    },
    time::EpochMillis,
};

pub(crate) fn by(app: AppId) -> AuditEntry {
    AuditEntry {
        at: END,
        app,
        key: ApiKeyId::generate(),
        action: "job.test",
        object: "a job".into(),
        detail: None,
    }
}

/// Not fired yet.
fn waiting() -> JobRow {
    JobRow {
        next_trigger_time: Some(EpochMillis(END.0 + 60_000)),
        ..one_shot()
    }
}

fn every_second() -> JobRow {
    JobRow {
        next_trigger_time: Some(EpochMillis(END.0 + 60_000)),
        ..job(Trigger::FixedRate {
            every_ms: 1_000,
            anchor: PLANNED,
        })
    }
}

/// Status, next firing, and whether a reason is given.
async fn fate(store: &Store, job: &JobRow) -> anyhow::Result<(JobStatus, Option<EpochMillis>, bool)> {
    let now = job_now(store, job).await?;
    let is_told = now.invalid_reason.as_ref().is_some_and(|reason| {
        let Trigger::After { job_id, .. } = job.trigger else {
            return false;
        };
        reason.contains(&job_id.to_string())
    });
    Ok((now.status, now.next_trigger_time, is_told))
}

const WAITS: (JobStatus, Option<EpochMillis>, bool) = (JobStatus::Waiting, None, false);
const FIRES: (JobStatus, Option<EpochMillis>, bool) = (JobStatus::Waiting, Some(END), false);
const CANCELLED: (JobStatus, Option<EpochMillis>, bool) = (JobStatus::Cancelled, None, true);
const COMPLETED: (JobStatus, Option<EpochMillis>, bool) = (JobStatus::Completed, None, false);

#[tokio::test]
async fn a_child_that_wanted_the_other_outcome_is_cancelled_and_a_retry_brings_it_back() -> anyhow::Result<()>
{
    on_each_store(async |store| {
        let parent = one_shot();
        let on_success = child_of(&parent, ParentOutcome::Success);
        let on_failure = child_of(&parent, ParentOutcome::Failure);
        let row = dispatched(&parent);
        let jobs = [parent.clone(), on_success.clone(), on_failure.clone()];
        insert(store, &jobs, std::slice::from_ref(&row)).await?;
        finish(store, &[(&row, failure())]).await?;
        assert_eq!(fate(store, &on_success).await?, CANCELLED);
        assert_eq!(fate(store, &on_failure).await?, WAITS);
        assert_eq!(executions_of(store, &on_failure).await?.len(), 1);

        let retry = run_by(TriggerKind::Retry, "retry:1", &parent);
        insert(store, &[], std::slice::from_ref(&retry)).await?;
        finish(store, &[(&retry, success())]).await?;
        assert_eq!(fate(store, &on_success).await?, WAITS);
        assert_eq!(executions_of(store, &on_success).await?.len(), 1);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn followers_of_a_deleted_job_are_cancelled_and_theirs_in_turn() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let parent = waiting();
        let child = child_of(&parent, ParentOutcome::Any);
        let grandchild = child_of(&child, ParentOutcome::Success);
        let if_it_never_ran = child_of(&child, ParentOutcome::Failure);
        let jobs = [
            parent.clone(),
            child.clone(),
            grandchild.clone(),
            if_it_never_ran.clone(),
        ];
        insert(store, &jobs, &[]).await?;
        let done = steering::delete_job(store, parent.id, false, &by(parent.app)).await?;
        assert_eq!(fate(store, &child).await?, CANCELLED);
        assert_eq!(fate(store, &grandchild).await?, CANCELLED);
        assert_eq!(fate(store, &if_it_never_ran).await?, FIRES);
        assert!(matches!(done, Deletion::Done(applied) if applied.due == Some(END)));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_job_cancelled_before_it_fired_has_ended_without_success() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let parent = waiting();
        let wanted = [ParentOutcome::Success, ParentOutcome::Failure, ParentOutcome::Any];
        let children = wanted.map(|on| child_of(&parent, on));
        insert(store, std::slice::from_ref(&parent), &[]).await?;
        insert(store, &children, &[]).await?;
        let done = steering::cancel_job(store, parent.id, &by(parent.app)).await?;
        assert_eq!(done.applied.due, Some(END));
        for (child, expected) in children.iter().zip([CANCELLED, FIRES, FIRES]) {
            assert_eq!(fate(store, child).await?, expected, "{:?}", child.trigger);
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_end_of_a_recurring_job_ends_its_followers_but_does_not_fire_them() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let parent = every_second();
        let ran = execution(&parent, ExecutionStatus::Succeeded);
        let has_fired = child_of(&parent, ParentOutcome::Success);
        let fired = execution(&has_fired, ExecutionStatus::Succeeded);
        let runs = child_of(&parent, ParentOutcome::Any);
        let running = dispatched(&runs);
        let never_fired = child_of(&parent, ParentOutcome::Failure);
        let jobs = [
            parent.clone(),
            has_fired.clone(),
            runs.clone(),
            never_fired.clone(),
        ];
        insert(store, &jobs, &[ran, fired, running.clone()]).await?;
        steering::cancel_job(store, parent.id, &by(parent.app)).await?;
        assert_eq!(fate(store, &has_fired).await?, COMPLETED);
        assert_eq!(fate(store, &never_fired).await?, CANCELLED);
        assert_eq!(fate(store, &runs).await?, WAITS);
        finish(store, &[(&running, success())]).await?;
        assert_eq!(fate(store, &runs).await?, COMPLETED);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn followers_wait_for_the_last_run_of_a_cancelled_job() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let parent = every_second();
        let running = dispatched(&parent);
        let child = child_of(&parent, ParentOutcome::Success);
        insert(
            store,
            &[parent.clone(), child.clone()],
            std::slice::from_ref(&running),
        )
        .await?;
        steering::cancel_job(store, parent.id, &by(parent.app)).await?;
        assert_eq!(fate(store, &child).await?, WAITS);
        finish(store, &[(&running, failure())]).await?;
        assert_eq!(fate(store, &child).await?, CANCELLED);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_paused_follower_learns_at_its_resumption_what_happened() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let parent = one_shot();
        let paused = |on| JobRow {
            status: JobStatus::Paused,
            ..child_of(&parent, on)
        };
        let (met, lost) = (paused(ParentOutcome::Success), paused(ParentOutcome::Failure));
        let row = dispatched(&parent);
        insert(
            store,
            &[parent.clone(), met.clone(), lost.clone()],
            std::slice::from_ref(&row),
        )
        .await?;
        finish(store, &[(&row, success())]).await?;
        for child in [&met, &lost] {
            assert_eq!(job_now(store, child).await?.status, JobStatus::Paused);
        }
        steering::resume_job(store, lost.id, &by(parent.app)).await?;
        assert_eq!(fate(store, &lost).await?, CANCELLED);
        let next = steering::resume_job(store, met.id, &by(parent.app)).await?;
        assert_eq!((fate(store, &met).await?, next), (FIRES, Some(END)));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_job_that_could_never_fire_is_refused_but_a_replay_is_answered() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let parent = one_shot();
        insert(store, std::slice::from_ref(&parent), &[]).await?;
        let child = JobRow {
            client_request_id: Some("child-1".into()),
            ..child_of(&parent, ParentOutcome::Failure)
        };
        admit(store, std::slice::from_ref(&child)).await?;
        let row = dispatched(&parent);
        insert(store, &[], std::slice::from_ref(&row)).await?;
        finish(store, &[(&row, success())]).await?;
        let again = JobRow {
            id: JobId::generate(),
            ..child.clone()
        };
        let new = child_of(&parent, ParentOutcome::Failure);
        let patched = JobRow {
            trigger: new.trigger.clone(),
            version: 2,
            ..waiting()
        };
        let answers = admit(store, &[again, new]).await?;
        assert!(
            matches!(&answers[0], Admission::Replayed(holder) if holder.id == child.id),
            "{answers:?}"
        );
        assert!(matches!(&answers[1], Admission::NeverFires(_)), "{answers:?}");

        let before = JobRow {
            app: parent.app,
            trigger: Trigger::Manual {},
            version: 1,
            next_trigger_time: None,
            ..patched.clone()
        };
        let patched = JobRow {
            app: parent.app,
            ..patched
        };
        insert(store, std::slice::from_ref(&before), &[]).await?;
        let refused = steering::replace_definition(store, &patched, 1, &by(parent.app)).await;
        assert!(refused.is_err(), "{refused:?}");
        let stored = jobs::get(&mut *store.reader().await?, before.id).await?;
        assert_eq!(stored.map(|job| job.trigger), Some(Trigger::Manual {}));
        Ok(())
    })
    .await
}
