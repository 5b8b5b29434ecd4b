//! What every Isocost process agrees on: ids, the job and execution model, schedules, messages, configuration,
//! telemetry, and the three ports to the outside: [`store`] (MySQL, MariaDB, SQLite), [`broker`] (RabbitMQ,
//! in-process) and [`coordination`] (Redis, in-process).
//!
//! This crate knows none of the roles (`api`, `dispatcher`, `worker`), and they do not know each other: they meet in
//! the tables and in the messages.

pub mod broker;
pub mod config;
pub mod connect;
pub mod coordination;
pub mod crash_point;
pub mod doctor;
pub mod egress;
pub mod error_chain;
pub mod execution;
pub mod http_server;
pub mod id;
pub mod job;
pub mod message;
pub mod observe;
pub mod raw_json;
pub mod readiness;
pub mod schedule;
pub mod spelling;
pub mod store;
pub mod telemetry;
#[cfg(feature = "test-support")]
pub mod test_support;
pub mod time;
pub mod trace_parent;

use std::sync::Arc;

/// The outside of a role: the database, the broker and the coordination service it was given, and where it says whether
/// it can do its job.
///
/// Cloning is cheap and shares the connections.
#[derive(Clone)]
pub struct Ports {
    /// The truth.
    pub store: store::Store,
    /// Carries messages between roles.
    pub broker: Arc<dyn broker::Broker>,
    /// Locks, heartbeats and start keys; never the truth.
    pub coordination: Arc<dyn coordination::Coordination>,
    /// Where roles say what they need to do their job.
    pub readiness: readiness::Readiness,
}

impl Ports {
    /// The same, with a store that writes outcomes down or not: see [`store::Store::recording_outcomes`].
    #[must_use]
    pub fn recording_outcomes(self, outcomes: bool) -> Self {
        Self {
            store: self.store.recording_outcomes(outcomes),
            ..self
        }
    }
}
