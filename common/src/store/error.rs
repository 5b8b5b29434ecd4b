//! What can go wrong with the database, as callers need to tell it apart.

use sqlx::{Error as Sqlx, error::DatabaseError, mysql::MySqlDatabaseError, sqlite::SqliteError};

/// A database operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The URL names no database we know.
    #[error("the database URL must start with `mysql://` or `sqlite:`")]
    BadUrl,
    /// The database did not answer in time, or refused the connection. Nothing was changed.
    #[error("the database is not available")]
    Unavailable(#[source] Sqlx),
    /// The server and the URL do not agree about TLS.
    #[error("the connection to the database: {remedy}")]
    Tls {
        /// What to change.
        remedy: &'static str,
        /// What the driver or the server said.
        source: Sqlx,
    },
    /// A deadlock, a lock-wait timeout or a busy database; the transaction was rolled back and may run again.
    #[error("the transaction was rolled back by the database")]
    Retryable(#[source] Sqlx),
    /// The connection broke while the commit was under way: it may or may not have happened.
    #[error("the answer to a commit was lost")]
    UnknownCommit(#[source] Sqlx),
    /// A unique key is taken.
    #[error("a row with this key exists already")]
    Duplicate(#[source] Sqlx),
    /// A value does not fit its column, or a constraint stands against it: it is the rows' fault, and the same rows are
    /// refused again.
    #[error("the database refuses the rows")]
    Refused(#[source] Sqlx),
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
    /// Anything else the database said. Whether trying again helps is not known; that the rows are to blame is not said.
    #[error("database error")]
    Database(#[source] Sqlx),
}

impl StoreError {
    /// Sorts an error of the driver.
    #[must_use]
    pub fn from_sqlx(error: Sqlx) -> Self {
        if let Some(remedy) = tls_remedy(&error) {
            return Self::Tls {
                remedy,
                source: error,
            };
        }
        match &error {
            Sqlx::Io(_) | Sqlx::Tls(_) | Sqlx::PoolTimedOut | Sqlx::PoolClosed | Sqlx::WorkerCrashed => {
                Self::Unavailable(error)
            }
            Sqlx::Database(database) if database.is_unique_violation() => Self::Duplicate(error),
            Sqlx::Database(database) => match Cause::of(&**database) {
                Cause::Conflict => Self::Retryable(error),
                Cause::Away => Self::Unavailable(error),
                Cause::Rows => Self::Refused(error),
                Cause::Other => Self::Database(error),
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

    /// True when the rows themselves are to blame, so that others may well be written or read, and these never. Only
    /// then may somebody give them up.
    #[must_use]
    pub const fn is_fault_of_the_rows(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Duplicate(_) | Self::Corrupt(_))
    }
}

impl From<Sqlx> for StoreError {
    fn from(error: Sqlx) -> Self {
        Self::from_sqlx(error)
    }
}

const DEMANDS_TLS: &str = "the server takes this user only over TLS: add ?ssl-mode=REQUIRED to store.url";
const OFFERS_NO_TLS: &str =
    "the server offers no TLS: give it a certificate, or remove ssl-mode from store.url";
const NEEDS_TLS_TO_LOG_IN: &str = "MySQL wants the password over TLS (caching_sha2_password): give the server a \
     certificate and add ?ssl-mode=REQUIRED to store.url";

/// What to do when the two sides cannot agree on TLS. Trying again would not help.
fn tls_remedy(error: &Sqlx) -> Option<&'static str> {
    match error {
        // So says the driver, which is built without RSA (RUSTSEC-2023-0071).
        Sqlx::Configuration(cause) if cause.to_string().contains("RSA auth backend") => {
            Some(NEEDS_TLS_TO_LOG_IN)
        }
        Sqlx::Tls(cause) if cause.to_string().contains("does not support TLS") => Some(OFFERS_NO_TLS),
        Sqlx::Database(cause) => {
            let number = cause.try_downcast_ref::<MySqlDatabaseError>()?.number();
            // Insecure transport is prohibited.
            (number == 3159).then_some(DEMANDS_TLS)
        }
        _ => None,
    }
}

/// What a database's error number comes down to.
enum Cause {
    /// Somebody else was in the way; the transaction is rolled back or can be.
    Conflict,
    /// The database cannot work at the moment.
    Away,
    /// What was to be written does not fit.
    Rows,
    Other,
}

impl Cause {
    fn of(error: &dyn DatabaseError) -> Self {
        if let Some(error) = error.try_downcast_ref::<MySqlDatabaseError>() {
            return Self::of_mysql(error.number(), error.code().unwrap_or_default());
        }
        let code = error
            .try_downcast_ref::<SqliteError>()
            .and_then(SqliteError::code);
        code.and_then(|code| code.parse().ok())
            .map_or(Self::Other, Self::of_sqlite)
    }

    /// `state` is the SQLSTATE, which sorts errors in the same way on every server: class 22 is of the data, 23 of the
    /// constraints.
    fn of_mysql(number: u16, state: &str) -> Self {
        match number {
            // Lock wait timeout, deadlock, record changed (MariaDB), rolled back by group replication.
            1205 | 1213 | 1020 | 3101 => Self::Conflict,
            // Too many connections, not ready (Galera), shutting down, broken packets and connections, too many of one
            // user, read-only (two ways), aborted, killed or idle too long.
            1040 | 1047 | 1053 | 1152 | 1156..=1161 | 1184 | 1203 | 1290 | 1836 | 1927 | 4031 => Self::Away,
            // Disk full (three ways), the storage engine's trouble, out of memory, a commit that failed, a global read lock,
            // limits of a user and of prepared statements. The same rows fit when that is over.
            1021 | 1026 | 1030 | 1041 | 1114 | 1180 | 1223 | 1226 | 1461 => Self::Away,
            // Without a state of their own: a longer packet than the server takes, characters that the column does not have
            // (MySQL), a check that failed (MySQL).
            1153 | 1366 | 3819 => Self::Rows,
            _ if state.starts_with("22") || state.starts_with("23") => Self::Rows,
            _ => Self::Other,
        }
    }

    const fn of_sqlite(extended_code: i32) -> Self {
        // The low byte is the class; the rest says more about it.
        match extended_code & 0xff {
            // Busy, locked.
            5 | 6 => Self::Conflict,
            // I/O error, full, cannot open.
            10 | 13 | 14 => Self::Away,
            // Too big, a constraint, a type that does not match.
            18..=20 => Self::Rows,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever takes a full disk for a fault of the rows throws away reports of runs that took place.
    #[test]
    fn a_disk_that_is_full_is_no_fault_of_the_rows() {
        for number in [1021, 1026, 1030, 1041, 1114, 1180, 1223, 1226, 1461] {
            assert!(
                matches!(Cause::of_mysql(number, "HY000"), Cause::Away),
                "{number}"
            );
        }
    }

    #[test]
    fn only_data_and_constraints_are_the_fault_of_the_rows() {
        let data = [
            (1406, "22001"),
            (1264, "22003"),
            (1048, "23000"),
            (1366, "HY000"),
            (1153, "08S01"),
        ];
        for (number, state) in data {
            assert!(matches!(Cause::of_mysql(number, state), Cause::Rows), "{number}");
        }
        // A missing table, a syntax error, a trigger that somebody wrote, an error that nobody knows: not the rows'.
        for (number, state) in [
            (1146, "42S02"),
            (1064, "42000"),
            (1644, "45000"),
            (65_000, "HY000"),
        ] {
            assert!(matches!(Cause::of_mysql(number, state), Cause::Other), "{number}");
        }
    }
}
