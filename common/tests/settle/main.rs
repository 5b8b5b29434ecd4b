//! What the end of an execution does to everything that hangs on it, on each database.

mod deletion;
mod followers;
mod given;
mod history;
mod outbox;
mod outcomes;

use given::*;
use isocost_common::{
    execution::{ExecutionEvent, ExecutionStatus, Outcome},
    id::{ExecutionId, JobId},
    job::{ConcurrencyPolicy, JobStatus, ParentOutcome, Trigger},
    raw_json::RawJson,
    store::{
        StoreError,
        executions::{ExecutionRow, TriggerKind},
        job_log,
        jobs::JobRow,
        slots::LockedSlots,
        transitions::{self, Change},
    },
    time::EpochMillis,
};
use std::{collections::BTreeMap, time::Duration};

fn shard_of(row: &ExecutionRow, shard: u32) -> ExecutionRow {
    ExecutionRow {
        id: ExecutionId::generate(),
        shard,
        ..row.clone()
    }
}

fn run_by(kind: TriggerKind, key: &str, job: &JobRow) -> ExecutionRow {
    ExecutionRow {
        trigger_kind: kind,
        trigger_key: key.into(),
        ..dispatched(job)
    }
}

fn child_of(parent: &JobRow, on: ParentOutcome) -> JobRow {
    JobRow {
        app: parent.app,
        ..job(Trigger::After {
            job_id: parent.id,
            on,
        })
    }
}

