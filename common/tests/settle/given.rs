//! Databases of their own for each test, and rows to start from.

use isocost_common::{
    execution::{ExecutionEvent, ExecutionStatus, Outcome},
    id::{AppId, ExecutionId, IncarnationId, JobId, WorkerId},
    job::{ConcurrencyPolicy, JobStatus, Misfire, RetryPolicy, Trigger},
    raw_json::RawJson,
    store::{
        Store,
        executions::{self, ExecutionRow, TriggerKind},
        jobs::{self, JobRow},
        transitions::{self, Applied, Change},
    },
    test_support::TestStore,
    time::EpochMillis,
};
use sqlx::AssertSqlSafe;

/// The instant at which the tests' executions end.
pub(crate) const END: EpochMillis = EpochMillis(1_800_000_010_000);
/// The instant for which they were planned.
pub(crate) const PLANNED: EpochMillis = EpochMillis(1_800_000_000_000);

/// Runs `test` on each database.
pub(crate) async fn on_each_store(test: impl AsyncFn(&Store) -> anyhow::Result<()>) -> anyhow::Result<()> {
    TestStore::on_sqlite(async |store| test(store).await).await?;
    TestStore::on_mysql(async |store| test(store).await).await
}

/// A job that has fired: nothing more is planned by time.
pub(crate) fn job(trigger: Trigger) -> JobRow {
    JobRow {
        id: JobId::generate(),
        app: AppId::generate(),
        name: "nightly settlement".into(),
        handler: "noop".into(),
        params: RawJson::null(),
        trigger,
        start_at: None,
        end_at: None,
        next_trigger_time: None,
        status: JobStatus::Waiting,
        invalid_reason: None,
        version: 1,
        definition_version: 1,
        client_request_id: None,
        content_hash: String::new(),
        callback_url: None,
        priority: 5,
        timeout_ms: 60_000,
        start_deadline_ms: None,
        retry: RetryPolicy::default(),
        misfire: Misfire::default(),
        concurrency: ConcurrencyPolicy::Parallel,
        concurrency_key: None,
        shards: 1,
        selector: Default::default(),
        labels: Default::default(),
        created_at: PLANNED,
        updated_at: PLANNED,
    }
}

/// A job that fires once.
pub(crate) fn one_shot() -> JobRow {
    job(Trigger::Once { at: PLANNED })
}

/// An execution of the job's schedule that its worker holds.
pub(crate) fn dispatched(job: &JobRow) -> ExecutionRow {
    ExecutionRow {
        id: ExecutionId::generate(),
        job: job.id,
        app: job.app,
        handler: job.handler.clone(),
        scheduled_time: PLANNED,
        shard: 0,
        trigger_key: String::new(),
        trigger_kind: TriggerKind::Schedule,
        status: ExecutionStatus::Dispatched,
        not_before: PLANNED,
        class_key: job.class_key(),
        rank_time: PLANNED.0,
        attempt: 0,
        interruptions: 0,
        max_attempts: 1,
        dispatch_seq: 1,
        worker: WorkerId::parse("worker-a").ok(),
        incarnation: Some(IncarnationId::generate()),
        epoch: Some(1),
        not_after: None,
        slot_key: job.slot_key(),
        params: None,
        created_at: PLANNED,
        due_at: Some(PLANNED),
        dispatched_at: Some(PLANNED),
        started_at: None,
        finished_at: None,
        start_deadline_at: None,
        timeout_ms: 60_000,
        cancel_requested_at: None,
        progress_percent: None,
        progress_message: None,
        result: None,
        error: None,
    }
}

/// One that waits for the slot of its job.
pub(crate) fn blocked(job: &JobRow, rank_time: i64) -> ExecutionRow {
    ExecutionRow {
        scheduled_time: EpochMillis(rank_time),
        status: ExecutionStatus::Blocked,
        rank_time,
        dispatch_seq: 0,
        worker: None,
        incarnation: None,
        epoch: None,
        due_at: None,
        dispatched_at: None,
        ..dispatched(job)
    }
}

