//! Errors as each database really raises them, told apart as callers need it.

use anyhow::{Context, Result, ensure};
use isocost_common::{
    error_chain::chain,
    store::{Dialect, Store, StoreError, StoreOptions},
    store_tests,
    test_support::{TestStore, given},
};
use sqlx::{AnyConnection, Connection};
use std::time::Duration;

store_tests! {
    a_taken_primary_key_is_a_duplicate,
    a_taken_unique_key_is_a_duplicate,
    a_missing_value_is_no_duplicate,
    a_file_that_is_no_database_is_refused_at_once,
    waiting_too_long_for_a_lock_is_retryable,
    a_connection_killed_before_the_commit_is_not_a_success,
    no_free_connection_in_time_is_unavailable,
    a_closed_store_is_unavailable,
    nobody_listening_is_unavailable,
}

async fn a_taken_primary_key_is_a_duplicate(store: &TestStore) -> Result<()> {
    let job = given::job();
    given::insert(store, std::slice::from_ref(&job), &[]).await?;
    let again = given::insert(store, &[job], &[]).await;
    ensure!(matches!(again, Err(StoreError::Duplicate(_))), "{again:?}");
    Ok(())
}

async fn a_taken_unique_key_is_a_duplicate(store: &TestStore) -> Result<()> {
    let mut reader = store.begin().await?;
    let insert = "insert into app (id, name, created_at) values (?, 'shop', 0)";
    sqlx::query(insert)
        .bind("1".to_owned())
        .execute(&mut *reader)
        .await?;
    let again = sqlx::query(insert)
        .bind("2".to_owned())
        .execute(&mut *reader)
        .await;
    let error = StoreError::from(again.err().context("the name was taken twice")?);
    ensure!(
        matches!(error, StoreError::Duplicate(_)) && !error.is_transient(),
        "{error:?}"
    );
    Ok(())
}

async fn a_missing_value_is_no_duplicate(store: &TestStore) -> Result<()> {
    let mut tx = store.begin().await?;
    let failed = sqlx::query("insert into app (id, name, created_at) values ('1', null, 0)")
        .execute(&mut *tx)
        .await;
    let error = StoreError::from(failed.err().context("null was accepted")?);
    ensure!(
        matches!(error, StoreError::Refused(_)) && error.is_fault_of_the_rows() && !error.is_transient(),
        "{error:?}"
    );
    Ok(())
}

