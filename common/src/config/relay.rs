//! `[relay]`.

use super::{ConfigError, millis};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// `[relay]`: delivery of callbacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RelayConfig {
    /// Pauses before the attempts after the first, in milliseconds; their number bounds the attempts.
    /// Default 5 s, 30 s, 5 min, 30 min, 2 h, 5 h, 10 h, 10 h.
    pub retry_delays_ms: Vec<u64>,
    /// One deadline over connect, TLS, request and response, in milliseconds. Default 15,000.
    pub timeout_ms: u64,
    /// A delivery ends unsuccessful at this age, in milliseconds. Default 72 h.
    pub expires_after_ms: u64,
    /// Requests at once to one endpoint (scheme, host and port). Default 4.
    pub per_endpoint: u32,
    /// Requests at once in all. Default 256.
    pub in_flight: u32,
    /// Networks that callbacks may reach although they are private, such as `10.0.0.0/8`. Default none.
    pub allowed_networks: Vec<String>,
    /// Longest pause that a `Retry-After` may ask for, in milliseconds. Default 24 h.
    pub max_retry_after_ms: u64,
}

impl Default for RelayConfig {
    fn default() -> Self {
        const SECOND: u64 = 1_000;
        const MINUTE: u64 = 60 * SECOND;
        const HOUR: u64 = 60 * MINUTE;
        Self {
            retry_delays_ms: vec![
                5 * SECOND,
                30 * SECOND,
                5 * MINUTE,
                30 * MINUTE,
                2 * HOUR,
                5 * HOUR,
                10 * HOUR,
                10 * HOUR,
            ],
            timeout_ms: 15 * SECOND,
            expires_after_ms: 72 * HOUR,
            per_endpoint: 4,
            in_flight: 256,
            allowed_networks: Vec::new(),
            max_retry_after_ms: 24 * HOUR,
        }
    }
}

impl RelayConfig {
    /// The delay tiers, each once.
    #[must_use]
    pub fn delay_tiers(&self) -> Vec<Duration> {
        let mut tiers = self.retry_delays_ms.clone();
        tiers.sort_unstable();
        tiers.dedup();
        tiers.into_iter().map(millis).collect()
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        super::load::check(&[
            (
                self.retry_delays_ms.len() <= 50 && self.retry_delays_ms.iter().all(|ms| *ms >= 10),
                "relay.retry_delays_ms",
                "must be at most 50 numbers of at least 10",
            ),
            (
                (100..=300_000).contains(&self.timeout_ms),
                "relay.timeout_ms",
                "must be between 100 and 300000",
            ),
            (
                self.expires_after_ms >= 1_000,
                "relay.expires_after_ms",
                "must be at least 1000",
            ),
            (
                (1..=1_000).contains(&self.per_endpoint),
                "relay.per_endpoint",
                "must be between 1 and 1000",
            ),
            (
                (1..=10_000).contains(&self.in_flight),
                "relay.in_flight",
                "must be between 1 and 10000",
            ),
        ])
    }
}
