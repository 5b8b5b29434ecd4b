//! Single `POST`s over many connections: what is accepted, and how long the answer takes.

use crate::stage::Stage;
use anyhow::Result;
use isocost_tests::{
    figures::percentile,
    jobs::{due_together, once},
};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const CONNECTIONS: usize = 64;
const DURATION: Duration = Duration::from_secs(10);

pub(crate) async fn run() -> Result<()> {
    let stage = Stage::with(1, 2).await?;
    // Due tomorrow, so that only submitting is measured; then due now.
    let later = due_together("noop", chrono::Utc::now() + chrono::TimeDelta::days(1));
    for (what, job) in [("due tomorrow", later), ("due now", once("noop"))] {
        let begin = Instant::now();
        let mut clients = JoinSet::new();
        for _ in 0..CONNECTIONS {
            let (api, job) = (stage.api.clone(), job.clone());
            clients.spawn(async move {
                let mut micros = Vec::new();
                while begin.elapsed() < DURATION {
                    let sent = Instant::now();
                    api.submit(&job).await?;
                    micros.push(i64::try_from(sent.elapsed().as_micros())?);
                }
                anyhow::Ok(micros)
            });
        }
        let mut micros = Vec::new();
        while let Some(client) = clients.join_next().await {
            micros.extend(client??);
        }
        let rate = micros.len() as f64 / begin.elapsed().as_secs_f64();
        micros.sort_unstable();
        let ms = |share: f64| percentile(&micros, share) as f64 / 1_000.0;
        println!(
            "{CONNECTIONS} connections, jobs {what}: {rate:.0} accepted/s, answered after p50 {:.1} ms, p99 {:.1} ms",
            ms(0.5),
            ms(0.99)
        );
    }
    stage.stop().await
}
