//! Accepting jobs: one client request id, one job, whoever asks at once.

use anyhow::{Context, Result, ensure};
use isocost_common::{
    id::{ApiKeyId, AppId, JobId},
    job::{ConcurrencyPolicy, JobStatus, ParentOutcome, Trigger},
    store::{
        Store,
        audit::AuditEntry,
        jobs::{self, JobRow},
        steering::{RunRequest, run_job},
        submission::{Admission, admit},
    },
    store_tests,
    test_support::{
        TestStore,
        given::{self, PLANNED},
    },
};
use std::collections::HashSet;

store_tests! {
    new_jobs_are_accepted_and_stored,
    the_same_request_is_answered_with_the_first_job,
    another_content_under_the_same_key_is_refused,
    equal_keys_within_a_group_are_folded,
    of_many_at_once_with_one_key_one_is_accepted,
    groups_that_overlap_in_other_orders_are_all_answered,
    a_parent_that_is_missing_concerns_only_its_child,
    a_child_of_an_ended_parent_fires_at_once,
    runs_by_hand_are_told_apart_by_the_bytes_of_their_request,
    runs_by_hand_at_once_share_the_slot_of_their_job,
}

fn request(app: AppId, key: &str, content: &str) -> JobRow {
    JobRow {
        app,
        client_request_id: Some(key.into()),
        content_hash: content.into(),
        ..given::job()
    }
}

async fn stored(store: &Store, id: JobId) -> Result<Option<JobRow>> {
    let mut reader = store.reader().await?;
    Ok(jobs::get(&mut reader, id).await?)
}

async fn count(store: &Store) -> Result<i64> {
    let mut reader = store.reader().await?;
    Ok(sqlx::query_scalar("select count(*) from job_info")
        .fetch_one(&mut *reader)
        .await?)
}

async fn new_jobs_are_accepted_and_stored(store: &TestStore) -> Result<()> {
    let group: Vec<_> = (0..50).map(|_| given::job()).collect();
    for (job, admission) in group.iter().zip(admit(store, &group).await?) {
        ensure!(
            matches!(admission, Admission::Accepted { next_trigger_time } if next_trigger_time == Some(PLANNED))
        );
        ensure!(stored(store, job.id).await?.as_ref() == Some(job));
    }
    ensure!(admit(store, &[]).await?.is_empty());
    Ok(())
}

async fn the_same_request_is_answered_with_the_first_job(store: &TestStore) -> Result<()> {
    let app = AppId::generate();
    let first = request(app, "order-17", "content");
    admit(store, std::slice::from_ref(&first)).await?;
    let fresh = given::job();
    let group = [
        request(app, "order-17", "content"),
        fresh.clone(),
        request(app, "order-18", "content"),
    ];
    let admissions = admit(store, &group).await?;
    ensure!(
        matches!(&admissions[0], Admission::Replayed(holder) if holder.id == first.id),
        "{admissions:?}"
    );
    ensure!(matches!(admissions[1], Admission::Accepted { .. }));
    ensure!(matches!(admissions[2], Admission::Accepted { .. }));
    ensure!(count(store).await? == 3);
    // Another app may use the same key.
    let elsewhere = admit(store, &[request(AppId::generate(), "order-17", "content")]).await?;
    ensure!(matches!(elsewhere[0], Admission::Accepted { .. }));
    Ok(())
}

async fn another_content_under_the_same_key_is_refused(store: &TestStore) -> Result<()> {
    let app = AppId::generate();
    let first = request(app, "order-17", "content");
    admit(store, std::slice::from_ref(&first)).await?;
    let admissions = admit(store, &[request(app, "order-17", "other content")]).await?;
    ensure!(
        matches!(&admissions[0], Admission::KeyReused(holder) if holder.id == first.id),
        "{admissions:?}"
    );
    ensure!(count(store).await? == 1);
    Ok(())
}

async fn equal_keys_within_a_group_are_folded(store: &TestStore) -> Result<()> {
    let app = AppId::generate();
    let group = [
        request(app, "a", "1"),
        request(app, "b", "1"),
        request(app, "a", "1"),
        request(app, "a", "2"),
        request(app, "A", "1"),
    ];
    let admissions = admit(store, &group).await?;
    ensure!(matches!(admissions[0], Admission::Accepted { .. }));
    ensure!(matches!(admissions[1], Admission::Accepted { .. }));
    ensure!(matches!(&admissions[2], Admission::Replayed(holder) if holder.id == group[0].id));
    ensure!(matches!(&admissions[3], Admission::KeyReused(holder) if holder.id == group[0].id));
    ensure!(matches!(admissions[4], Admission::Accepted { .. }));
    ensure!(count(store).await? == 3);
    Ok(())
}

