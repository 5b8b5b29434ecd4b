//! What differs between SQLite and MySQL/MariaDB, and nothing else.

use super::StoreError;
use sqlx::{AnyConnection, Connection as _, Executor};

/// The SQL dialect of the connected database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// The embedded database of standalone mode.
    Sqlite,
    /// MySQL 8.0.17+ or MariaDB 10.6+.
    MySql,
}

impl Dialect {
    /// The dialect that a database URL names.
    ///
    /// # Errors
    /// [`StoreError::BadUrl`] for any other scheme.
    pub fn of_url(url: &str) -> Result<Self, StoreError> {
        match url.split_once(':').map(|(scheme, _)| scheme) {
            Some("sqlite") => Ok(Self::Sqlite),
            Some("mysql" | "mariadb") => Ok(Self::MySql),
            _ => Err(StoreError::BadUrl),
        }
    }

    pub(super) fn connection_url(self, url: &str) -> String {
        match self {
            Self::Sqlite if url.contains('?') => url.to_owned(),
            Self::Sqlite => format!("{url}?mode=rwc"),
            Self::MySql => url.replacen("mariadb:", "mysql:", 1),
        }
    }

    /// Settings every session needs before its first statement.
    pub(super) async fn prepare_session(self, connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
        let statements: &[&str] = match self {
            // FULL: a commit that was answered survives a power cut, not only a killed process. The writers of this
            // process queue for its one connection, so only another process keeps the file busy: a backup, a shell.
            Self::Sqlite => &[
                "pragma busy_timeout = 2500",
                "pragma journal_mode = wal",
                "pragma synchronous = full",
                "pragma temp_store = memory",
                // 4 MB for each connection; the system caches the file as well.
                "pragma cache_size = -4000",
                "pragma wal_autocheckpoint = 4000",
                "pragma journal_size_limit = 67108864",
            ],
            Self::MySql => &[
                "set session transaction isolation level read committed",
                "set session innodb_lock_wait_timeout = 5",
                "set session sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
            ],
        };
        for statement in statements {
            connection.execute(*statement).await?;
        }
        Ok(())
    }

    /// Whether a connection that comes back to its pool can be used again. After a full disk or an I/O error SQLite has
    /// ended the transaction by itself while the driver still counts it: such a connection could never begin another.
    pub(super) async fn is_reusable(self, connection: &mut AnyConnection) -> Result<bool, sqlx::Error> {
        match self {
            Self::MySql => Ok(true),
            Self::Sqlite => {
                // A rollback that is under way is through when this is answered.
                connection.ping().await?;
                Ok(!connection.is_in_transaction())
            }
        }
    }

    /// SQLite takes its write lock at once, so that a transaction never fails half way for being late.
    pub(super) const fn begin_statement(self) -> &'static str {
        match self {
            Self::Sqlite => "begin immediate",
            Self::MySql => "begin",
        }
    }

    pub(super) const fn clock_query(self) -> Option<&'static str> {
        match self {
            Self::Sqlite => None,
            Self::MySql => Some("select cast(floor(unix_timestamp(now(3)) * 1000) as signed)"),
        }
    }

    /// Locks the selected rows until the end of the transaction. SQLite's one writer has them locked already.
    #[must_use]
    pub const fn for_update(self) -> &'static str {
        match self {
            Self::Sqlite => "",
            Self::MySql => " for update",
        }
    }

    /// Like [`Dialect::for_update`], passing over rows that somebody else has locked.
    #[must_use]
    pub const fn for_update_skip_locked(self) -> &'static str {
        match self {
            Self::Sqlite => "",
            Self::MySql => " for update skip locked",
        }
    }

    /// Keeps others from changing the selected rows until the end of the transaction.
    #[must_use]
    pub const fn for_share(self) -> &'static str {
        match self {
            Self::Sqlite => "",
            // MariaDB has no `for share`; both know the old words.
            Self::MySql => " lock in share mode",
        }
    }

    /// An INSERT that leaves rows with a known unique key out instead of failing.
    #[must_use]
    pub const fn insert_ignore(self) -> &'static str {
        match self {
            Self::Sqlite => "insert or ignore into",
            Self::MySql => "insert ignore into",
        }
    }

    /// The clause after `values (…)` that turns an insert into an upsert of `columns`, keyed by `key_columns`.
    #[must_use]
    pub fn on_conflict_update(self, key_columns: &[&str], columns: &[&str]) -> String {
        match self {
            Self::Sqlite => {
                let set: Vec<_> = columns.iter().map(|c| format!("{c} = excluded.{c}")).collect();
                format!(
                    " on conflict ({}) do update set {}",
                    key_columns.join(", "),
                    set.join(", ")
                )
            }
            Self::MySql => {
                let set: Vec<_> = columns.iter().map(|c| format!("{c} = values({c})")).collect();
                format!(" on duplicate key update {}", set.join(", "))
            }
        }
    }
}
