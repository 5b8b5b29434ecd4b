use crate::{
    worker::ScriptedWorker,
    world::{SOON, World},
};
use isocost_common::{
    coordination::HeartbeatAnswer,
    execution::ExecutionStatus as S,
    job::{JobStatus, RetryPolicy},
    message::{ControlAction, ReportEvent},
    store::{executions::ExecutionRow, jobs::JobRow},
    test_support::{TestStore, eventually, given},
};

fn with_attempts(max_attempts: u32, job: JobRow) -> JobRow {
    JobRow {
        retry: RetryPolicy {
            max_attempts,
            initial_ms: 1,
            ..RetryPolicy::default()
        },
        ..job
    }
}

/// Beats until it is given something.
async fn next_while_beating(
    worker: &mut ScriptedWorker,
) -> anyhow::Result<isocost_common::message::DispatchedExecution> {
    eventually("a dispatch comes", SOON, async || {
        worker.beat().await?;
        let next = tokio::time::timeout(std::time::Duration::from_millis(40), worker.next());
        next.await.ok().transpose()
    })
    .await
}

async fn wk08_the_work_of_a_dead_worker_goes_to_another(store: &TestStore) -> anyhow::Result<()> {
    let world = World::new(store);
    let dispatcher = world.start_dispatcher();
    let mut dying = world.worker("a", "noop", 10).await?;
    let jobs = [
        world.due_job("noop"),
        world.due_job("noop"),
        world.due_job("noop"),
    ];
    let jobs = jobs.map(|job| with_attempts(2, job));
    let once = with_attempts(1, world.due_job("noop"));
    world.submit(&jobs).await?;
    world.submit(std::slice::from_ref(&once)).await?;
    for execution in dying.next_many(4).await? {
        if execution.job != jobs[0].id {
            dying.started(&execution).await?;
        }
    }
    world.until(once.id, &[S::Running]).await?;
    let incarnation = dying.incarnation;
    drop(dying);
    let mut other = ScriptedWorker::start(&world, "b", "noop", 10).await?;
    let mut again = Vec::new();
    for _ in 0..3 {
        again.push(next_while_beating(&mut other).await?);
    }
    for execution in &again {
        // Attempts count starts: an unstarted one may have started before its worker died.
        assert_eq!((execution.claim.dispatch_seq, execution.attempt), (2, 2));
    }
    let rows = world.until(once.id, &[S::Lost]).await?;
    let error = rows[0].error.as_ref().map(|error| error.code.as_str());
    assert_eq!(error, Some("worker.lost"));
    world.until_job(once.id, JobStatus::Failed).await?;
    let dead =
        "select count(*) from worker_node where worker_id = 'a' and status = 3 and ended_at is not null";
    assert_eq!(world.count(dead).await?, 1);
    let coordination = world.ports().coordination;
    let ttl = std::time::Duration::from_secs(1);
    assert_eq!(
        coordination.heartbeat(incarnation, "{}", ttl).await?,
        HeartbeatAnswer::Fenced
    );
    dispatcher.stop().await
}

async fn results_that_a_dead_worker_had_confirmed_are_taken_in_first(
    store: &TestStore,
) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let mut dying = world.worker("a", "noop", 20).await?;
    world.submit(&world.due_jobs("noop", 20)).await?;
    let executions = dying.next_many(20).await?;
    dispatcher.stop().await?;
    for execution in &executions {
        dying.finished(execution).await?;
    }
    drop(dying);
    // Its reports are held by another intake, which does nothing with them. Its death is in the table already, so that
    // the next leader could give its work away in its first round.
    let holder = world.hold_results().await?;
    world.execute("update worker_node set status = 3", &[]).await?;
    let dispatcher = world.start_dispatcher();
    let mut other = world.worker("b", "noop", 20).await?;
    other.gets_nothing().await?;
    drop(holder);
    eventually("every result is taken in", SOON, async || {
        let open = world
            .count("select count(*) from job_info where status <> 2")
            .await?;
        Ok((open == 0).then_some(()))
    })
    .await?;
    other.gets_nothing().await?;
    dispatcher.stop().await
}

