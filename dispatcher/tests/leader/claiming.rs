use crate::world::{SOON, World};
use isocost_common::{
    execution::ExecutionStatus as S,
    id::JobId,
    job::{ConcurrencyPolicy, JobStatus, Misfire, MisfirePolicy, ParentOutcome, Trigger},
    schedule::CronDialect,
    store::{epoch, executions::rank_time, jobs::JobRow},
    test_support::{TestStore, eventually, given},
    time::EpochMillis,
};
use std::{collections::HashSet, time::Duration};

async fn a_due_job_runs_once_and_ends(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let mut worker = world.worker("a", "noop", 4).await?;
    let job = world.due_job("noop");
    world.submit(std::slice::from_ref(&job)).await?;
    let execution = worker.next().await?;
    assert_eq!(
        (execution.job, execution.attempt, execution.claim.dispatch_seq),
        (job.id, 1, 1)
    );
    worker.started(&execution).await?;
    worker.finished(&execution).await?;
    let rows = world.until(job.id, &[S::Succeeded]).await?;
    assert_eq!(
        (rows[0].attempt, rows[0].scheduled_time),
        (1, execution.scheduled_time)
    );
    let job = world.until_job(job.id, JobStatus::Success).await?;
    assert_eq!(job.next_trigger_time, None);
    dispatcher.stop().await
}

async fn du02_a_thousand_jobs_due_at_one_instant_fire_once_each(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatchers = [world.start_dispatcher(), world.start_dispatcher()];
    let mut worker = world.worker("a", "noop", 2_000).await?;
    let jobs = world.due_jobs("noop", 1_000);
    world.submit(&jobs).await?;
    let executions = worker.next_many(1_000).await?;
    let fired: HashSet<JobId> = executions.iter().map(|execution| execution.job).collect();
    assert_eq!(fired, jobs.iter().map(|job| job.id).collect());
    worker.gets_nothing().await?;
    assert_eq!(world.count("select count(*) from job_execution").await?, 1_000);
    assert_eq!(world.count("select count(*) from job_log").await?, 1_000);
    for dispatcher in dispatchers {
        dispatcher.stop().await?;
    }
    Ok(())
}

async fn cr13_jobs_that_cannot_be_evaluated_become_invalid_and_hold_nobody_up(
    store: &TestStore,
) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let healthy = world.due_jobs("noop", 20);
    let cron = |expr: &str, time_zone: &str| JobRow {
        next_trigger_time: Some(world.store.now()),
        ..given::job_with(Trigger::Cron {
            expr: expr.into(),
            time_zone: time_zone.into(),
            dialect: CronDialect::Quartz,
        })
    };
    let (no_cron, no_zone) = (cron("", "UTC"), cron("0 0 12 * * ?", "Mars/Olympus"));
    let (unreadable, broken_params) = (cron("0 0 12 * * ?", "UTC"), world.due_job("noop"));
    let broken = [no_cron, no_zone, unreadable, broken_params];
    given::insert(&world.store, &healthy, &[]).await?;
    given::insert(&world.store, &broken, &[]).await?;
    let spoil = "update job_info set trigger_spec = '{' where id = ?";
    world.execute(spoil, &[broken[2].id.to_string()]).await?;
    let spoil = "update job_info set retry_backoff = 77 where id = ?";
    world.execute(spoil, &[broken[3].id.to_string()]).await?;
    let dispatcher = world.start_dispatcher();
    let mut worker = world.worker("a", "noop", 100).await?;
    worker.next_many(20).await?;
    eventually("the broken jobs are invalid", SOON, async || {
        let invalid = "select count(*) from job_info where status = 7 and invalid_reason <> ''
                         and next_trigger_time is null";
        Ok((world.count(invalid).await? == 4).then_some(()))
    })
    .await?;
    worker.gets_nothing().await?;
    dispatcher.stop().await
}

async fn an_instant_long_before_the_submission_gives_no_precedence(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let submitted = world.store.now();
    let last_year = EpochMillis(submitted.0 - 365 * 86_400_000);
    let job = JobRow {
        trigger: Trigger::Once { at: last_year },
        next_trigger_time: Some(last_year),
        created_at: submitted,
        ..world.due_job("noop")
    };
    let dispatcher = world.start_dispatcher();
    world.submit(std::slice::from_ref(&job)).await?;
    let [execution] = &world.until(job.id, &[S::Pending]).await?[..] else {
        anyhow::bail!("not one execution");
    };
    assert_eq!(execution.scheduled_time, last_year);
    assert_eq!(execution.rank_time, rank_time(submitted, job.priority));
    dispatcher.stop().await
}

