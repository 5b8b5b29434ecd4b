//! Taking in: dispatches, and requests about them.

use crate::{
    acks::Delivered,
    incarnation::Incarnation,
    outbox::Item,
    ownership::{Admission, OnCancel, OnDispatch},
    run_control::{STOP_GRACE, StopReason},
    start::{Work, submit},
};
use backon::{BackoffBuilder, ExponentialBuilder};
use isocost_common::{
    broker::{Acker, BrokerError, ConsumeOptions, Consumer, Delivery, subscription::pause_or_back},
    crash_point::{CrashPoint, reach},
    message::{ControlAction, ControlMessage, DispatchMessage, DispatchedExecution},
};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

/// Control messages held at once.
const CONTROL_PREFETCH: u16 = 64;

/// Takes dispatches from the first acknowledged heartbeat until `stop`.
pub(crate) async fn take_dispatches(incarnation: &Arc<Incarnation>, stop: &CancellationToken) {
    tokio::select! {
        () = incarnation.registered.cancelled() => {}
        () = stop.cancelled() => return,
    }
    let queue = incarnation.runtime.dispatch_queue(incarnation.id);
    let options = ConsumeOptions {
        prefetch: incarnation.runtime.prefetch(),
        exclusive: true,
    };
    while let Some(mut consumer) = open(incarnation, &queue, options, stop).await {
        incarnation.consuming.store(true, Ordering::Relaxed);
        let acker = consumer.acker();
        while let Some(delivery) = next(consumer.as_mut(), stop).await {
            take(incarnation, &acker, delivery).await;
        }
        incarnation.consuming.store(false, Ordering::Relaxed);
    }
}

/// Answers requests until `stop`.
pub(crate) async fn take_requests(incarnation: &Arc<Incarnation>, stop: &CancellationToken) {
    let queue = incarnation.runtime.control_queue(incarnation.id);
    let options = ConsumeOptions {
        prefetch: CONTROL_PREFETCH,
        exclusive: true,
    };
    while let Some(mut consumer) = open(incarnation, &queue, options, stop).await {
        let acker = consumer.acker();
        while let Some(delivery) = next(consumer.as_mut(), stop).await {
            match delivery.message.parse::<ControlMessage>() {
                Ok(message) => answer(incarnation, message),
                Err(error) => error!(error = %error, "a control message cannot be read"),
            }
            // A lost answer is asked for again, so the request is done with either way.
            acker.ack(&[delivery.tag]).await;
        }
    }
}

/// A consumer, however long the broker is away; none after `stop`.
async fn open(
    incarnation: &Incarnation,
    queue: &str,
    options: ConsumeOptions,
    stop: &CancellationToken,
) -> Option<Box<dyn Consumer>> {
    let mut pauses = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(Duration::from_secs(2))
        .with_jitter()
        .without_max_times()
        .build();
    while !stop.is_cancelled() {
        match incarnation.broker().consume(queue, options).await {
            Ok(consumer) => return Some(consumer),
            Err(error) => {
                warn!(queue, error = %error, "consuming is not possible yet");
                if matches!(error, BrokerError::NoSuchQueue(_)) {
                    redeclare(incarnation).await;
                }
            }
        }
        tokio::select! {
            () = pause_or_back(incarnation.broker(), pauses.next().unwrap_or(Duration::from_secs(1))) => {}
            () = stop.cancelled() => {}
        }
    }
    None
}

async fn redeclare(incarnation: &Incarnation) {
    let topology = incarnation.runtime.worker_topology(incarnation.id);
    if let Err(error) = incarnation.broker().declare(&topology).await {
        warn!(error = %error, "declaring the worker's queues");
    }
}

/// The next delivery; none when the consumer ended or `stop` came.
async fn next(consumer: &mut dyn Consumer, stop: &CancellationToken) -> Option<Delivery> {
    tokio::select! {
        delivery = consumer.next() => match delivery {
            Ok(delivery) => Some(delivery),
            Err(ended) => {
                warn!(error = %ended, "consuming anew");
                None
            }
        },
        () = stop.cancelled() => None,
    }
}