async fn a_worker_that_says_goodbye_gives_its_work_back_at_once(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let mut leaving = world.worker("a", "noop", 10).await?;
    let job = world.due_job("noop");
    world.submit(std::slice::from_ref(&job)).await?;
    leaving.next().await?;
    let mut other = world.worker("b", "noop", 10).await?;
    leaving.bye().await?;
    let execution = other.next().await?;
    assert_eq!((execution.job, execution.claim.dispatch_seq), (job.id, 2));
    let rows = world.executions(job.id).await?;
    assert_eq!(
        (execution.attempt, rows[0].interruptions),
        (1, 0),
        "it never started, so nothing is counted"
    );
    assert_eq!(
        world
            .count("select count(*) from worker_node where status = 2")
            .await?,
        1
    );
    dispatcher.stop().await
}

/// Rounds of the test below: now and then the leader has entombed the worker before its goodbye comes.
const LATE_GOODBYES: usize = 5;

async fn a_goodbye_after_its_death_does_not_make_a_worker_one_that_left_in_good_order(
    store: &TestStore,
) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    for round in 0..LATE_GOODBYES {
        let handler = format!("noop{round}");
        let mut dead = world.worker(&format!("dead{round}"), &handler, 10).await?;
        let mut beside = world.worker(&format!("beside{round}"), "nothing", 10).await?;
        let job = with_attempts(2, world.due_job(&handler));
        world.submit(std::slice::from_ref(&job)).await?;
        dead.next().await?;
        let row = [dead.incarnation.to_string()];
        world
            .execute("update worker_node set status = 3 where incarnation = ?", &row)
            .await?;
        let row = [beside.incarnation.to_string()];
        world
            .execute(
                "update worker_node set drain_requested = 1 where incarnation = ?",
                &row,
            )
            .await?;
        world.call_for_orders().await;
        // Asked for by the very look at the tables that shows the death.
        let request = beside.next_request().await?;
        assert!(matches!(request, ControlAction::Drain), "{request:?}");
        dead.bye().await?;
        let mut other = world.worker(&format!("other{round}"), &handler, 10).await?;
        let execution = other.next().await?;
        // It may have started there: only the goodbye of one that lived until then proves the contrary.
        assert_eq!((execution.claim.dispatch_seq, execution.attempt), (2, 2));
    }
    let dead = "select count(*) from worker_node where status = 3";
    assert_eq!(world.count(dead).await?, LATE_GOODBYES as i64);
    dispatcher.stop().await
}

async fn a_worker_that_beats_over_one_path_only_is_not_called_dead(store: &TestStore) -> anyhow::Result<()> {
    let world = World::new(store);
    let dispatcher = world.start_dispatcher();
    let mut worker = world.worker("a", "noop", 10).await?;
    let job = world.due_job("noop");
    world.submit(std::slice::from_ref(&job)).await?;
    worker.next().await?;
    let coordination = world.ports().coordination;
    let ttl = std::time::Duration::from_millis(100);
    let until =
        tokio::time::Instant::now() + 6 * std::time::Duration::from_millis(world.config.leases.dead_after_ms);
    let mut beats = tokio::time::interval(std::time::Duration::from_millis(20));
    while tokio::time::Instant::now() < until {
        beats.tick().await;
        assert_eq!(
            coordination.heartbeat(worker.incarnation, "{}", ttl).await?,
            HeartbeatAnswer::Accepted
        );
    }
    assert_eq!(
        world
            .count("select count(*) from worker_node where status = 0")
            .await?,
        1
    );
    world.until(job.id, &[S::Dispatched]).await?;
    dispatcher.stop().await
}

