//! From the request to the start of the handler, at a steady 200 jobs a second.

use crate::stage::Stage;
use anyhow::Result;
use isocost_tests::figures::{percentile, waits_at_200_a_second};

const ROUNDS: usize = 2;

pub(crate) async fn run() -> Result<()> {
    let stage = Stage::with(1, 2).await?;
    for round in 1..=ROUNDS {
        let waits = waits_at_200_a_second(&stage.api).await?;
        println!(
            "round {round}: request sent → handler started: p50 {} ms, p99 {} ms",
            percentile(&waits, 0.5),
            percentile(&waits, 0.99)
        );
    }
    stage.stop().await
}