async fn cr13_a_row_without_a_next_time_is_planned_or_becomes_invalid(
    store: &TestStore,
) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let cron = |expr: &str| {
        given::job_with(Trigger::Cron {
            expr: expr.into(),
            time_zone: "UTC".into(),
            dialect: CronDialect::Quartz,
        })
    };
    let (planned, broken, unreadable) = (cron("* * * * * ?"), cron("no cron"), cron("* * * * * ?"));
    let jobs = [planned.clone(), broken.clone(), unreadable.clone()];
    given::insert(&world.store, &jobs, &[]).await?;
    let spoil = "update job_info set trigger_spec = '{' where id = ?";
    world.execute(spoil, &[unreadable.id.to_string()]).await?;
    let dispatcher = world.start_dispatcher();
    let mut worker = world.worker("a", "noop", 4).await?;
    assert_eq!(worker.next().await?.job, planned.id);
    for job in [&broken, &unreadable] {
        let job = world.until_job(job.id, JobStatus::Invalid).await?;
        assert!(job.invalid_reason.is_some(), "{job:?}");
    }
    dispatcher.stop().await
}

async fn followers_of_a_job_that_completes_without_a_run_are_cancelled(
    store: &TestStore,
) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let long_ago = world.store.now() - Duration::from_secs(86_400);
    let parent = JobRow {
        next_trigger_time: Some(long_ago),
        end_at: Some(long_ago + Duration::from_secs(60)),
        misfire: Misfire {
            policy: MisfirePolicy::Skip,
            max_catch_up: 1,
        },
        ..given::job_with(Trigger::FixedRate {
            every_ms: 1_000,
            anchor: long_ago,
        })
    };
    let child = JobRow {
        app: parent.app,
        ..given::job_with(Trigger::After {
            job_id: parent.id,
            on: ParentOutcome::Any,
        })
    };
    let dispatcher = world.start_dispatcher();
    world.submit(&[parent.clone(), child.clone()]).await?;
    world.until_job(parent.id, JobStatus::Completed).await?;
    let child = world.until_job(child.id, JobStatus::Cancelled).await?;
    let reason = child.invalid_reason.unwrap_or_default();
    assert!(reason.contains("COMPLETED"), "{reason}");
    dispatcher.stop().await
}

async fn a_recurring_job_is_armed_for_its_next_instant(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let mut worker = world.worker("a", "noop", 4).await?;
    let now = world.store.now();
    let job = JobRow {
        next_trigger_time: Some(now),
        ..given::job_with(Trigger::FixedRate {
            every_ms: 300,
            anchor: now,
        })
    };
    world.submit(std::slice::from_ref(&job)).await?;
    for firing in 0..3 {
        let execution = worker.next().await?;
        assert_eq!(
            execution.scheduled_time,
            now + Duration::from_millis(300 * firing)
        );
        assert!(
            world.store.now() >= execution.scheduled_time,
            "fired before its time"
        );
        worker.finished(&execution).await?;
    }
    let stored = world.job(job.id).await?;
    assert_eq!(stored.status, JobStatus::Waiting);
    assert!(stored.next_trigger_time > Some(now + Duration::from_millis(600)));
    dispatcher.stop().await
}

async fn missed_firings_that_a_policy_leaves_out_are_recorded(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let long_ago = world.store.now() - Duration::from_secs(14 * 86_400);
    let job = JobRow {
        next_trigger_time: Some(long_ago),
        misfire: Misfire {
            policy: MisfirePolicy::Skip,
            max_catch_up: 1,
        },
        ..given::job_with(Trigger::FixedRate {
            every_ms: 3_600_000,
            anchor: long_ago,
        })
    };
    given::insert(&world.store, std::slice::from_ref(&job), &[]).await?;
    let dispatcher = world.start_dispatcher();
    eventually("the job is armed anew", SOON, async || {
        let next = world.job(job.id).await?.next_trigger_time;
        Ok((next > Some(world.store.now())).then_some(()))
    })
    .await?;
    assert_eq!(world.executions(job.id).await?, []);
    let recorded =
        "select count(*) from job_log where execution_id is null and message like 'firings missed%'";
    assert_eq!(world.count(recorded).await?, 1);
    dispatcher.stop().await
}

