//! How many jobs that do nothing go through in a second, from the first batch to the last result. The bound is wide, for
//! build servers and unoptimised programs; the figure is printed.

use anyhow::{Context, Result};
use isocost_tests::api::Api;
use isocost_tests::jobs::once;
use isocost_tests::patience::eventually;
use isocost_tests::site::Site;
use std::time::{Duration, Instant};

const JOBS: usize = 20_000;
const BATCH: usize = 1_000;
const ROUNDS: usize = 3;
/// A tenth of what an unoptimised program does on two quiet cores.
const LEAST_A_SECOND: f64 = 100.0;

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_do_nothing_go_through_fast() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let api = process.api();
    let batch = vec![once("noop"); BATCH];
    let mut rates = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let before = finished(api).await?;
        let begin = Instant::now();
        for _ in 0..JOBS / BATCH {
            api.submit_batch(&batch).await?;
        }
        eventually("all have run", Duration::from_secs(120), async || {
            Ok((finished(api).await? - before >= JOBS as f64).then_some(()))
        })
        .await?;
        rates.push(JOBS as f64 / begin.elapsed().as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    let median = rates[ROUNDS / 2];
    println!("{JOBS} no-op jobs, batch submit → all results committed: {median:.0}/s (median of {ROUNDS})");
    assert!(median > LEAST_A_SECOND, "{median:.0}/s");
    process.stop().await
}

/// Executions that have succeeded since the start, by the process's own count.
async fn finished(api: &Api) -> Result<f64> {
    let metrics = api.get("/metrics").await?.text;
    let counted = metrics
        .lines()
        .find(|line| line.starts_with("isocost_executions_finished_total{status=\"SUCCEEDED\"}"));
    counted.map_or(Ok(0.0), |line| {
        let figure = line.rsplit(' ').next().context("a figure")?;
        Ok(figure.parse()?)
    })
}
