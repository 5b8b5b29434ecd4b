//! A server that says nothing: the network swallows everything, or takes nothing, or the server is frozen. On a private
//! server behind a proxy; connections that were cut off stay cut off after the heal, so whatever works then is new.

use anyhow::{Context, Result, ensure};
use isocost_common::{
    store::{Store, StoreError, StoreOptions, jobs, migrations},
    test_support::{
        MariadbServer, eventually, given,
        proxy::{Proxy, Traffic},
    },
};
use sqlx::AssertSqlSafe;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

/// What a call may take beyond its own limit on a busy machine.
const SLACK: Duration = Duration::from_secs(4);
const RECOVERS_WITHIN: Duration = Duration::from_secs(20);
const STATEMENT: Duration = Duration::from_secs(1);

async fn behind(proxy: &Proxy, server: &MariadbServer) -> Result<(Store, StoreOptions)> {
    let options = StoreOptions {
        statement_timeout: STATEMENT,
        idle_transaction_timeout: Duration::from_secs(2),
        ..server.options_at(proxy.address())
    };
    let store = Store::connect(&options).await?;
    migrations::run(&store).await?;
    Ok((store, options))
}

/// Every place in the pool can be had at once, and works.
async fn whole_pool_works(store: &Store, options: &StoreOptions) -> Result<()> {
    eventually(
        "every connection of the pool works",
        RECOVERS_WITHIN,
        async || {
            let mut held = Vec::new();
            for _ in 0..options.max_connections {
                let Ok(mut tx) = store.begin().await else {
                    return Ok(None);
                };
                if jobs::insert_many(&mut tx, &[given::job()]).await.is_err() {
                    return Ok(None);
                }
                held.push(tx);
            }
            for tx in held {
                tx.commit().await?;
            }
            Ok(Some(()))
        },
    )
    .await
}