/// What a missed firing stands for is recorded nowhere else.
async fn a_missed_firing_that_has_to_wait_is_recorded_as_missed(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let long_ago = world.store.now() - Duration::from_secs(2 * 3_600);
    let job = JobRow {
        next_trigger_time: Some(long_ago),
        misfire: Misfire {
            policy: MisfirePolicy::CatchUp,
            max_catch_up: 2,
        },
        concurrency: ConcurrencyPolicy::Serial,
        ..given::job_with(Trigger::FixedRate {
            every_ms: 3_600_000,
            anchor: long_ago,
        })
    };
    given::insert(&world.store, std::slice::from_ref(&job), &[]).await?;
    let dispatcher = world.start_dispatcher();
    world.until(job.id, &[S::Pending, S::Blocked]).await?;
    let recorded = "select count(*) from job_log where from_status is null and message like 'missed;%'";
    assert_eq!(world.count(recorded).await?, 2);
    dispatcher.stop().await
}

async fn a_recurring_job_with_nothing_left_to_fire_is_completed(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let long_ago = world.store.now() - Duration::from_secs(86_400);
    let ended = JobRow {
        next_trigger_time: Some(long_ago),
        end_at: Some(long_ago + Duration::from_secs(1)),
        misfire: Misfire {
            policy: MisfirePolicy::Skip,
            max_catch_up: 1,
        },
        ..given::job_with(Trigger::FixedRate {
            every_ms: 1_000,
            anchor: long_ago,
        })
    };
    let still_running = JobRow {
        id: JobId::generate(),
        ..ended.clone()
    };
    let open = given::execution(&still_running, S::Pending);
    given::insert(&world.store, &[ended.clone(), still_running.clone()], &[open]).await?;
    let dispatcher = world.start_dispatcher();
    world.until_job(ended.id, JobStatus::Completed).await?;
    let running = world.job(still_running.id).await?;
    assert_eq!(
        (running.status, running.next_trigger_time),
        (JobStatus::Waiting, None)
    );
    dispatcher.stop().await
}

async fn a_serial_job_takes_turns_and_a_discarding_one_skips(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let mut worker = world.worker("a", "noop", 100).await?;
    let now = world.store.now();
    let twice = |concurrency| JobRow {
        next_trigger_time: Some(now),
        end_at: Some(now + Duration::from_millis(1)),
        concurrency,
        ..given::job_with(Trigger::FixedRate {
            every_ms: 1,
            anchor: now,
        })
    };
    let (serial, discard) = (
        twice(ConcurrencyPolicy::Serial),
        twice(ConcurrencyPolicy::Discard),
    );
    world.submit(&[serial.clone(), discard.clone()]).await?;
    world.until(serial.id, &[S::Dispatched, S::Blocked]).await?;
    world.until(discard.id, &[S::Dispatched, S::Skipped]).await?;
    for execution in worker.next_many(2).await? {
        worker.finished(&execution).await?;
    }
    let second = worker.next().await?;
    assert_eq!(second.job, serial.id);
    worker.finished(&second).await?;
    world.until(serial.id, &[S::Succeeded, S::Succeeded]).await?;
    world.until_job(serial.id, JobStatus::Completed).await?;
    world.until_job(discard.id, JobStatus::Completed).await?;
    dispatcher.stop().await
}

async fn every_shard_is_an_execution_of_its_own(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let mut worker = world.worker("a", "noop", 10).await?;
    let job = JobRow {
        shards: 3,
        concurrency: ConcurrencyPolicy::Discard,
        ..world.due_job("noop")
    };
    world.submit(std::slice::from_ref(&job)).await?;
    let executions = worker.next_many(3).await?;
    let shards: HashSet<(u32, u32)> = executions.iter().map(|it| (it.shard, it.shards)).collect();
    assert_eq!(shards, HashSet::from([(0, 3), (1, 3), (2, 3)]));
    dispatcher.stop().await
}

async fn an_execution_that_nobody_starts_before_its_deadline_expires(
    store: &TestStore,
) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let job = JobRow {
        start_deadline_ms: Some(200),
        ..world.due_job("nobody-offers-this")
    };
    world.submit(std::slice::from_ref(&job)).await?;
    let rows = world.until(job.id, &[S::Expired]).await?;
    assert!(rows[0].finished_at >= rows[0].start_deadline_at);
    world.until_job(job.id, JobStatus::Failed).await?;
    dispatcher.stop().await
}

