//! Workers and what they own.

use anyhow::{Context, Result, ensure};
use isocost_common::{
    execution::ExecutionStatus,
    id::{ExecutionId, IncarnationId, WorkerId},
    job::Selector,
    store::{
        executions::ExecutionRow,
        history, recovery,
        workers::{self, WorkerRow, WorkerStatus},
    },
    store_tests,
    test_support::{
        TestStore,
        given::{self, PLANNED},
    },
    time::EpochMillis,
};
use std::{collections::HashSet, time::Duration};

store_tests! {
    what_is_owned_comes_with_the_status_of_its_owner,
    standings_and_cancel_requests_are_read,
    a_worker_is_registered_once_and_refreshed,
    the_end_of_an_incarnation_is_final,
    after_a_restart_everybody_before_is_dead,
    the_newest_incarnation_speaks_for_its_worker,
    db01_a_worker_that_registers_anew_or_is_removed_leaves_the_history_of_its_jobs,
}

const SECOND: Duration = Duration::from_secs(1);

fn worker(name: &str, registered_at: EpochMillis) -> Result<WorkerRow> {
    Ok(WorkerRow {
        worker: WorkerId::parse(name)?,
        incarnation: IncarnationId::generate(),
        host: "10.0.0.7".into(),
        port: 8080,
        handlers: Vec::new(),
        labels: Selector::from([("zone".into(), "eu".into())]),
        status: WorkerStatus::Online,
        drain_requested: false,
        active: 3,
        cpu_idle_percent: 40,
        mean_cost_ms: 12,
        registered_at,
        last_heartbeat: registered_at,
    })
}

async fn save(store: &TestStore, rows: &[WorkerRow]) -> Result<()> {
    let mut tx = store.begin().await?;
    workers::save(&mut tx, rows).await?;
    tx.commit().await?;
    Ok(())
}

async fn set_status(store: &TestStore, incarnation: IncarnationId, status: WorkerStatus) -> Result<u64> {
    let mut tx = store.begin().await?;
    let changed = workers::set_status(&mut tx, &[(incarnation, status)], PLANNED).await?;
    tx.commit().await?;
    Ok(changed)
}

async fn what_is_owned_comes_with_the_status_of_its_owner(store: &TestStore) -> Result<()> {
    let dead = worker("worker-a", PLANNED)?;
    save(store, std::slice::from_ref(&dead)).await?;
    set_status(store, dead.incarnation, WorkerStatus::Dead).await?;
    let job = given::job();
    let rows: Vec<_> = (0..)
        .zip(ExecutionStatus::ALL)
        .map(|(shard, status)| ExecutionRow {
            shard,
            ..given::execution(&job, status)
        })
        .collect();
    let of_dead = ExecutionRow {
        shard: 99,
        incarnation: Some(dead.incarnation),
        cancel_requested_at: Some(PLANNED),
        ..given::execution(&job, ExecutionStatus::Running)
    };
    given::insert(store, &[job], &[rows.clone(), vec![of_dead.clone()]].concat()).await?;
    let mut reader = store.reader().await?;
    let owned = recovery::owned(&mut reader).await?;
    let claims: HashSet<_> = owned.iter().map(|owned| owned.claim).collect();
    let expected = rows.iter().filter(|row| row.status.is_owned()).chain([&of_dead]);
    assert_eq!(claims, expected.map(ExecutionRow::claim).collect());
    for owned in owned {
        let is_of_dead = owned.claim == of_dead.claim();
        ensure!(owned.owner == is_of_dead.then_some(WorkerStatus::Dead));
        ensure!(owned.cancel_requested == is_of_dead);
    }
    Ok(())
}

async fn standings_and_cancel_requests_are_read(store: &TestStore) -> Result<()> {
    let job = given::job();
    let asked = |shard: u32, status: ExecutionStatus| ExecutionRow {
        shard,
        cancel_requested_at: Some(PLANNED),
        ..given::execution(&job, status)
    };
    let rows = [
        asked(0, ExecutionStatus::Running),
        asked(1, ExecutionStatus::Cancelled),
        ExecutionRow {
            shard: 2,
            ..given::execution(&job, ExecutionStatus::Dispatched)
        },
    ];
    given::insert(store, &[job], &rows).await?;
    let mut reader = store.reader().await?;
    assert_eq!(recovery::cancel_requested(&mut reader).await?, [rows[0].claim()]);
    let ids = [rows[0].id, rows[2].id, ExecutionId::generate()];
    let standings = recovery::standings(&mut reader, &ids).await?;
    ensure!(standings.len() == 2);
    for standing in standings {
        let row = rows
            .iter()
            .find(|row| row.claim() == standing.claim)
            .context("unknown")?;
        ensure!(standing.status == row.status && standing.incarnation == row.incarnation);
    }
    Ok(())
}

