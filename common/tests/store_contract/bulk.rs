//! Updates of many rows, each with its own values, under one guard.

use anyhow::{Context, Result, ensure};
use isocost_common::{
    execution::ExecutionStatus,
    store::{
        BulkUpdate, CHUNK,
        executions::{self, ExecutionRow},
        jobs::{self, JobRow},
    },
    store_tests,
    test_support::{
        TestStore,
        given::{self, PLANNED},
    },
};

store_tests! {
    each_row_gets_its_own_values,
    rows_that_fail_the_guard_stay_as_they_are,
    the_guard_may_compare_with_the_new_values,
    a_row_that_changes_nothing_counts_all_the_same,
    unknown_keys_change_nothing,
    many_chunks_are_updated_and_counted,
    nulls_are_written,
    no_rows_are_no_statement,
}

/// Places executions: the new sequence number comes with each.
const PLACING: BulkUpdate<'_> = BulkUpdate {
    table: "job_execution",
    columns: &["id", "dispatch_seq", "worker_id", "not_after"],
    set: "status = 3, attempt = job_execution.attempt + 1",
    set_values: &[],
    guard: "job_execution.status = 2",
};

struct Placed<'a> {
    row: &'a ExecutionRow,
    dispatch_seq: i64,
    worker: Option<&'a str>,
    not_after: Option<i64>,
}

async fn place(store: &TestStore, update: &BulkUpdate<'_>, placed: &[Placed<'_>]) -> Result<u64> {
    let changed = store
        .transact(|| async {
            let mut tx = store.begin().await?;
            let dialect = tx.dialect();
            let done = update
                .execute(&mut tx, dialect, placed, |query, placed| {
                    query
                        .bind(placed.row.id.to_string())
                        .bind(placed.dispatch_seq)
                        .bind(placed.worker.map(str::to_owned))
                        .bind(placed.not_after)
                })
                .await?;
            tx.commit().await?;
            Ok(done)
        })
        .await?;
    Ok(changed)
}

async fn stored(store: &TestStore, count: usize, status: ExecutionStatus) -> Result<Vec<ExecutionRow>> {
    let job = given::job();
    let rows: Vec<_> = (0..u32::try_from(count)?)
        .map(|shard| ExecutionRow {
            shard,
            ..given::execution(&job, status)
        })
        .collect();
    given::insert(store, &[job], &rows).await?;
    Ok(rows)
}

async fn now(store: &TestStore, row: &ExecutionRow) -> Result<ExecutionRow> {
    let mut reader = store.reader().await?;
    executions::get(&mut reader, row.id)
        .await?
        .context("the row is gone")
}

async fn each_row_gets_its_own_values(store: &TestStore) -> Result<()> {
    let rows = stored(store, 3, ExecutionStatus::Pending).await?;
    let workers = ["worker-a", "worker-b", "worker-c"];
    let placed: Vec<_> = rows
        .iter()
        .zip(workers)
        .zip(1..)
        .map(|((row, worker), number)| Placed {
            row,
            dispatch_seq: number,
            worker: Some(worker),
            not_after: Some(PLANNED.0 + number),
        })
        .collect();
    ensure!(place(store, &PLACING, &placed).await? == 3);
    for placed in &placed {
        let now = now(store, placed.row).await?;
        ensure!(now.status == ExecutionStatus::Dispatched && now.attempt == 1);
        ensure!(now.dispatch_seq == placed.dispatch_seq);
        ensure!(now.worker.as_ref().map(|worker| worker.as_str()) == placed.worker);
        ensure!(now.not_after.map(|at| at.0) == placed.not_after);
    }
    Ok(())
}

async fn rows_that_fail_the_guard_stay_as_they_are(store: &TestStore) -> Result<()> {
    let pending = stored(store, 2, ExecutionStatus::Pending).await?;
    let running = stored(store, 2, ExecutionStatus::Running).await?;
    let placed: Vec<_> = pending
        .iter()
        .chain(&running)
        .map(|row| Placed {
            row,
            dispatch_seq: 9,
            worker: Some("worker-x"),
            not_after: None,
        })
        .collect();
    ensure!(place(store, &PLACING, &placed).await? == 2);
    for row in &running {
        assert_eq!(now(store, row).await?, *row);
    }
    // Once placed, the same update finds nothing to do.
    ensure!(place(store, &PLACING, &placed).await? == 0);
    Ok(())
}