async fn a_file_that_is_no_database_is_refused_at_once(store: &TestStore) -> Result<()> {
    if store.dialect() != Dialect::Sqlite {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("garbage.db");
    std::fs::write(&file, "this was a database once, or never. ".repeat(1_000))?;
    let from = std::time::Instant::now();
    let options = StoreOptions::new(&format!("sqlite:{}", file.display()));
    let Err(error) = Store::connect(&options).await else {
        anyhow::bail!("it was opened");
    };
    ensure!(
        from.elapsed() < std::time::Duration::from_secs(2),
        "{:?}",
        from.elapsed()
    );
    let told = chain(&error).to_string();
    ensure!(told.contains("not a database"), "{told}");
    Ok(())
}

async fn waiting_too_long_for_a_lock_is_retryable(store: &TestStore) -> Result<()> {
    let job = given::job();
    given::insert(store, std::slice::from_ref(&job), &[]).await?;
    let mut holder = store.begin().await?;
    let update = "update job_info set version = 2 where id = ?";
    sqlx::query(update)
        .bind(job.id.to_string())
        .execute(&mut *holder)
        .await?;

    // A second process, as only that can meet the lock in SQLite; impatient, so that the test is quick.
    let mut other = AnyConnection::connect(&store.options().url).await?;
    let impatient = match store.dialect() {
        Dialect::Sqlite => "pragma busy_timeout = 50",
        Dialect::MySql => "set session innodb_lock_wait_timeout = 1",
    };
    sqlx::query(impatient).execute(&mut other).await?;
    let failed = sqlx::query(update)
        .bind(job.id.to_string())
        .execute(&mut other)
        .await;
    let error = StoreError::from(failed.err().context("it passed the lock")?);
    ensure!(matches!(error, StoreError::Retryable(_)), "{error:?}");

    if store.dialect() == Dialect::Sqlite {
        // A reader that turns writer after somebody else has written can only start again.
        sqlx::query("begin").execute(&mut other).await?;
        sqlx::query("select count(*) from job_info")
            .fetch_one(&mut other)
            .await?;
        holder.commit().await?;
        let failed = sqlx::query(update)
            .bind(job.id.to_string())
            .execute(&mut other)
            .await;
        let error = StoreError::from(failed.err().context("it wrote on an old snapshot")?);
        ensure!(matches!(error, StoreError::Retryable(_)), "{error:?}");
    }
    Ok(())
}

async fn a_connection_killed_before_the_commit_is_not_a_success(store: &TestStore) -> Result<()> {
    if store.dialect() == Dialect::Sqlite {
        // There is no connection to kill: a commit is a function call. What is left is that it reports success only
        // for what is in the file.
        let job = given::job();
        given::insert(store, std::slice::from_ref(&job), &[]).await?;
        let mut other = AnyConnection::connect(&store.options().url).await?;
        let count: i64 = sqlx::query_scalar("select count(*) from job_info")
            .fetch_one(&mut other)
            .await?;
        ensure!(count == 1);
        return Ok(());
    }
    let job = given::job();
    let mut tx = store.begin().await?;
    let victim: i64 = sqlx::query_scalar("select cast(connection_id() as signed)")
        .fetch_one(&mut *tx)
        .await?;
    isocost_common::store::jobs::insert_many(&mut tx, std::slice::from_ref(&job)).await?;
    let mut admin = AnyConnection::connect(&store.options().url).await?;
    sqlx::query(sqlx::AssertSqlSafe(format!("kill {victim}")))
        .execute(&mut admin)
        .await?;
    let lost = tx.commit().await;
    ensure!(
        matches!(&lost, Err(error @ StoreError::UnknownCommit(_)) if error.is_transient()),
        "{lost:?}"
    );
    // The store goes on with a fresh connection, and by key one finds out what really happened.
    let mut reader = store.reader().await?;
    ensure!(
        isocost_common::store::jobs::get(&mut reader, job.id)
            .await?
            .is_none()
    );
    Ok(())
}

async fn no_free_connection_in_time_is_unavailable(store: &TestStore) -> Result<()> {
    let options = StoreOptions {
        max_connections: 1,
        acquire_timeout: Duration::from_millis(200),
        ..store.options().clone()
    };
    let small = Store::connect(&options).await?;
    let held = small.begin().await?;
    let failed = small.begin().await.err().context("a second one was to be had")?;
    ensure!(matches!(failed, StoreError::Unavailable(_)), "{failed:?}");
    if store.dialect() == Dialect::MySql {
        let told = chain(&failed).to_string();
        ensure!(told.contains("all 1 of this process are in use"), "{told}");
    }
    drop(held);
    small.begin().await?;
    small.close().await;
    Ok(())
}

async fn a_closed_store_is_unavailable(store: &TestStore) -> Result<()> {
    let other = store.connect_again().await?;
    other.close().await;
    let failed = other.ping().await.err().context("it answered")?;
    ensure!(
        matches!(failed, StoreError::Unavailable(_)) && failed.is_transient(),
        "{failed:?}"
    );
    Ok(())
}

async fn nobody_listening_is_unavailable(store: &TestStore) -> Result<()> {
    let url = match store.dialect() {
        Dialect::Sqlite => "sqlite:/no/such/folder/isocost.db",
        // The discard port: nobody listens there.
        Dialect::MySql => "mysql://isocost@127.0.0.1:9/isocost",
    };
    let options = StoreOptions {
        acquire_timeout: Duration::from_secs(2),
        ..StoreOptions::new(url)
    };
    let failed = Store::connect(&options).await.err().context("it connected")?;
    ensure!(matches!(failed, StoreError::Unavailable(_)), "{failed:?}");
    if store.dialect() == Dialect::MySql {
        let told = chain(&failed).to_string();
        ensure!(told.contains("host and port of store.url"), "{told}");
    }
    Ok(())
}
