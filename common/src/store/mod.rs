//! The truth: jobs, executions and everything that must survive. One SQL text serves MySQL, MariaDB and SQLite through
//! sqlx's `Any` driver; the few statements that differ are in [`dialect`].
//!
//! Rules (see ARCHITECTURE.md): READ COMMITTED; locks are taken in the order epoch, slot, job, execution, callback,
//! ids ascending within a table; every UPDATE repeats its guard in `where`; multi-row statements come in
//! [`row_chunks`] and [`key_chunks`]; no transaction is open across a network call to anything but the database.

pub mod apps;
pub mod audit;
pub mod callbacks;
pub mod claim;
mod connection;
pub mod deletion;
pub mod dialect;
pub mod doctor;
pub mod epoch;
pub mod error;
pub mod executions;
pub mod folder_lock;
pub mod followers;
pub mod handler_logs;
pub mod history;
pub mod job_log;
pub mod jobs;
pub mod listing;
pub mod migrations;
pub mod outcomes;
pub mod placement;
pub mod recovery;
pub mod settings;
pub mod settle;
pub mod slots;
mod sql;
pub mod stats;
pub mod steering;
pub mod submission;
mod transaction;
pub mod transitions;
pub mod workers;

use connection::explain;
pub use connection::{Connection, Reader};
pub use dialect::Dialect;
pub use error::StoreError;
pub use folder_lock::{FolderLock, FolderLockError};
pub use sql::{AnyQuery, BulkUpdate, Row, execute_for_keys, key_chunks, placeholders, row_chunks};
pub use transaction::Tx;

use crate::time::{Clock, ClockReading, EpochMillis};
use sqlx::{
    AnyConnection, AnyPool, Connection as _,
    any::{AnyConnectOptions, AnyPoolOptions},
};
use std::{io, str::FromStr, sync::Arc, time::Duration};
use tracing::warn;

/// Rows in one multi-row statement. Below SQLite's 500 terms of a compound select, with room for the wide tables.
pub const CHUNK: usize = 400;
/// A database that does not answer the simplest question within this time is of no use just now.
const PING_WITHIN: Duration = Duration::from_secs(2);
/// A process that ends waits this long for its connections to be closed in good order.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// How to reach the database.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreOptions {
    /// `mysql://user:password@host:port/database` or `sqlite:path/to/file.db`.
    pub url: String,
    /// Most connections of this process; the embedded database uses one for writing and this many for reading.
    pub max_connections: u32,
    /// Longest wait for a connection before an operation fails with [`StoreError::Unavailable`].
    pub acquire_timeout: Duration,
    /// The database ends a transaction that stands idle for so long, in whole seconds, and so frees what a frozen process
    /// has locked: before a successor of a frozen leader can have its lock. Not for the embedded database.
    pub idle_transaction_timeout: Duration,
    /// Longest silence of the database in the middle of a statement, before the statement fails with
    /// [`StoreError::Unavailable`] and its connection is replaced. Longer than a lock wait, which is 5 s. Not for the
    /// embedded database.
    pub statement_timeout: Duration,
}

impl StoreOptions {
    /// Options with the default limits.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            max_connections: 8,
            acquire_timeout: Duration::from_secs(5),
            idle_transaction_timeout: Duration::from_secs(8),
            statement_timeout: Duration::from_secs(8),
        }
    }
}

impl std::fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = self
            .url
            .rsplit_once('@')
            .map_or(self.url.as_str(), |(_, host)| host);
        f.debug_struct("StoreOptions")
            .field("url", &shown)
            .field("max_connections", &self.max_connections)
            .finish()
    }
}

/// A handle on the database. Cheap to clone; clones share the connections and the clock.
#[derive(Clone)]
pub struct Store {
    write: AnyPool,
    read: AnyPool,
    dialect: Dialect,
    statement_timeout: Duration,
    clock: Arc<Clock>,
    outcomes: bool,
}

