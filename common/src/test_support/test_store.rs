//! A fresh database for one test.

use crate::{
    id::JobId,
    store::{Store, StoreOptions, migrations},
};
use anyhow::Context;
use futures_util::FutureExt;
use sqlx::{AnyConnection, AssertSqlSafe, Connection};
use std::{ops::Deref, panic::AssertUnwindSafe, time::Duration};

/// Names the server that the tests may create databases on.
const SERVER_URL: &str = "ISOCOST_TEST_MYSQL_URL";

/// A database that belongs to one test. It acts as the [`Store`] itself.
pub struct TestStore {
    store: Store,
    options: StoreOptions,
}

impl Deref for TestStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

impl TestStore {
    /// Runs `test` on a fresh SQLite database with the schema in it.
    ///
    /// # Errors
    /// Whatever the test returns, or why there was no database.
    pub async fn on_sqlite(test: impl AsyncFnOnce(&Self) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let folder = tempfile::tempdir().context("making a folder for the test")?;
        let url = format!("sqlite:{}", folder.path().join("test.db").display());
        Self::run(StoreOptions::new(&url), test).await
    }

    /// Runs `test` on a fresh database, with the schema in it, of the server that `ISOCOST_TEST_MYSQL_URL` names. The
    /// database is dropped at the end, also after a panic.
    ///
    /// # Errors
    /// Whatever the test returns, or why there was no database.
    pub async fn on_mysql(test: impl AsyncFnOnce(&Self) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let server = std::env::var(SERVER_URL)
            .with_context(|| format!("no MariaDB or MySQL: start with ./test, or set {SERVER_URL}"))?;
        sqlx::any::install_default_drivers();
        let (address, parameters) = server.split_once('?').unwrap_or((&server, ""));
        let name = format!("isocost_{}", JobId::generate().as_uuid().simple());
        let url = format!("{}/{name}?{parameters}", address.trim_end_matches('/'));
        execute(&server, format!("create database {name}")).await?;
        // The tests of all crates share one server and its connections.
        let options = StoreOptions {
            max_connections: 6,
            acquire_timeout: Duration::from_secs(30),
            statement_timeout: Duration::from_secs(120),
            ..StoreOptions::new(url.trim_end_matches('?'))
        };
        let outcome = AssertUnwindSafe(Self::run(options, test)).catch_unwind().await;
        execute(&server, format!("drop database {name}")).await?;
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    async fn run(
        options: StoreOptions,
        test: impl AsyncFnOnce(&Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let store = Store::connect(&options).await?;
        migrations::run(&store).await?;
        let this = Self { store, options };
        let outcome = test(&this).await;
        this.store.close().await;
        outcome
    }

    /// Another handle on the same database, with connections of its own, as another process has. Not for SQLite while
    /// the first one writes: there, one process owns the folder.
    ///
    /// # Errors
    /// Why it could not connect.
    pub async fn connect_again(&self) -> anyhow::Result<Store> {
        Ok(Store::connect(&self.options).await?)
    }

    /// How this database is reached.
    #[must_use]
    pub const fn options(&self) -> &StoreOptions {
        &self.options
    }
}

async fn execute(server: &str, statement: String) -> anyhow::Result<()> {
    let mut admin = AnyConnection::connect(server).await?;
    sqlx::query(AssertSqlSafe(statement)).execute(&mut admin).await?;
    admin.close().await?;
    Ok(())
}
