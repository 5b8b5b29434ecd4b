//! Transactions: begun with the right lock, rerun after a deadlock, and honest about a commit whose answer was lost.

use super::{Connection, Dialect, StoreError};
use crate::{error_chain::chain, execution::ExecutionStatus};
use metrics::counter;
use sqlx::AnyPool;
use std::{
    collections::BTreeMap,
    ops::{Deref, DerefMut},
    time::Duration,
};
use tracing::debug;

const MAX_RUNS: u32 = 5;

/// A transaction that writes. Dropping it without [`Tx::commit`] rolls it back.
#[derive(Debug)]
pub struct Tx {
    connection: Connection,
    outcomes: bool,
    /// How many executions end with it, and how.
    ended: BTreeMap<ExecutionStatus, u64>,
}

impl Tx {
    pub(super) async fn begin(
        pool: &AnyPool,
        dialect: Dialect,
        patience: Duration,
        outcomes: bool,
    ) -> Result<Self, StoreError> {
        let connection = match dialect {
            Dialect::Sqlite => Connection::begin_embedded(pool).await?,
            Dialect::MySql => {
                let mut connection = Connection::acquire(pool, dialect, patience).await?;
                connection.begin().await?;
                connection
            }
        };
        Ok(Self {
            connection,
            outcomes,
            ended: BTreeMap::new(),
        })
    }

    /// True when the outcome of every execution that ends here is to be published.
    pub(super) const fn records_outcomes(&self) -> bool {
        self.outcomes
    }

    /// Notes what executions become: the ends among them are counted once they are durable, whoever decided on them.
    pub(super) fn become_of(&mut self, statuses: impl IntoIterator<Item = ExecutionStatus>) {
        for status in statuses.into_iter().filter(|status| status.is_terminal()) {
            *self.ended.entry(status).or_default() += 1;
        }
    }

    /// Makes it durable.
    ///
    /// # Errors
    /// [`StoreError::Retryable`] when the database rolled it back; [`StoreError::UnknownCommit`] when the connection
    /// broke before the answer.
    pub async fn commit(self) -> Result<(), StoreError> {
        self.connection
            .commit()
            .await
            .map_err(|error| match StoreError::from_sqlx(error) {
                StoreError::Unavailable(source) => StoreError::UnknownCommit(source),
                other => other,
            })?;
        for (status, count) in self.ended {
            counter!("isocost_executions_finished_total", "status" => status.api_name()).increment(count);
        }
        Ok(())
    }
}

impl Deref for Tx {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
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
