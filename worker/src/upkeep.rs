//! Watches over time: the lease, those who wait for a slot, the table's age, runs beyond their limit.

use crate::{
    boot_clock::BootInstant,
    incarnation::{End, Incarnation},
    lease::Phase,
    run_control::{STOP_GRACE, StopReason},
};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Timers stand still while a machine sleeps, so the lease is looked at often instead of waited for.
const LEASE_LOOK: Duration = Duration::from_millis(250);
/// Distance between two rounds of tidying up.
const ROUND: Duration = Duration::from_secs(1);

/// Ends the incarnation when its lease has run out; until `stop`.
pub(crate) async fn watch_lease(incarnation: &Incarnation, stop: &CancellationToken) {
    while !stop.is_cancelled() {
        match incarnation.lease.phase(BootInstant::now()) {
            Phase::Lost | Phase::Over => {
                incarnation.end(End::LeaseLost);
                return;
            }
            Phase::Unregistered | Phase::Valid => {}
        }
        pause(LEASE_LOOK, stop).await;
    }
}

/// Refuses what has waited for a slot long enough; until `stop`.
pub(crate) async fn refuse_the_patient(incarnation: &Incarnation, stop: &CancellationToken) {
    let bulkheads = &incarnation.bulkheads;
    while !stop.is_cancelled() {
        let formed = incarnation.line_formed.notified();
        let deadline = bulkheads
            .values()
            .filter_map(|bulkhead| bulkhead.first_deadline())
            .min();
        match deadline {
            Some(deadline) => tokio::select! {
                () = tokio::time::sleep_until(deadline) => {}
                () = stop.cancelled() => return,
            },
            None => tokio::select! {
                () = formed => {}
                () = stop.cancelled() => return,
            },
        }
        let now = Instant::now();
        for work in bulkheads.values().flat_map(|bulkhead| bulkhead.expired(now)) {
            incarnation.refuse(work.execution.claim, "no free slot", work.delivery);
        }
    }
}

/// Forgets old entries, stops runs whose own task cannot, and shows figures; until `stop`.
pub(crate) async fn tidy_up(incarnation: &Incarnation, stop: &CancellationToken) {
    while !stop.is_cancelled() {
        let now = incarnation.runtime.clock.now();
        let running = {
            let mut books = incarnation.books.lock();
            books.table.prune(now);
            // A handler that blocks its thread also blocks its own deadline; its token still reaches its other tasks.
            let clock = Instant::now();
            for run in books.runs.values().filter(|run| run.deadline <= clock) {
                run.stop(StopReason::TimedOut, STOP_GRACE);
            }
            books.runs.len()
        };
        metrics::gauge!("isocost_worker_running").set(running as f64);
        metrics::gauge!("isocost_worker_outbox_reports").set(incarnation.outbox.len() as f64);
        pause(ROUND, stop).await;
    }
}

async fn pause(duration: Duration, stop: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(duration) => {}
        () = stop.cancelled() => {}
    }
}
