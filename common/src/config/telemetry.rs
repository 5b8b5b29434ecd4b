//! `[telemetry]`.

use super::ConfigError;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// `[telemetry]`: logs, metrics and health.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetryConfig {
    /// Which log lines: a `tracing` filter. Default `info`.
    pub log: String,
    /// One JSON object a line instead of text. Default false.
    pub log_json: bool,
    /// Where `/metrics`, `/healthz` and `/readyz` of this process answer: an address and a port, or `off`. Default empty:
    /// on loopback, the first free port of ten from 9110 (api), 9120 (dispatcher), 9130 (relay) or 9140 (worker) on; in
    /// standalone mode nowhere but on the address of the API, which answers them in any case.
    pub listen: String,
}

/// What [`TelemetryConfig::listen`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenAt {
    /// The default port of the role, or one of the next.
    ByRole,
    /// This one, or the process does not start.
    Address(SocketAddr),
    /// Nowhere.
    Nowhere,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            log: "info".into(),
            log_json: false,
            listen: String::new(),
        }
    }
}

impl TelemetryConfig {
    /// Where to listen, read.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] when it is neither empty, nor `off`, nor an address and a port.
    pub fn listen_at(&self) -> Result<ListenAt, ConfigError> {
        match self.listen.as_str() {
            "" => Ok(ListenAt::ByRole),
            "off" => Ok(ListenAt::Nowhere),
            address => address
                .parse()
                .map(ListenAt::Address)
                .map_err(|_| ConfigError::Invalid {
                    key: "telemetry.listen",
                    remedy: "must be an IP address and a port such as 0.0.0.0:9100, or `off`",
                }),
        }
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        self.listen_at().map(drop)
    }
}
