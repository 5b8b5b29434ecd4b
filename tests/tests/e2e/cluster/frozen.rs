//! Processes that stand still for one, two and four lease lengths, and then go on as if nothing had been: a leader, also
//! in the middle of a transaction, and workers with runs in their hands.

use super::{all_succeed, leader, ledger, start_many};
use anyhow::{Context, Result, ensure};
use isocost_tests::api::{Api, text};
use isocost_tests::bounds;
use isocost_tests::cluster::{Cluster, Process, Role};
use isocost_tests::jobs::{LONG, wait_for_execution, with};
use isocost_tests::ledger::Tick;
use isocost_tests::patience::eventually;
use isocost_tests::steps;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// The leases of these tests: a third of those of production, and long enough for a busy machine.
const HEARTBEAT: Duration = Duration::from_millis(1_000);
pub(super) const LEASE: Duration = Duration::from_millis(4_100);
const LOCK_TTL: Duration = Duration::from_millis(2_000);
/// A run that every leader sees before it stands still, and that outlasts one life of its lock.
const SHOWN_FOR_MS: u64 = 6_000;

pub(super) fn with_leases_of_seconds(cluster: Cluster) -> Cluster {
    let ms = |duration: Duration| duration.as_millis().to_string();
    cluster
        .with("ISOCOST__LEASES__HEARTBEAT_MS", &ms(HEARTBEAT))
        .with("ISOCOST__LEASES__WORKER_CANCEL_MS", "3000")
        .with("ISOCOST__LEASES__WORKER_EXIT_MS", "4000")
        .with("ISOCOST__LEASES__DEAD_AFTER_MS", &ms(LEASE))
        .with("ISOCOST__LEASES__LOCK_TTL_MS", &ms(LOCK_TTL))
}