impl Store {
    /// Connects, and measures the database's clock. Does not touch the schema: see [`migrations::run`].
    ///
    /// # Errors
    /// [`StoreError`] when the URL is not understood or the database does not answer.
    pub async fn connect(options: &StoreOptions) -> Result<Self, StoreError> {
        sqlx::any::install_default_drivers();
        let dialect = Dialect::of_url(&options.url)?;
        let connect = AnyConnectOptions::from_str(&dialect.connection_url(&options.url))
            .map_err(StoreError::from_sqlx)?;
        let patience = options.idle_transaction_timeout;
        if dialect == Dialect::Sqlite {
            // A pool tries again until its time is over, and then tells of that alone. What is wrong with a file stays
            // wrong: it is said at once.
            let mut first = AnyConnection::connect_with(&connect).await?;
            dialect.prepare_session(&mut first, patience).await?;
            first.close().await?;
        }
        // A server's pool is not filled behind our back: whoever does that has minutes of patience with a silent server,
        // and a place in the pool meanwhile.
        let at_least = u32::from(dialect == Dialect::Sqlite);
        let pool = |size: u32| {
            AnyPoolOptions::new()
                .max_connections(size)
                .min_connections(at_least)
                .acquire_timeout(options.acquire_timeout)
                .idle_timeout(None)
                .max_lifetime(None)
                .after_connect(move |connection, _| Box::pin(dialect.prepare_session(connection, patience)))
                .test_before_acquire(false)
                .before_acquire(move |connection, unused| {
                    Box::pin(async move { Ok(dialect.is_alive(connection, unused.idle_for).await) })
                })
                .after_release(move |connection, _| Box::pin(dialect.is_reusable(connection)))
        };
        let (write, read) = match dialect {
            // SQLite has one writer at a time; a pool of one queues writers fairly instead of letting them spin.
            Dialect::Sqlite => (
                pool(1)
                    .connect_with(connect.clone())
                    .await
                    .map_err(StoreError::from_sqlx)?,
                pool(options.max_connections)
                    .connect_with(connect)
                    .await
                    .map_err(StoreError::from_sqlx)?,
            ),
            Dialect::MySql => {
                let shared = pool(options.max_connections);
                let shared = shared.connect_with(connect).await.map_err(|error| {
                    explain(error, || {
                        "no server takes connections at the host and port of store.url".to_owned()
                    })
                })?;
                (shared.clone(), shared)
            }
        };
        let store = Self {
            write,
            read,
            dialect,
            statement_timeout: options.statement_timeout,
            clock: Arc::new(Clock::default()),
            outcomes: false,
        };
        store.measure_clock().await?;
        Ok(store)
    }

    /// The same store, whose transactions write the outcome of every execution they end into `outcome_batch`, for the
    /// relay to publish (`broker.outcomes`). Every role that ends executions must be told the same. Off at first.
    #[must_use]
    pub fn recording_outcomes(self, outcomes: bool) -> Self {
        Self { outcomes, ..self }
    }

    /// The database's clock, without a round trip.
    #[must_use]
    pub fn now(&self) -> EpochMillis {
        self.clock.now()
    }

    /// How far the database's clock was ahead of this machine's when it was last measured, in milliseconds.
    #[must_use]
    pub fn clock_offset_ms(&self) -> i64 {
        self.clock.offset_ms()
    }

    /// As if [`Store::measure_clock`] had found this.
    #[cfg(feature = "test-support")]
    pub fn pretend_clock_offset_ms(&self, offset_ms: i64) {
        let here = EpochMillis::system_now();
        self.clock.learn(ClockReading {
            database: EpochMillis(here.0 + offset_ms),
            before: here,
            after: here,
        });
    }

