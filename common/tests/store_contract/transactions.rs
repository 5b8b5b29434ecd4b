//! Transactions: whole or not at all, rerun when the database asks for it.

use anyhow::{Context, Result, ensure};
use isocost_common::{
    execution::ExecutionStatus,
    store::{Connection, Dialect, Store, StoreError, executions, jobs},
    store_tests,
    test_support::{TestStore, given},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::sync::Barrier;

store_tests! {
    a_dropped_transaction_is_rolled_back,
    an_error_rolls_everything_back,
    what_is_committed_is_seen_by_the_next_reader,
    what_is_not_committed_is_seen_by_nobody_else,
    a_deadlock_is_rerun_until_both_are_done,
    a_conflict_that_never_ends_is_reported_as_retryable,
    concurrent_increments_lose_nothing,
    readers_do_not_wait_for_a_writer,
    many_writers_all_get_their_turn,
    the_clock_is_near_the_database,
    a_transaction_that_the_database_ended_by_itself_leaves_a_usable_store,
}

/// Adds to two jobs' versions, in the order given.
async fn add_to_both(
    tx: &mut Connection,
    ids: [&str; 2],
    between: impl AsyncFnOnce(),
) -> Result<(), StoreError> {
    let add = "update job_info set version = version + 1 where id = ?";
    sqlx::query(add).bind(ids[0].to_owned()).execute(&mut *tx).await?;
    between().await;
    sqlx::query(add).bind(ids[1].to_owned()).execute(tx).await?;
    Ok(())
}

async fn version(store: &Store, job: &jobs::JobRow) -> Result<i64> {
    let mut reader = store.reader().await?;
    Ok(jobs::get(&mut reader, job.id)
        .await?
        .context("the job is gone")?
        .version)
}

async fn a_dropped_transaction_is_rolled_back(store: &TestStore) -> Result<()> {
    let job = given::job();
    let mut tx = store.begin().await?;
    jobs::insert_many(&mut tx, std::slice::from_ref(&job)).await?;
    drop(tx);
    let mut tx = store.begin().await?;
    ensure!(jobs::get(&mut tx, job.id).await?.is_none());
    Ok(())
}

async fn an_error_rolls_everything_back(store: &TestStore) -> Result<()> {
    let (first, second) = (given::job(), given::job());
    given::insert(store, std::slice::from_ref(&second), &[]).await?;
    let failed = store
        .transact(|| async {
            let mut tx = store.begin().await?;
            jobs::insert_many(&mut tx, std::slice::from_ref(&first)).await?;
            jobs::insert_many(&mut tx, std::slice::from_ref(&second)).await?;
            tx.commit().await
        })
        .await;
    ensure!(matches!(failed, Err(StoreError::Duplicate(_))), "{failed:?}");
    let mut reader = store.reader().await?;
    ensure!(jobs::get(&mut reader, first.id).await?.is_none());
    Ok(())
}

async fn what_is_committed_is_seen_by_the_next_reader(store: &TestStore) -> Result<()> {
    for _ in 0..50 {
        let job = given::job();
        given::insert(store, std::slice::from_ref(&job), &[]).await?;
        let mut reader = store.reader().await?;
        ensure!(jobs::get(&mut reader, job.id).await?.is_some());
    }
    Ok(())
}

async fn what_is_not_committed_is_seen_by_nobody_else(store: &TestStore) -> Result<()> {
    let job = given::job();
    let mut tx = store.begin().await?;
    jobs::insert_many(&mut tx, std::slice::from_ref(&job)).await?;
    let mut reader = store.reader().await?;
    ensure!(jobs::get(&mut reader, job.id).await?.is_none());
    tx.commit().await?;
    ensure!(jobs::get(&mut reader, job.id).await?.is_some());
    Ok(())
}

async fn a_deadlock_is_rerun_until_both_are_done(store: &TestStore) -> Result<()> {
    let jobs = [given::job(), given::job()];
    given::insert(store, &jobs, &[]).await?;
    let ids = jobs.each_ref().map(|job| job.id.to_string());
    let runs = Arc::new(AtomicU32::new(0));
    let met = Arc::new(Barrier::new(2));
    let is_sqlite = store.dialect() == Dialect::Sqlite;
    let cross = |first: usize, second: usize| {
        let (store, ids) = ((**store).clone(), ids.clone());
        let (runs, met) = (Arc::clone(&runs), Arc::clone(&met));
        tokio::spawn(async move {
            store
                .transact(|| async {
                    let mut tx = store.begin().await?;
                    let is_first_run = runs.fetch_add(1, Ordering::Relaxed) < 2;
                    add_to_both(&mut tx, [&ids[first], &ids[second]], async || {
                        // Each holds one row before it asks for the other. SQLite lets only one in at a time.
                        if is_first_run && !is_sqlite {
                            met.wait().await;
                        }
                    })
                    .await?;
                    tx.commit().await
                })
                .await
        })
    };
    let (one, other) = (cross(0, 1), cross(1, 0));
    one.await??;
    other.await??;
    for job in &jobs {
        ensure!(
            version(store, job).await? == 3,
            "an update was lost or done twice"
        );
    }
    let runs = runs.load(Ordering::Relaxed);
    ensure!(
        if is_sqlite { runs == 2 } else { runs >= 3 },
        "{runs} runs: there was no deadlock"
    );
    Ok(())
}

async fn a_conflict_that_never_ends_is_reported_as_retryable(store: &TestStore) -> Result<()> {
    let runs = AtomicU32::new(0);
    let failed: Result<(), _> = store
        .transact(|| async {
            runs.fetch_add(1, Ordering::Relaxed);
            Err(StoreError::Retryable(sqlx::Error::WorkerCrashed))
        })
        .await;
    ensure!(
        matches!(&failed, Err(error @ StoreError::Retryable(_)) if error.is_transient()),
        "{failed:?}"
    );
    ensure!(runs.load(Ordering::Relaxed) == 5);
    Ok(())
}

async fn concurrent_increments_lose_nothing(store: &TestStore) -> Result<()> {
    const WRITERS: usize = 16;
    const EACH: usize = 10;
    let job = given::job();
    given::insert(store, std::slice::from_ref(&job), &[]).await?;
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..WRITERS {
        let (store, id) = ((**store).clone(), job.id);
        writers.spawn(async move {
            for _ in 0..EACH {
                store
                    .transact(|| async {
                        let mut tx = store.begin().await?;
                        let sql = format!(
                            "select version from job_info where id = ?{}",
                            tx.dialect().for_update()
                        );
                        let version: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
                            .bind(id.to_string())
                            .fetch_one(&mut *tx)
                            .await?;
                        sqlx::query("update job_info set version = ? where id = ?")
                            .bind(version + 1)
                            .bind(id.to_string())
                            .execute(&mut *tx)
                            .await?;
                        tx.commit().await
                    })
                    .await?;
            }
            Ok::<_, StoreError>(())
        });
    }
    while let Some(writer) = writers.join_next().await {
        writer??;
    }
    ensure!(version(store, &job).await? == 1 + (WRITERS * EACH) as i64);
    Ok(())
}

async fn readers_do_not_wait_for_a_writer(store: &TestStore) -> Result<()> {
    let job = given::job();
    given::insert(store, std::slice::from_ref(&job), &[]).await?;
    let mut tx = store.begin().await?;
    sqlx::query("update job_info set version = 99 where id = ?")
        .bind(job.id.to_string())
        .execute(&mut *tx)
        .await?;
    let read = tokio::time::timeout(Duration::from_secs(3), version(store, &job)).await;
    ensure!(read.context("the reader waited for the writer")?? == 1);
    tx.commit().await?;
    ensure!(version(store, &job).await? == 99);
    Ok(())
}

async fn many_writers_all_get_their_turn(store: &TestStore) -> Result<()> {
    let job = given::job();
    let mut writers = tokio::task::JoinSet::new();
    for shard in 0..100 {
        let store = (**store).clone();
        let row = executions::ExecutionRow {
            shard,
            ..given::execution(&job, ExecutionStatus::Pending)
        };
        writers.spawn(async move { given::insert(&store, &[], &[row]).await });
    }
    while let Some(writer) = writers.join_next().await {
        writer??;
    }
    let mut reader = store.reader().await?;
    let count: i64 = sqlx::query_scalar("select count(*) from job_execution")
        .fetch_one(&mut *reader)
        .await?;
    ensure!(count == 100);
    Ok(())
}

async fn the_clock_is_near_the_database(store: &TestStore) -> Result<()> {
    let ahead_ms = store.measure_clock().await?;
    // One machine: whatever is more is a mistake of measuring.
    ensure!(ahead_ms.abs() < 2_000, "the database is {ahead_ms} ms ahead");
    let (first, second) = (store.now(), store.now());
    ensure!(first <= second);
    Ok(())
}

/// SQLite does that when the disk is full; here a statement behind the driver's back does it.
async fn a_transaction_that_the_database_ended_by_itself_leaves_a_usable_store(
    store: &TestStore,
) -> Result<()> {
    for _ in 0..3 {
        let mut tx = store.begin().await?;
        sqlx::query("rollback").execute(&mut *tx).await?;
        drop(tx);
    }
    let job = given::job();
    given::insert(store, std::slice::from_ref(&job), &[]).await?;
    ensure!(version(store, &job).await? == 1);
    Ok(())
}
