//! Stopping one run: cooperatively, then by dropping its future.

use isocost_common::execution::Outcome;
use std::{future::IntoFuture, sync::OnceLock, time::Duration};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// How long a handler that was told to stop may tidy up before its future is dropped.
pub(crate) const STOP_GRACE: Duration = Duration::from_secs(2);

/// Why a run is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// Its run time is over.
    TimedOut,
    /// Someone asked for it.
    Cancelled,
    /// The worker cannot go on with it; the text says why.
    Interrupted(&'static str),
}

impl StopReason {
    /// How a run that was stopped for this reason ended.
    pub(crate) fn outcome(self) -> Outcome {
        match self {
            Self::TimedOut => Outcome::TimedOut,
            Self::Cancelled => Outcome::Cancelled,
            Self::Interrupted(reason) => Outcome::Interrupted {
                reason: reason.to_owned(),
            },
        }
    }
}

/// A stop that was asked for. The first one counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stop {
    /// Why.
    pub(crate) reason: StopReason,
    /// When the handler's future is dropped.
    pub(crate) drop_at: Instant,
}

/// The handle on one run.
#[derive(Debug)]
pub(crate) struct RunControl {
    /// Which bulkhead it occupies.
    pub(crate) handler: String,
    /// When its run time is over.
    pub(crate) deadline: Instant,
    stop: OnceLock<Stop>,
    token: CancellationToken,
}

impl RunControl {
    /// A run that begins now.
    pub(crate) fn new(handler: &str, timeout: Duration) -> Self {
        let now = Instant::now();
        Self {
            handler: handler.to_owned(),
            // A limit beyond what the clock can add up to is none.
            deadline: now
                .checked_add(timeout)
                .unwrap_or(now + Duration::from_secs(86_400 * 365 * 30)),
            stop: OnceLock::new(),
            token: CancellationToken::new(),
        }
    }

    /// Asks for a stop; the handler's future is dropped after `grace`.
    pub(crate) fn stop(&self, reason: StopReason, grace: Duration) {
        let _first_wins = self.stop.set(Stop {
            reason,
            drop_at: Instant::now() + grace,
        });
        self.token.cancel();
    }

    /// The stop that was asked for.
    pub(crate) fn stop_asked(&self) -> Option<Stop> {
        self.stop.get().copied()
    }

    /// Waits until a stop is asked for.
    pub(crate) async fn stop_requested(&self) {
        self.token.cancelled().await;
    }

    /// What the handler sees of it.
    pub(crate) fn cancellation(&self) -> Cancellation {
        Cancellation(self.token.clone())
    }

    /// True when it was told to stop and should be gone by now: its handler blocks its thread.
    pub(crate) fn is_stuck(&self, now: Instant) -> bool {
        self.stop_asked()
            .is_some_and(|stop| now > stop.drop_at + Duration::from_millis(500))
    }
}

/// Tells a handler that it should stop: a cancel, its time limit, a drain. Await it, or ask it.
#[derive(Debug, Clone)]
pub struct Cancellation(CancellationToken);

impl Cancellation {
    /// True once the handler should stop.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until the handler should stop.
    pub async fn requested(&self) {
        self.0.cancelled().await;
    }
}

impl IntoFuture for Cancellation {
    type Output = ();
    type IntoFuture = WaitForCancellationFutureOwned;

    fn into_future(self) -> Self::IntoFuture {
        self.0.cancelled_owned()
    }
}
