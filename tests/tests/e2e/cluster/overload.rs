//! Ten times what can be stored is submitted: what is not taken is refused at once, nobody grows without bound, what is
//! accepted runs, and afterwards everything is as before. A whole minute of it: `./test bench overload`.

use super::producer::{so_many_are_stored, these_ran_once};
use super::{leader, ledger};
use anyhow::{Result, ensure};
use isocost_tests::bounds;
use isocost_tests::cluster::{Cluster, Role};
use isocost_tests::jobs::{LONG, due_together, with};
use isocost_tests::overload::{offer, sustainable};
use isocost_tests::patience::eventually;
use serde_json::json;
use std::time::{Duration, Instant};

const AT_EASE_FOR: Duration = Duration::from_secs(1);
const OVERLOADED_FOR: Duration = Duration::from_secs(8);
const TIMES: f64 = 10.0;
/// Jobs a second; whatever was measured on a machine that was busy just then.
const AT_LEAST: f64 = 40_000.0;
const ALL_DONE: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread")]
async fn ten_times_too_many_submissions_are_refused_early_and_nothing_accepted_is_lost() -> Result<()> {
    let cluster = Cluster::new().await?;
    let processes = [
        cluster.start(Role::Dispatcher, "dispatcher").await?,
        cluster.start(Role::LedgerWorker, "worker").await?,
        cluster.start(Role::Api, "api").await?,
    ];
    let api = cluster.api(&processes[2])?;
    leader(&processes[..1], LONG).await?;
    // What is submitted at ease is due at once, and runs beside the overload; the rest is due tomorrow, so that the test
    // need not wait for all of it.
    let due_later = due_together("ledger", chrono::Utc::now() + chrono::TimeDelta::days(1));
    let (taken, rate) = sustainable(&api, &ledger(0), AT_EASE_FOR).await?;
    let rate_offered = (rate * TIMES).max(AT_LEAST);
    let offered = offer(&api, &due_later, rate_offered, OVERLOADED_FOR).await?;
    println!(
        "{rate:.0} jobs/s at ease; then {} requests of 1,000 in {OVERLOADED_FOR:?}: {} refused, the slowest refusal after \
         {:.1?}, the slowest answer after {:.1?}",
        offered.requests, offered.refused, offered.slowest_refusal, offered.slowest
    );
    ensure!(offered.refused > 0, "nothing was refused: there was no overload");
    let answered = bounds::time_on_a_busy_machine("overload-answered")?;
    ensure!(offered.slowest < answered, "{:?}", offered.slowest);
    let counted = processes[2].metric("isocost_api_refused_busy_total").await?;
    let refused = (taken.refused + offered.refused) as f64;
    ensure!(
        counted >= refused,
        "{refused} were refused, {counted} are counted"
    );

    let from = Instant::now();
    let over = bounds::time_on_a_busy_machine("overload-over")?;
    let job = with(ledger(0), json!({ "clientRequestId": "after the overload" }));
    let late = eventually("a submission is accepted", over, async || {
        Ok(Some(api.submit(&job).await?))
    })
    .await?;
    println!(
        "the overload is over → a submission was accepted within {:.1?}",
        from.elapsed()
    );
    let mut due = taken.ids;
    due.push(late);
    these_ran_once(&cluster, &api, &due, ALL_DONE).await?;
    println!("{} jobs had run {:.0?} later", due.len(), from.elapsed());
    let kept = api.jobs(&offered.ids).await?;
    ensure!(
        kept.len() == offered.ids.len() && kept.iter().all(|job| job["status"] == "WAITING"),
        "of {} accepted jobs {} are there",
        offered.ids.len(),
        kept.len()
    );
    so_many_are_stored(&cluster, due.len() + kept.len()).await?;

    let most = bounds::count("overload-memory")?;
    for (process, name) in processes.iter().zip(["dispatcher", "worker", "api"]) {
        let peak = process.peak_memory()? >> 20;
        println!("{name}: at most {peak} MiB");
        ensure!(peak < most, "{name} took {peak} MiB");
    }
    Ok(())
}