pub(super) fn now_ms() -> i64 {
    chrono::Utc::now().timestamp_millis()
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_leaders_are_replaced_and_write_nothing_more() -> Result<()> {
    let cluster = with_leases_of_seconds(Cluster::new().await?);
    let mut dispatchers = start_many(&cluster, Role::Dispatcher, "dispatcher", 2).await?;
    let _worker = cluster.start(Role::LedgerWorker, "worker").await?;
    let api_process = cluster.start(Role::Api, "api").await?;
    let api = cluster.api(&api_process)?;
    let mut ids = Vec::new();
    for leases in [1, 2, 4] {
        ids.extend(a_leader_is_frozen_for(leases, &cluster, &dispatchers, &api).await?);
    }
    for point in ["claim.uncommitted", "publish.unsent"] {
        ids.extend(a_leader_is_frozen_at(point, &cluster, &mut dispatchers, &api).await?);
    }
    let runs = cluster.ledger().runs()?;
    let again: Vec<_> = runs.iter().filter(|(_, attempts)| attempts.len() > 1).collect();
    assert_eq!((runs.len(), again.len()), (ids.len(), 0), "{again:?}");
    no_leader_wrote_after_its_epoch(&cluster).await
}

/// Jobs that are submitted meanwhile start as soon as somebody else leads. Their results may have to wait for the thaw:
/// one dispatcher at a time takes them in. What the old leader showed of the fleet, a run among it, is not shown after it.
async fn a_leader_is_frozen_for(
    leases: u32,
    cluster: &Cluster,
    dispatchers: &[Process],
    api: &Api,
) -> Result<Vec<String>> {
    let place = leader(dispatchers, LONG).await?;
    let beside = api.submit(&ledger(SHOWN_FOR_MS)).await?;
    eventually("the leader shows the run", LONG, async || {
        let shown = shown_of_the_fleet(&dispatchers[place]).await?;
        Ok(shown.iter().all(|&value| value > 0.0).then_some(()))
    })
    .await?;
    dispatchers[place].freeze().await?;
    let (frozen, thaw_at) = (Instant::now(), Instant::now() + LOCK_TTL * leases);
    let due = api.submit(&ledger(0)).await?;
    let started = async {
        let bound = LOCK_TTL + bounds::time_on_a_busy_machine("leader-frozen")?;
        starts(cluster, api, &due, bound).await?;
        Ok::<_, anyhow::Error>(frozen.elapsed())
    };
    let thaw = async {
        sleep(thaw_at.saturating_duration_since(Instant::now())).await;
        dispatchers[place].thaw()
    };
    let (started, thawed) = tokio::join!(started, thaw);
    thawed?;
    let started = started?;
    println!("the leader stood still for {leases} lives of its lock: a due job started after {started:.1?}");
    // Both go on at once: the old one with what it had in hand, the new one with what is due.
    let ids = vec![beside, due, api.submit(&ledger(0)).await?];
    one_leads(dispatchers).await?;
    who_does_not_lead_shows_no_fleet(dispatchers).await?;
    all_succeed(api, &ids, LONG).await?;
    one_leads(dispatchers).await?;
    Ok(ids)
}

/// Waits until a job is seen to run, by what it writes down itself.
async fn starts(cluster: &Cluster, api: &Api, job: &str, within: Duration) -> Result<()> {
    eventually("the job starts", within, async || {
        let executions = api.executions(job).await?;
        let execution = text(executions.first().context("not fired yet")?, "executionId")?;
        Ok(cluster.ledger().runs()?.get(&execution).map(drop))
    })
    .await
}

/// It stands still between two steps of its own: with a transaction open, or with committed work that it has not
/// published. The next leader is not kept waiting, and what the old one does after its thaw changes nothing.
async fn a_leader_is_frozen_at(
    point: &str,
    cluster: &Cluster,
    dispatchers: &mut [Process],
    api: &Api,
) -> Result<Vec<String>> {
    let frozen = leader(dispatchers, LONG).await?;
    let other = 1 - frozen;
    dispatchers[frozen].stop().await?;
    dispatchers[other].stop().await?;
    dispatchers[frozen].spawn_again(&[("ISOCOST_PAUSE_POINT", point)])?;
    dispatchers[frozen].wait_until_ready().await?;
    eventually("it leads", LONG, async || {
        Ok(dispatchers[frozen].is_leader().await?.then_some(()))
    })
    .await?;
    let job = api.submit(&ledger(0)).await?;
    let stands = format!("crash point {point}: standing still");
    eventually("the leader stands still", LONG, async || {
        Ok(dispatchers[frozen].log()?.contains(&stands).then_some(()))
    })
    .await?;
    let from = Instant::now();
    dispatchers[other].restart().await?;
    let bound = bounds::time_on_a_busy_machine("leader-frozen-in-transaction")?;
    starts(cluster, api, &job, bound).await?;
    println!(
        "the leader stood still at {point}: its job started after {:.1?}",
        from.elapsed()
    );
    if point.starts_with("claim.") {
        // It also holds the queue of results, until the broker misses its heartbeats. Once is enough to see that.
        let bound = bounds::time_on_a_busy_machine("frozen-intake")?;
        all_succeed(api, std::slice::from_ref(&job), bound).await?;
        println!("and its result was taken in after {:.1?}", from.elapsed());
    }
    dispatchers[frozen].thaw()?;
    all_succeed(api, std::slice::from_ref(&job), LONG).await?;
    one_leads(dispatchers).await?;
    who_does_not_lead_shows_no_fleet(dispatchers).await?;
    Ok(vec![job])
}

/// How many runs the worker has and how many executions are owned, as this dispatcher's metrics have it.
async fn shown_of_the_fleet(dispatcher: &Process) -> Result<[f64; 2]> {
    Ok([
        dispatcher.metric("isocost_worker_active").await?,
        dispatcher.metric("isocost_executions_owned").await?,
    ])
}

/// The figures of an old term would be added to those of the present one.
async fn who_does_not_lead_shows_no_fleet(dispatchers: &[Process]) -> Result<()> {
    eventually(
        "a dispatcher that does not lead shows no fleet",
        LONG,
        async || {
            for (place, dispatcher) in dispatchers.iter().enumerate() {
                if !dispatcher.is_leader().await? {
                    let shown = shown_of_the_fleet(dispatcher).await?;
                    ensure!(shown == [0.0, 0.0], "dispatcher {} shows {shown:?}", place + 1);
                }
            }
            Ok(Some(()))
        },
    )
    .await
}

async fn one_leads(dispatchers: &[Process]) -> Result<()> {
    eventually("exactly one leads", LONG, async || {
        let mut leaders = 0;
        for dispatcher in dispatchers {
            leaders += usize::from(dispatcher.is_leader().await?);
        }
        Ok((leaders == 1).then_some(()))
    })
    .await
}

/// Every row that was handed over says by which epoch: none by an older one after a newer one had begun.
async fn no_leader_wrote_after_its_epoch(cluster: &Cluster) -> Result<()> {
    let late = cluster
        .count(
            "select count(*) from job_execution, leader_epoch \
             where job_execution.epoch < leader_epoch.epoch and dispatched_at > taken_at",
        )
        .await?;
    ensure!(
        late == 0,
        "{late} executions were handed over by a leader of an older epoch"
    );
    Ok(())
}

/// A worker that stands still, and two runs in its hands.
struct Frozen {
    leases: u32,
    worker: Process,
    /// Goes on after the thaw, if it may.
    outlasts: String,
    /// Is over by its own clock at the thaw.
    over: String,
    thawed_ms: i64,
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_workers_overlap_with_nobody_for_longer_than_a_moment() -> Result<()> {
    let cluster = with_leases_of_seconds(Cluster::new().await?);
    let dispatcher = cluster.start(Role::Dispatcher, "dispatcher").await?;
    let api_process = cluster.start(Role::Api, "api").await?;
    let api = cluster.api(&api_process)?;
    let mut frozen = Vec::new();
    for leases in [1, 2, 4] {
        let name = format!("frozen{leases}");
        let labels = [("ISOCOST__WORKER__LABELS", format!("{{ {name} = \"yes\" }}"))];
        let labels = [(labels[0].0, labels[0].1.as_str())];
        let worker = cluster.start_with(Role::LedgerWorker, &name, &labels).await?;
        let job = |ms: u64| {
            let params = json!({ "ms": ms, "thenMs": 5_000, "tickMs": 20 });
            with(
                ledger(ms),
                json!({ "params": params, "selector": { name.as_str(): "yes" } }),
            )
        };
        let outlasts = api.submit(&job(60_000)).await?;
        let over = api.submit(&job(3_000)).await?;
        wait_for_execution(&api, &outlasts, "RUNNING").await?;
        wait_for_execution(&api, &over, "RUNNING").await?;
        worker.freeze().await?;
        frozen.push(Frozen {
            leases,
            worker,
            outlasts,
            over,
            thawed_ms: now_ms() + i64::try_from((LEASE * leases).as_millis())?,
        });
    }
    // Whatever was frozen may run here.
    let all = r#"{ frozen1 = "yes", frozen2 = "yes", frozen4 = "yes" }"#;
    let _spare = cluster
        .start_with(Role::LedgerWorker, "spare", &[("ISOCOST__WORKER__LABELS", all)])
        .await?;
    for one in &mut frozen {
        let left = u64::try_from(one.thawed_ms - now_ms()).unwrap_or(0);
        sleep(Duration::from_millis(left)).await;
        one.thawed_ms = now_ms();
        one.worker.thaw()?;
    }
    for one in &frozen {
        for job in [&one.outlasts, &one.over] {
            all_succeed(&api, std::slice::from_ref(job), LONG).await?;
            let execution = applied_once(&api, job).await?;
            let overlap = overlap_ms(&cluster, &execution, one.thawed_ms)?;
            println!(
                "{} leases frozen: attempt {}, {overlap:?}",
                one.leases, execution["attempt"]
            );
        }
    }
    let late = dispatcher.metric("isocost_reports_stale_total").await?;
    ensure!(late > 0.0, "no late report was refused");
    Ok(())
}

/// One execution, one result, and that of the attempt that counts.
pub(super) async fn applied_once(api: &Api, job: &str) -> Result<Value> {
    let executions = api.executions(job).await?;
    ensure!(executions.len() == 1, "{} executions", executions.len());
    let execution = api.execution(&text(&executions[0], "executionId")?).await?;
    let steps = steps::of(&execution)?;
    ensure!(steps::first_illegal(&steps).is_none(), "{steps:#?}");
    let ends = steps.iter().filter(|step| step.name == "SUCCEEDED").count();
    ensure!(ends == 1, "{ends} results: {steps:#?}");
    ensure!(
        execution["result"]["attempt"] == execution["attempt"],
        "{execution:#}"
    );
    ensure!(
        execution["result"]["worker"] == execution["workerId"],
        "{execution:#}"
    );
    Ok(execution)
}

/// How long after the thaw an earlier run still showed life beside a later one, if it did. It may for a moment only.
fn overlap_ms(cluster: &Cluster, execution: &Value, thawed_ms: i64) -> Result<Option<i64>> {
    let moment = HEARTBEAT + bounds::time("worker-frozen")?;
    let beside = life_beside_a_later_run(cluster, execution)?;
    let longest = beside.iter().map(|tick| tick.at_ms - thawed_ms).max();
    if let Some(longest) = longest {
        ensure!(
            longest <= i64::try_from(moment.as_millis())?,
            "two runs of one execution, for {longest} ms after the thaw"
        );
        ensure!(
            beside.iter().all(|tick| tick.at_ms >= thawed_ms),
            "two runs of one execution before the thaw: {beside:?}"
        );
    }
    Ok(longest)
}

/// The signs of life of runs after the start of a later one.
pub(super) fn life_beside_a_later_run(cluster: &Cluster, execution: &Value) -> Result<Vec<Tick>> {
    let id = text(execution, "executionId")?;
    let runs = cluster.ledger().details()?.remove(&id).context("no run")?;
    let distinct: BTreeSet<u32> = runs.iter().map(|run| run.attempt).collect();
    ensure!(distinct.len() == runs.len(), "one attempt ran twice: {runs:?}");
    let ticks = cluster.ledger().ticks()?.remove(&id).unwrap_or_default();
    let later = |tick: &Tick| {
        runs.iter()
            .any(|run| run.attempt > tick.attempt && run.at_ms < tick.at_ms)
    };
    Ok(ticks.into_iter().filter(later).collect())
}
