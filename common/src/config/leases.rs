//! `[leases]`: the times by which workers and leaders judge each other. They only work together, so they are checked
//! against each other at start.

use super::{ConfigError, millis};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// `[leases]`. All values in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LeaseConfig {
    /// Distance of a worker's heartbeats. Default 3,000.
    pub heartbeat_ms: u64,
    /// A worker stops its handlers this long after it sent its last acknowledged heartbeat. Default 10,000.
    pub worker_cancel_ms: u64,
    /// A worker process exits this long after it sent its last acknowledged heartbeat. Default 15,000.
    pub worker_exit_ms: u64,
    /// The leader may call an incarnation dead this long after the arrival of its last heartbeat. Default 15,500.
    pub dead_after_ms: u64,
    /// How long a dispatch may be taken by its worker. Default 15,000.
    pub not_after_ms: u64,
    /// An unstarted execution is moved after this long while another worker is free. Default 250.
    pub move_after_ms: u64,
    /// How long a worker lets a dispatched execution wait for a free slot before it refuses it. Default 1,000.
    pub slot_wait_ms: u64,
    /// Life of the leader's lock between renewals. Default 10,000.
    pub lock_ttl_ms: u64,
}

impl Default for LeaseConfig {
    fn default() -> Self {
        Self {
            heartbeat_ms: 3_000,
            worker_cancel_ms: 10_000,
            worker_exit_ms: 15_000,
            dead_after_ms: 15_500,
            not_after_ms: 15_000,
            move_after_ms: 250,
            slot_wait_ms: 1_000,
            lock_ttl_ms: 10_000,
        }
    }
}

impl LeaseConfig {
    /// As [`LeaseConfig::heartbeat_ms`].
    #[must_use]
    pub const fn heartbeat(&self) -> Duration {
        millis(self.heartbeat_ms)
    }

    /// As [`LeaseConfig::not_after_ms`].
    #[must_use]
    pub const fn not_after(&self) -> Duration {
        millis(self.not_after_ms)
    }

    /// As [`LeaseConfig::lock_ttl_ms`].
    #[must_use]
    pub const fn lock_ttl(&self) -> Duration {
        millis(self.lock_ttl_ms)
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let rules = [
            (
                self.heartbeat_ms >= 50,
                "leases.heartbeat_ms",
                "must be at least 50",
            ),
            (
                self.worker_cancel_ms >= 3 * self.heartbeat_ms,
                "leases.worker_cancel_ms",
                "must be at least three times leases.heartbeat_ms, or one lost heartbeat kills jobs",
            ),
            (
                self.worker_exit_ms > self.worker_cancel_ms,
                "leases.worker_exit_ms",
                "must be greater than leases.worker_cancel_ms",
            ),
            (
                self.dead_after_ms > self.worker_exit_ms,
                "leases.dead_after_ms",
                "must be greater than leases.worker_exit_ms, or a job could run on two workers at once",
            ),
            (
                self.lock_ttl_ms >= 1_000,
                "leases.lock_ttl_ms",
                "must be at least 1000",
            ),
            (
                self.not_after_ms >= 1_000,
                "leases.not_after_ms",
                "must be at least 1000",
            ),
            (
                self.move_after_ms >= 10,
                "leases.move_after_ms",
                "must be at least 10",
            ),
            (
                self.not_after_ms > self.slot_wait_ms,
                "leases.not_after_ms",
                "must be greater than leases.slot_wait_ms, or a dispatch runs out while it waits for a slot",
            ),
            (
                self.slot_wait_ms >= 10,
                "leases.slot_wait_ms",
                "must be at least 10",
            ),
        ];
        super::load::check(&rules)
    }
}