#[tokio::test]
async fn a_one_shot_takes_the_status_of_its_execution() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let jobs = [one_shot(), one_shot(), one_shot()];
        let mut rows = [dispatched(&jobs[0]), dispatched(&jobs[1]), dispatched(&jobs[2])];
        rows[2].cancel_requested_at = Some(PLANNED);
        insert(store, &jobs, &rows).await?;
        let ends = [
            (&rows[0], success()),
            (&rows[1], failure()),
            (&rows[2], Outcome::Cancelled),
        ];
        finish(store, &ends).await?;
        let expected = [JobStatus::Success, JobStatus::Failed, JobStatus::Cancelled];
        for (job, status) in jobs.iter().zip(expected) {
            assert_eq!(job_now(store, job).await?.status, status);
        }
        let cancelled = execution_now(store, &rows[2]).await?;
        assert_eq!(cancelled.error.expect("an error").code, "cancelled");
        assert_eq!(cancelled.finished_at, Some(END));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_sharded_one_shot_succeeds_only_when_every_shard_did() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let good = JobRow {
            shards: 2,
            ..one_shot()
        };
        let bad = JobRow {
            shards: 2,
            ..one_shot()
        };
        let (a, c) = (dispatched(&good), dispatched(&bad));
        let (b, d) = (shard_of(&a, 1), shard_of(&c, 1));
        insert(
            store,
            &[good.clone(), bad.clone()],
            &[a.clone(), b.clone(), c.clone(), d.clone()],
        )
        .await?;
        finish(store, &[(&a, success()), (&c, failure())]).await?;
        assert_eq!(job_now(store, &good).await?.status, JobStatus::Waiting);
        assert_eq!(job_now(store, &bad).await?.status, JobStatus::Waiting);
        finish(store, &[(&b, success()), (&d, success())]).await?;
        assert_eq!(job_now(store, &good).await?.status, JobStatus::Success);
        assert_eq!(job_now(store, &bad).await?.status, JobStatus::Failed);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_retry_turns_a_failed_one_shot_into_a_success_and_a_run_by_hand_does_not() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let job = JobRow {
            status: JobStatus::Failed,
            ..one_shot()
        };
        let first = ExecutionRow {
            status: ExecutionStatus::Failed,
            finished_at: Some(PLANNED),
            ..dispatched(&job)
        };
        let by_hand = run_by(TriggerKind::Manual, "by hand", &job);
        let retry = run_by(TriggerKind::Retry, &format!("retry:{}", first.id), &job);
        insert(
            store,
            std::slice::from_ref(&job),
            &[first, by_hand.clone(), retry.clone()],
        )
        .await?;
        finish(store, &[(&by_hand, success())]).await?;
        assert_eq!(job_now(store, &job).await?.status, JobStatus::Failed);
        finish(store, &[(&retry, success())]).await?;
        assert_eq!(job_now(store, &job).await?.status, JobStatus::Success);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_run_by_hand_before_its_instant_leaves_a_one_shot_waiting() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let job = JobRow {
            next_trigger_time: Some(EpochMillis(END.0 + 1)),
            ..one_shot()
        };
        let by_hand = run_by(TriggerKind::Manual, "by hand", &job);
        insert(store, std::slice::from_ref(&job), std::slice::from_ref(&by_hand)).await?;
        finish(store, &[(&by_hand, success())]).await?;
        assert_eq!(job_now(store, &job).await?, job);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_recurring_job_is_completed_when_nothing_is_planned_and_nothing_open() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let rate = || {
            job(Trigger::FixedRate {
                every_ms: 1_000,
                anchor: PLANNED,
            })
        };
        let over = rate();
        let planned = JobRow {
            next_trigger_time: Some(END),
            ..rate()
        };
        let paused = JobRow {
            status: JobStatus::Paused,
            ..rate()
        };
        let by_hand_only = job(Trigger::Manual {});
        let jobs = [over, planned, paused, by_hand_only];
        let rows: Vec<_> = jobs.iter().map(dispatched).collect();
        let late = ExecutionRow {
            scheduled_time: END,
            ..dispatched(&jobs[0])
        };
        insert(store, &jobs, &rows).await?;
        insert(store, &[], std::slice::from_ref(&late)).await?;
        let ends: Vec<_> = rows.iter().map(|row| (row, success())).collect();
        finish(store, &ends).await?;
        assert_eq!(job_now(store, &jobs[0]).await?.status, JobStatus::Waiting);
        finish(store, &[(&late, failure())]).await?;
        let expected = [
            JobStatus::Completed,
            JobStatus::Waiting,
            JobStatus::Paused,
            JobStatus::Waiting,
        ];
        for (job, status) in jobs.iter().zip(expected) {
            assert_eq!(job_now(store, job).await?.status, status);
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_fixed_delay_is_counted_from_the_end_and_stops_with_its_window() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let delay = || job(Trigger::FixedDelay { every_ms: 7_000 });
        let next = END + Duration::from_secs(7);
        let open = delay();
        let closing = JobRow {
            end_at: Some(EpochMillis(next.0 - 1)),
            ..delay()
        };
        let waits = delay();
        let jobs = [open, closing, waits];
        let mut rows: Vec<_> = jobs.iter().map(dispatched).collect();
        rows[2] = run_by(TriggerKind::Manual, "by hand", &jobs[2]);
        insert(store, &jobs, &rows).await?;
        insert(store, &[], &[dispatched(&jobs[2])]).await?;
        let ends: Vec<_> = rows.iter().map(|row| (row, success())).collect();
        let applied = finish(store, &ends).await?;
        assert_eq!(applied.due, Some(next));
        let now = job_now(store, &jobs[0]).await?;
        assert_eq!((now.next_trigger_time, now.version), (Some(next), 2));
        assert_eq!(job_now(store, &jobs[1]).await?.status, JobStatus::Completed);
        assert_eq!(job_now(store, &jobs[2]).await?, jobs[2]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_slot_goes_to_the_blocked_execution_with_the_lowest_rank_and_then_back() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let serial = JobRow {
            concurrency: ConcurrencyPolicy::Serial,
            next_trigger_time: Some(END),
            ..job(Trigger::FixedRate {
                every_ms: 1_000,
                anchor: PLANNED,
            })
        };
        let key = serial.slot_key().expect("a serial job has a slot");
        let holder = dispatched(&serial);
        let (later, sooner) = (blocked(&serial, 200), blocked(&serial, 100));
        insert(
            store,
            std::slice::from_ref(&serial),
            &[holder.clone(), later.clone(), sooner.clone()],
        )
        .await?;
        take_slot(store, &key).await?;
        let applied = finish(store, &[(&holder, success())]).await?;
        assert_eq!(applied.due, Some(END));
        let unblocked = execution_now(store, &sooner).await?;
        assert_eq!(unblocked.status, ExecutionStatus::Pending);
        assert_eq!(unblocked.due_at, Some(END));
        assert_eq!(
            execution_now(store, &later).await?.status,
            ExecutionStatus::Blocked
        );
        assert_eq!(holders(store, &key).await?, 1);
        cancel(store, &later).await?;
        assert_eq!(
            holders(store, &key).await?,
            1,
            "a blocked execution has no slot to give back"
        );
        cancel(store, &sooner).await?;
        assert_eq!(holders(store, &key).await?, 0);
        Ok(())
    })
    .await
}

