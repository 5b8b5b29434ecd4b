use crate::worker::ScriptedWorker;
use crate::world::{SOON, World};
use isocost_common::{
    execution::ExecutionStatus as S,
    id::JobId,
    job::Trigger,
    message::{ControlAction, ReportEvent},
    store::jobs::JobRow,
    test_support::{TestStore, eventually, given},
};
use std::collections::{HashMap, HashSet};

async fn lb04_two_equal_workers_get_equal_shares(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let mut workers = [
        world.worker("a", "noop", 50).await?,
        world.worker("b", "noop", 50).await?,
    ];
    world.submit(&world.due_jobs("noop", 60)).await?;
    for worker in &mut workers {
        worker.next_many(30).await?;
        worker.gets_nothing().await?;
    }
    dispatcher.stop().await
}

async fn a_worker_without_a_free_slot_is_given_nothing(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let mut worker = world.worker("a", "noop", 2).await?;
    world.submit(&world.due_jobs("noop", 5)).await?;
    let first = worker.next_many(2).await?;
    worker.gets_nothing().await?;
    assert_eq!(
        world
            .count("select count(*) from job_execution where status = 2")
            .await?,
        3
    );
    worker.finished(&first[0]).await?;
    worker.next().await?;
    worker.gets_nothing().await?;
    dispatcher.stop().await
}

async fn a_flood_of_one_handler_does_not_hide_the_work_of_another(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let mut flooded = world.worker("a", "flood", 1).await?;
    world.submit(&world.due_jobs("flood", 2_000)).await?;
    flooded.next().await?;
    let mut other = world.worker("b", "noop", 1).await?;
    let job = world.due_job("noop");
    world.submit(std::slice::from_ref(&job)).await?;
    assert_eq!(other.next().await?.job, job.id);
    flooded.gets_nothing().await?;
    dispatcher.stop().await
}

async fn what_waits_is_placed_in_the_order_of_priority_and_age(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let mut worker = world.worker("a", "noop", 1).await?;
    let app = isocost_common::id::AppId::generate();
    let job = |priority| JobRow {
        app,
        priority,
        ..world.due_job("noop")
    };
    let (running, low, high) = (job(5), job(1), job(9));
    world.submit(std::slice::from_ref(&running)).await?;
    let first = worker.next().await?;
    world.submit(std::slice::from_ref(&low)).await?;
    world.until(low.id, &[S::Pending]).await?;
    world.submit(std::slice::from_ref(&high)).await?;
    world.until(high.id, &[S::Pending]).await?;
    worker.finished(&first).await?;
    let second = worker.next().await?;
    worker.finished(&second).await?;
    let third = worker.next().await?;
    assert_eq!([second.job, third.job], [high.id, low.id]);
    dispatcher.stop().await
}

async fn a_refused_execution_goes_to_another_worker_under_the_next_number(
    store: &TestStore,
) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let mut refusing = world.worker("a", "noop", 10).await?;
    let job = world.due_job("noop");
    world.submit(std::slice::from_ref(&job)).await?;
    let first = refusing.next().await?;
    let mut other = world.worker("b", "noop", 1).await?;
    let reason = "no free slot".to_owned();
    refusing
        .report(first.claim, ReportEvent::Refused { reason })
        .await?;
    let second = other.next().await?;
    assert_eq!(second.claim.execution, first.claim.execution);
    assert_eq!((second.claim.dispatch_seq, second.attempt), (2, 1));
    dispatcher.stop().await
}

async fn an_unstarted_execution_is_asked_back_when_another_worker_is_free(
    store: &TestStore,
) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let mut slow = world.worker("a", "noop", 1).await?;
    world.submit(&[world.due_job("noop")]).await?;
    let execution = slow.next().await?;
    let mut free = world.worker("b", "noop", 1).await?;
    let ControlAction::Release { claim, not_after } = slow.next_request().await? else {
        anyhow::bail!("not asked to release");
    };
    assert_eq!((claim, not_after), (execution.claim, Some(execution.not_after)));
    slow.report(claim, ReportEvent::Released).await?;
    assert_eq!(free.next().await?.claim.execution, claim.execution);
    dispatcher.stop().await
}

