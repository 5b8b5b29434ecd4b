//! A database server in trouble, and sessions in trouble with it: on a private server, which can be restarted, frozen
//! and made read-only. SQLite has no server.

use anyhow::{Context, Result, ensure};
use isocost_common::{
    id::JobId,
    job::JobStatus,
    store::{
        Store, StoreError, StoreOptions, epoch, jobs, migrations,
        submission::{self, Admission},
    },
    test_support::{
        MariadbServer, eventually, given,
        proxy::{Direction, Proxy, Traffic},
    },
};
use sqlx::Row;
use std::time::{Duration, Instant};

/// What a call may take beyond its own limit on a busy machine.
const SLACK: Duration = Duration::from_secs(4);
const RECOVERS_WITHIN: Duration = Duration::from_secs(20);

async fn connect(options: &StoreOptions) -> Result<Store> {
    let store = Store::connect(options).await?;
    migrations::run(&store).await?;
    Ok(store)
}

async fn insert(store: &Store) -> Result<JobId, StoreError> {
    let job = given::job();
    given::insert(store, std::slice::from_ref(&job), &[]).await?;
    Ok(job.id)
}

async fn exists(store: &Store, job: JobId) -> Result<bool> {
    Ok(jobs::get(&mut *store.reader().await?, job).await?.is_some())
}

