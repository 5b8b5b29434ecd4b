//! What differs between SQLite and MySQL/MariaDB, and nothing else.
//!
//! Statements of the hot paths name their index in a comment that only MySQL and MariaDB read, `/*! force index (…) */`:
//! their statistics are taken when a table is small, or of another shape, and a claim that sorts a million rows, or locks
//! more than it takes, is not worth the risk.

use super::StoreError;
use sqlx::{AnyConnection, AssertSqlSafe, Connection as _, Executor, Row as _};
use std::time::Duration;
use tracing::debug;

/// A connection that was unused for less long than this is taken to be alive.
const FRESH: Duration = Duration::from_secs(1);
/// One that was unused for longer answers within this time, or is replaced: soon enough that whoever takes it still has
/// the time for a new one.
const ALIVE_WITHIN: Duration = Duration::from_secs(2);
/// A connection that comes back to its pool answers within this time, or is closed.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// The SQL dialect of the connected database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// The embedded database of standalone mode.
    Sqlite,
    /// MySQL 8.0.17+ or MariaDB 10.6+.
    MySql,
}

/// A commit that was answered survives a power cut, not only a killed process (`full`). The writers of this process queue
/// for its one connection, so only another process keeps the file busy: a backup, a shell.
const SQLITE_SESSION: &[&str] = &[
    "pragma busy_timeout = 2500",
    "pragma journal_mode = wal",
    "pragma synchronous = full",
    "pragma temp_store = memory",
    // 4 MB for each connection; the system caches the file as well.
    "pragma cache_size = -4000",
    "pragma wal_autocheckpoint = 4000",
    "pragma journal_size_limit = 67108864",
];

/// Prepared statements that a connection to a server keeps: more than the program has, with the sizes that those of many
/// rows come in. When one has to go, the driver tells the server so without waiting for an answer, and Nagle's algorithm
/// then holds the next statement back until the server's delayed acknowledgement, 40 ms later; see the test `costs`.
pub(super) const STATEMENTS_KEPT: u32 = 256;

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
            Self::MySql => {
                let url = url.replacen("mariadb:", "mysql:", 1);
                let joint = if url.contains('?') { '&' } else { '?' };
                format!("{url}{joint}statement-cache-capacity={STATEMENTS_KEPT}")
            }
        }
    }

    /// Settings every session needs before its first statement. A transaction that stands idle for `patience` is ended by
    /// the database, so that a process that is frozen or cut off keeps its locks no longer.
    pub(super) async fn prepare_session(
        self,
        connection: &mut AnyConnection,
        patience: Duration,
    ) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite => {
                for statement in SQLITE_SESSION {
                    connection.execute(*statement).await?;
                }
            }
            Self::MySql => {
                let seconds = patience.as_secs().max(1);
                // MariaDB can count idle transactions alone. MySQL counts idle sessions; the pool replaces those that it
                // ended. A frozen process takes no answer and sends no second half of a statement, either.
                let limits = format!(
                    "set session innodb_lock_wait_timeout = 5, net_write_timeout = {seconds}, \
                     net_read_timeout = {seconds}, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION' \
                     /*M!100300 , idle_transaction_timeout = {seconds} */ /*!80000 , wait_timeout = {seconds} */"
                );
                connection
                    .execute("set session transaction isolation level read committed")
                    .await?;
                connection.execute(AssertSqlSafe(limits)).await?;
            }
        }
        Ok(())
    }

    /// Whether a connection from the pool, unused for so long, still leads to the database. Costs a round trip only when
    /// there is reason to ask; one that died within the last second fails its first statement.
    pub(super) async fn is_alive(self, connection: &mut AnyConnection, unused: Duration) -> bool {
        match self {
            Self::Sqlite => true,
            Self::MySql => {
                unused < FRESH
                    || matches!(
                        tokio::time::timeout(ALIVE_WITHIN, connection.ping()).await,
                        Ok(Ok(()))
                    )
            }
        }
    }

    /// Whether a connection that comes back to its pool can be used again.
    ///
    /// MySQL: a query whose future was dropped half way, by a timeout or because a client hung up, may leave the driver out
    /// of step with the server: the next query would wait for ever, or take the answer to another one for its own. So the
    /// server has to repeat what it is told. SQLite: after a full disk or an I/O error it has ended the transaction by
    /// itself while the driver still counts it: such a connection could never begin another.
    pub(super) async fn is_reusable(self, connection: &mut AnyConnection) -> Result<bool, sqlx::Error> {
        match self {
            Self::MySql => {
                let said = rand::random_range(0..1_000_000_000_i64);
                // As text: preparing it would be two questions.
                let question = sqlx::raw_sql(AssertSqlSafe(format!("select {said}"))).fetch_one(connection);
                let answer = tokio::time::timeout(ANSWERS_WITHIN, question).await;
                let heard = answer.map(|row| row.and_then(|row| row.try_get::<i64, _>(0)));
                let is_in_step = matches!(heard, Ok(Ok(heard)) if heard == said);
                if !is_in_step {
                    debug!(?heard, "a connection to the database is not used again");
                }
                Ok(is_in_step)
            }
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
