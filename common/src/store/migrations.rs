//! The schema, brought up to date. Migrations are compiled in; `migrations/` is their home.

use super::{Dialect, Store, StoreError, Tx};
use sqlx::{
    AnyConnection,
    migrate::{MigrateError, Migrator},
};
use std::fmt;

/// How long to wait for another process that is migrating, in seconds.
const LOCK_WAIT_S: i64 = 120;

/// Applies what is missing. Several processes may start together: one of them does it while the others wait.
///
/// # Errors
/// [`StoreError::Migrate`] when a migration fails, or the schema is newer than this program. MySQL cannot roll a
/// migration back: after one that was cut off, the next run says so, and the database has to be restored.
pub async fn run(store: &Store) -> Result<(), StoreError> {
    let migrator = migrator(store.dialect());
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

fn migrator(dialect: Dialect) -> Migrator {
    match dialect {
        Dialect::MySql => sqlx::migrate!("../migrations/mysql"),
        Dialect::Sqlite => sqlx::migrate!("../migrations/sqlite"),
    }
}

/// How the tables of a database compare with those this program was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schema {
    /// There are none.
    Missing,
    /// Some migrations have not run.
    Behind {
        /// The newest that has.
        found: i64,
        /// The newest there is.
        known: i64,
    },
    /// They are the same.
    Current,
    /// A newer program made them.
    Newer {
        /// The newest migration that has run.
        found: i64,
        /// The newest this program knows.
        known: i64,
    },
    /// A migration was cut off in the middle.
    Broken {
        /// Which.
        version: i64,
    },
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("missing"),
            Self::Behind { found, known } => {
                write!(f, "older than this program (version {found}, needed {known})")
            }
            Self::Current => f.write_str("up to date"),
            Self::Newer { found, known } => {
                write!(f, "newer than this program (version {found}, known {known})")
            }
            Self::Broken { version } => write!(f, "left half changed by migration {version}"),
        }
    }
}

/// Looks at the tables without changing anything.
///
/// # Errors
/// [`StoreError`] when the database does not answer.
pub async fn state(store: &Store) -> Result<Schema, StoreError> {
    let sql = match store.dialect() {
        Dialect::MySql => {
            "select count(*) from information_schema.tables \
             where table_schema = database() and table_name = '_sqlx_migrations'"
        }
        Dialect::Sqlite => "select count(*) from sqlite_master where name = '_sqlx_migrations'",
    };
    let mut reader = store.reader().await?;
    let tables: i64 = sqlx::query_scalar(sql).fetch_one(&mut *reader).await?;
    if tables == 0 {
        return Ok(Schema::Missing);
    }
    let cut_off = "select max(version) from _sqlx_migrations where not success";
    let cut_off: Option<i64> = sqlx::query_scalar(cut_off).fetch_one(&mut *reader).await?;
    if let Some(version) = cut_off {
        return Ok(Schema::Broken { version });
    }
    let found = "select max(version) from _sqlx_migrations";
    let found: Option<i64> = sqlx::query_scalar(found).fetch_one(&mut *reader).await?;
    let known = migrator(store.dialect())
        .iter()
        .map(|migration| migration.version)
        .max();
    Ok(match (found, known.unwrap_or_default()) {
        (None, _) => Schema::Missing,
        (Some(found), known) if found < known => Schema::Behind { found, known },
        (Some(found), known) if found > known => Schema::Newer { found, known },
        (Some(_), _) => Schema::Current,
    })
}

async fn run_under_named_lock(migrator: &Migrator, connection: &mut AnyConnection) -> Result<(), StoreError> {
    // Lock names are short and belong to the whole server. (MySQL 9 knows no md5 any more.)
    let taken: Option<i64> = sqlx::query_scalar(
        "select cast(get_lock(concat('isocost.migrate.', left(sha2(database(), 256), 40)), ?) as signed)",
    )
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
    sqlx::query("do release_lock(concat('isocost.migrate.', left(sha2(database(), 256), 40)))")
        .execute(connection)
        .await?;
    outcome.map_err(StoreError::Migrate)
}

/// SQLite's write lock is taken before the look at what is missing, and held until all of it is there.
async fn run_in_one_transaction(migrator: &Migrator, mut tx: Tx) -> Result<(), StoreError> {
    migrator
        .run_direct(None, tx.unlimited()?, false)
        .await
        .map_err(StoreError::Migrate)?;
    tx.commit().await
}
