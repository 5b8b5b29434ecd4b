//! What has lost its ticket, or its relay: found in the table.

use super::{Lane, engine::Engine};
use isocost_common::{
    error_chain::chain,
    store::{StoreError, callbacks::attempts},
    time::EpochMillis,
};
use std::time::Duration;
use tokio::time::Instant;
use tracing::{info, warn};

/// What is overdue by less still has its ticket under way.
const TICKET_GRACE: Duration = Duration::from_secs(1);
/// Endpoints and leases looked at in one sweep.
const SWEEP_LIMIT: u32 = 500;
const EXPIRE_EVERY: Duration = Duration::from_secs(60);
/// Due instants are remembered this far ahead; the sweep finds the others.
const HORIZON: Duration = Duration::from_secs(60);
const MOST_REMEMBERED: usize = 10_000;

impl Engine {
    /// Parks endpoints with overdue deliveries, so that they are claimed as there is room; puts back what a relay
    /// left in the middle; ends what became too old.
    pub(super) async fn sweep(&mut self) {
        self.endpoints.forget_idle(Instant::now());
        if let Err(failure) = self.sweep_table().await {
            warn!(error = %chain(&failure), "sweeping callbacks later");
        }
    }

    async fn sweep_table(&mut self) -> Result<(), StoreError> {
        let store = &self.ports.store;
        let now = store.now();
        let mut reader = store.reader().await?;
        let overdue = attempts::overdue_endpoints(&mut reader, now - TICKET_GRACE, SWEEP_LIMIT).await?;
        let abandoned = attempts::any_expired_lease(&mut reader, now).await?;
        drop(reader);
        if abandoned {
            let recovered = store
                .transact(|| async {
                    let mut tx = store.begin().await?;
                    let recovered = attempts::recover_expired_leases(&mut tx, now, SWEEP_LIMIT).await?;
                    tx.commit().await?;
                    Ok(recovered)
                })
                .await?;
            info!(recovered, "callbacks of a relay that stopped are repeated");
        }
        if Instant::now() >= self.expire_at {
            self.expire_at = Instant::now() + EXPIRE_EVERY;
            store
                .transact(|| async {
                    let mut tx = store.begin().await?;
                    attempts::expire_overdue(&mut tx, now).await?;
                    tx.commit().await
                })
                .await?;
        }
        for endpoint in &overdue {
            for lane in Lane::BOTH {
                self.endpoints.park(endpoint, lane);
            }
        }
        Ok(())
    }

    /// Notes that `endpoint` has something due at `at`.
    pub(super) fn remember(&mut self, at: EpochMillis, lane: Lane, endpoint: String) {
        let near = at.since(self.ports.store.now()) <= HORIZON;
        if near && self.upcoming.len() < MOST_REMEMBERED {
            self.upcoming.insert((at, lane, endpoint));
        }
    }

    /// Parks the endpoints whose remembered instant has come.
    pub(super) fn wake_due(&mut self) {
        let now = self.ports.store.now();
        while self.upcoming.first().is_some_and(|(at, ..)| *at <= now) {
            if let Some((_, lane, endpoint)) = self.upcoming.pop_first() {
                self.endpoints.park(&endpoint, lane);
            }
        }
    }

    /// When the loop has something to do by the clock.
    pub(super) fn wake_at(&self) -> Instant {
        let upcoming = self.upcoming.first().map(|(at, ..)| {
            // One millisecond more: instants are whole milliseconds.
            Instant::now() + at.since(self.ports.store.now()) + Duration::from_millis(1)
        });
        let recording = (!self.finished.is_empty() || !self.unbegun.is_empty()).then_some(self.record_at);
        [upcoming, recording]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or_else(|| Instant::now() + HORIZON)
    }
}
