//! Many jobs due in one instant, with nothing else going on. The bounds are wide, for build servers and unoptimised
//! programs; the figures are printed.

use anyhow::Result;
use isocost_tests::api::instant_ms;
use isocost_tests::jobs::{cron, once, with};
use isocost_tests::patience::eventually;
use isocost_tests::site::Site;
use serde_json::{Value, json};
use std::time::Duration;

const BATCH: usize = 1_000;
/// Time to submit everything before the instant.
const AHEAD: Duration = Duration::from_secs(15);
const ALL_DONE: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_one_shots_due_in_one_instant_all_start_after_it() -> Result<()> {
    let at = chrono::Utc::now() + AHEAD;
    let trigger = json!({"trigger": {"type": "once", "at": at.to_rfc3339()}});
    let late = lateness_of(10_000, &with(once("noop"), trigger)).await?;
    report("one-shots", &late, 60_000)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_cron_jobs_due_in_one_instant_all_start_after_it() -> Result<()> {
    // Once a year, at an instant that is near now: every job fires exactly once during the test.
    let at = chrono::Utc::now() + AHEAD;
    let expr = at.format("%-S %-M %-H %-d %-m ?").to_string();
    let late = lateness_of(1_000, &cron("noop", &expr)).await?;
    report("cron jobs", &late, 20_000)
}

/// Milliseconds from the planned instant to the start of the handler, in ascending order.
async fn lateness_of(count: usize, job: &Value) -> Result<Vec<i64>> {
    let site = Site::new()?;
    let process = site.start().await?;
    let api = process.api();
    let mut ids = Vec::with_capacity(count);
    for _ in 0..count / BATCH {
        ids.extend(api.submit_batch(&vec![job.clone(); BATCH]).await?);
    }
    let executions = eventually("all have run", AHEAD + ALL_DONE, async || {
        let mut ended = Vec::with_capacity(count);
        for part in ids.chunks(BATCH) {
            let jobs = api.jobs(part).await?;
            ended.extend(jobs.into_iter().map(|mut job| job["lastExecution"].take()));
        }
        let all = ended.iter().all(|execution| execution["status"] == "SUCCEEDED");
        Ok(all.then_some(ended))
    })
    .await?;
    let mut late = Vec::with_capacity(count);
    for execution in &executions {
        late.push(instant_ms(execution, "startedAt")? - instant_ms(execution, "scheduledTime")?);
    }
    process.stop().await?;
    late.sort_unstable();
    Ok(late)
}

fn report(what: &str, late: &[i64], bound_ms: i64) -> Result<()> {
    let at = |share: f64| late[((late.len() - 1) as f64 * share).round() as usize];
    let (first, median, p99) = (late[0], at(0.5), at(0.99));
    println!(
        "{} {what} due in one instant → handler started: median {median} ms, p99 {p99} ms",
        late.len()
    );
    assert!(first >= 0, "one started {first} ms before its instant");
    assert!(p99 < bound_ms, "p99 {p99} ms");
    Ok(())
}