fn in_time(asked: Instant, limit: Duration) -> Result<()> {
    let took = asked.elapsed();
    ensure!(took < limit + SLACK, "it took {took:?} of {limit:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_black_hole_is_noticed_within_the_deadline_and_its_connections_are_replaced() -> Result<()> {
    let server = MariadbServer::start(&[]).await?;
    let proxy = Proxy::start(server.address()).await?;
    let (store, options) = behind(&proxy, &server).await?;
    let (written, committed) = (given::job(), given::job());
    let mut writing = store.begin().await?;
    let mut committing = store.begin().await?;
    jobs::insert_many(&mut committing, std::slice::from_ref(&committed)).await?;
    let mut reading = store.reader().await?;
    jobs::get(&mut reading, written.id).await?;

    proxy.set(Traffic::BlackHole).await?;
    let asked = Instant::now();
    let (wrote, commit, read) = tokio::join!(
        jobs::insert_many(&mut writing, std::slice::from_ref(&written)),
        committing.commit(),
        jobs::get(&mut reading, committed.id)
    );
    in_time(asked, STATEMENT)?;
    ensure!(matches!(wrote, Err(StoreError::Unavailable(_))), "{wrote:?}");
    ensure!(matches!(commit, Err(StoreError::UnknownCommit(_))), "{commit:?}");
    ensure!(
        matches!(read, Err(StoreError::Unavailable(_))),
        "{:?}",
        read.err()
    );
    drop((writing, reading));
    // Without a connection that works, the wait is that for one.
    for _ in 0..2 {
        let asked = Instant::now();
        let failed = store.ping().await;
        ensure!(matches!(failed, Err(StoreError::Unavailable(_))), "{failed:?}");
        in_time(asked, options.acquire_timeout)?;
    }

    proxy.set(Traffic::Pass).await?;
    whole_pool_works(&store, &options).await?;
    // The server ended what was open on connections that it still believed in.
    let observer = Store::connect(&server.options()).await?;
    eventually("the lost transactions are over", RECOVERS_WITHIN, async || {
        let rows = [written.clone(), committed.clone()];
        Ok(given::insert(&observer, &rows, &[]).await.ok())
    })
    .await
}

/// Who ends such a connection in good order waits until the network takes what is still to be sent: for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_the_network_does_not_take_costs_no_place_in_the_pool() -> Result<()> {
    let server = MariadbServer::start(&["--max-allowed-packet=64M"]).await?;
    let proxy = Proxy::start(server.address()).await?;
    let (store, options) = behind(&proxy, &server).await?;
    let mut readers = Vec::new();
    for _ in 0..options.max_connections {
        readers.push(store.reader().await?);
    }
    proxy.set(Traffic::Stall).await?;
    let mut sending = JoinSet::new();
    for mut reader in readers {
        sending.spawn(async move {
            let asked = Instant::now();
            let large = format!("select length('{}')", "x".repeat(15 << 20));
            let failed = sqlx::query(AssertSqlSafe(large)).execute(&mut *reader).await;
            ensure!(matches!(failed, Err(sqlx::Error::Io(_))), "{:?}", failed.err());
            in_time(asked, STATEMENT)
        });
    }
    while let Some(sent) = sending.join_next().await {
        sent??;
    }
    // Somebody else can try in their place while they are still stuck.
    let tried = proxy.accepted();
    ensure!(store.ping().await.is_err());
    ensure!(
        proxy.accepted() > tried,
        "connections that are given up still take their places in the pool"
    );
    proxy.set(Traffic::Pass).await?;
    whole_pool_works(&store, &options).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_is_noticed_within_the_deadline() -> Result<()> {
    let server = MariadbServer::start(&[]).await?;
    let proxy = Proxy::start(server.address()).await?;
    let (store, options) = behind(&proxy, &server).await?;
    let mut reading = store.reader().await?;
    server.freeze().await?;
    let asked = Instant::now();
    let failed = jobs::get(&mut reading, given::job().id).await;
    ensure!(
        matches!(failed, Err(StoreError::Unavailable(_))),
        "{:?}",
        failed.err()
    );
    in_time(asked, STATEMENT)?;
    drop(reading);
    server.thaw().await?;
    whole_pool_works(&store, &options).await
}

/// The lock wait of the database is shorter than the deadline of a statement, so that it is the one that ends: the
/// connection stays, and the transaction is run again.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_held_for_long_is_waited_for_again() -> Result<()> {
    let server = MariadbServer::start(&[]).await?;
    let options = StoreOptions {
        // Production's, unlike those of the other tests.
        idle_transaction_timeout: Duration::from_secs(30),
        ..server.options()
    };
    let store = Store::connect(&options).await?;
    migrations::run(&store).await?;
    let job = given::job();
    given::insert(&store, std::slice::from_ref(&job), &[]).await?;
    let add = "update job_info set version = version + 1 where id = ?";
    let mut holder = store.begin().await?;
    sqlx::query(add)
        .bind(job.id.to_string())
        .execute(&mut *holder)
        .await?;
    let runs = Arc::new(AtomicU32::new(0));
    let waiting = tokio::spawn({
        let (store, id, runs) = (store.clone(), job.id.to_string(), Arc::clone(&runs));
        async move {
            let work = || async {
                runs.fetch_add(1, Ordering::Relaxed);
                let mut tx = store.begin().await?;
                sqlx::query(add).bind(id.clone()).execute(&mut *tx).await?;
                tx.commit().await
            };
            store.transact(work).await
        }
    });
    eventually(
        "the wait for the lock ends, and begins anew",
        RECOVERS_WITHIN,
        async || Ok((runs.load(Ordering::Relaxed) >= 2).then_some(())),
    )
    .await?;
    holder.commit().await?;
    waiting.await??;
    let row = jobs::get(&mut *store.reader().await?, job.id).await?;
    let version = row.context("the job is gone")?.version;
    ensure!(version == job.version + 2, "{version}");
    Ok(())
}