async fn a_worker_is_registered_once_and_refreshed(store: &TestStore) -> Result<()> {
    let first = worker("worker-a", PLANNED)?;
    save(store, std::slice::from_ref(&first)).await?;
    set_status(store, first.incarnation, WorkerStatus::Draining).await?;
    let refreshed = WorkerRow {
        host: "10.0.0.8".into(),
        active: 5,
        last_heartbeat: PLANNED + SECOND,
        // What a heartbeat must not change.
        registered_at: PLANNED + SECOND,
        status: WorkerStatus::Online,
        ..first.clone()
    };
    let other = worker("worker-b", PLANNED)?;
    save(store, &[refreshed.clone(), other.clone()]).await?;
    let mut reader = store.reader().await?;
    let mut current = workers::current(&mut reader).await?;
    current.sort_by(|a, b| a.worker.cmp(&b.worker));
    let expected = WorkerRow {
        registered_at: PLANNED,
        status: WorkerStatus::Draining,
        ..refreshed
    };
    assert_eq!(current, [expected, other]);
    Ok(())
}

async fn the_end_of_an_incarnation_is_final(store: &TestStore) -> Result<()> {
    let row = worker("worker-a", PLANNED)?;
    save(store, std::slice::from_ref(&row)).await?;
    ensure!(set_status(store, row.incarnation, WorkerStatus::Draining).await? == 1);
    ensure!(set_status(store, row.incarnation, WorkerStatus::Dead).await? == 1);
    for status in [
        WorkerStatus::Online,
        WorkerStatus::Draining,
        WorkerStatus::Offline,
    ] {
        ensure!(
            set_status(store, row.incarnation, status).await? == 0,
            "{status:?} after death"
        );
    }
    // A late heartbeat of it does not bring it back.
    save(store, std::slice::from_ref(&row)).await?;
    let mut reader = store.reader().await?;
    ensure!(workers::current(&mut reader).await?.is_empty());
    let asked = [row.incarnation, IncarnationId::generate()];
    let statuses = workers::statuses(&mut reader, &asked).await?;
    assert_eq!(statuses, [(row.incarnation, WorkerStatus::Dead)]);
    Ok(())
}

async fn after_a_restart_everybody_before_is_dead(store: &TestStore) -> Result<()> {
    let rows = [
        worker("a", PLANNED)?,
        worker("b", PLANNED)?,
        worker("c", PLANNED)?,
    ];
    save(store, &rows).await?;
    set_status(store, rows[1].incarnation, WorkerStatus::Draining).await?;
    set_status(store, rows[2].incarnation, WorkerStatus::Offline).await?;
    let mut tx = store.begin().await?;
    ensure!(workers::mark_all_dead(&mut tx, PLANNED).await? == 2);
    tx.commit().await?;
    let mut reader = store.reader().await?;
    ensure!(workers::current(&mut reader).await?.is_empty());
    let said_bye = workers::statuses(&mut reader, &[rows[2].incarnation]).await?;
    ensure!(said_bye[0].1 == WorkerStatus::Offline);
    Ok(())
}

async fn the_newest_incarnation_speaks_for_its_worker(store: &TestStore) -> Result<()> {
    let (old, new) = (
        worker("worker-a", PLANNED)?,
        worker("worker-a", PLANNED + SECOND)?,
    );
    let silent = worker("worker-b", PLANNED - 60 * SECOND)?;
    save(store, &[new.clone(), old, silent]).await?;
    let mut reader = store.reader().await?;
    assert_eq!(workers::heard_since(&mut reader, PLANNED).await?, [new]);
    Ok(())
}

async fn db01_a_worker_that_registers_anew_or_is_removed_leaves_the_history_of_its_jobs(
    store: &TestStore,
) -> Result<()> {
    let job = given::job();
    let ended: Vec<ExecutionRow> = (0..100)
        .map(|number| ExecutionRow {
            scheduled_time: PLANNED + SECOND * number,
            ..given::execution(&job, ExecutionStatus::Succeeded)
        })
        .collect();
    given::insert(store, std::slice::from_ref(&job), &ended).await?;
    let name = given::worker();
    let mut lives = Vec::new();
    for life in 0..10 {
        let row = worker(name.as_str(), PLANNED + SECOND * life)?;
        save(store, std::slice::from_ref(&row)).await?;
        lives.push(row.incarnation);
    }
    for life in lives {
        ensure!(set_status(store, life, WorkerStatus::Offline).await? == 1);
    }
    history::prune_records(store, PLANNED + SECOND).await?;
    let mut reader = store.reader().await?;
    let workers: i64 = sqlx::query_scalar("select count(*) from worker_node")
        .fetch_one(&mut *reader)
        .await?;
    let kept: i64 = sqlx::query_scalar("select count(*) from job_execution where worker_id = ?")
        .bind(name.to_string())
        .fetch_one(&mut *reader)
        .await?;
    ensure!(
        (workers, kept) == (0, 100),
        "{workers} workers, {kept} executions"
    );
    Ok(())
}
