//! What these tests do again and again, on the rows of the test support.

pub(crate) use isocost_common::test_support::given::{PLANNED, execution, insert, job_with as job};
use isocost_common::{
    execution::{ExecutionEvent, ExecutionStatus, Outcome},
    job::Trigger,
    raw_json::RawJson,
    store::{
        Store,
        executions::{self, ExecutionRow},
        jobs::{self, JobRow},
        transitions::{self, Applied, Change},
    },
    test_support::TestStore,
    time::EpochMillis,
};
use sqlx::AssertSqlSafe;

/// The instant at which the tests' executions end.
pub(crate) const END: EpochMillis = EpochMillis(1_800_000_010_000);
/// Runs `test` on each database.
pub(crate) async fn on_each_store(test: impl AsyncFn(&Store) -> anyhow::Result<()>) -> anyhow::Result<()> {
    TestStore::on_sqlite(async |store| test(store).await).await?;
    TestStore::on_mysql(async |store| test(store).await).await
}

/// A job that fires once, and has.
pub(crate) fn one_shot() -> JobRow {
    job(Trigger::Once { at: PLANNED })
}

/// An execution of the job's schedule that its worker holds.
pub(crate) fn dispatched(job: &JobRow) -> ExecutionRow {
    execution(job, ExecutionStatus::Dispatched)
}

/// One that waits for the slot of its job.
pub(crate) fn blocked(job: &JobRow, rank_time: i64) -> ExecutionRow {
    ExecutionRow {
        scheduled_time: EpochMillis(rank_time),
        rank_time,
        ..execution(job, ExecutionStatus::Blocked)
    }
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
