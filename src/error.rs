//! Why a process of Isocost could not start, or stopped.

use isocost_common::{
    config::ConfigError,
    connect::{ConnectError, StoreUnusable},
    observe::ObserveError,
    store::{FolderLockError, StoreError},
    telemetry::TelemetryError,
};
use std::{net::SocketAddr, path::PathBuf};

/// Why standalone mode or a role of a cluster could not start, or stopped by itself.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The data folder cannot be used.
    #[error("cannot use the data folder {path}; choose another with --data")]
    Folder {
        /// The folder, or the file in it.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another process uses the data folder.
    #[error(transparent)]
    Locked(#[from] FolderLockError),
    /// The address is taken or cannot be used.
    #[error("cannot listen on {address}; is something else listening there? choose another with --listen")]
    Listen {
        /// What was asked for.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// Logs or metrics cannot be started.
    #[error("starting logs and metrics")]
    Telemetry(#[from] TelemetryError),
    /// The embedded database cannot be opened.
    #[error("opening the embedded database in the data folder")]
    Open(#[source] StoreError),
    /// The database failed at start.
    #[error("preparing the database")]
    Store(#[from] StoreError),
    /// The configuration does not do for a role of a cluster.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Nothing was asked for.
    #[error("no role was named; there are api, dispatcher, relay and worker")]
    NoRole,
    /// The address for metrics and health cannot be had.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// The URL of a service cannot be used.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The database cannot be worked with.
    #[error(transparent)]
    StoreUnusable(#[from] StoreUnusable),
    /// The API stopped.
    #[error("the API")]
    Api(#[from] isocost_api::Error),
    /// The dispatcher stopped.
    #[error("the dispatcher")]
    Dispatcher(#[from] isocost_dispatcher::Error),
    /// The relay stopped.
    #[error("the callback relay")]
    Relay(#[from] isocost_dispatcher::relay::Error),
    /// The worker stopped.
    #[error("the worker")]
    Worker(#[from] isocost_worker::Error),
    /// A role returned although nobody asked it to.
    #[error("{role} ended by itself")]
    Ended {
        /// Which.
        role: &'static str,
    },
    /// A role panicked.
    #[error("a role panicked")]
    Panicked(#[source] tokio::task::JoinError),
}
