//! Transactions: begun with the right lock, rerun after a deadlock, and honest about a commit whose answer was lost.

use super::{Dialect, StoreError};
use crate::error_chain::chain;
use sqlx::{Any, AnyConnection, AnyPool, Transaction};
use std::{
    ops::{Deref, DerefMut},
    time::Duration,
};
use tracing::debug;

const MAX_RUNS: u32 = 5;

/// A transaction that writes. Dropping it without [`Tx::commit`] rolls it back.
pub struct Tx {
    inner: Transaction<'static, Any>,
    dialect: Dialect,
    outcomes: bool,
}

impl Tx {
    pub(super) async fn begin(pool: &AnyPool, dialect: Dialect, outcomes: bool) -> Result<Self, StoreError> {
        let begin = dialect.begin_statement();
        let inner = match dialect {
            Dialect::Sqlite => pool.begin_with(begin).await?,
            Dialect::MySql => Self::begin_for_certain(pool.clone(), begin).await?,
        };
        Ok(Self {
            inner,
            dialect,
            outcomes,
        })
    }

    /// Begins in a task of its own, which goes on when the caller is dropped: a request of a client who went away, for
    /// instance. The driver would forget a transaction that was dropped before the answer to its BEGIN. The connection
    /// went back to the pool with it, and what the next one wrote outside a transaction would never be committed.
    async fn begin_for_certain(
        pool: AnyPool,
        begin: &'static str,
    ) -> Result<Transaction<'static, Any>, StoreError> {
        let begun = tokio::spawn(async move { pool.begin_with(begin).await }).await;
        match begun {
            Ok(begun) => Ok(begun?),
            Err(failed) => match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down.
                Err(_) => Err(StoreError::Unavailable(sqlx::Error::WorkerCrashed)),
            },
        }
    }

    /// Which of the databases this is.
    #[must_use]
    pub const fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// True when the outcome of every execution that ends here is to be published.
    pub(super) const fn records_outcomes(&self) -> bool {
        self.outcomes
    }

    /// Makes it durable.
    ///
    /// # Errors
    /// [`StoreError::Retryable`] when the database rolled it back; [`StoreError::UnknownCommit`] when the connection
    /// broke before the answer.
    pub async fn commit(self) -> Result<(), StoreError> {
        self.inner
            .commit()
            .await
            .map_err(|error| match StoreError::from_sqlx(error) {
                StoreError::Unavailable(source) => StoreError::UnknownCommit(source),
                other => other,
            })
    }
}

impl Deref for Tx {
    type Target = AnyConnection;

    fn deref(&self) -> &AnyConnection {
        &self.inner
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut AnyConnection {
        &mut self.inner
    }
}

pub(super) async fn rerun<T, F>(work: impl Fn() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut runs = 1;
    loop {
        let failed = match work().await {
            Err(error @ StoreError::Retryable(_)) if runs < MAX_RUNS => error,
            other => return other,
        };
        debug!(error = %chain(&failed), runs, "running a transaction again");
        let pause = rand::random_range(1..=10 * u64::from(runs));
        tokio::time::sleep(Duration::from_millis(pause)).await;
        runs += 1;
    }
}