async fn the_guard_may_compare_with_the_new_values(store: &TestStore) -> Result<()> {
    let rows = stored(store, 2, ExecutionStatus::Pending).await?;
    let only_the_next = BulkUpdate {
        guard: "job_execution.dispatch_seq + 1 = v.dispatch_seq and job_execution.status in (2, 3)",
        ..PLACING
    };
    let placed = [(&rows[0], 1), (&rows[1], 2)].map(|(row, dispatch_seq)| Placed {
        row,
        dispatch_seq,
        worker: None,
        not_after: None,
    });
    ensure!(place(store, &only_the_next, &placed).await? == 1);
    ensure!(now(store, &rows[0]).await?.dispatch_seq == 1);
    ensure!(now(store, &rows[1]).await?.dispatch_seq == 0);
    Ok(())
}

/// The count is of rows that the guard let through, not of those that look different afterwards.
async fn a_row_that_changes_nothing_counts_all_the_same(store: &TestStore) -> Result<()> {
    let rows = stored(store, 1, ExecutionStatus::Pending).await?;
    let same = BulkUpdate { set: "", ..PLACING };
    let placed = [Placed {
        row: &rows[0],
        dispatch_seq: 0,
        worker: None,
        not_after: None,
    }];
    ensure!(place(store, &same, &placed).await? == 1);
    assert_eq!(now(store, &rows[0]).await?, rows[0]);
    Ok(())
}

async fn unknown_keys_change_nothing(store: &TestStore) -> Result<()> {
    let unknown = given::execution(&given::job(), ExecutionStatus::Pending);
    let placed = [Placed {
        row: &unknown,
        dispatch_seq: 1,
        worker: None,
        not_after: None,
    }];
    ensure!(place(store, &PLACING, &placed).await? == 0);
    Ok(())
}

async fn many_chunks_are_updated_and_counted(store: &TestStore) -> Result<()> {
    let count = 2 * CHUNK + 31;
    let rows = stored(store, count, ExecutionStatus::Pending).await?;
    let placed: Vec<_> = rows
        .iter()
        .map(|row| Placed {
            row,
            dispatch_seq: i64::from(row.shard),
            worker: Some("worker-a"),
            not_after: Some(i64::from(row.shard) * 2),
        })
        .collect();
    ensure!(place(store, &PLACING, &placed).await? == count as u64);
    let ids: Vec<_> = rows.iter().map(|row| row.id).collect();
    let mut reader = store.reader().await?;
    for now in executions::get_many(&mut reader, &ids, "").await? {
        ensure!(now.dispatch_seq == i64::from(now.shard));
        ensure!(now.not_after.map(|at| at.0) == Some(i64::from(now.shard) * 2));
    }
    Ok(())
}

/// Also when the first row of the statement, which gives the columns their types, is the null one.
async fn nulls_are_written(store: &TestStore) -> Result<()> {
    let jobs = [given::job(), given::job(), given::job()];
    given::insert(store, &jobs, &[]).await?;
    let next = [None, Some(17_i64), None];
    let rows: Vec<(&JobRow, Option<i64>)> = jobs.iter().zip(next).collect();
    let changed = store
        .transact(|| async {
            let mut tx = store.begin().await?;
            let dialect = tx.dialect();
            let done = BulkUpdate {
                table: "job_info",
                columns: &["id", "next_trigger_time", "invalid_reason", "version"],
                set: "status = 7",
                set_values: &[],
                guard: "job_info.version = v.version - 1",
            }
            .execute(&mut tx, dialect, &rows, |query, (job, next)| {
                query
                    .bind(job.id.to_string())
                    .bind(*next)
                    .bind(next.map(|_| "a reason".to_owned()))
                    .bind(job.version + 1)
            })
            .await?;
            tx.commit().await?;
            Ok(done)
        })
        .await?;
    ensure!(changed == 3);
    let mut reader = store.reader().await?;
    for (job, next) in rows {
        let now = jobs::get(&mut reader, job.id).await?.context("gone")?;
        ensure!(now.next_trigger_time.map(|at| at.0) == next && now.version == 2);
        ensure!(now.invalid_reason.is_some() == next.is_some());
    }
    Ok(())
}

async fn no_rows_are_no_statement(store: &TestStore) -> Result<()> {
    ensure!(place(store, &PLACING, &[]).await? == 0);
    Ok(())
}
