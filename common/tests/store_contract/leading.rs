//! The leader's statements: what is due, who gets it, who owns it.

use anyhow::{Context, Result, ensure};
use isocost_common::{
    execution::{Claim, ExecutionStatus},
    id::{AppId, ExecutionId, IncarnationId, WorkerId},
    job::{JobStatus, Selector},
    raw_json::RawJson,
    store::{
        Dialect, StoreError,
        claim::{self, Advance, Agenda},
        executions::{self, ExecutionRow},
        jobs::{self, JobRow},
        placement::{self, Handover, Placed},
        recovery,
        workers::{self, WorkerRow, WorkerStatus},
    },
    store_tests,
    test_support::{
        TestStore,
        given::{self, PLANNED},
    },
    time::EpochMillis,
};
use std::{
    collections::{BTreeSet, HashSet},
    time::Duration,
};

store_tests! {
    due_jobs_are_locked_oldest_first,
    two_leaders_never_lock_the_same_job,
    a_job_that_cannot_be_read_does_not_hold_up_the_others,
    advancing_writes_each_job_its_own,
    advancing_a_job_that_changed_is_refused_whole,
    the_agenda_names_the_earliest_of_each_kind,
    an_empty_agenda_has_nothing,
    open_executions_and_standing_firings_are_found,
    each_pending_class_is_named_once,
    pending_executions_are_locked_by_rank,
    what_is_cancelled_or_expired_is_not_placed,
    two_leaders_never_lock_the_same_execution,
    placing_writes_the_handover,
    placing_what_is_not_pending_is_refused_whole,
    orders_carry_the_params_of_the_execution_or_of_its_job,
    what_is_owned_comes_with_the_status_of_its_owner,
    standings_and_cancel_requests_are_read,
    a_worker_is_registered_once_and_refreshed,
    the_end_of_an_incarnation_is_final,
    after_a_restart_everybody_before_is_dead,
    the_newest_incarnation_speaks_for_its_worker,
}

const SECOND: Duration = Duration::from_secs(1);

fn due_at(at: EpochMillis) -> JobRow {
    JobRow {
        next_trigger_time: Some(at),
        ..given::job()
    }
}

fn ids(due: &[claim::DueJob]) -> Vec<&str> {
    due.iter().map(|job| job.id.as_str()).collect()
}

async fn due_jobs_are_locked_oldest_first(store: &TestStore) -> Result<()> {
    let late = due_at(PLANNED);
    let later = due_at(PLANNED - SECOND);
    let latest = due_at(PLANNED - 2 * SECOND);
    let not_yet = due_at(PLANNED + Duration::from_millis(1));
    let paused = JobRow {
        status: JobStatus::Paused,
        ..due_at(PLANNED - SECOND)
    };
    let unplanned = JobRow {
        next_trigger_time: None,
        ..given::job()
    };
    let rows = [
        late.clone(),
        later.clone(),
        latest.clone(),
        not_yet,
        paused,
        unplanned,
    ];
    given::insert(store, &rows, &[]).await?;
    let mut tx = store.begin().await?;
    let due = claim::lock_due(&mut tx, PLANNED, 10).await?;
    ensure!(ids(&due) == [latest.id.to_string(), later.id.to_string(), late.id.to_string()]);
    ensure!(due[2].job.as_ref() == Ok(&late) && due[2].version == late.version);
    let first = claim::lock_due(&mut tx, PLANNED, 1).await?;
    ensure!(ids(&first) == [latest.id.to_string()]);
    Ok(())
}

async fn two_leaders_never_lock_the_same_job(store: &TestStore) -> Result<()> {
    let rows: Vec<_> = (0..20).map(|_| due_at(PLANNED)).collect();
    given::insert(store, &rows, &[]).await?;
    let mut first = store.begin().await?;
    let mine = claim::lock_due(&mut first, PLANNED, 8).await?;
    ensure!(mine.len() == 8);
    if store.dialect() == Dialect::Sqlite {
        // Nobody else gets as far while the transaction is open.
        let second = tokio::time::timeout(Duration::from_millis(100), store.begin()).await;
        ensure!(second.is_err(), "two transactions write at once");
        return Ok(());
    }
    let mut second = store.begin().await?;
    let theirs = claim::lock_due(&mut second, PLANNED, 20).await?;
    let both: BTreeSet<_> = ids(&mine).into_iter().chain(ids(&theirs)).collect();
    ensure!(
        theirs.len() == 12 && both.len() == 20,
        "{} and {} overlap",
        mine.len(),
        theirs.len()
    );
    Ok(())
}

async fn a_job_that_cannot_be_read_does_not_hold_up_the_others(store: &TestStore) -> Result<()> {
    let (bad, good) = (due_at(PLANNED - SECOND), due_at(PLANNED));
    given::insert(store, &[bad.clone(), good.clone()], &[]).await?;
    let mut tx = store.begin().await?;
    sqlx::query("update job_info set trigger_spec = '{\"type\":\"lunar\"}' where id = ?")
        .bind(bad.id.to_string())
        .execute(&mut *tx)
        .await?;
    let due = claim::lock_due(&mut tx, PLANNED, 10).await?;
    ensure!(
        due[0].job.as_ref().is_err_and(|reason| reason.contains("lunar")),
        "{:?}",
        due[0].job
    );
    ensure!(due[1].job.as_ref() == Ok(&good));
    Ok(())
}

fn advance_of(job: &JobRow) -> Advance {
    Advance {
        id: job.id.to_string(),
        version: job.version,
        next_trigger_time: None,
        status: JobStatus::Waiting,
        invalid_reason: None,
    }
}

