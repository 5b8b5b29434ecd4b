//! What can go wrong with the database, as callers need to tell it apart.

use sqlx::Error as Sqlx;

/// A database operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The URL names no database we know.
    #[error("the database URL must start with `mysql://` or `sqlite:`")]
    BadUrl,
    /// The database did not answer in time, or refused the connection. Nothing was changed.
    #[error("the database is not available")]
    Unavailable(#[source] Sqlx),
    /// A deadlock, a lock-wait timeout or a busy database; the transaction was rolled back and may run again.
    #[error("the transaction was rolled back by the database")]
    Retryable(#[source] Sqlx),
    /// The connection broke while the commit was under way: it may or may not have happened.
    #[error("the answer to a commit was lost")]
    UnknownCommit(#[source] Sqlx),
    /// A unique key is taken.
    #[error("a row with this key exists already")]
    Duplicate(#[source] Sqlx),
    /// This process is no longer the leader: a newer epoch stands in the database.
    #[error("epoch {mine} is over: the database is at epoch {current}")]
    StaleEpoch {
        /// The epoch this process led.
        mine: i64,
        /// The epoch of the database.
        current: i64,
    },
    /// A row holds what no version of this program writes.
    #[error("unreadable row: {0}")]
    Corrupt(String),
    /// The schema cannot be brought up to date.
    #[error("migrating the schema")]
    Migrate(#[source] sqlx::migrate::MigrateError),
    /// Anything else the database said.
    #[error("database error")]
    Database(#[source] Sqlx),
}

impl StoreError {
    /// Sorts an error of the driver.
    #[must_use]
    pub fn from_sqlx(error: Sqlx) -> Self {
        match &error {
            Sqlx::Io(_) | Sqlx::Tls(_) | Sqlx::PoolTimedOut | Sqlx::PoolClosed | Sqlx::WorkerCrashed => {
                Self::Unavailable(error)
            }
            Sqlx::Database(database) if database.is_unique_violation() => Self::Duplicate(error),
            Sqlx::Database(database) => match database.code().as_deref() {
                // MySQL: deadlock, lock wait timeout (by SQLSTATE and by number). SQLite: busy, locked, busy snapshot.
                Some("40001" | "1213" | "1205" | "5" | "6" | "517" | "261") => Self::Retryable(error),
                _ if database.message().contains("Lock wait timeout") => Self::Retryable(error),
                // MySQL: shutting down, gone away, read-only, too many connections.
                Some("08S01" | "08004" | "1053" | "1290" | "1040") => Self::Unavailable(error),
                _ => Self::Database(error),
            },
            _ => Self::Database(error),
        }
    }

    /// True when the same call may succeed once the database is back or less busy.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Unavailable(_) | Self::Retryable(_) | Self::UnknownCommit(_)
        )
    }
}

impl From<Sqlx> for StoreError {
    fn from(error: Sqlx) -> Self {
        Self::from_sqlx(error)
    }
}
