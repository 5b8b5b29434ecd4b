//! Housekeeping: old history is deleted, and the database's clock is compared with this machine's. Any number of
//! processes may do it at once: each passes over what another one has in hand.

use crate::subscription::pause;
use isocost_common::{
    error_chain::chain,
    store::{
        Store, StoreError,
        deletion::{self, KEY_KEPT_FOR},
        history::{self, PRUNE_BATCH},
        steering,
    },
};
use metrics::{counter, gauge};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

const CLOCK_EVERY: Duration = Duration::from_secs(30);
/// A difference beyond this makes logs of different machines hard to read together.
const CLOCK_WARNING_MS: i64 = 500;
const PRUNE_EVERY: Duration = Duration::from_secs(600);
/// A look costs one read of a small index.
const DELETE_EVERY: Duration = Duration::from_secs(1);
/// Between two batches, so that pruning never takes more than a fraction of the database.
const PRUNE_PAUSE: Duration = Duration::from_millis(100);
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// Keeps house until `shutdown`; the batch in hand is completed first. Failures are logged and tried again later.
pub(crate) async fn run(store: &Store, kept_days: u32, shutdown: &CancellationToken) {
    tokio::join!(
        watch_clock(store, shutdown),
        plan_forgotten(store, shutdown),
        finish_deletions(store, shutdown),
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

/// Jobs that are to be deleted go as soon as what was open of them has ended.
async fn finish_deletions(store: &Store, shutdown: &CancellationToken) {
    while pause(shutdown, DELETE_EVERY).await {
        match Box::pin(steering::finish_deletions(store)).await {
            Ok(0) => {}
            Ok(deleted) => debug!(deleted, "jobs that were to be deleted are gone"),
            Err(failure) => warn!(error = %chain(&failure), "deleting jobs later"),
        }
    }
}

/// Jobs that wait for nothing are looked for at the start, and now and then.
async fn plan_forgotten(store: &Store, shutdown: &CancellationToken) {
    loop {
        match Box::pin(steering::plan_forgotten(store)).await {
            Ok(0) => {}
            Ok(planned) => warn!(planned, "jobs that waited for nothing were planned anew"),
            Err(failure) => warn!(error = %chain(&failure), "looking for jobs that wait for nothing later"),
        }
        if !pause(shutdown, PRUNE_EVERY).await {
            return;
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
    history::prune_records(store, before).await?;
    let keys = deletion::free_keys(store, store.now() - KEY_KEPT_FOR).await?;
    counter!("isocost_pruned_total", "what" => "keys").increment(keys);
    Ok(())
}