async fn a_started_execution_is_never_asked_back(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let mut busy = world.worker("a", "noop", 1).await?;
    let job = world.due_job("noop");
    world.submit(std::slice::from_ref(&job)).await?;
    let execution = busy.next().await?;
    busy.started(&execution).await?;
    world.until(job.id, &[S::Running]).await?;
    let mut free = world.worker("b", "noop", 1).await?;
    free.gets_nothing().await?;
    // The first request it ever gets is the one that is provoked now.
    world
        .execute(
            "update job_execution set cancel_requested_at = 1 where status = 4",
            &[],
        )
        .await?;
    world.wake().await;
    assert!(
        matches!(busy.next_request().await?, ControlAction::Cancel { claim, .. } if claim == execution.claim)
    );
    dispatcher.stop().await
}

async fn a_takeover_publishes_again_under_the_same_number(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let first_leader = world.start_dispatcher();
    let mut worker = world.worker("a", "noop", 10).await?;
    world.submit(&world.due_jobs("noop", 2)).await?;
    let first = worker.next_many(2).await?;
    worker.started(&first[0]).await?;
    world.until(first[0].job, &[S::Running]).await?;
    first_leader.stop().await?;
    let second_leader = world.start_dispatcher();
    let again = worker.next().await?;
    assert_eq!(again, first[1]);
    // What has started is not published again.
    worker.gets_nothing().await?;
    second_leader.stop().await
}

async fn a_clean_stop_hands_over_at_once(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let first = world.start_dispatcher();
    let mut worker = world.worker("a", "noop", 10).await?;
    let second = world.start_dispatcher();
    first.stop().await?;
    let stopped = tokio::time::Instant::now();
    world.submit(&[world.due_job("noop")]).await?;
    worker.next().await?;
    // Far less than the 10 s after which the lock would have run out.
    assert!(stopped.elapsed().as_secs() < 3, "{:?}", stopped.elapsed());
    second.stop().await
}

async fn an_app_over_its_running_limit_waits(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let jobs = world.due_jobs("noop", 5);
    world
        .execute(
            "insert into app (id, name, max_running_executions, created_at) values (?, 'small', 2, 0)",
            &[jobs[0].app.to_string()],
        )
        .await?;
    let dispatcher = world.start_dispatcher();
    let mut worker = world.worker("a", "noop", 10).await?;
    world.submit(&jobs).await?;
    let first = worker.next_many(2).await?;
    worker.gets_nothing().await?;
    worker.finished(&first[0]).await?;
    worker.next().await?;
    worker.gets_nothing().await?;
    dispatcher.stop().await
}

async fn maintenance_mode_places_nothing_until_it_is_over(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    world
        .execute(
            "insert into setting (name, value, updated_at) values ('maintenance', 'true', 0)",
            &[],
        )
        .await?;
    let dispatcher = world.start_dispatcher();
    let mut worker = world.worker("a", "noop", 10).await?;
    world.submit(&[world.due_job("noop")]).await?;
    worker.gets_nothing().await?;
    world.execute("update setting set value = 'false'", &[]).await?;
    worker.next().await?;
    dispatcher.stop().await
}

async fn what_a_worker_holds_and_does_not_own_is_cancelled(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let mut worker = world.worker("a", "noop", 10).await?;
    let job = world.due_job("noop");
    world.submit(std::slice::from_ref(&job)).await?;
    let execution = worker.next().await?;
    worker.started(&execution).await?;
    worker.finished(&execution).await?;
    world.until(job.id, &[S::Succeeded]).await?;
    worker.holdings.running.push(execution.claim);
    let asked = request_while_beating(&mut worker).await?;
    assert!(matches!(asked, ControlAction::Cancel { claim, .. } if claim == execution.claim));
    dispatcher.stop().await
}

async fn a_worker_is_asked_about_what_it_does_not_name(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let mut worker = world.worker("a", "noop", 10).await?;
    world.submit(&[world.due_job("noop")]).await?;
    let execution = worker.next().await?;
    let asked = request_while_beating(&mut worker).await?;
    assert!(matches!(asked, ControlAction::Query { claim, .. } if claim == execution.claim));
    dispatcher.stop().await
}

/// What comes of a worker's heartbeats: one of them may cross what the leader has just begun to know.
async fn request_while_beating(worker: &mut ScriptedWorker) -> anyhow::Result<ControlAction> {
    eventually("it is asked", SOON, async || {
        worker.beat().await?;
        let request = tokio::time::timeout(std::time::Duration::from_millis(200), worker.next_request());
        request.await.ok().transpose()
    })
    .await
}

