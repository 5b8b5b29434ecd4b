//! What came of attempts: decided, written many at a time, and the tickets of the next ones sent off.

use super::{
    Lane,
    engine::{Done, Engine},
    retry::Verdict,
};
use crate::subscription::{patient, pause};
use isocost_common::{
    broker::{Message, Publication},
    crash_point::{CrashPoint, reach},
    error_chain::chain,
    message::{CallbackTicket, kind},
    store::{
        StoreError,
        callbacks::{
            DeliveryStatus,
            attempts::{self, AttemptRecord},
        },
    },
};
use metrics::{counter, histogram};
use std::time::Duration;
use tracing::{error, warn};

/// An attempt that is over, with what is planned next.
pub(super) struct Finished {
    record: AttemptRecord,
    endpoint: String,
    /// Delay tier whose queue brings the next ticket.
    tier: Option<Duration>,
}

impl Engine {
    /// What a request that is over means for its delivery.
    pub(super) fn conclude(&self, done: Done) -> Finished {
        let delivery = done.claimed.delivery;
        let now = self.ports.store.now();
        let attempt = delivery.attempt + 1;
        let verdict = self.plan.verdict(
            &done.answer,
            attempt - delivery.retry_from,
            now,
            delivery.expires_at,
            rand::random(),
        );
        let said = done.answer.summary();
        counter!("isocost_callback_attempts_total", "outcome" => verdict.name()).increment(1);
        histogram!("isocost_callback_request_seconds").record(done.took.as_secs_f64());
        if verdict == Verdict::Delivered {
            let latency = now.since(delivery.created_at);
            histogram!("isocost_callback_latency_seconds").record(latency.as_secs_f64());
        }
        let (next_attempt_at, tier) = match verdict {
            Verdict::Retry { at, tier } => (at, tier),
            _ => (now, None),
        };
        Finished {
            endpoint: delivery.endpoint,
            tier,
            record: AttemptRecord {
                delivery: delivery.id,
                job: delivery.job,
                execution: delivery.execution,
                attempt,
                started_at: done.started_at,
                finished_at: now,
                status_code: done.answer.status,
                step: verdict.step(attempt, &said),
                error: (verdict != Verdict::Delivered).then_some(said),
                response_body: done.answer.body,
                status: verdict.status(),
                next_attempt_at,
            },
        }
    }

    /// Writes everything that is finished or to be given back, as long as the database is away trying again.
    pub(super) async fn record(&mut self) {
        let finished = std::mem::take(&mut self.finished);
        let unbegun = std::mem::take(&mut self.unbegun);
        let records: Vec<AttemptRecord> = finished.iter().map(|finished| finished.record.clone()).collect();
        let mut pauses = patient();
        loop {
            let store = &self.ports.store;
            let written = store
                .transact(|| async {
                    let mut tx = store.begin().await?;
                    attempts::record(&mut tx, &records).await?;
                    attempts::release(&mut tx, &unbegun).await?;
                    tx.commit().await
                })
                .await;
            match written {
                Ok(()) => break,
                Err(failure) if failure.is_transient() => {
                    warn!(error = %chain(&failure), "recording callback attempts again");
                }
                Err(failure) => return lost(&failure, records.len()),
            }
            if !pause(&self.shutdown, pauses.next().unwrap_or_default()).await {
                return;
            }
        }
        reach(CrashPoint::RelayRecorded);
        self.plan_next(&finished).await;
    }

    /// Sends the tickets of repeated attempts on their way round. Best effort: the sweep finds rows without a ticket.
    async fn plan_next(&mut self, finished: &[Finished]) {
        let mut tickets = Vec::new();
        for next in finished
            .iter()
            .filter(|f| f.record.status == DeliveryStatus::Pending)
        {
            self.remember(next.record.next_attempt_at, Lane::Retry, next.endpoint.clone());
            let Some(tier) = next.tier else { continue };
            let ticket = CallbackTicket {
                delivery: next.record.delivery,
                attempt: next.record.attempt + 1,
            };
            tickets.push(Publication {
                exchange: self.names.callbacks_exchange(),
                routing_key: self.names.callback_delay_queue(tier),
                mandatory: false,
                message: Message::json(kind::CALLBACK, &ticket),
            });
        }
        if !tickets.is_empty() {
            self.ports.broker.publish(tickets).await;
        }
    }
}

/// The leases of these rows run out, and the attempts are repeated: at least once holds.
fn lost(failure: &StoreError, attempts: usize) {
    error!(error = %chain(failure), attempts, "callback attempts cannot be recorded and will be repeated");
}

impl Verdict {
    const fn status(self) -> DeliveryStatus {
        match self {
            Self::Delivered => DeliveryStatus::Delivered,
            Self::Gone => DeliveryStatus::Gone,
            Self::Retry { .. } => DeliveryStatus::Pending,
            Self::Exhausted => DeliveryStatus::Exhausted,
            Self::Expired => DeliveryStatus::Expired,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Gone => "gone",
            Self::Retry { .. } => "retried",
            Self::Exhausted => "exhausted",
            Self::Expired => "expired",
        }
    }

    /// For the steps of the execution.
    fn step(self, attempt: u32, said: &str) -> String {
        match self {
            Self::Delivered => format!("callback delivered: {said}, attempt {attempt}"),
            Self::Gone => format!("callback ended: {said}, the receiver wants no more; attempt {attempt}"),
            Self::Retry { at, .. } => {
                format!("callback attempt {attempt} failed: {said}; the next one is due at {at}")
            }
            Self::Exhausted => format!("callback ended: {said}; attempt {attempt} was the last"),
            Self::Expired => {
                format!("callback ended: {said}; after attempt {attempt} it is too old for another")
            }
        }
    }
}
