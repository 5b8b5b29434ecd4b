//! Why a dispatcher ends.

use isocost_common::broker::BrokerError;

/// Why the dispatcher could not start. What goes wrong later is logged and tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A queue or exchange exists and is different.
    #[error("declaring exchanges and queues")]
    Topology(#[source] BrokerError),
    /// No HTTP client for asking workers whether they live.
    #[error("preparing the probe of workers")]
    Probe(#[source] reqwest::Error),
    /// The intake could not start.
    #[error("starting the intake")]
    Intake(#[source] crate::intake::Error),
}
