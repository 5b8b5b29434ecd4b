//! Many jobs due in one instant, with nothing else going on. The bounds are wide, for build servers and unoptimised
//! programs; the figures are printed.

use anyhow::Result;
use isocost_tests::figures::{lateness_of, percentile};
use isocost_tests::jobs::{due_together, fires_together};
use isocost_tests::site::Site;
use serde_json::Value;
use std::time::Duration;

/// Time to submit everything before the instant.
const AHEAD: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_one_shots_due_in_one_instant_all_start_after_it() -> Result<()> {
    let at = chrono::Utc::now() + AHEAD;
    storm("one-shots", 10_000, &due_together("noop", at), 60_000).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_cron_jobs_due_in_one_instant_all_start_after_it() -> Result<()> {
    let at = chrono::Utc::now() + AHEAD;
    storm("cron jobs", 1_000, &fires_together("noop", at), 20_000).await
}

async fn storm(what: &str, count: usize, job: &Value, bound_ms: i64) -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let late = lateness_of(process.api(), count, job).await?;
    let (median, p99) = (percentile(&late, 0.5), percentile(&late, 0.99));
    println!("{count} {what} due in one instant → handler started: median {median} ms, p99 {p99} ms");
    let first = percentile(&late, 0.0);
    assert!(first >= 0, "one started {first} ms before its instant");
    assert!(p99 < bound_ms, "p99 {p99} ms");
    process.stop().await
}