async fn advancing_writes_each_job_its_own(store: &TestStore) -> Result<()> {
    let rows = [due_at(PLANNED), due_at(PLANNED), due_at(PLANNED)];
    given::insert(store, &rows, &[]).await?;
    let now = PLANNED + SECOND;
    let next = PLANNED + 60 * SECOND;
    let advances = [
        Advance {
            next_trigger_time: Some(next),
            ..advance_of(&rows[0])
        },
        advance_of(&rows[1]),
        Advance {
            status: JobStatus::Invalid,
            invalid_reason: Some("the zone is gone".into()),
            ..advance_of(&rows[2])
        },
    ];
    let mut tx = store.begin().await?;
    claim::advance(&mut tx, &advances, now).await?;
    tx.commit().await?;
    let mut reader = store.reader().await?;
    let mut expected = rows.clone();
    for job in &mut expected {
        job.next_trigger_time = None;
        job.version += 1;
        job.updated_at = now;
    }
    expected[0].next_trigger_time = Some(next);
    expected[2].status = JobStatus::Invalid;
    expected[2].invalid_reason = Some("the zone is gone".into());
    for job in &expected {
        assert_eq!(jobs::get(&mut reader, job.id).await?.as_ref(), Some(job));
    }
    Ok(())
}

async fn advancing_a_job_that_changed_is_refused_whole(store: &TestStore) -> Result<()> {
    let rows = [due_at(PLANNED), due_at(PLANNED)];
    given::insert(store, &rows, &[]).await?;
    let outdated = Advance {
        version: rows[1].version - 1,
        ..advance_of(&rows[1])
    };
    let mut tx = store.begin().await?;
    let refused = claim::advance(&mut tx, &[advance_of(&rows[0]), outdated], PLANNED).await;
    ensure!(matches!(refused, Err(StoreError::Corrupt(_))), "{refused:?}");
    drop(tx);
    let mut tx = store.begin().await?;
    ensure!(jobs::get(&mut tx, rows[0].id).await?.as_ref() == Some(&rows[0]));
    Ok(())
}

async fn the_agenda_names_the_earliest_of_each_kind(store: &TestStore) -> Result<()> {
    let jobs = [due_at(PLANNED + 5 * SECOND), due_at(PLANNED + 3 * SECOND)];
    let with = |shard: u32, status: ExecutionStatus, not_before: u32, deadline: Option<u32>| ExecutionRow {
        shard,
        not_before: PLANNED + not_before * SECOND,
        start_deadline_at: deadline.map(|seconds| PLANNED + seconds * SECOND),
        ..given::execution(&jobs[0], status)
    };
    let executions = [
        with(0, ExecutionStatus::Scheduled, 9, Some(40)),
        with(1, ExecutionStatus::Scheduled, 7, None),
        with(2, ExecutionStatus::Pending, 1, Some(30)),
        with(3, ExecutionStatus::Blocked, 1, Some(20)),
        // Started once: its deadline has been met.
        ExecutionRow {
            attempt: 1,
            ..with(4, ExecutionStatus::Pending, 1, Some(10))
        },
        with(5, ExecutionStatus::Running, 1, Some(10)),
    ];
    given::insert(store, &jobs, &executions).await?;
    let mut reader = store.reader().await?;
    let agenda = claim::agenda(&mut reader).await?;
    let expected = Agenda {
        next_trigger: Some(PLANNED + 3 * SECOND),
        next_not_before: Some(PLANNED + 7 * SECOND),
        next_deadline: Some(PLANNED + 20 * SECOND),
    };
    assert_eq!(agenda, expected);
    assert_eq!(agenda.earliest(), expected.next_trigger);
    let due = claim::due_executions(&mut reader, PLANNED + 8 * SECOND, 10).await?;
    assert_eq!(due, [executions[1].id]);
    let expired: HashSet<_> = claim::past_start_deadline(&mut reader, PLANNED + 30 * SECOND, 10)
        .await?
        .into_iter()
        .collect();
    assert_eq!(expired, HashSet::from([executions[2].id, executions[3].id]));
    Ok(())
}

async fn an_empty_agenda_has_nothing(store: &TestStore) -> Result<()> {
    let mut reader = store.reader().await?;
    assert_eq!(claim::agenda(&mut reader).await?, Agenda::default());
    ensure!(placement::pending_classes(&mut reader).await?.is_empty());
    ensure!(recovery::owned(&mut reader).await?.is_empty());
    let mut tx = store.begin().await?;
    ensure!(claim::lock_due(&mut tx, PLANNED, 500).await?.is_empty());
    claim::advance(&mut tx, &[], PLANNED).await?;
    Ok(())
}

async fn open_executions_and_standing_firings_are_found(store: &TestStore) -> Result<()> {
    let jobs = [given::job(), given::job(), given::job()];
    let by_hand = ExecutionRow {
        trigger_key: "by hand".into(),
        ..given::execution(&jobs[2], ExecutionStatus::Blocked)
    };
    let executions = [
        given::execution(&jobs[0], ExecutionStatus::Running),
        given::execution(&jobs[1], ExecutionStatus::Succeeded),
        by_hand,
    ];
    given::insert(store, &jobs, &executions).await?;
    let ids = jobs.each_ref().map(|job| job.id);
    let mut reader = store.reader().await?;
    let open = claim::with_open_executions(&mut reader, &ids).await?;
    assert_eq!(open, HashSet::from([ids[0], ids[2]]));
    let standing = claim::standing_firings(&mut reader, &ids, PLANNED).await?;
    assert_eq!(standing, HashSet::from([(ids[0], PLANNED), (ids[1], PLANNED)]));
    let later = PLANNED + Duration::from_millis(1);
    ensure!(
        claim::standing_firings(&mut reader, &ids, later)
            .await?
            .is_empty()
    );
    Ok(())
}

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
