//! The schema, brought up to date. Migrations are compiled in; `migrations/` is their home.

use super::{Connection, Dialect, Store, StoreError, Tx};
use sqlx::migrate::{MigrateError, Migrator};

/// How long to wait for another process that is migrating, in seconds.
const LOCK_WAIT_S: i64 = 120;

/// Applies what is missing. Several processes may start together: one of them does it while the others wait.
///
/// # Errors
/// [`StoreError::Migrate`] when a migration fails, or the schema is newer than this program. MySQL cannot roll a
/// migration back: after one that was cut off, the next run says so, and the database has to be restored.
pub async fn run(store: &Store) -> Result<(), StoreError> {
    let migrator = match store.dialect() {
        Dialect::MySql => sqlx::migrate!("../migrations/mysql"),
        Dialect::Sqlite => sqlx::migrate!("../migrations/sqlite"),
    };
    // sqlx's own lock does nothing on MariaDB (which takes no negative timeout for "for ever") and on SQLite.
    let migrator = Migrator {
        locking: false,
        ..migrator
    };
    match store.dialect() {
        Dialect::MySql => run_under_named_lock(&migrator, &mut *store.write.acquire().await?).await,
        Dialect::Sqlite => run_in_one_transaction(&migrator, store.begin().await?).await,
    }
}

async fn run_under_named_lock(migrator: &Migrator, connection: &mut Connection) -> Result<(), StoreError> {
    // Lock names are short and belong to the whole server.
    let taken: Option<i64> =
        sqlx::query_scalar("select cast(get_lock(concat('isocost.migrate.', md5(database())), ?) as signed)")
            .bind(LOCK_WAIT_S)
            .fetch_one(&mut *connection)
            .await?;
    if taken != Some(1) {
        let waited = format!("another process has been migrating for {LOCK_WAIT_S} s");
        return Err(StoreError::Migrate(MigrateError::Execute(sqlx::Error::Protocol(
            waited,
        ))));
    }
    let outcome = migrator.run_direct(None, &mut *connection, false).await;
    sqlx::query("do release_lock(concat('isocost.migrate.', md5(database())))")
        .execute(connection)
        .await?;
    outcome.map_err(StoreError::Migrate)
}

/// SQLite's write lock is taken before the look at what is missing, and held until all of it is there.
async fn run_in_one_transaction(migrator: &Migrator, mut tx: Tx) -> Result<(), StoreError> {
    migrator
        .run_direct(None, &mut *tx, false)
        .await
        .map_err(StoreError::Migrate)?;
    tx.commit().await
}