async fn take(incarnation: &Arc<Incarnation>, acker: &Arc<dyn Acker>, delivery: Delivery) {
    match delivery.message.parse::<DispatchMessage>() {
        Ok(message) => {
            let share = Delivered::new(&incarnation.acks, acker, delivery.tag);
            decide(incarnation, message.executions, &share);
        }
        Err(error) => {
            // What it carried shows in no holdings, so the leader asks for it and places it anew.
            error!(error = %error, "a dispatch message cannot be read");
            acker.dead_letter(delivery.tag).await;
        }
    }
}

fn decide(incarnation: &Arc<Incarnation>, executions: Vec<DispatchedExecution>, share: &Arc<Delivered>) {
    let clock = &incarnation.runtime.clock;
    if let Some(newest) = executions.iter().map(|execution| execution.placed_at).max() {
        clock.observe(newest);
    }
    let now = clock.now();
    let slot_deadline =
        Instant::now() + Duration::from_millis(incarnation.runtime.config.leases.slot_wait_ms);
    let mut taken = Vec::with_capacity(executions.len());
    let mut reports = Vec::new();
    let mut duplicates = 0;
    {
        let mut books = incarnation.books.lock();
        for execution in executions {
            let claim = execution.claim;
            let (admission, reason) = admission(incarnation, &execution.handler);
            match books
                .table
                .on_dispatch(claim, execution.not_after, now, admission)
            {
                OnDispatch::Take => taken.push(Work {
                    execution,
                    delivery: Arc::clone(share),
                    slot_deadline,
                }),
                OnDispatch::Turned(promise) => reports.push(Item {
                    delivery: Some(Arc::clone(share)),
                    ..incarnation.promise(claim, promise, reason)
                }),
                OnDispatch::Duplicate(say) => {
                    duplicates += 1;
                    reports.extend(say.map(|say| incarnation.item(claim, say)));
                }
            }
        }
    }
    if duplicates > 0 {
        metrics::counter!("isocost_worker_duplicates_dropped_total").increment(duplicates);
    }
    if !reports.is_empty() {
        incarnation.outbox.push(reports);
    }
    if !taken.is_empty() {
        reach(CrashPoint::WorkerTaken);
    }
    for work in taken {
        submit(incarnation, work);
    }
}

fn admission(incarnation: &Incarnation, handler: &str) -> (Admission, &'static str) {
    if incarnation.is_draining() {
        (Admission::Closed, "the worker is draining")
    } else if incarnation.bulkheads.contains_key(handler) {
        (Admission::Open, "")
    } else {
        (Admission::Closed, "the worker does not offer the handler")
    }
}

fn answer(incarnation: &Arc<Incarnation>, message: ControlMessage) {
    let now = incarnation.runtime.clock.now();
    for action in message.actions {
        let (claim, say) = match action {
            ControlAction::Release { claim, not_after } => (
                claim,
                incarnation.books.lock().table.on_release(claim, not_after, now),
            ),
            ControlAction::Query { claim, not_after } => (
                claim,
                incarnation.books.lock().table.on_query(claim, not_after, now),
            ),
            ControlAction::Cancel { claim, not_after } => {
                let mut books = incarnation.books.lock();
                let say = match books.table.on_cancel(claim, not_after, now) {
                    OnCancel::Answer(say) => say,
                    OnCancel::Stop => {
                        if let Some(run) = books.runs.get(&claim) {
                            run.stop(StopReason::Cancelled, STOP_GRACE);
                        }
                        None
                    }
                };
                (claim, say)
            }
            ControlAction::Drain => {
                info!("draining on request");
                incarnation.drain();
                continue;
            }
            ControlAction::Undrain => {
                info!("taking work again on request");
                incarnation.undrain();
                continue;
            }
        };
        if let Some(say) = say {
            incarnation.outbox.push([incarnation.item(claim, say)]);
        }
    }
}
