//! 1,000 one-shot jobs, submitted one by one, on one dispatcher and two workers.

use crate::stage::Stage;
use anyhow::Result;
use isocost_tests::jobs::once;
use std::time::Instant;
use tokio::task::JoinSet;

const JOBS: usize = 1_000;
const CONNECTIONS: usize = 8;
const ROUNDS: usize = 3;

pub(crate) async fn run() -> Result<()> {
    let stage = Stage::with(1, 2).await?;
    for round in 1..=ROUNDS {
        let finished = stage.finished().await?;
        let begin = Instant::now();
        let mut clients = JoinSet::new();
        for _ in 0..CONNECTIONS {
            let api = stage.api.clone();
            clients.spawn(async move {
                for _ in 0..JOBS / CONNECTIONS {
                    api.submit(&once("noop")).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(client) = clients.join_next().await {
            client??;
        }
        stage.wait_until_finished(finished + JOBS as f64).await?;
        let took = begin.elapsed();
        let a_minute = JOBS as f64 * 60.0 / took.as_secs_f64();
        println!("round {round}: {JOBS} jobs in {took:.2?}: {a_minute:.0} a minute");
    }
    stage.stop().await
}
