//! Reports on their way to the intake: kept until the broker confirms them, sent in order, many in one message.

use crate::{acks::Delivered, incarnation::Incarnation, ownership::Confirmed};
use backon::{BackoffBuilder, ExponentialBuilder};
use isocost_common::{
    broker::{Message, Publication, PublishOutcome, subscription::pause_or_back},
    crash_point::{CrashPoint, reach},
    execution::Outcome,
    message::{Report, ReportEvent, ReportMessage, kind},
};
use parking_lot::Mutex;
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Reports in one message, at most.
const MESSAGE_REPORTS: usize = 500;
/// Size of one message's reports, about, at most.
const MESSAGE_BYTES: usize = 1024 * 1024;
/// Messages published together, at most.
const MESSAGES: usize = 8;
/// While reports come one after the other they are given this long to gather.
const LINGER: Duration = Duration::from_millis(1);
/// A pause longer than this between publications means that the worker is not busy, and nothing lingers.
const BUSY_GAP: Duration = Duration::from_millis(5);

/// A report, and the share of the delivery that it keeps from being acked.
pub(crate) struct Item {
    /// What is said.
    pub(crate) report: Arc<Report>,
    /// Let go when the report is confirmed.
    pub(crate) delivery: Option<Arc<Delivered>>,
}

/// The reports to send. Bounded by what the worker holds: each handover has at most a start and an end in here.
#[derive(Default)]
pub(crate) struct Outbox {
    queue: Mutex<VecDeque<Item>>,
    filled: Notify,
}

/// A message and what is in it.
struct Batch {
    message: Message,
    items: Vec<Item>,
}

impl Outbox {
    /// Appends reports.
    pub(crate) fn push(&self, items: impl IntoIterator<Item = Item>) {
        self.queue.lock().extend(items);
        self.filled.notify_one();
    }

    /// Has these reports and no others.
    pub(crate) fn replace(&self, items: impl IntoIterator<Item = Item>) {
        *self.queue.lock() = items.into_iter().collect();
        self.filled.notify_one();
    }

    /// Reports not yet taken for sending.
    pub(crate) fn len(&self) -> usize {
        self.queue.lock().len()
    }

    /// The next message's worth, in order; empty when there is nothing.
    fn take(&self) -> Vec<Item> {
        let mut queue = self.queue.lock();
        let mut bytes = 0;
        let count = queue
            .iter()
            .take(MESSAGE_REPORTS)
            .take_while(|item| {
                let fits = bytes == 0 || bytes < MESSAGE_BYTES;
                bytes += size(&item.report);
                fits
            })
            .count();
        queue.drain(..count).collect()
    }
}

/// Sends reports until `stop`; what is unsent then belongs to an incarnation that has ended.
pub(crate) async fn send_reports(incarnation: &Incarnation, stop: &CancellationToken) {
    let outbox = &incarnation.outbox;
    let mut last = Instant::now();
    loop {
        if outbox.len() == 0 {
            tokio::select! {
                () = outbox.filled.notified() => {}
                () = stop.cancelled() => return,
            }
        }
        if last.elapsed() < BUSY_GAP && outbox.len() < MESSAGE_REPORTS {
            tokio::time::sleep(LINGER).await;
        }
        let batches = take_batches(incarnation);
        if !batches.is_empty() {
            publish_until_confirmed(incarnation, batches, stop).await;
            last = Instant::now();
        }
        if stop.is_cancelled() {
            return;
        }
    }
}

fn take_batches(incarnation: &Incarnation) -> Vec<Batch> {
    let mut batches = Vec::new();
    while batches.len() < MESSAGES {
        let items = incarnation.outbox.take();
        if items.is_empty() {
            break;
        }
        let body = ReportMessage {
            worker: incarnation.worker().clone(),
            incarnation: incarnation.id,
            reports: items.iter().map(|item| Report::clone(&item.report)).collect(),
        };
        batches.push(Batch {
            message: Message::json(kind::REPORT, &body),
            items,
        });
    }
    batches
}

