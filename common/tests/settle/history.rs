//! What is deleted of the past, and what is kept.

use crate::given::*;
use isocost_common::{
    execution::ExecutionStatus,
    id::JobId,
    job::{JobStatus, Trigger},
    store::{
        Store,
        executions::{self, ExecutionRow},
        history, jobs,
        jobs::JobRow,
    },
    time::EpochMillis,
};
use uuid::Uuid;

const BEFORE: EpochMillis = EpochMillis(1_800_000_000_000);

/// An id as it was made at this instant.
fn id_of(instant: i64) -> JobId {
    let random = JobId::generate().as_uuid().as_u128() & ((1 << 80) - 1);
    JobId::from_uuid(Uuid::from_u128(
        (u128::try_from(instant).expect("positive") << 80) | random,
    ))
}

fn ended_job(at: i64) -> JobRow {
    JobRow {
        id: id_of(at),
        status: JobStatus::Success,
        updated_at: EpochMillis(at),
        ..one_shot()
    }
}

fn ended_execution(job: &JobRow, at: i64) -> ExecutionRow {
    ExecutionRow {
        status: ExecutionStatus::Succeeded,
        finished_at: Some(EpochMillis(at)),
        ..dispatched(job)
    }
}

async fn exists(store: &Store, job: &JobRow) -> anyhow::Result<bool> {
    let mut reader = store.reader().await?;
    Ok(jobs::get(&mut reader, job.id).await?.is_some())
}

#[tokio::test]
async fn what_ended_long_ago_is_deleted_and_the_rest_is_kept() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let old = ended_job(BEFORE.0 - 2);
        let recent = ended_job(BEFORE.0 + 2);
        let armed = JobRow {
            id: id_of(BEFORE.0 - 2),
            updated_at: EpochMillis(BEFORE.0 - 2),
            ..job(Trigger::Manual {})
        };
        let rows = [
            ended_execution(&old, BEFORE.0 - 1),
            ended_execution(&recent, BEFORE.0 + 2),
            ended_execution(&armed, BEFORE.0 - 1),
        ];
        let open = dispatched(&armed);
        let open = ExecutionRow {
            scheduled_time: END,
            ..open
        };
        insert(store, &[old.clone(), recent.clone(), armed.clone()], &rows).await?;
        insert(store, &[], std::slice::from_ref(&open)).await?;

        assert_eq!(
            history::prune_jobs(store, BEFORE).await?,
            0,
            "a job outlives its executions"
        );
        assert_eq!(history::prune_executions(store, BEFORE).await?, 2);
        assert_eq!(history::prune_jobs(store, BEFORE).await?, 1);
        assert!(!exists(store, &old).await?);
        assert!(exists(store, &recent).await?);
        assert!(exists(store, &armed).await?);
        let mut reader = store.reader().await?;
        let left = executions::get_many(&mut reader, &[rows[1].id, open.id, rows[0].id], "").await?;
        assert_eq!(left.len(), 2);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_callback_that_is_still_to_be_delivered_keeps_its_execution() -> anyhow::Result<()> {
    on_each_store(async |store| {
        let job = JobRow {
            callback_url: Some("https://example.com/".into()),
            ..one_shot()
        };
        let row = dispatched(&job);
        insert(store, std::slice::from_ref(&job), std::slice::from_ref(&row)).await?;
        finish(store, &[(&row, success())]).await?;
        let later = EpochMillis(END.0 + 1);
        assert_eq!(history::prune_executions(store, later).await?, 0);
        let mut reader = store.reader().await?;
        sqlx::query("update callback_delivery set status = 3 where execution_id = ?")
            .bind(row.id.to_string())
            .execute(&mut *reader)
            .await?;
        drop(reader);
        assert_eq!(history::prune_executions(store, later).await?, 1);
        let mut reader = store.reader().await?;
        for table in ["callback_delivery", "job_log", "job_execution"] {
            let sql = format!("select count(*) from {table}");
            let rows: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
                .fetch_one(&mut *reader)
                .await?;
            assert_eq!(rows, 0, "{table}");
        }
        Ok(())
    })
    .await
}