async fn a_drain_is_passed_on_and_nothing_more_is_placed(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let mut draining = world.worker("a", "noop", 10).await?;
    let mut other = world.worker("b", "noop", 10).await?;
    world
        .execute(
            "update worker_node set drain_requested = 1 where worker_id = 'a'",
            &[],
        )
        .await?;
    assert_eq!(draining.next_request().await?, ControlAction::Drain);
    world.submit(&world.due_jobs("noop", 5)).await?;
    let placed: HashSet<_> = other.next_many(5).await?.iter().map(|it| it.claim).collect();
    assert_eq!(placed.len(), 5);
    draining.gets_nothing().await?;
    dispatcher.stop().await
}

async fn a_consistent_hash_keeps_each_job_on_its_worker(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let mut workers = Vec::new();
    for name in ["a", "b"] {
        workers.push(world.worker(name, "noop", 30).await?);
    }
    let setting = r#"insert into setting (name, value, updated_at) values ('balancer', '{"strategy": "consistent_hash"}', 0)"#;
    world.execute(setting, &[]).await?;
    world.call_for_orders().await;
    let now = world.store.now() + std::time::Duration::from_millis(300);
    let jobs: Vec<JobRow> = (0..20)
        .map(|_| JobRow {
            next_trigger_time: Some(now),
            ..given::job_with(Trigger::FixedRate {
                every_ms: 400,
                anchor: now,
            })
        })
        .collect();
    world.submit(&jobs).await?;
    let mut home: HashMap<JobId, usize> = HashMap::new();
    let mut firings = 0;
    while firings < 3 * jobs.len() {
        for (index, worker) in workers.iter_mut().enumerate() {
            while let Ok(execution) =
                tokio::time::timeout(std::time::Duration::from_millis(20), worker.next()).await
            {
                let execution = execution?;
                let first = *home.entry(execution.job).or_insert(index);
                assert_eq!(first, index, "job {} moved", execution.job);
                worker.finished(&execution).await?;
                firings += 1;
            }
        }
    }
    let on_a = home.values().filter(|index| **index == 0).count();
    assert!(
        (1..20).contains(&on_a),
        "{on_a} of 20 jobs live on one of two workers"
    );
    dispatcher.stop().await
}

/// The leader looks by itself every 2 s; three orders in half of that did not wait for it.
async fn orders_to_workers_are_passed_on_when_they_are_given(store: &TestStore) -> anyhow::Result<()> {
    let world = World::with_long_leases(store);
    let dispatcher = world.start_dispatcher();
    let mut workers = Vec::new();
    for name in ["a", "b", "c"] {
        workers.push(world.worker(name, "noop", 1).await?);
    }
    let from = std::time::Instant::now();
    for worker in &mut workers {
        let order = "update worker_node set drain_requested = 1 where worker_id = ?";
        world.execute(order, &[worker.id.to_string()]).await?;
        world.call_for_orders().await;
        assert_eq!(worker.next_request().await?, ControlAction::Drain);
    }
    assert!(
        from.elapsed() < std::time::Duration::from_secs(1),
        "{:?}",
        from.elapsed()
    );
    dispatcher.stop().await
}

isocost_common::store_tests! {
    lb04_two_equal_workers_get_equal_shares,
    a_worker_without_a_free_slot_is_given_nothing,
    a_flood_of_one_handler_does_not_hide_the_work_of_another,
    what_waits_is_placed_in_the_order_of_priority_and_age,
    a_refused_execution_goes_to_another_worker_under_the_next_number,
    an_unstarted_execution_is_asked_back_when_another_worker_is_free,
    a_started_execution_is_never_asked_back,
    a_takeover_publishes_again_under_the_same_number,
    a_clean_stop_hands_over_at_once,
    an_app_over_its_running_limit_waits,
    maintenance_mode_places_nothing_until_it_is_over,
    what_a_worker_holds_and_does_not_own_is_cancelled,
    a_worker_is_asked_about_what_it_does_not_name,
    a_drain_is_passed_on_and_nothing_more_is_placed,
    orders_to_workers_are_passed_on_when_they_are_given,
    a_consistent_hash_keeps_each_job_on_its_worker,
}