/// The same messages again and again, until the broker has each. Nothing newer is sent before, which keeps the order.
async fn publish_until_confirmed(
    incarnation: &Incarnation,
    mut batches: Vec<Batch>,
    stop: &CancellationToken,
) {
    let mut pauses = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(Duration::from_secs(2))
        .with_jitter()
        .without_max_times()
        .build();
    loop {
        let publications = batches
            .iter()
            .map(|batch| incarnation.mandatory_result(batch.message.clone()))
            .collect::<Vec<Publication>>();
        reach_all(
            &batches,
            CrashPoint::WorkerStartUnsent,
            CrashPoint::WorkerEndUnsent,
        );
        let outcomes = incarnation.broker().publish(publications).await;
        reach_all(
            &batches,
            CrashPoint::WorkerStartConfirmed,
            CrashPoint::WorkerEndConfirmed,
        );
        let mut unsent = Vec::new();
        let mut returned = false;
        for (batch, outcome) in batches.into_iter().zip(outcomes) {
            returned |= outcome == PublishOutcome::Returned;
            if outcome == PublishOutcome::Confirmed {
                incarnation.confirmed(batch.items.iter().map(|item| confirmation(&item.report)));
                batch.items.into_iter().for_each(|item| drop(item.delivery));
            } else {
                unsent.push(batch);
            }
        }
        if unsent.is_empty() {
            return;
        }
        warn!(
            messages = unsent.len(),
            "reports are not confirmed; they are sent again"
        );
        batches = unsent;
        tokio::select! {
            () = pause_or_back(incarnation.broker(), pauses.next().unwrap_or(LINGER)) => {}
            () = stop.cancelled() => return,
        }
        if returned {
            incarnation.redeclare_shared().await;
        }
    }
}

/// Visits the crash point of a start, of an end, or both, by what is reported.
fn reach_all(batches: &[Batch], start: CrashPoint, end: CrashPoint) {
    let has = |which: Confirmed| {
        let mut items = batches.iter().flat_map(|batch| &batch.items);
        items.any(|item| confirmation(&item.report).1 == which)
    };
    if has(Confirmed::Start) {
        reach(start);
    }
    if has(Confirmed::End) {
        reach(end);
    }
}

fn confirmation(report: &Report) -> (isocost_common::execution::Claim, Confirmed) {
    let which = match report.event {
        ReportEvent::Started { .. } => Confirmed::Start,
        ReportEvent::Refused { .. }
        | ReportEvent::Released
        | ReportEvent::Unknown
        | ReportEvent::Finished { .. } => Confirmed::End,
    };
    (report.claim, which)
}

/// About how long the report is as JSON.
fn size(report: &Report) -> usize {
    const FRAME: usize = 200;
    let content = match &report.event {
        ReportEvent::Finished { outcome, .. } => match outcome {
            Outcome::Succeeded { result } => result.as_str().len(),
            Outcome::Failed { error, .. } => error.message.len(),
            Outcome::Interrupted { reason } => reason.len(),
            Outcome::TimedOut | Outcome::Cancelled => 0,
        },
        ReportEvent::Refused { reason } => reason.len(),
        ReportEvent::Started { .. } | ReportEvent::Released | ReportEvent::Unknown => 0,
    };
    FRAME + content
}

#[cfg(test)]
mod tests {
    use super::*;
    use isocost_common::{execution::Claim, id::ExecutionId, raw_json::RawJson, time::EpochMillis};

    fn finished(result_bytes: usize) -> Item {
        let result = RawJson::from_value(&"x".repeat(result_bytes)).expect("text is JSON");
        let report = Report {
            claim: Claim {
                execution: ExecutionId::generate(),
                dispatch_seq: 1,
            },
            event: ReportEvent::Finished {
                outcome: Outcome::Succeeded { result },
                started_at: EpochMillis(1),
                at: EpochMillis(2),
                attempt: 1,
            },
        };
        Item {
            report: Arc::new(report),
            delivery: None,
        }
    }

    #[test]
    fn small_reports_fill_a_message_by_number() {
        let outbox = Outbox::default();
        outbox.push((0..MESSAGE_REPORTS + 1).map(|_| finished(2)));
        assert_eq!(outbox.take().len(), MESSAGE_REPORTS);
        assert_eq!(outbox.take().len(), 1);
        assert!(outbox.take().is_empty());
    }

    #[test]
    fn large_reports_fill_a_message_by_size_and_one_always_goes() {
        let outbox = Outbox::default();
        outbox.push([finished(2 * MESSAGE_BYTES), finished(MESSAGE_BYTES / 2)]);
        outbox.push((0..4).map(|_| finished(MESSAGE_BYTES / 2)));
        assert_eq!(outbox.take().len(), 1);
        assert_eq!(outbox.take().len(), 2);
    }

    #[test]
    fn reports_leave_in_the_order_they_came() {
        let outbox = Outbox::default();
        let items: Vec<Item> = (0..3).map(|_| finished(1)).collect();
        let expected: Vec<Claim> = items.iter().map(|item| item.report.claim).collect();
        outbox.push(items);
        let taken: Vec<Claim> = outbox.take().iter().map(|item| item.report.claim).collect();
        assert_eq!(taken, expected);
    }
}
