//! How late things are, with nothing else going on. The bounds are wide, for build servers; the figures are printed.

use anyhow::{Context, Result};
use isocost_tests::api::instant_ms;
use isocost_tests::jobs::{cron, once, wait_for_end};
use isocost_tests::patience::eventually;
use isocost_tests::site::Site;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

const JOBS: usize = 1_000;
const DISTANCE: Duration = Duration::from_millis(5);
const FIRINGS: usize = 5;

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_starts_milliseconds_after_its_submission() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let api = process.api();
    let mut tick = interval(DISTANCE);
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut submissions = tokio::task::JoinSet::new();
    for _ in 0..JOBS {
        tick.tick().await;
        let api = api.clone();
        submissions.spawn(async move {
            let before_ms = chrono::Utc::now().timestamp_millis();
            anyhow::Ok((before_ms, api.submit(&once("noop")).await?))
        });
    }
    let submitted: Vec<(i64, String)> = submissions.join_all().await.into_iter().collect::<Result<_>>()?;
    let ids: Vec<String> = submitted.iter().map(|(_, id)| id.clone()).collect();
    wait_for_end(api, ids.last().context("jobs")?).await?;
    let jobs = eventually("all have run", Duration::from_secs(10), async || {
        let jobs = api.jobs(&ids).await?;
        Ok(jobs.iter().all(|job| job["status"] == "SUCCESS").then_some(jobs))
    })
    .await?;
    let mut waits = Vec::with_capacity(JOBS);
    for job in &jobs {
        let (before_ms, _) = submitted
            .iter()
            .find(|(_, id)| job["jobId"] == **id)
            .context("a job of ours")?;
        waits.push(instant_ms(&job["lastExecution"], "startedAt")? - before_ms);
    }
    let (median, p99) = median_and_p99(waits);
    println!("request sent → handler started at 200/s: median {median} ms, p99 {p99} ms");
    assert!(median < 250, "median {median} ms");
    assert!(p99 < 2_000, "p99 {p99} ms");
    process.stop().await
}

#[tokio::test]
async fn a_cron_job_starts_milliseconds_after_its_instant_and_never_before() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let job = process.api().submit(&cron("noop", "* * * * * ?")).await?;
    let executions = eventually("five firings", Duration::from_secs(20), async || {
        let mut executions = process.api().executions(&job).await?;
        executions.retain(|execution| execution["status"] == "SUCCEEDED");
        Ok((executions.len() >= FIRINGS).then_some(executions))
    })
    .await?;
    let mut lateness = Vec::new();
    for execution in &executions {
        let late = instant_ms(execution, "startedAt")? - instant_ms(execution, "scheduledTime")?;
        assert!(late >= 0, "started before its instant: {execution}");
        lateness.push(late);
    }
    let (median, worst) = median_and_p99(lateness);
    println!("cron instant → handler started: median {median} ms, worst {worst} ms");
    assert!(median < 250, "median {median} ms");
    process.stop().await
}

fn median_and_p99(mut figures: Vec<i64>) -> (i64, i64) {
    figures.sort_unstable();
    let at = |share: f64| figures[((figures.len() - 1) as f64 * share).round() as usize];
    (at(0.5), at(0.99))
}