/// Stores jobs and executions.
pub(crate) async fn insert(store: &Store, jobs: &[JobRow], rows: &[ExecutionRow]) -> anyhow::Result<()> {
    store
        .transact(|| async {
            let mut tx = store.begin().await?;
            jobs::insert_many(&mut tx, jobs).await?;
            executions::insert_many(&mut tx, rows).await?;
            tx.commit().await
        })
        .await?;
    Ok(())
}

/// A success with `null` as its result.
pub(crate) fn success() -> Outcome {
    Outcome::Succeeded {
        result: RawJson::null(),
    }
}

/// An end that no retry can change.
pub(crate) fn failure() -> Outcome {
    Outcome::Failed {
        error: isocost_common::execution::ExecutionError::new("handler.failed", "no"),
        retryable: false,
        retry_after_ms: None,
    }
}

/// Ends executions as the intake does: lock, decide, apply, commit.
pub(crate) async fn finish(store: &Store, ends: &[(&ExecutionRow, Outcome)]) -> anyhow::Result<Applied> {
    let ids: Vec<_> = ends.iter().map(|(row, _)| row.id).collect();
    let applied = store
        .transact(|| async {
            let mut tx = store.begin().await?;
            let locked = transitions::lock(&mut tx, &ids).await?;
            let changes: Vec<Change> = locked
                .into_iter()
                .map(|before| {
                    let (_, outcome) = ends.iter().find(|(row, _)| row.id == before.id).expect("locked");
                    ended(before, outcome)
                })
                .collect();
            let done = transitions::apply(&mut tx, &changes).await?;
            tx.commit().await?;
            Ok(done)
        })
        .await?;
    Ok(applied)
}

/// The change that the end of a run makes of a locked row.
pub(crate) fn ended(before: ExecutionRow, outcome: &Outcome) -> Change {
    let (result, error) = match outcome {
        Outcome::Succeeded { result } => (Some(result.clone()), None),
        Outcome::Failed { error, .. } => (None, Some(error.clone())),
        _ => (None, None),
    };
    Change {
        step: before
            .status
            .after(&ExecutionEvent::Finished(outcome), before.facts())
            .expect("legal"),
        at: END,
        started_at: Some(EpochMillis(PLANNED.0 + 5)),
        not_before: None,
        result,
        error,
        message: None,
        before,
    }
}

/// The job as it stands.
pub(crate) async fn job_now(store: &Store, job: &JobRow) -> anyhow::Result<JobRow> {
    let mut reader = store.reader().await?;
    Ok(jobs::get(&mut reader, job.id).await?.expect("the job is stored"))
}

/// The execution as it stands.
pub(crate) async fn execution_now(store: &Store, row: &ExecutionRow) -> anyhow::Result<ExecutionRow> {
    let mut reader = store.reader().await?;
    Ok(executions::get(&mut reader, row.id)
        .await?
        .expect("the execution is stored"))
}

/// Every execution of a job, oldest first.
pub(crate) async fn executions_of(store: &Store, job: &JobRow) -> anyhow::Result<Vec<ExecutionRow>> {
    let mut reader = store.reader().await?;
    let sql = format!(
        "select {} from job_execution where job_id = ? order by id",
        executions::columns()
    );
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(job.id.to_string())
        .fetch_all(&mut *reader)
        .await?;
    Ok(rows.iter().map(executions::read).collect::<Result<_, _>>()?)
}

/// Holders of a slot.
pub(crate) async fn holders(store: &Store, key: &str) -> anyhow::Result<i64> {
    let mut reader = store.reader().await?;
    Ok(
        sqlx::query_scalar("select holders from concurrency_slot where slot_key = ?")
            .bind(key.to_owned())
            .fetch_one(&mut *reader)
            .await?,
    )
}
