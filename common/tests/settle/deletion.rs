//! Deleting jobs: what still runs, and the keys that stay taken.

use crate::{followers::by, given::*};
use isocost_common::{
    id::JobId,
    job::{JobStatus, Trigger},
    store::{
        Store, StoreError,
        deletion::{self, KEY_KEPT_FOR},
        jobs::{self, JobRow},
        steering::{self, Deletion, RunRequest, SteerError},
        submission::{Admission, admit},
    },
};

async fn exists(store: &Store, job: &JobRow) -> anyhow::Result<bool> {
    Ok(jobs::get(&mut *store.reader().await?, job.id).await?.is_some())
}

#[tokio::test]
async fn a_job_that_still_runs_is_deleted_when_that_has_ended() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let jobs = [
            one_shot(),
            JobRow {
                status: JobStatus::Success,
                ..one_shot()
            },
        ];
        for job in jobs {
            let row = dispatched(&job);
            let by = by(job.app);
            insert(store, std::slice::from_ref(&job), std::slice::from_ref(&row)).await?;
            for _ in 0..2 {
                let done = steering::delete_job(store, job.id, true, &by).await?;
                assert!(
                    matches!(&done, Deletion::Stopping(cancelled) if cancelled.stopping),
                    "{done:?}"
                );
            }
            assert!(deletion::is_requested(&mut *store.reader().await?, job.id).await?);
            let run = steering::run_job(store, job.id, &RunRequest::default(), &by).await;
            assert!(
                matches!(run, Err(SteerError::NotPossible { .. })),
                "it is never done: {run:?}"
            );
            assert_eq!(steering::finish_deletions(store).await?, 0);
            assert!(exists(store, &job).await?);
            finish(store, &[(&row, failure())]).await?;
            assert_eq!(steering::finish_deletions(store).await?, 1);
            assert!(!exists(store, &job).await?);
            assert_eq!(steering::finish_deletions(store).await?, 0);
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_key_of_a_deleted_job_stays_taken_for_a_day() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let job = JobRow {
            client_request_id: Some("order-1 ".into()),
            content_hash: "a".into(),
            ..job(Trigger::Manual {})
        };
        admit(store, std::slice::from_ref(&job)).await?;
        let by = by(job.app);
        steering::delete_job(store, job.id, false, &by).await?;
        let again = JobRow {
            id: JobId::generate(),
            ..job.clone()
        };
        let other_content = JobRow {
            id: JobId::generate(),
            content_hash: "b".into(),
            ..job.clone()
        };
        let neighbour = JobRow {
            id: JobId::generate(),
            client_request_id: Some("order-2".into()),
            ..job.clone()
        };
        let answers = admit(store, &[again.clone(), other_content.clone(), neighbour.clone()]).await?;
        assert!(
            matches!(&answers[0], Admission::JobDeleted(holder) if holder.id == job.id),
            "{answers:?}"
        );
        assert!(matches!(&answers[1], Admission::KeyReused(_)), "{answers:?}");
        assert!(matches!(&answers[2], Admission::Accepted { .. }), "{answers:?}");
        let answers = admit(store, std::slice::from_ref(&other_content)).await?;
        assert!(matches!(&answers[0], Admission::KeyReused(_)), "{answers:?}");
        assert!(!exists(store, &again).await? && !exists(store, &other_content).await?);

        assert_eq!(deletion::free_keys(store, by.at).await?, 0);
        assert_eq!(deletion::free_keys(store, by.at + KEY_KEPT_FOR).await?, 1);
        let answers = admit(store, std::slice::from_ref(&again)).await?;
        assert!(matches!(&answers[0], Admission::Accepted { .. }), "{answers:?}");
        Ok(())
    })
    .await
}

/// Submissions that are under way while the holder of their key is deleted never make a second job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_submission_at_the_moment_of_the_deletion_makes_no_second_job() -> anyhow::Result<()> {
    on_each_store(async |store| {
        for round in 0..20 {
            let job = JobRow {
                client_request_id: Some(format!("race-{round}")),
                ..job(Trigger::Manual {})
            };
            admit(store, std::slice::from_ref(&job)).await?;
            let by = by(job.app);
            let again = JobRow {
                id: JobId::generate(),
                ..job.clone()
            };
            let submit = async {
                for _ in 0..5 {
                    let answers = admit(store, std::slice::from_ref(&again)).await?;
                    let known = matches!(&answers[0], Admission::Replayed(_) | Admission::JobDeleted(_));
                    assert!(known, "{answers:?}");
                }
                Ok::<_, StoreError>(())
            };
            let (submitted, deleted) = tokio::join!(submit, steering::delete_job(store, job.id, false, &by));
            submitted?;
            deleted?;
            assert!(!exists(store, &again).await?);
        }
        Ok(())
    })
    .await
}
