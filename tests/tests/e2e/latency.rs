//! How late things are, with nothing else going on. The bounds are wide, for build servers; the figures are printed.

use anyhow::Result;
use isocost_tests::api::instant_ms;
use isocost_tests::figures::{percentile, waits_at_200_a_second};
use isocost_tests::jobs::cron;
use isocost_tests::patience::eventually;
use isocost_tests::site::Site;
use std::time::Duration;

const FIRINGS: usize = 5;

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_starts_milliseconds_after_its_submission() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let waits = waits_at_200_a_second(process.api()).await?;
    let (median, p99) = (percentile(&waits, 0.5), percentile(&waits, 0.99));
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
    lateness.sort_unstable();
    let (median, worst) = (percentile(&lateness, 0.5), percentile(&lateness, 1.0));
    println!("cron instant → handler started: median {median} ms, worst {worst} ms");
    assert!(median < 250, "median {median} ms");
    process.stop().await
}
