//! Start keys: the second guard against one trigger running twice.

use crate::{boot_clock::BootInstant, ownership::FORGET_AFTER};
use isocost_common::{coordination::Coordination, message::DispatchedExecution};
use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};
use tracing::warn;

/// A start waits this long for the answer.
const PATIENCE: Duration = Duration::from_millis(250);
/// After a failure starts do without the guard for this long, instead of each waiting in turn.
const AWAY_MS: i64 = 1_000;

/// Claims start keys, and remembers when their service is away.
#[derive(Debug)]
pub(crate) struct StartKeys {
    life: Duration,
    away_until_ms: AtomicI64,
}

impl StartKeys {
    /// Keys for dispatches that may be taken for `longest_not_after`. They live as long as the table of handovers keeps
    /// an entry: any copy that comes later is past its time. A longer life would only cost memory, one key a start.
    pub(crate) fn new(longest_not_after: Duration) -> Self {
        Self {
            life: longest_not_after + FORGET_AFTER,
            away_until_ms: AtomicI64::new(0),
        }
    }

    /// False when another start of the same handover holds the key. True with the service away: then the table of this
    /// incarnation alone decides.
    pub(crate) async fn claim(&self, service: &dyn Coordination, execution: &DispatchedExecution) -> bool {
        let now = BootInstant::now().as_millis();
        if now < self.away_until_ms.load(Ordering::Relaxed) {
            return true;
        }
        let key = format!(
            "start:{}:{}:{}:{}",
            execution.job,
            execution.scheduled_time.as_millis(),
            execution.shard,
            execution.claim.dispatch_seq
        );
        match tokio::time::timeout(PATIENCE, service.claim_key(&key, self.life)).await {
            Ok(Ok(claimed)) => return claimed,
            Ok(Err(error)) => warn!(error = %error, "start keys are not available; starting without"),
            Err(_) => warn!("start keys do not answer; starting without"),
        }
        self.away_until_ms.store(now + AWAY_MS, Ordering::Relaxed);
        true
    }
}
