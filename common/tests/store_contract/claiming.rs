//! The claim's statements: what is due, and what becomes of it.

use anyhow::{Context, Result, ensure};
use isocost_common::{
    execution::ExecutionStatus,
    job::{ConcurrencyPolicy, JobStatus},
    store::{
        Dialect, StoreError, Tx,
        claim::{self, Advance, Agenda, DueRow},
        executions::ExecutionRow,
        jobs::{self, JobRow},
        placement, recovery,
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
    slots_of_due_jobs_are_locked_with_them,
    a_job_that_cannot_be_read_does_not_hold_up_the_others,
    advancing_writes_each_job_its_own,
    advancing_a_job_that_changed_is_refused_whole,
    the_agenda_names_the_earliest_of_each_kind,
    an_empty_agenda_has_nothing,
    open_executions_and_standing_firings_are_found,
}

const SECOND: Duration = Duration::from_secs(1);

fn due_at(at: EpochMillis) -> JobRow {
    JobRow {
        next_trigger_time: Some(at),
        ..given::job()
    }
}

async fn lock_due(tx: &mut Tx, limit: u32) -> Result<Vec<DueRow>> {
    let (due, _) = claim::lock_due(tx, PLANNED, limit).await?;
    Ok(due)
}

fn ids(due: &[DueRow]) -> Vec<&str> {
    due.iter().map(|row| row.id.as_str()).collect()
}

/// True when the locked row says what the job says.
fn is_of(row: &DueRow, job: &JobRow) -> bool {
    row.version == job.version
        && row.job.as_ref().is_ok_and(|due| {
            due.id == job.id
                && Some(due.due) == job.next_trigger_time
                && due.trigger == job.trigger
                && due.params == job.params
                && due.class_key == job.class_key()
                && due.slot_key == job.slot_key()
        })
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
    let due = lock_due(&mut tx, 10).await?;
    ensure!(ids(&due) == [latest.id.to_string(), later.id.to_string(), late.id.to_string()]);
    ensure!(is_of(&due[2], &late));
    let first = lock_due(&mut tx, 1).await?;
    ensure!(ids(&first) == [latest.id.to_string()]);
    Ok(())
}

async fn two_leaders_never_lock_the_same_job(store: &TestStore) -> Result<()> {
    let rows: Vec<_> = (0..20).map(|_| due_at(PLANNED)).collect();
    given::insert(store, &rows, &[]).await?;
    let mut first = store.begin().await?;
    let mine = lock_due(&mut first, 8).await?;
    ensure!(mine.len() == 8);
    if store.dialect() == Dialect::Sqlite {
        // Nobody else gets as far while the transaction is open.
        let second = tokio::time::timeout(Duration::from_millis(100), store.begin()).await;
        ensure!(second.is_err(), "two transactions write at once");
        return Ok(());
    }
    let mut second = store.begin().await?;
    let theirs = lock_due(&mut second, 20).await?;
    let both: BTreeSet<_> = ids(&mine).into_iter().chain(ids(&theirs)).collect();
    ensure!(
        theirs.len() == 12 && both.len() == 20,
        "{} and {} overlap",
        mine.len(),
        theirs.len()
    );
    Ok(())
}

async fn slots_of_due_jobs_are_locked_with_them(store: &TestStore) -> Result<()> {
    let serial = JobRow {
        concurrency: ConcurrencyPolicy::Serial,
        shards: 2,
        ..due_at(PLANNED)
    };
    let shared = JobRow {
        concurrency_key: Some("tenant ".into()),
        ..due_at(PLANNED)
    };
    let (parallel, not_yet) = (due_at(PLANNED), due_at(PLANNED + SECOND));
    given::insert(store, &[serial.clone(), shared.clone(), parallel, not_yet], &[]).await?;
    let mut tx = store.begin().await?;
    let (due, mut slots) = claim::lock_due(&mut tx, PLANNED, 10).await?;
    ensure!(due.len() == 3);
    let (of_job, of_tenant) = (serial.slot_key(), shared.slot_key());
    let of_job = of_job.as_deref().context("a serial job has a slot")?;
    let of_tenant = of_tenant.as_deref().context("a key is a slot")?;
    // Every shard of a firing has a place; a key across jobs has one.
    ensure!(slots.take(of_job) && slots.take(of_job) && !slots.take(of_job));
    ensure!(slots.take(of_tenant) && !slots.take(of_tenant));
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
    let due = lock_due(&mut tx, 10).await?;
    ensure!(
        due[0].job.as_ref().is_err_and(|reason| reason.contains("lunar")),
        "{:?}",
        due[0].job
    );
    ensure!(is_of(&due[1], &good));
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
    ensure!(lock_due(&mut tx, 500).await?.is_empty());
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