async fn a_consumed_queue_keeps_a_silent_worker_alive_for_three_leases(
    store: &TestStore,
) -> anyhow::Result<()> {
    let world = World::new(store);
    let dispatcher = world.start_dispatcher();
    let worker = world.worker("a", "noop", 10).await?;
    let fell_silent = tokio::time::Instant::now();
    eventually("the worker is dead", SOON, async || {
        let dead = world
            .count("select count(*) from worker_node where status = 3")
            .await?;
        Ok((dead == 1).then_some(()))
    })
    .await?;
    let lease = std::time::Duration::from_millis(world.config.leases.dead_after_ms);
    assert!(
        fell_silent.elapsed() > 3 * lease - lease / 2,
        "{:?}",
        fell_silent.elapsed()
    );
    drop(worker);
    dispatcher.stop().await
}

async fn du10_a_cancel_is_asked_for_until_it_is_done(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let mut worker = world.worker("a", "noop", 10).await?;
    let job = with_attempts(4, world.due_job("noop"));
    world.submit(std::slice::from_ref(&job)).await?;
    let execution = worker.next().await?;
    world
        .execute("update job_execution set cancel_requested_at = 1", &[])
        .await?;
    world.wake().await;
    for _ in 0..2 {
        let request = worker.next_request().await?;
        assert!(
            matches!(request, ControlAction::Release { claim, .. } if claim == execution.claim),
            "{request:?}"
        );
    }
    worker.report(execution.claim, ReportEvent::Released).await?;
    world.until(job.id, &[S::Cancelled]).await?;
    worker.gets_nothing().await?;
    dispatcher.stop().await
}

async fn a_result_that_never_comes_ends_the_run_for_good(store: &TestStore) -> anyhow::Result<()> {
    let mut world = World::with_long_leases(store);
    world.config.dispatcher.result_grace_ms = 200;
    let job = JobRow {
        timeout_ms: 100,
        next_trigger_time: None,
        ..with_attempts(3, given::job())
    };
    let running = ExecutionRow {
        started_at: Some(world.store.now()),
        ..given::execution(&job, S::Running)
    };
    given::insert(&world.store, std::slice::from_ref(&job), &[running]).await?;
    let dispatcher = world.start_dispatcher();
    world.until(job.id, &[S::TimedOut]).await?;
    world.until_job(job.id, JobStatus::Failed).await?;
    dispatcher.stop().await
}

async fn bury_all_gives_back_what_was_held_before_the_restart(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let mut worker = world.worker("a", "noop", 10).await?;
    let jobs = world
        .due_jobs("noop", 2)
        .into_iter()
        .map(|job| with_attempts(2, job));
    let jobs: Vec<_> = jobs.collect();
    world.submit(&jobs).await?;
    let executions = worker.next_many(2).await?;
    worker.started(&executions[0]).await?;
    world.until(executions[0].job, &[S::Running]).await?;
    dispatcher.stop().await?;
    assert_eq!(isocost_dispatcher::bury_all(&world.store).await?, 2);
    assert_eq!(isocost_dispatcher::bury_all(&world.store).await?, 0);
    world.until(executions[0].job, &[S::Scheduled]).await?;
    world.until(executions[1].job, &[S::Pending]).await?;
    assert_eq!(
        world
            .count("select count(*) from worker_node where status = 3")
            .await?,
        1
    );
    Ok(())
}

isocost_common::store_tests! {
    wk08_the_work_of_a_dead_worker_goes_to_another,
    results_that_a_dead_worker_had_confirmed_are_taken_in_first,
    a_worker_that_says_goodbye_gives_its_work_back_at_once,
    a_goodbye_after_its_death_does_not_make_a_worker_one_that_left_in_good_order,
    a_worker_that_beats_over_one_path_only_is_not_called_dead,
    a_consumed_queue_keeps_a_silent_worker_alive_for_three_leases,
    du10_a_cancel_is_asked_for_until_it_is_done,
    a_result_that_never_comes_ends_the_run_for_good,
    bury_all_gives_back_what_was_held_before_the_restart,
}
