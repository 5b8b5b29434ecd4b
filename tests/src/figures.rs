//! Times that are measured the same way on a site and on a cluster.

use anyhow::{Context, Result};
use serde_json::Value;
use std::time::Duration;
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use crate::{
    api::{Api, instant_ms},
    jobs::{once, wait_for_end},
    patience::eventually,
};

const STEADY_JOBS: usize = 1_000;
/// 200 jobs a second.
const DISTANCE: Duration = Duration::from_millis(5);
const BATCH: usize = 1_000;
const ALL_DONE: Duration = Duration::from_secs(135);

/// The value that this share of the figures, in ascending order, does not exceed.
#[must_use]
pub fn percentile(ascending: &[i64], share: f64) -> i64 {
    let last = ascending.len().saturating_sub(1) as f64;
    ascending
        .get((last * share).round() as usize)
        .copied()
        .unwrap_or_default()
}

/// Submits 200 jobs a second and returns, in ascending order, the milliseconds from each request to the start of its
/// handler.
///
/// # Errors
/// When a job is refused or does not succeed.
pub async fn waits_at_200_a_second(api: &Api) -> Result<Vec<i64>> {
    let mut tick = interval(DISTANCE);
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut submissions = JoinSet::new();
    for _ in 0..STEADY_JOBS {
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
    let mut waits = Vec::with_capacity(STEADY_JOBS);
    for job in &jobs {
        let (before_ms, _) = submitted
            .iter()
            .find(|(_, id)| job["jobId"] == **id)
            .context("a job of ours")?;
        waits.push(instant_ms(&job["lastExecution"], "startedAt")? - before_ms);
    }
    waits.sort_unstable();
    Ok(waits)
}

/// Submits so many copies of a job that is due in one instant, and returns, in ascending order, the milliseconds from
/// that instant to the start of each handler.
///
/// # Errors
/// When a job is refused or does not succeed in time.
pub async fn lateness_of(api: &Api, count: usize, job: &Value) -> Result<Vec<i64>> {
    let mut ids = Vec::with_capacity(count);
    for _ in 0..count / BATCH {
        ids.extend(api.submit_batch(&vec![job.clone(); BATCH]).await?);
    }
    let executions = eventually("all have run", ALL_DONE, async || {
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
    late.sort_unstable();
    Ok(late)
}
