//! Why a worker could not start, or had to stop.

use isocost_common::{
    config::ConfigError, connect::ConnectError, id::InvalidWorkerId, message::Unfit, observe::ObserveError,
    telemetry::TelemetryError,
};

/// Why [`WorkerBuilder::run`](crate::WorkerBuilder::run) returned.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The URL of the broker or of the coordination service cannot be used.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Logs or metrics cannot be started.
    #[error("starting logs and metrics")]
    Telemetry(#[from] TelemetryError),
    /// The address for metrics and health cannot be had.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// There is nothing to run.
    #[error("the worker offers no handler")]
    NoHandlers,
    /// A handler cannot be offered as it was named.
    #[error("handler `{name}` {problem}")]
    Handler {
        /// The name that was given.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The worker's name cannot be used.
    #[error("naming the worker; set worker.id")]
    Name(#[source] InvalidWorkerId),
    /// The scheduler could not write down what the worker is and offers.
    #[error("the worker cannot be registered")]
    Unfit(#[source] Unfit),
    /// The probe cannot listen.
    #[error("listening on {address} for probes (worker.listen)")]
    Listen {
        /// The address.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// The threads for handlers cannot be started.
    #[error("starting threads for handlers")]
    Threads(#[source] std::io::Error),
    /// Handlers went on although they were told to stop, and may not go on in this process: it must exit now.
    #[error("handlers ignore their cancellation and the process must exit: {}", .0.join(", "))]
    HandlersStillRunning(Vec<String>),
    /// A task of the worker itself ended, which is a fault of this program.
    #[error("a task of the worker ended unexpectedly")]
    Task(#[source] Option<tokio::task::JoinError>),
}
