//! Placing: who waits in which order, and what a handover writes.

use anyhow::{Context, Result, ensure};
use isocost_common::{
    execution::{Claim, ExecutionStatus},
    id::{AppId, IncarnationId, WorkerId},
    job::Selector,
    raw_json::RawJson,
    store::{
        Dialect, StoreError,
        executions::{self, ExecutionRow},
        jobs::JobRow,
        placement::{self, Handover, Placed},
    },
    store_tests,
    test_support::{
        TestStore,
        given::{self, PLANNED},
    },
    time::EpochMillis,
};
use std::{collections::BTreeSet, time::Duration};

store_tests! {
    each_pending_class_is_named_once,
    pending_executions_are_locked_by_rank,
    what_is_cancelled_or_expired_is_not_placed,
    two_leaders_never_lock_the_same_execution,
    placing_writes_the_handover,
    placing_what_is_not_pending_is_refused_whole,
    orders_carry_the_params_of_the_execution_or_of_its_job,
}

const SECOND: Duration = Duration::from_secs(1);

async fn each_pending_class_is_named_once(store: &TestStore) -> Result<()> {
    let handlers = ["mail", "http", "mail"];
    let app = AppId::generate();
    let jobs = handlers.map(|handler| JobRow {
        app,
        handler: handler.into(),
        ..given::job()
    });
    let picky = JobRow {
        app,
        handler: "mail".into(),
        selector: Selector::from([("zone".into(), "eu".into())]),
        ..given::job()
    };
    let idle = JobRow {
        handler: "idle".into(),
        ..given::job()
    };
    let pending = |job: &JobRow| given::execution(job, ExecutionStatus::Pending);
    let executions = [
        pending(&jobs[0]),
        pending(&jobs[1]),
        pending(&jobs[2]),
        pending(&picky),
        given::execution(&idle, ExecutionStatus::Running),
    ];
    let all = [jobs.to_vec(), vec![picky.clone(), idle]].concat();
    given::insert(store, &all, &executions).await?;
    let mut reader = store.reader().await?;
    let keys = placement::pending_classes(&mut reader).await?;
    let expected: BTreeSet<_> = [&jobs[0], &jobs[1], &picky]
        .iter()
        .map(|job| job.class_key())
        .collect();
    ensure!(keys.len() == 3 && keys.iter().cloned().collect::<BTreeSet<_>>() == expected);
    let class = placement::pending_class(&mut reader, &picky.class_key()).await?;
    let class = class.context("it is pending")?;
    ensure!(class.handler == "mail" && class.app == app && class.selector == picky.selector);
    ensure!(
        placement::pending_class(&mut reader, "no such class")
            .await?
            .is_none()
    );
    let of_ids = placement::classes_of(&mut reader, &executions.each_ref().map(|row| row.id)).await?;
    ensure!(of_ids.len() == 4);
    Ok(())
}

async fn pending_executions_are_locked_by_rank(store: &TestStore) -> Result<()> {
    let job = given::job();
    let ranks = [30, 10, 20, 10];
    let rows: Vec<_> = (0..)
        .zip(ranks)
        .map(|(shard, rank_time)| ExecutionRow {
            shard,
            rank_time,
            ..given::execution(&job, ExecutionStatus::Pending)
        })
        .collect();
    given::insert(store, std::slice::from_ref(&job), &rows).await?;
    let mut tx = store.begin().await?;
    let line = placement::lock_pending(&mut tx, &job.class_key(), PLANNED, 3).await?;
    let order: Vec<_> = line.iter().map(|waiting| waiting.id).collect();
    assert_eq!(order, [rows[1].id, rows[3].id, rows[2].id]);
    ensure!(
        placement::lock_pending(&mut tx, "no such class", PLANNED, 3)
            .await?
            .is_empty()
    );
    Ok(())
}

async fn what_is_cancelled_or_expired_is_not_placed(store: &TestStore) -> Result<()> {
    let job = given::job();
    let pending = |shard: u32| ExecutionRow {
        shard,
        ..given::execution(&job, ExecutionStatus::Pending)
    };
    let cancelled = ExecutionRow {
        cancel_requested_at: Some(PLANNED),
        ..pending(0)
    };
    let expired = ExecutionRow {
        start_deadline_at: Some(PLANNED),
        ..pending(1)
    };
    let in_time = ExecutionRow {
        start_deadline_at: Some(PLANNED + Duration::from_millis(1)),
        ..pending(2)
    };
    let started_in_time = ExecutionRow {
        start_deadline_at: Some(PLANNED - SECOND),
        attempt: 1,
        ..pending(3)
    };
    let only_interrupted = ExecutionRow {
        start_deadline_at: Some(PLANNED - SECOND),
        attempt: 2,
        interruptions: 2,
        ..pending(4)
    };
    let rows = [cancelled, expired, in_time, started_in_time, only_interrupted];
    given::insert(store, std::slice::from_ref(&job), &rows).await?;
    let mut tx = store.begin().await?;
    let line = placement::lock_pending(&mut tx, &job.class_key(), PLANNED, 10).await?;
    let placed: Vec<_> = line.iter().map(|waiting| waiting.id).collect();
    assert_eq!(placed, [rows[2].id, rows[3].id]);
    Ok(())
}