async fn of_many_at_once_with_one_key_one_is_accepted(store: &TestStore) -> Result<()> {
    let app = AppId::generate();
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (store, job) = ((**store).clone(), request(app, "order-17", "content"));
        clients.spawn(async move {
            admit(&store, std::slice::from_ref(&job))
                .await
                .map(|admissions| (job.id, admissions))
        });
    }
    let (mut accepted, mut named) = (0, HashSet::new());
    while let Some(client) = clients.join_next().await {
        let (own, admissions) = client??;
        match &admissions[0] {
            Admission::Accepted { .. } => {
                accepted += 1;
                named.insert(own);
            }
            Admission::Replayed(holder) => {
                named.insert(holder.id);
            }
            other => anyhow::bail!("{other:?}"),
        }
    }
    ensure!(
        accepted == 1 && named.len() == 1,
        "{accepted} accepted, {} jobs named",
        named.len()
    );
    ensure!(count(store).await? == 1);
    Ok(())
}

async fn groups_that_overlap_in_other_orders_are_all_answered(store: &TestStore) -> Result<()> {
    const KEYS: usize = 30;
    let app = AppId::generate();
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..8 {
        let store = (**store).clone();
        let mut group: Vec<_> = (0..KEYS)
            .map(|key| request(app, &format!("order-{key}"), "content"))
            .collect();
        group.rotate_left(client * 5 % KEYS);
        if client % 2 == 1 {
            group.reverse();
        }
        clients.spawn(async move { admit(&store, &group).await });
    }
    let mut accepted = 0;
    while let Some(client) = clients.join_next().await {
        let admissions = client??;
        ensure!(admissions.len() == KEYS);
        for admission in admissions {
            match admission {
                Admission::Accepted { .. } => accepted += 1,
                Admission::Replayed(_) => {}
                other => anyhow::bail!("{other:?}"),
            }
        }
    }
    ensure!(
        accepted == KEYS && count(store).await? == KEYS as i64,
        "{accepted} accepted"
    );
    Ok(())
}

fn child_of(app: AppId, parent: JobId) -> JobRow {
    JobRow {
        app,
        ..given::job_with(Trigger::After {
            job_id: parent,
            on: ParentOutcome::Success,
        })
    }
}

async fn a_parent_that_is_missing_concerns_only_its_child(store: &TestStore) -> Result<()> {
    let parent = given::job();
    admit(store, std::slice::from_ref(&parent)).await?;
    let group = [
        child_of(parent.app, JobId::generate()),
        child_of(parent.app, parent.id),
        // It exists, but belongs to somebody else.
        child_of(AppId::generate(), parent.id),
    ];
    let admissions = admit(store, &group).await?;
    ensure!(matches!(admissions[0], Admission::NoSuchParent), "{admissions:?}");
    ensure!(
        matches!(
            admissions[1],
            Admission::Accepted {
                next_trigger_time: None
            }
        ),
        "{admissions:?}"
    );
    ensure!(matches!(admissions[2], Admission::NoSuchParent), "{admissions:?}");
    ensure!(count(store).await? == 2);
    Ok(())
}

async fn a_child_of_an_ended_parent_fires_at_once(store: &TestStore) -> Result<()> {
    let ended = JobRow {
        status: JobStatus::Success,
        ..given::job()
    };
    admit(store, std::slice::from_ref(&ended)).await?;
    let child = child_of(ended.app, ended.id);
    let admissions = admit(store, std::slice::from_ref(&child)).await?;
    ensure!(
        matches!(
            admissions[0],
            Admission::Accepted {
                next_trigger_time: Some(_)
            }
        ),
        "{admissions:?}"
    );
    let stored = stored(store, child.id).await?.context("it is not stored")?;
    ensure!(stored.next_trigger_time == Some(child.created_at));
    Ok(())
}

fn by(app: AppId) -> AuditEntry {
    AuditEntry {
        at: PLANNED,
        app,
        key: ApiKeyId::generate(),
        action: "job.run",
        object: "a job".into(),
        detail: None,
    }
}

async fn runs_by_hand_are_told_apart_by_the_bytes_of_their_request(store: &TestStore) -> Result<()> {
    let job = given::job();
    given::insert(store, std::slice::from_ref(&job), &[]).await?;
    let longest = "k".repeat(255);
    let keys = ["a", "A", "á", "a ", " a", longest.as_str()];
    let mut made = HashSet::new();
    for is_replay in [false, true] {
        for key in keys {
            let request = RunRequest {
                params: None,
                client_request_id: Some(key.into()),
            };
            let run = run_job(store, job.id, &request, &by(job.app)).await?;
            ensure!(run.replayed == is_replay, "{key:?}: {run:?}");
            made.extend(run.executions);
        }
    }
    ensure!(
        made.len() == keys.len(),
        "{} executions for {} requests",
        made.len(),
        keys.len()
    );
    Ok(())
}

async fn runs_by_hand_at_once_share_the_slot_of_their_job(store: &TestStore) -> Result<()> {
    const RUNS: usize = 12;
    let job = JobRow {
        concurrency: ConcurrencyPolicy::Serial,
        ..given::job()
    };
    given::insert(store, std::slice::from_ref(&job), &[]).await?;
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..RUNS {
        let (store, job) = ((**store).clone(), job.clone());
        callers.spawn(async move { run_job(&store, job.id, &RunRequest::default(), &by(job.app)).await });
    }
    let mut blocked = 0;
    while let Some(run) = callers.join_next().await {
        blocked += usize::from(run??.blocked);
    }
    ensure!(blocked == RUNS - 1, "{blocked} of {RUNS} wait");
    Ok(())
}
