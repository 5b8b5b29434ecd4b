//! `[worker]`.

use super::ConfigError;
use crate::{
    id::WorkerId,
    job::Selector,
    message::{MAX_HOST_CHARS, check_labels},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `[worker]`: a worker process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkerConfig {
    /// Its stable name. Default: the host name.
    pub id: String,
    /// Labels that selectors of jobs are matched against. Default none.
    pub labels: Selector,
    /// Runs at once of a handler that names no number of its own. Default 64.
    pub slots: u32,
    /// Runs at once by handler name; overrides what the program says.
    pub handler_slots: BTreeMap<String, u32>,
    /// Address on which `/livez` answers; port 0 takes a free one. Default `0.0.0.0:0`.
    pub listen: String,
    /// Host name or address under which others reach `listen`. Default: the host name.
    pub advertise: String,
    /// How long running handlers may go on after SIGTERM, in milliseconds. Default 30,000.
    pub grace_ms: u64,
    /// Programs that the `command` handler may start, by absolute path; empty turns the handler off. Default none.
    pub commands: Vec<String>,
    /// Largest result of one execution, in bytes. Default 256 KiB.
    pub max_result_bytes: usize,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            id: String::new(),
            labels: Selector::new(),
            slots: 64,
            handler_slots: BTreeMap::new(),
            listen: "0.0.0.0:0".into(),
            advertise: String::new(),
            grace_ms: 30_000,
            commands: Vec::new(),
            max_result_bytes: 256 * 1024,
        }
    }
}

impl WorkerConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        super::load::check(&[
            (
                self.id.is_empty() || WorkerId::parse(&self.id).is_ok(),
                "worker.id",
                "must be 1 to 100 characters of A-Z a-z 0-9 . _ -",
            ),
            (
                (1..=10_000).contains(&self.slots),
                "worker.slots",
                "must be between 1 and 10000",
            ),
            (
                self.handler_slots
                    .values()
                    .all(|slots| (1..=10_000).contains(slots)),
                "worker.handler_slots",
                "must be numbers between 1 and 10000",
            ),
            (
                self.listen.parse::<std::net::SocketAddr>().is_ok(),
                "worker.listen",
                "must be an IP address and a port, such as 0.0.0.0:0",
            ),
            (
                self.advertise.chars().count() <= MAX_HOST_CHARS,
                "worker.advertise",
                "must be a host name or address of at most 255 characters",
            ),
            (
                check_labels(&self.labels).is_ok(),
                "worker.labels",
                "must have at most 65535 bytes as JSON, all together",
            ),
            (
                self.commands.iter().all(|path| path.starts_with('/')),
                "worker.commands",
                "must be absolute paths",
            ),
            (
                self.max_result_bytes >= 256,
                "worker.max_result_bytes",
                "must be at least 256",
            ),
        ])
    }
}