async fn a_firing_that_stands_already_is_not_made_again_and_holds_nobody_up(
    store: &TestStore,
) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let jobs = world.due_jobs("noop", 3);
    let standing = isocost_common::store::executions::ExecutionRow {
        scheduled_time: jobs[1].next_trigger_time.unwrap_or(given::PLANNED),
        ..given::execution(&jobs[1], S::Succeeded)
    };
    given::insert(&world.store, &jobs, &[standing]).await?;
    let dispatcher = world.start_dispatcher();
    let mut worker = world.worker("a", "noop", 10).await?;
    let fired: HashSet<JobId> = worker.next_many(2).await?.iter().map(|it| it.job).collect();
    assert_eq!(fired, HashSet::from([jobs[0].id, jobs[2].id]));
    assert_eq!(world.executions(jobs[1].id).await?.len(), 1);
    dispatcher.stop().await
}

/// With the guard taken out of the claim's transaction, the old leader goes on placing under its own epoch.
async fn a_leader_of_an_older_epoch_writes_nothing(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let mut worker = world.worker("a", "noop", 10).await?;
    world.submit(&[world.due_job("noop")]).await?;
    let first = worker.next().await?;
    let newer = epoch::begin(&world.store, "somebody else").await?;
    assert!(newer > first.epoch);
    let job = world.due_job("noop");
    world.submit(std::slice::from_ref(&job)).await?;
    // It stands for election again and places the job as the leader of an epoch after that one.
    let rows = world.until(job.id, &[S::Dispatched]).await?;
    assert!(
        rows[0].epoch > Some(newer),
        "{:?} is not after {newer}",
        rows[0].epoch
    );
    dispatcher.stop().await
}

async fn a_leader_whose_clock_drifts_away_gives_its_office_up(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let terms = async |terms: i64| {
        eventually("a term begins", SOON, async || {
            let sql = "select epoch from leader_epoch where epoch >= ?";
            let mut reader = store.reader().await?;
            let begun: Option<i64> = sqlx::query_scalar(sql)
                .bind(terms)
                .fetch_optional(&mut *reader)
                .await?;
            Ok(begun)
        })
        .await
    };
    let first = terms(1).await?;
    // Within a second or so a pass of the leader sees it; whoever leads next measures anew.
    world.store.pretend_clock_offset_ms(5_001);
    terms(first + 1).await?;
    dispatcher.stop().await
}

/// A database that answers and lets nothing be done: locked tables, missing rights, a full disk.
async fn a_leader_that_gets_nothing_done_is_not_ready(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let mut worker = world.worker("a", "noop", 1).await?;
    let leader = async |ready: bool| {
        eventually(
            "the readiness of the leader is as expected",
            2 * SOON,
            async || {
                let report = world.readiness.report().await;
                let leader = report.checks.iter().find(|check| check.name == "leader");
                Ok(leader.filter(|check| check.ready == ready).map(drop))
            },
        )
        .await
    };
    leader(true).await?;
    world.execute("alter table job_info rename to moved", &[]).await?;
    leader(false).await?;
    world.execute("alter table moved rename to job_info", &[]).await?;
    leader(true).await?;
    world.submit(&world.due_jobs("noop", 1)).await?;
    worker.next().await?;
    dispatcher.stop().await
}

isocost_common::store_tests! {
    a_due_job_runs_once_and_ends,
    du02_a_thousand_jobs_due_at_one_instant_fire_once_each,
    cr13_jobs_that_cannot_be_evaluated_become_invalid_and_hold_nobody_up,
    an_instant_long_before_the_submission_gives_no_precedence,
    cr13_a_row_without_a_next_time_is_planned_or_becomes_invalid,
    followers_of_a_job_that_completes_without_a_run_are_cancelled,
    a_recurring_job_is_armed_for_its_next_instant,
    missed_firings_that_a_policy_leaves_out_are_recorded,
    a_missed_firing_that_has_to_wait_is_recorded_as_missed,
    a_recurring_job_with_nothing_left_to_fire_is_completed,
    a_serial_job_takes_turns_and_a_discarding_one_skips,
    every_shard_is_an_execution_of_its_own,
    an_execution_that_nobody_starts_before_its_deadline_expires,
    a_firing_that_stands_already_is_not_made_again_and_holds_nobody_up,
    a_leader_of_an_older_epoch_writes_nothing,
    a_leader_whose_clock_drifts_away_gives_its_office_up,
    a_leader_that_gets_nothing_done_is_not_ready,
}
