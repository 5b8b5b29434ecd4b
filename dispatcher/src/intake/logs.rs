//! Handlers' log lines and progress: taken in as long as the database keeps up, dropped rather than held back.

use super::{Intake, without_markers};
use crate::subscription::{patient, pause};
use isocost_common::{
    broker::Delivery,
    error_chain::chain,
    message::LogMessage,
    store::{Store, StoreError, handler_logs},
};
use metrics::counter;
use std::time::Duration;
use tracing::warn;

/// Lines are read by people: a fuller statement is worth a little wait.
const LINGER: Duration = Duration::from_millis(20);

pub(super) async fn run(intake: &Intake) {
    let mut subscription = intake.subscribe(intake.names.logs_queue());
    while let Some((deliveries, acker)) = subscription.next(intake.batch, LINGER).await {
        let (markers, deliveries) = without_markers(deliveries);
        let message = merge(&deliveries);
        let mut pauses = patient();
        while let Err(error) = store(&intake.ports.store, &message).await {
            if !error.is_transient() {
                counter!("isocost_log_lines_dropped_total").increment(message.lines.len() as u64);
                warn!(error = %chain(&error), lines = message.lines.len(), "log lines are dropped");
                break;
            }
            if !pause(&intake.shutdown, pauses.next().unwrap_or_default()).await {
                return;
            }
        }
        let tags: Vec<_> = deliveries.iter().map(|delivery| delivery.tag).collect();
        acker.ack(&tags).await;
        intake.pass_on(markers, acker.as_ref()).await;
    }
}

fn merge(deliveries: &[Delivery]) -> LogMessage {
    let mut all = LogMessage::default();
    for delivery in deliveries {
        match delivery.message.parse::<LogMessage>() {
            Ok(message) => {
                all.lines.extend(message.lines);
                all.progress.extend(message.progress);
            }
            Err(error) => warn!(%error, "a log message cannot be read"),
        }
    }
    all
}

async fn store(store: &Store, message: &LogMessage) -> Result<(), StoreError> {
    let dialect = store.dialect();
    store
        .transact(|| async {
            let mut tx = store.begin().await?;
            handler_logs::insert_lines(&mut tx, dialect, &message.lines).await?;
            handler_logs::set_progress(&mut tx, dialect, &message.progress).await?;
            tx.commit().await
        })
        .await
}
