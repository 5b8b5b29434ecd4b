//! Why standalone mode could not start, or stopped.

use isocost_common::{store::FolderLockError, store::StoreError, telemetry::TelemetryError};
use std::{net::SocketAddr, path::PathBuf};

/// Why standalone mode could not start, or stopped by itself.
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
