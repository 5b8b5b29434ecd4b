//! `[api]`.

use super::ConfigError;
use serde::{Deserialize, Serialize};

/// `[api]`: the REST API and its pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApiConfig {
    /// Address and port to listen on. Default `127.0.0.1:8080`.
    pub listen: String,
    /// Time zone of cron jobs that name none. Default `UTC`.
    pub default_time_zone: String,
    /// Largest request body, in bytes. Default 2 MiB; a batch may have eight times as much.
    pub max_body_bytes: usize,
    /// Largest params of one job, in bytes. Default 256 KiB.
    pub max_params_bytes: usize,
    /// Most requests in hand at once; more are answered 503 with `Retry-After`. Default 2,048.
    pub max_requests: usize,
    /// Most bytes of all bodies in hand together; beyond, as above. Default 64 MiB.
    pub max_held_bytes: usize,
    /// A connection on which no whole request header has arrived for this long is closed, in milliseconds. Default 30,000.
    pub header_timeout_ms: u64,
    /// Callbacks to loopback addresses are accepted: set by standalone mode that listens on loopback. Default false.
    pub allow_loopback_callbacks: bool,
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8080".into(),
            default_time_zone: "UTC".into(),
            max_body_bytes: 2 * 1024 * 1024,
            max_params_bytes: 256 * 1024,
            max_requests: 2_048,
            max_held_bytes: 64 * 1024 * 1024,
            header_timeout_ms: 30_000,
            allow_loopback_callbacks: false,
        }
    }
}

impl ApiConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        super::load::check(&[
            (
                self.listen.parse::<std::net::SocketAddr>().is_ok(),
                "api.listen",
                "must be an IP address and a port, such as 127.0.0.1:8080",
            ),
            (
                self.default_time_zone.parse::<chrono_tz::Tz>().is_ok(),
                "api.default_time_zone",
                "must be an IANA time zone, such as Europe/Berlin",
            ),
            (
                self.max_body_bytes >= 4_096,
                "api.max_body_bytes",
                "must be at least 4096",
            ),
            (
                (256..=self.max_body_bytes).contains(&self.max_params_bytes),
                "api.max_params_bytes",
                "must be between 256 and api.max_body_bytes",
            ),
            (
                (16..=1_000_000).contains(&self.max_requests),
                "api.max_requests",
                "must be between 16 and 1000000",
            ),
            (
                self.max_held_bytes >= self.max_body_bytes.saturating_mul(8),
                "api.max_held_bytes",
                "must be at least eight times api.max_body_bytes, which is the largest batch",
            ),
            (
                (100..=600_000).contains(&self.header_timeout_ms),
                "api.header_timeout_ms",
                "must be between 100 and 600000",
            ),
        ])
    }
}
