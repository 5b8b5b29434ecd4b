//! Jobs that do nothing, from the first batch submitted to the last result committed.

use crate::{bare, round_trips::RoundTrips, stage::Stage};
use anyhow::Result;
use futures_util::future::try_join_all;
use isocost_tests::jobs::once;
use std::time::Instant;

const JOBS: usize = 20_000;
const BATCH: usize = 1_000;
const CLIENTS: usize = 2;
const ROUNDS: usize = 3;

pub(crate) async fn run() -> Result<()> {
    let stage = Stage::with(1, 2).await?;
    let batch = vec![once("noop"); BATCH];
    for round in 1..=ROUNDS {
        let (finished, asked) = (stage.finished().await?, RoundTrips::so_far(&stage).await?);
        let begin = Instant::now();
        try_join_all((0..CLIENTS).map(|_| async {
            for _ in 0..JOBS / BATCH / CLIENTS {
                stage.api.submit_batch(&batch).await?;
            }
            anyhow::Ok(())
        }))
        .await?;
        let submitted = begin.elapsed();
        stage.wait_until_finished(finished + JOBS as f64).await?;
        let took = begin.elapsed();
        let rate = JOBS as f64 / took.as_secs_f64();
        let database = bare::database(stage.cluster.servers()).await?;
        let broker = bare::broker(stage.cluster.servers()).await?;
        println!(
            "round {round}: {rate:.0} jobs/s ({JOBS} in {took:.1?}, submitted in {submitted:.1?}); beside it the bare \
             database {database:.0} rows/s ({:.2} of it), the bare broker {broker:.0} messages/s ({:.2} of it)",
            rate / database,
            rate / broker
        );
        println!("{}", RoundTrips::so_far(&stage).await?.since(asked, JOBS));
    }
    stage.stop().await
}
