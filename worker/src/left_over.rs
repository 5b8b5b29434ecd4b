//! What an incarnation had to report when it ended: its lease ran out while the broker was away.
//!
//! Its handlers may have done their work, so the reports are kept and sent as soon as the broker is back, before the next
//! incarnation shows itself. They still count if the leader has not taken the work away by then; if it has, they are
//! refused by their dispatch numbers.

use crate::{incarnation::Incarnation, outbox::send_reports};
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// A worker that is asked to stop waits this long for the broker.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// The incarnation before, when it has something to report; none of its tasks or runs goes on.
pub(crate) struct LeftOver(Arc<Incarnation>);

impl LeftOver {
    /// None when everything is reported.
    pub(crate) fn of(ended: &Arc<Incarnation>) -> Option<Self> {
        let unreported = ended.books.lock().table.unreported();
        if unreported.is_empty() {
            return None;
        }
        warn!(
            incarnation = %ended.id,
            reports = unreported.len(),
            "the last reports of this incarnation are kept until the broker is back"
        );
        let items = unreported.into_iter().map(|(claim, say)| ended.item(claim, say));
        ended.outbox.replace(items);
        Some(Self(Arc::clone(ended)))
    }

    /// Sends it, however long that takes. False when the process was asked to stop, and the broker took it not even then.
    pub(crate) async fn send(&self, shutdown: &CancellationToken) -> bool {
        let until_stopped = CancellationToken::new();
        let sending = async {
            tokio::select! {
                () = send_reports(&self.0, &until_stopped) => {}
                () = self.0.all_reported() => {}
            }
        };
        let stopping = async {
            shutdown.cancelled().await;
            tokio::time::sleep(LAST_WAIT).await;
        };
        tokio::select! {
            () = sending => {
                info!(incarnation = %self.0.id, "the last reports of this incarnation are sent");
                true
            }
            () = stopping => {
                warn!(incarnation = %self.0.id, "its last reports are lost; the leader recovers by its death");
                false
            }
        }
    }
}