async fn two_leaders_never_lock_the_same_execution(store: &TestStore) -> Result<()> {
    if store.dialect() == Dialect::Sqlite {
        let open = store.begin().await?;
        let second = tokio::time::timeout(Duration::from_millis(100), store.begin()).await;
        ensure!(second.is_err(), "two transactions write at once");
        drop(open);
        return Ok(());
    }
    let job = given::job();
    let rows: Vec<_> = (0..10)
        .map(|shard| ExecutionRow {
            shard,
            ..given::execution(&job, ExecutionStatus::Pending)
        })
        .collect();
    given::insert(store, std::slice::from_ref(&job), &rows).await?;
    let (mut first, mut second) = (store.begin().await?, store.begin().await?);
    let mine = placement::lock_pending(&mut first, &job.class_key(), PLANNED, 4).await?;
    let theirs = placement::lock_pending(&mut second, &job.class_key(), PLANNED, 10).await?;
    let both: BTreeSet<_> = mine.iter().chain(&theirs).map(|waiting| waiting.id).collect();
    ensure!(mine.len() == 4 && theirs.len() == 6 && both.len() == 10);
    Ok(())
}

const HANDOVER: Handover = Handover {
    epoch: 7,
    placed_at: PLANNED,
    not_after: EpochMillis(PLANNED.0 + 15_000),
};

fn placed(row: &ExecutionRow, worker: &str) -> Result<Placed> {
    Ok(Placed {
        claim: Claim {
            execution: row.id,
            dispatch_seq: row.dispatch_seq + 1,
        },
        worker: WorkerId::parse(worker)?,
        incarnation: IncarnationId::generate(),
    })
}

async fn placing_writes_the_handover(store: &TestStore) -> Result<()> {
    let job = given::job();
    let again = ExecutionRow {
        shard: 1,
        dispatch_seq: 3,
        attempt: 1,
        ..given::execution(&job, ExecutionStatus::Pending)
    };
    let rows = [given::execution(&job, ExecutionStatus::Pending), again];
    given::insert(store, &[job], &rows).await?;
    let decided = [placed(&rows[0], "worker-a")?, placed(&rows[1], "worker-b")?];
    let mut tx = store.begin().await?;
    placement::place(&mut tx, &decided, HANDOVER).await?;
    tx.commit().await?;
    let mut reader = store.reader().await?;
    for (row, placed) in rows.iter().zip(&decided) {
        let expected = ExecutionRow {
            status: ExecutionStatus::Dispatched,
            dispatch_seq: row.dispatch_seq + 1,
            worker: Some(placed.worker.clone()),
            incarnation: Some(placed.incarnation),
            epoch: Some(HANDOVER.epoch),
            not_after: Some(HANDOVER.not_after),
            dispatched_at: Some(HANDOVER.placed_at),
            ..row.clone()
        };
        assert_eq!(executions::get(&mut reader, row.id).await?, Some(expected));
    }
    Ok(())
}

async fn placing_what_is_not_pending_is_refused_whole(store: &TestStore) -> Result<()> {
    let job = given::job();
    let running = ExecutionRow {
        shard: 1,
        ..given::execution(&job, ExecutionStatus::Running)
    };
    let pending = given::execution(&job, ExecutionStatus::Pending);
    given::insert(store, &[job], &[pending.clone(), running.clone()]).await?;
    let skipped_one = Placed {
        claim: Claim {
            execution: pending.id,
            dispatch_seq: 2,
        },
        ..placed(&pending, "worker-a")?
    };
    for wrong in [placed(&running, "worker-a")?, skipped_one] {
        let mut tx = store.begin().await?;
        let refused = placement::place(&mut tx, &[wrong], HANDOVER).await;
        ensure!(matches!(refused, Err(StoreError::Corrupt(_))), "{refused:?}");
    }
    Ok(())
}

async fn orders_carry_the_params_of_the_execution_or_of_its_job(store: &TestStore) -> Result<()> {
    let json = |text: &str| RawJson::parse(text.to_owned());
    let job = JobRow {
        params: json(r#"{"of":"job","n":12345678901234567890123}"#)?,
        shards: 2,
        priority: 8,
        ..given::job()
    };
    let own = ExecutionRow {
        shard: 1,
        params: Some(json(r#"{"of":"execution","n":1.10}"#)?),
        ..given::execution(&job, ExecutionStatus::Dispatched)
    };
    let rows = [given::execution(&job, ExecutionStatus::Dispatched), own];
    given::insert(store, std::slice::from_ref(&job), &rows).await?;
    let mut reader = store.reader().await?;
    let mut orders = placement::orders(&mut reader, &rows.each_ref().map(|row| row.id)).await?;
    orders.sort_by_key(|order| order.shard);
    ensure!(orders[0].params == job.params && Some(&orders[1].params) == rows[1].params.as_ref());
    for (order, row) in orders.iter().zip(&rows) {
        ensure!(order.claim == row.claim() && order.job == job.id && order.app == job.app);
        ensure!(order.job_name == job.name && order.shards == 2 && order.priority == 8);
    }
    Ok(())
}
