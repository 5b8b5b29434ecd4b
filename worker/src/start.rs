//! From taken to finished: a slot, the start key, the start, the run, the report.

use crate::{
    acks::Delivered, bulkhead::Slot, context::JobContext, incarnation::Incarnation, outbox::Item,
    ownership::OnStart, run::attempt, run_control::RunControl,
};
use isocost_common::{
    crash_point::{CrashPoint, reach},
    execution::Outcome,
    message::{DispatchedExecution, Report, ReportEvent},
};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// An execution that was taken and has not started.
pub(crate) struct Work {
    /// What to run.
    pub(crate) execution: DispatchedExecution,
    /// Its share of the delivery it came with.
    pub(crate) delivery: Arc<Delivered>,
    /// Until when it may wait for a slot.
    pub(crate) slot_deadline: Instant,
}

/// Starts the work, or puts it in line for a slot of its handler.
pub(crate) fn submit(incarnation: &Arc<Incarnation>, work: Work) {
    let Some(bulkhead) = incarnation.bulkheads.get(&work.execution.handler) else {
        incarnation.refuse(work.execution.claim, "unknown handler", work.delivery);
        return;
    };
    match bulkhead.admit(work) {
        Some((slot, work)) => {
            let task = occupy(Arc::clone(incarnation), slot, work);
            incarnation.runs.spawn_on(task, incarnation.runtime.pool.handle());
        }
        None => incarnation.line_formed.notify_one(),
    }
}

/// Keeps a slot busy as long as there is work in line for it.
async fn occupy(incarnation: Arc<Incarnation>, mut slot: Slot, first: Work) {
    let mut next = Some(first);
    while let Some(work) = next {
        run_one(&incarnation, &slot, work).await;
        // Handlers that return at once would otherwise keep their thread to themselves.
        tokio::task::coop::consume_budget().await;
        next = slot.next_work();
    }
}

async fn run_one(incarnation: &Incarnation, slot: &Slot, work: Work) {
    let Work {
        execution, delivery, ..
    } = work;
    let claim = execution.claim;
    if !incarnation.lease.is_valid() || !incarnation.books.lock().table.is_held(claim) {
        return;
    }
    let keys = &incarnation.start_keys;
    if !keys
        .claim(incarnation.runtime.coordination.as_ref(), &execution)
        .await
    {
        incarnation.refuse(claim, "its start key is taken", delivery);
        return;
    }

    reach(CrashPoint::WorkerStartKeySet);
    let attempt_number = execution.attempt;
    let started_at = incarnation.runtime.clock.now();
    let started = Arc::new(Report {
        claim,
        event: ReportEvent::Started {
            at: started_at,
            attempt: attempt_number,
        },
    });
    let timeout = Duration::from_millis(u64::try_from(execution.timeout_ms).unwrap_or(0));
    let control = Arc::new(RunControl::new(&execution.handler, timeout));
    if !start(incarnation, &started, &control, delivery) {
        return;
    }

    let begun = Instant::now();
    let context = JobContext::new(
        execution,
        Arc::clone(&control),
        incarnation.log.clone(),
        Arc::clone(&incarnation.runtime.clock),
    );
    let limit = incarnation.runtime.config.worker.max_result_bytes;
    let outcome = attempt(&slot.bulkhead().handler, context, &control, limit).await;
    observe(&slot.bulkhead().name, &outcome, begun.elapsed());
    let finished = Report {
        claim,
        event: ReportEvent::Finished {
            outcome,
            started_at,
            at: incarnation.runtime.clock.now().max(started_at),
            attempt: attempt_number,
        },
    };
    finish(incarnation, finished);
}

/// The one step in which held work becomes running. False when a release, a cancel or the end of the lease was first.
fn start(
    incarnation: &Incarnation,
    started: &Arc<Report>,
    control: &Arc<RunControl>,
    delivery: Arc<Delivered>,
) -> bool {
    let claim = started.claim;
    let mut books = incarnation.books.lock();
    let lease_valid = incarnation.lease.is_valid();
    match books
        .table
        .on_start_granted(claim, lease_valid, Arc::clone(started))
    {
        OnStart::Run => {}
        OnStart::Withdrawn | OnStart::LeaseOver => return false,
    }
    books.runs.insert(claim, Arc::clone(control));
    drop(books);
    reach(CrashPoint::WorkerRunning);
    incarnation.outbox.push([Item {
        report: Arc::clone(started),
        delivery: Some(delivery),
    }]);
    true
}

fn finish(incarnation: &Incarnation, finished: Report) {
    reach(CrashPoint::WorkerFinished);
    let finished = Arc::new(finished);
    let mut books = incarnation.books.lock();
    books.runs.remove(&finished.claim);
    let reported = books.table.on_finished(finished.claim, Arc::clone(&finished));
    drop(books);
    if reported {
        incarnation.outbox.push([Item {
            report: finished,
            delivery: None,
        }]);
    }
}

fn observe(handler: &str, outcome: &Outcome, run_time: Duration) {
    let word = match outcome {
        Outcome::Succeeded { .. } => "succeeded",
        Outcome::Failed { .. } => "failed",
        Outcome::TimedOut => "timed_out",
        Outcome::Cancelled => "cancelled",
        Outcome::Interrupted { .. } => "interrupted",
    };
    let handler = handler.to_owned();
    metrics::histogram!("isocost_worker_run_seconds", "handler" => handler.clone())
        .record(run_time.as_secs_f64());
    metrics::counter!("isocost_worker_runs_total", "handler" => handler, "outcome" => word).increment(1);
}