/// The question is held up and its answer is not: its middle would be wrong by half the wait, and a clock that is ahead
/// fires jobs before their time.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_answer_about_the_time_does_not_put_the_clock_ahead() -> Result<()> {
    let server = MariadbServer::start(&[]).await?;
    let proxy = Proxy::start(server.address()).await?;
    let options = StoreOptions {
        acquire_timeout: Duration::from_secs(30),
        ..server.options_at(proxy.address())
    };
    let store = Store::connect(&options).await?;
    // The connection is looked at once more after its use: that shall not be held up instead.
    tokio::time::sleep(Duration::from_millis(300)).await;
    proxy.set(Traffic::Stall).await?;
    let measured = tokio::spawn({
        let store = store.clone();
        async move { store.measure_clock().await }
    });
    tokio::time::sleep(Duration::from_secs(3)).await;
    proxy.set(Traffic::Pass).await?;
    let ahead_ms = measured.await??;
    ensure!(ahead_ms.abs() < 1_000, "the database is {ahead_ms} ms ahead");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_leader_does_not_keep_its_successor_from_leading() -> Result<()> {
    let server = MariadbServer::start(&[]).await?;
    let options = StoreOptions {
        idle_transaction_timeout: Duration::from_secs(3),
        ..server.options()
    };
    let (frozen, successor) = (connect(&options).await?, connect(&options).await?);
    let old = epoch::begin(&frozen, "frozen").await?;
    let mut tx = frozen.begin().await?;
    epoch::guard(&mut tx, old).await?;
    let job = given::job();
    jobs::insert_many(&mut tx, std::slice::from_ref(&job)).await?;

    // The old leader says nothing any more. Its successor waits for the row, and for no longer than that.
    let before = Instant::now();
    let new = epoch::begin(&successor, "successor").await?;
    let waited = before.elapsed();
    ensure!(new == old + 1);
    println!("the successor waited {waited:?}");
    ensure!(
        waited < options.idle_transaction_timeout + SLACK,
        "it waited {waited:?}"
    );

    // Thawed, the old leader cannot finish what it had begun, and knows that it does not know.
    let finished = tx.commit().await;
    ensure!(
        matches!(finished, Err(StoreError::UnknownCommit(_))),
        "{finished:?}"
    );
    ensure!(
        !exists(&successor, job.id).await?,
        "a leader of the past has written"
    );
    let mut tx = frozen.begin().await?;
    let refused = epoch::guard(&mut tx, old).await;
    ensure!(
        matches!(refused, Err(StoreError::StaleEpoch { .. })),
        "{refused:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_nobody_used_for_long_costs_no_error() -> Result<()> {
    let server = MariadbServer::start(&[]).await?;
    let options = StoreOptions {
        idle_transaction_timeout: Duration::from_secs(1),
        ..server.options()
    };
    let store = connect(&options).await?;
    let first = session(&store).await?;
    // MySQL ends idle sessions by then; MariaDB is made to.
    if server.is_mysql() {
        tokio::time::sleep(Duration::from_millis(2_500)).await;
    } else {
        server.execute(&format!("kill {}", first.id)).await?;
        tokio::time::sleep(Duration::from_millis(1_100)).await;
    }
    let second = session(&store).await?;
    ensure!(second.id != first.id, "it is the old session");
    ensure!(second.isolation == "READ-COMMITTED", "{}", second.isolation);
    Ok(())
}

struct Session {
    id: i64,
    isolation: String,
}

async fn session(store: &Store) -> Result<Session> {
    let mut reader = store.reader().await?;
    let id = sqlx::query_scalar("select cast(connection_id() as signed)")
        .fetch_one(&mut *reader)
        .await?;
    let row = sqlx::query(
        "show session variables where variable_name in ('tx_isolation', 'transaction_isolation')",
    )
    .fetch_one(&mut *reader)
    .await?;
    Ok(Session {
        id,
        isolation: row.try_get(1)?,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn every_session_reads_committed_also_after_a_restart_of_the_server() -> Result<()> {
    let server = MariadbServer::start(&[]).await?;
    let store = connect(&server.options()).await?;
    let before = session(&store).await?;
    ensure!(before.isolation == "READ-COMMITTED", "{}", before.isolation);
    let job = insert(&store).await?;
    for crash in [false, true] {
        if crash {
            server.kill().await?;
        } else {
            server.stop().await?;
        }
        let asked = Instant::now();
        let failed = store.ping().await;
        ensure!(matches!(failed, Err(StoreError::Unavailable(_))), "{failed:?}");
        let took = asked.elapsed();
        ensure!(
            took < server.options().acquire_timeout + SLACK,
            "it took {took:?}"
        );
        server.restart().await?;
        eventually("the pool recovers", RECOVERS_WITHIN, async || {
            Ok(store.ping().await.ok())
        })
        .await?;
        // Every connection of the pool, not only the first.
        let mut taken = Vec::new();
        for _ in 0..server.options().max_connections {
            let mut reader = store.reader().await?;
            let sql =
                "show session variables where variable_name in ('tx_isolation', 'transaction_isolation')";
            let row = sqlx::query(sql).fetch_one(&mut *reader).await?;
            let isolation: String = row.try_get(1)?;
            ensure!(isolation == "READ-COMMITTED", "{isolation}");
            taken.push(reader);
        }
        drop(taken);
        ensure!(exists(&store, job).await?, "what was committed is lost");
        insert(&store).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_server_is_unavailable_and_not_broken() -> Result<()> {
    let server = MariadbServer::start(&[]).await?;
    let store = connect(&server.options()).await?;
    let before = insert(&store).await?;
    server.execute("set global read_only = 1").await?;
    let asked = Instant::now();
    let failed = insert(&store).await;
    ensure!(matches!(failed, Err(StoreError::Unavailable(_))), "{failed:?}");
    ensure!(asked.elapsed() < SLACK);
    ensure!(exists(&store, before).await?, "reading goes on");
    store.ping().await?;
    let failed = store.takes_writes().await;
    ensure!(matches!(failed, Err(StoreError::Unavailable(_))), "{failed:?}");
    server.execute("set global read_only = 0").await?;
    store.takes_writes().await?;
    insert(&store).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_free_connection_is_unavailable_within_the_limit() -> Result<()> {
    let server = MariadbServer::start(&[]).await?;
    let options = server.options();
    let store = connect(&options).await?;
    let mut held = Vec::new();
    for _ in 0..options.max_connections {
        held.push(store.begin().await?);
    }
    let asked = Instant::now();
    let (begun, read) = tokio::join!(store.begin(), store.reader());
    let took = asked.elapsed();
    ensure!(matches!(begun.map(|_| ()), Err(StoreError::Unavailable(_))));
    ensure!(matches!(read.map(|_| ()), Err(StoreError::Unavailable(_))));
    ensure!(
        took >= options.acquire_timeout && took < options.acquire_timeout + SLACK,
        "it took {took:?}"
    );
    drop(held);
    insert(&store).await?;
    Ok(())
}

/// A client that hangs up drops its request wherever it stands.
#[tokio::test(flavor = "multi_thread")]
async fn transactions_dropped_at_any_moment_leak_nothing() -> Result<()> {
    let server = MariadbServer::start(&[]).await?;
    let proxy = Proxy::start(server.address()).await?;
    proxy.set(Traffic::Delay(Duration::from_millis(2))).await?;
    let options = StoreOptions {
        acquire_timeout: Duration::from_secs(20),
        ..server.options_at(proxy.address())
    };
    let store = connect(&options).await?;
    let row = given::job();
    for round in 0..300_u64 {
        let work = async {
            let mut tx = store.begin().await?;
            jobs::insert_many(&mut tx, std::slice::from_ref(&row)).await?;
            // Never committed.
            tokio::time::sleep(Duration::from_millis(3)).await;
            Ok::<_, StoreError>(())
        };
        let patience = Duration::from_micros(round * 50);
        drop(tokio::time::timeout(patience, work).await);
    }
    // Each connection of the pool commits what is written outside a transaction, and none holds a lock.
    let mut readers = Vec::new();
    for _ in 0..options.max_connections {
        readers.push(store.reader().await?);
    }
    for reader in &mut readers {
        jobs::insert_many(reader, &[given::job()]).await?;
    }
    let observer = Store::connect(&server.options()).await?;
    let stored: i64 = sqlx::query_scalar("select count(*) from job_info")
        .fetch_one(&mut *observer.reader().await?)
        .await?;
    ensure!(
        stored == i64::from(options.max_connections),
        "{stored} rows are there, of {} written outside a transaction",
        options.max_connections
    );
    ensure!(!exists(&observer, row.id).await?);
    given::insert(&observer, std::slice::from_ref(&row), &[]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_a_commit_that_is_lost_is_an_unknown_commit() -> Result<()> {
    let server = MariadbServer::start(&[]).await?;
    let proxy = Proxy::start(server.address()).await?;
    let store = connect(&server.options_at(proxy.address())).await?;
    for (direction, happened) in [(Direction::ToClient, true), (Direction::ToServer, false)] {
        let job = given::job();
        let mut tx = store.begin().await?;
        jobs::insert_many(&mut tx, std::slice::from_ref(&job)).await?;
        proxy.set(Traffic::CutAfter { direction, bytes: 0 }).await?;
        let lost = tx.commit().await;
        ensure!(matches!(lost, Err(StoreError::UnknownCommit(_))), "{lost:?}");
        proxy.set(Traffic::Pass).await?;
        eventually("it can be read", RECOVERS_WITHIN, async || {
            Ok(exists(&store, job.id)
                .await
                .ok()
                .filter(|found| *found == happened))
        })
        .await?;
    }
    Ok(())
}

/// The connection breaks after any number of bytes of an answer: whatever was said, each job is there once.
#[tokio::test(flavor = "multi_thread")]
async fn a_submission_cut_off_anywhere_is_stored_once_or_not_at_all() -> Result<()> {
    let server = MariadbServer::start(&[]).await?;
    let proxy = Proxy::start(server.address()).await?;
    let store = connect(&server.options_at(proxy.address())).await?;
    let observer = Store::connect(&server.options()).await?;
    let (mut accepted, mut failed) = (0, 0);
    for bytes in (0..400).step_by(8) {
        eventually("the pool recovers", RECOVERS_WITHIN, async || {
            Ok(store.ping().await.ok())
        })
        .await?;
        let job = jobs::JobRow {
            client_request_id: Some(format!("request {bytes}")),
            content_hash: "same".into(),
            ..given::job()
        };
        let connections = proxy.accepted();
        let cut = Traffic::CutAfter {
            direction: Direction::ToClient,
            bytes,
        };
        proxy.set(cut).await?;
        let heal = async {
            // New connections work again.
            while proxy.accepted() == connections {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            proxy.set(Traffic::Pass).await
        };
        let submit = submission::admit(&store, std::slice::from_ref(&job));
        let admitted = tokio::select! {
            admitted = submit => admitted,
            healed = async { heal.await?; std::future::pending::<std::io::Result<Vec<Admission>>>().await } => {
                healed.map(|_| Vec::new()).map_err(|error| StoreError::Unavailable(error.into()))
            }
        };
        proxy.set(Traffic::Pass).await?;
        match admitted {
            Ok(admissions) => {
                accepted += 1;
                ensure!(
                    matches!(admissions[..], [Admission::Accepted { .. }]),
                    "{admissions:?}"
                );
                ensure!(
                    exists(&observer, job.id).await?,
                    "accepted and not there, after {bytes} bytes"
                );
            }
            Err(error) => {
                failed += 1;
                ensure!(error.is_transient(), "{error:?}");
            }
        }
        // What a client does that got no answer: the same again, under a new id.
        let again = jobs::JobRow {
            id: JobId::generate(),
            ..job.clone()
        };
        submission::admit(&observer, &[again]).await?;
        let stored: i64 = sqlx::query_scalar("select count(*) from job_info where app_id = ? and status = ?")
            .bind(job.app.to_string())
            .bind(JobStatus::Waiting.code())
            .fetch_one(&mut *observer.reader().await?)
            .await?;
        ensure!(
            stored == 1,
            "{stored} jobs of one request, cut after {bytes} bytes"
        );
    }
    println!("{accepted} accepted, {failed} failed");
    ensure!(accepted > 0 && failed > 0, "{accepted} accepted, {failed} failed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_tls_is_said_with_a_remedy() -> Result<()> {
    let server = MariadbServer::start(&[]).await?;
    let options = |parameters: &str| StoreOptions {
        url: format!("{}?{parameters}", server.options().url),
        ..server.options()
    };
    let said = |outcome: Result<Store, StoreError>| match outcome {
        Err(error @ StoreError::Tls { .. }) if !error.is_transient() => Ok(error.to_string()),
        other => Err(anyhow::anyhow!("{:?}", other.map(|_| ()))),
    };
    if server.is_mysql() {
        server.execute("set global require_secure_transport = on").await?;
        let plain = Store::connect(&options("ssl-mode=DISABLED")).await;
        ensure!(said(plain)?.contains("ssl-mode=REQUIRED"));
        connect(&options("ssl-mode=REQUIRED")).await?.ping().await?;
        server
            .execute("set global require_secure_transport = off")
            .await?;
        // The server has not seen this user's password yet, so it wants all of it.
        server
            .execute("alter user isocost@'127.0.0.1' identified by 'private'")
            .await?;
        let plain = Store::connect(&options("ssl-mode=DISABLED")).await;
        ensure!(said(plain)?.contains("caching_sha2_password"));
    } else {
        // Debian's MariaDB has no certificate of its own.
        let encrypted = Store::connect(&options("ssl-mode=REQUIRED")).await;
        ensure!(said(encrypted)?.contains("certificate"));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_and_a_missing_database_are_named() -> Result<()> {
    let server = MariadbServer::start(&[]).await?;
    let url = server.options().url;
    for (wrong, word) in [
        (url.replace("private", "hunter2"), "denied"),
        (url.replace("/isocost", "/missing"), "missing"),
    ] {
        let options = StoreOptions {
            url: wrong,
            ..server.options()
        };
        let failed = Store::connect(&options).await.err().context("it connects")?;
        let said = isocost_common::error_chain::chain(&failed).to_string();
        ensure!(said.contains(word) && !said.contains("hunter2"), "{said}");
        ensure!(!failed.is_transient(), "{said}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_frozen_while_somebody_connects_is_unavailable() -> Result<()> {
    let server = MariadbServer::start(&[]).await?;
    let store = connect(&server.options()).await?;
    server.freeze().await?;
    let asked = Instant::now();
    let failed = Store::connect(&server.options())
        .await
        .err()
        .context("it connects")?;
    ensure!(matches!(failed, StoreError::Unavailable(_)), "{failed:?}");
    ensure!(asked.elapsed() < server.options().acquire_timeout + SLACK);
    server.thaw().await?;
    eventually("it works again", RECOVERS_WITHIN, async || {
        Ok(store.ping().await.ok())
    })
    .await?;
    Ok(())
}