    /// Which of the databases this is.
    #[must_use]
    pub const fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Compares the database's clock with this machine's and corrects [`Store::now`] by what the answer proves.
    /// Returns how far the database is ahead, in milliseconds.
    ///
    /// # Errors
    /// [`StoreError`] when the database does not answer.
    pub async fn measure_clock(&self) -> Result<i64, StoreError> {
        let Some(query) = self.dialect.clock_query() else {
            return Ok(0);
        };
        // The wait for a connection is no part of the round trip.
        let mut reader = self.reader().await?;
        let before = EpochMillis::system_now();
        let database: i64 = sqlx::query_scalar(query)
            .fetch_one(&mut *reader)
            .await
            .map_err(StoreError::from_sqlx)?;
        Ok(self.clock.learn(ClockReading {
            database: EpochMillis(database),
            before,
            after: EpochMillis::system_now(),
        }))
    }

    /// Begins a transaction that writes. Prefer [`Store::transact`], which reruns it after a deadlock.
    ///
    /// # Errors
    /// [`StoreError`] when no connection is to be had.
    pub async fn begin(&self) -> Result<Tx, StoreError> {
        Tx::begin(&self.write, self.dialect, self.statement_timeout, self.outcomes).await
    }

    /// Runs a transaction, and after a deadlock or a lock-wait timeout the whole of it again, at most five times.
    /// `work` begins and commits it, and has no effect outside the database:
    ///
    /// ```text
    /// store
    ///     .transact(|| async {
    ///         let mut tx = store.begin().await?;
    ///         epoch::guard(&mut tx, mine).await?;
    ///         …
    ///         tx.commit().await
    ///     })
    ///     .await
    /// ```
    ///
    /// (It is not handed the transaction, because the compiler cannot show that the future of an `async |tx|` closure is
    /// `Send`, and then none of its callers could be spawned.)
    ///
    /// # Errors
    /// Whatever `work` returns; [`StoreError::UnknownCommit`] when the answer to the commit was lost: re-read by key,
    /// never guess.
    pub async fn transact<T, F>(&self, work: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        transaction::rerun(work).await
    }

    /// A connection for reading outside a transaction.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when no connection is to be had in time.
    pub async fn reader(&self) -> Result<Reader, StoreError> {
        let connection = Connection::acquire(&self.read, self.dialect, self.statement_timeout).await;
        connection.map(Reader).map_err(StoreError::from_sqlx)
    }

    /// Answers a trivial query, within two seconds: for readiness checks.
    ///
    /// # Errors
    /// [`StoreError`] when the database does not answer.
    pub async fn ping(&self) -> Result<(), StoreError> {
        self.ask("select 1").await
    }

    /// Makes a write that changes nothing, within two seconds: a server that is read-only, as one is that was just replaced
    /// as the primary, answers every question and can keep nothing.
    ///
    /// # Errors
    /// [`StoreError`] when the database does not answer, or takes no writes.
    pub async fn takes_writes(&self) -> Result<(), StoreError> {
        match self.dialect {
            Dialect::Sqlite => self.ask("select 1").await,
            Dialect::MySql => {
                self.ask("update leader_epoch set epoch = epoch where 1 = 0")
                    .await
            }
        }
    }

    async fn ask(&self, sql: &'static str) -> Result<(), StoreError> {
        let asking = async {
            let mut connection = self.reader().await?;
            sqlx::query(sql)
                .execute(&mut *connection)
                .await
                .map_err(StoreError::from_sqlx)?;
            Ok(())
        };
        let answer = tokio::time::timeout(PING_WITHIN, asking).await;
        answer.unwrap_or_else(|_| {
            let silence = io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no answer within {PING_WITHIN:?}"),
            );
            Err(StoreError::Unavailable(silence.into()))
        })
    }

    /// Closes every connection; the embedded database is left checkpointed.
    pub async fn close(&self) {
        let closing = async {
            self.read.close().await;
            self.write.close().await;
        };
        match self.dialect {
            // Its last connection brings the file in order.
            Dialect::Sqlite => closing.await,
            // The orderly end of a connection waits for the server, and a server that is silent must not keep a process.
            Dialect::MySql => {
                if tokio::time::timeout(CLOSE_WITHIN, closing).await.is_err() {
                    warn!("connections to the database do not close in time; leaving them");
                }
            }
        }
    }
}