async fn take_slot(store: &isocost_common::store::Store, key: &str) -> anyhow::Result<()> {
    let mut tx = store.begin().await?;
    let mut slots = LockedSlots::lock(&mut tx, &BTreeMap::from([(key.to_owned(), 1)])).await?;
    assert!(slots.take(key));
    slots.write(&mut tx).await?;
    tx.commit().await?;
    Ok(())
}

async fn cancel(store: &isocost_common::store::Store, row: &ExecutionRow) -> anyhow::Result<()> {
    store
        .transact(|| async {
            let mut tx = store.begin().await?;
            let before = transitions::lock(&mut tx, &[row.id]).await?.remove(0);
            let step = before
                .status
                .after(&ExecutionEvent::CancelRequested, before.facts())
                .expect("legal");
            let done = transitions::apply(&mut tx, &[waiting_change(before, step)]).await?;
            tx.commit().await?;
            Ok(done)
        })
        .await?;
    Ok(())
}

fn waiting_change(before: ExecutionRow, step: isocost_common::execution::Step) -> Change {
    Change {
        before,
        step,
        at: END,
        started_at: None,
        not_before: None,
        result: None,
        error: None,
        message: None,
    }
}

#[tokio::test]
async fn children_fire_by_the_outcome_they_follow() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let parent = one_shot();
        let on_success = child_of(&parent, ParentOutcome::Success);
        let on_failure = child_of(&parent, ParentOutcome::Failure);
        let paused = JobRow {
            status: JobStatus::Paused,
            ..child_of(&parent, ParentOutcome::Any)
        };
        let not_yet = JobRow {
            start_at: Some(EpochMillis(END.0 + 500)),
            ..child_of(&parent, ParentOutcome::Any)
        };
        let too_late = JobRow {
            end_at: Some(EpochMillis(END.0 - 1)),
            ..child_of(&parent, ParentOutcome::Any)
        };
        let row = dispatched(&parent);
        let jobs = [parent, on_success, on_failure, paused, not_yet, too_late];
        insert(store, &jobs, std::slice::from_ref(&row)).await?;
        let applied = finish(store, &[(&row, success())]).await?;
        assert_eq!(applied.due, Some(END));

        let fired = executions_of(store, &jobs[1]).await?;
        assert_eq!(fired.len(), 1);
        assert_eq!(fired[0].trigger_key, format!("parent:{}", row.id));
        assert_eq!(fired[0].trigger_kind, TriggerKind::Parent);
        assert_eq!(
            (fired[0].status, fired[0].scheduled_time),
            (ExecutionStatus::Pending, END)
        );
        let delayed = executions_of(store, &jobs[4]).await?;
        assert_eq!(
            (delayed[0].status, delayed[0].not_before),
            (ExecutionStatus::Scheduled, EpochMillis(END.0 + 500))
        );
        for silent in [&jobs[2], &jobs[3], &jobs[5]] {
            assert!(executions_of(store, silent).await?.is_empty());
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_child_is_completed_after_its_run_and_fires_again_for_a_retried_parent() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let parent = JobRow {
            status: JobStatus::Failed,
            ..one_shot()
        };
        let child = JobRow {
            status: JobStatus::Completed,
            ..child_of(&parent, ParentOutcome::Any)
        };
        let retry = run_by(TriggerKind::Retry, "retry:1", &parent);
        insert(
            store,
            &[parent.clone(), child.clone()],
            std::slice::from_ref(&retry),
        )
        .await?;
        finish(store, &[(&retry, success())]).await?;
        assert_eq!(job_now(store, &child).await?.status, JobStatus::Waiting);
        let fired = executions_of(store, &child).await?.remove(0);
        cancel(store, &fired).await?;
        assert_eq!(job_now(store, &child).await?.status, JobStatus::Completed);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_concurrency_of_a_child_holds_for_its_parents_firings_too() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let parent = JobRow {
            next_trigger_time: Some(END),
            ..job(Trigger::FixedRate {
                every_ms: 1_000,
                anchor: PLANNED,
            })
        };
        let with = |concurrency| JobRow {
            concurrency,
            ..child_of(&parent, ParentOutcome::Any)
        };
        let (serial, discard) = (with(ConcurrencyPolicy::Serial), with(ConcurrencyPolicy::Discard));
        let first = dispatched(&parent);
        let second = ExecutionRow {
            scheduled_time: END,
            ..dispatched(&parent)
        };
        insert(
            store,
            &[parent.clone(), serial.clone(), discard.clone()],
            &[first.clone(), second.clone()],
        )
        .await?;
        finish(store, &[(&first, success()), (&second, success())]).await?;
        let states = async |job: &JobRow| -> anyhow::Result<Vec<ExecutionStatus>> {
            Ok(executions_of(store, job)
                .await?
                .iter()
                .map(|row| row.status)
                .collect())
        };
        assert_eq!(
            states(&serial).await?,
            [ExecutionStatus::Pending, ExecutionStatus::Blocked]
        );
        assert_eq!(
            states(&discard).await?,
            [ExecutionStatus::Pending, ExecutionStatus::Skipped]
        );
        assert_eq!(holders(store, &serial.slot_key().expect("serial")).await?, 1);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_sharded_parent_fires_its_child_once_when_the_last_shard_ended() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let parent = JobRow {
            shards: 3,
            ..one_shot()
        };
        let child = child_of(&parent, ParentOutcome::Failure);
        let a = dispatched(&parent);
        let (b, c) = (shard_of(&a, 1), shard_of(&a, 2));
        insert(
            store,
            &[parent.clone(), child.clone()],
            &[a.clone(), b.clone(), c.clone()],
        )
        .await?;
        finish(store, &[(&a, failure())]).await?;
        assert!(executions_of(store, &child).await?.is_empty());
        finish(store, &[(&b, success()), (&c, success())]).await?;
        assert_eq!(executions_of(store, &child).await?.len(), 1);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_callback_body_is_the_contract_byte_for_byte() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let job = JobRow {
            callback_url: Some("https://example.com/hooks?x=1".into()),
            client_request_id: Some("settle-1".into()),
            ..one_shot()
        };
        let silent = one_shot();
        let (row, other) = (dispatched(&job), dispatched(&silent));
        insert(
            store,
            &[job.clone(), silent],
            &[row.clone(), other.clone()],
        )
        .await?;
        let result = RawJson::parse(r#"{"n": 123456789012345678901234567890}"#.into())?;
        let applied = finish(
            store,
            &[(&row, Outcome::Succeeded { result }), (&other, success())],
        )
        .await?;
        assert_eq!(applied.callbacks.len(), 1);
        assert_eq!(applied.callbacks[0].attempt, 1);
        let mut reader = store.reader().await?;
        let stored: (String, String, String, i64) = sqlx::query_as(
            "select id, body, endpoint, next_attempt_at from callback_delivery where execution_id = ?",
        )
        .bind(row.id.to_string())
        .fetch_one(&mut *reader)
        .await?;
        assert_eq!(stored.0, applied.callbacks[0].delivery.to_string());
        assert_eq!(stored.2, "https://example.com");
        assert_eq!(stored.3, END.0);
        let expected = format!(
            "{{\"type\":\"execution.succeeded\",\"timestamp\":\"2027-01-15T08:00:10.000Z\",\"data\":{{\
             \"jobId\":\"{}\",\"executionId\":\"{}\",\"clientRequestId\":\"settle-1\",\
             \"jobName\":\"nightly settlement\",\"jobHandler\":\"noop\",\"status\":\"SUCCEEDED\",\"attempt\":1,\
             \"scheduledTime\":\"2027-01-15T08:00:00.000Z\",\"startedAt\":\"2027-01-15T08:00:00.005Z\",\
             \"finishedAt\":\"2027-01-15T08:00:10.000Z\",\"workerId\":\"worker-a\",\
             \"result\":{{\"n\": 123456789012345678901234567890}}}}}}",
            job.id, row.id
        );
        assert_eq!(stored.1, expected);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_finish_heard_of_before_its_start_logs_both_steps() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let job = one_shot();
        let row = dispatched(&job);
        insert(store, std::slice::from_ref(&job), std::slice::from_ref(&row)).await?;
        finish(store, &[(&row, success())]).await?;
        let mut reader = store.reader().await?;
        let steps: Vec<_> = job_log::of_execution(&mut reader, row.id)
            .await?
            .into_iter()
            .map(|entry| (entry.from, entry.to, entry.attempt))
            .collect();
        let (dispatched, running) = (ExecutionStatus::Dispatched, ExecutionStatus::Running);
        assert_eq!(
            steps,
            [
                (Some(dispatched), Some(running), 1),
                (Some(running), Some(ExecutionStatus::Succeeded), 1)
            ]
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_change_decided_on_a_row_that_moved_on_is_refused_whole() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let job = one_shot();
        let row = dispatched(&job);
        insert(store, std::slice::from_ref(&job), std::slice::from_ref(&row)).await?;
        let outdated = ExecutionRow {
            dispatch_seq: 7,
            ..row.clone()
        };
        let refused = store
            .transact(|| async {
                let mut tx = store.begin().await?;
                let done = transitions::apply(&mut tx, &[ended(outdated.clone(), &success())]).await?;
                tx.commit().await?;
                Ok(done)
            })
            .await;
        assert!(matches!(refused, Err(StoreError::Corrupt(_))));
        assert_eq!(execution_now(store, &row).await?, row);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_full_batch_settles_every_execution_with_its_job() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let jobs: Vec<_> = (0..1_000).map(|_| one_shot()).collect();
        let rows: Vec<_> = jobs.iter().map(dispatched).collect();
        insert(store, &jobs, &rows).await?;
        let ends: Vec<_> = rows.iter().map(|row| (row, success())).collect();
        finish(store, &ends).await?;
        let mut reader = store.reader().await?;
        let settled: i64 = sqlx::query_scalar(
            "select count(*) from job_info join job_execution on job_execution.job_id = job_info.id \
             where job_info.status = 2 and job_execution.status = 5",
        )
        .fetch_one(&mut *reader)
        .await?;
        assert_eq!(settled, 1_000);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_execution_whose_job_was_deleted_still_ends() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let gone = JobRow {
            id: JobId::generate(),
            ..one_shot()
        };
        let row = dispatched(&gone);
        insert(store, &[], std::slice::from_ref(&row)).await?;
        finish(store, &[(&row, success())]).await?;
        assert_eq!(
            execution_now(store, &row).await?.status,
            ExecutionStatus::Succeeded
        );
        Ok(())
    })
    .await
}
