//! The schema, brought up to date. Migrations are compiled in; `migrations/` is their home.

use super::{Dialect, Store, StoreError};
use sqlx::migrate::Migrator;

static MYSQL: Migrator = sqlx::migrate!("../migrations/mysql");
static SQLITE: Migrator = sqlx::migrate!("../migrations/sqlite");

/// Applies what is missing. Several processes may start together: the database's own lock lets one of them do it.
///
/// # Errors
/// [`StoreError::Migrate`] when a migration fails, or the schema is newer than this program.
pub async fn run(store: &Store) -> Result<(), StoreError> {
    let migrator = match store.dialect() {
        Dialect::MySql => &MYSQL,
        Dialect::Sqlite => &SQLITE,
    };
    migrator.run(&store.write).await.map_err(StoreError::Migrate)
}
