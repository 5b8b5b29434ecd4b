//! Housekeeping: old history is deleted, and the database's clock is compared with this machine's. Any number of
//! processes may do it at once: each passes over what another one has in hand.

use crate::subscription::pause;
use isocost_common::{
    error_chain::chain,
    store::{
        Store, StoreError,
        history::{self, PRUNE_BATCH},
    },
};
use metrics::{counter, gauge};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tracing::warn;

const CLOCK_EVERY: Duration = Duration::from_secs(30);
/// A difference beyond this makes logs of different machines hard to read together.
const CLOCK_WARNING_MS: i64 = 500;
const PRUNE_EVERY: Duration = Duration::from_secs(600);
/// Between two batches, so that pruning never takes more than a fraction of the database.
const PRUNE_PAUSE: Duration = Duration::from_millis(100);
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// Keeps house until `shutdown`; the batch in hand is completed first. Failures are logged and tried again later.
pub(crate) async fn run(store: &Store, kept_days: u32, shutdown: &CancellationToken) {
    tokio::join!(
        watch_clock(store, shutdown),
        prune(store, DAY * kept_days, shutdown)
    );
}

async fn watch_clock(store: &Store, shutdown: &CancellationToken) {
    while pause(shutdown, CLOCK_EVERY).await {
        match store.measure_clock().await {
            Ok(offset_ms) => {
                gauge!("isocost_clock_offset_seconds").set(offset_ms as f64 / 1_000.0);
                if offset_ms.abs() > CLOCK_WARNING_MS {
                    warn!(offset_ms, "the clocks of this machine and of the database differ");
                }
            }
            Err(failure) => warn!(error = %chain(&failure), "measuring the database's clock later"),
        }
    }
}

async fn prune(store: &Store, kept: Duration, shutdown: &CancellationToken) {
    while pause(shutdown, PRUNE_EVERY).await {
        if let Err(failure) = prune_once(store, kept, shutdown).await {
            warn!(error = %chain(&failure), "deleting old history later");
        }
    }
}

/// Deletes everything older than `kept`, batch by batch.
async fn prune_once(store: &Store, kept: Duration, shutdown: &CancellationToken) -> Result<(), StoreError> {
    let full = PRUNE_BATCH as usize;
    let before = store.now() - kept;
    loop {
        let executions = history::prune_executions(store, before).await?;
        let jobs = history::prune_jobs(store, before).await?;
        counter!("isocost_pruned_total", "what" => "executions").increment(executions as u64);
        counter!("isocost_pruned_total", "what" => "jobs").increment(jobs as u64);
        if executions < full && jobs < full {
            break;
        }
        if !pause(shutdown, PRUNE_PAUSE).await {
            return Ok(());
        }
    }
    history::prune_records(store, before).await
}
