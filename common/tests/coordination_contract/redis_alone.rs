//! Redis alone: outages of the server and of the way to it, and what calls cost.

use crate::LONG;
use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use isocost_common::{
    config::{CoordinationConfig, Secret},
    coordination::{Coordination, HeartbeatAnswer, redis::RedisCoordination},
    id::IncarnationId,
    test_support::{
        RedisServer, eventually,
        proxy::{Proxy, Traffic},
    },
};
use redis::aio::MultiplexedConnection;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// A call answers, or fails, within its second; the rest is for a busy machine.
const CALL: Duration = Duration::from_millis(2_500);
/// The longest pause between two attempts to connect, and the attempt.
const BACK: Duration = Duration::from_secs(10);

/// A connection of the test itself.
async fn admin(config: &CoordinationConfig) -> Result<MultiplexedConnection> {
    let client = redis::Client::open(config.url.reveal())?;
    Ok(client.get_multiplexed_async_connection().await?)
}

/// The error of a call that must fail, and how long it took.
async fn fails(service: &RedisCoordination) -> Result<(String, Duration)> {
    let before = Instant::now();
    let failed = tokio::time::timeout(CALL, service.ping())
        .await
        .context("a call hangs")?;
    let error = failed.err().context("a call succeeds without a server")?;
    Ok((error.to_string(), before.elapsed()))
}

async fn works_again(service: &RedisCoordination) -> Result<()> {
    eventually("it works again", BACK, async || Ok(service.ping().await.ok())).await
}

#[tokio::test]
async fn a_server_that_is_not_there_yet_is_waited_for() -> Result<()> {
    let server = RedisServer::start().await?;
    server.stop().await?;
    let service = RedisCoordination::start(&server.config())?;
    let (error, _) = fails(&service).await?;
    ensure!(error.contains(&server.address().to_string()), "{error}");
    server.restart().await?;
    works_again(&service).await
}

#[tokio::test]
async fn an_empty_server_after_a_crash_is_used_at_once() -> Result<()> {
    let server = RedisServer::start().await?;
    let service = RedisCoordination::start(&server.config())?;
    let worker = IncarnationId::generate();
    ensure!(service.try_lock("lock", "one", LONG).await?);
    ensure!(service.heartbeat(worker, "{}", LONG).await? == HeartbeatAnswer::Accepted);
    for round in 0..3 {
        server.kill().await?;
        fails(&service).await?;
        server.restart().await?;
        works_again(&service).await?;
        ensure!(!service.renew_lock("lock", "one", LONG).await?, "round {round}");
        ensure!(service.try_lock("lock", "one", LONG).await?);
        ensure!(service.renew_lock("lock", "one", LONG).await?);
        let heartbeats = service.heartbeats().await?;
        ensure!(heartbeats.stored.is_empty() && heartbeats.known_for < BACK);
        ensure!(service.heartbeat(worker, "{}", LONG).await? == HeartbeatAnswer::Accepted);
        ensure!(service.heartbeats().await?.stored.len() == 1);
    }
    Ok(())
}

/// Who uses it rarely does not pay for a restart that happened in between.
#[tokio::test]
async fn a_restart_that_nobody_noticed_costs_no_call() -> Result<()> {
    let server = RedisServer::start().await?;
    let service = RedisCoordination::start(&server.config())?;
    service.ping().await?;
    server.stop().await?;
    server.restart().await?;
    service.ping().await.context("the first call after the restart")?;
    Ok(())
}

#[tokio::test]
async fn calls_into_a_black_hole_end_and_later_ones_work_again() -> Result<()> {
    let server = RedisServer::start().await?;
    let proxy = Proxy::start(server.address()).await?;
    let service = RedisCoordination::start(&server.config_at(proxy.address()))?;
    service.ping().await?;

    proxy.set(Traffic::BlackHole).await?;
    // Many at once meet the same fate.
    let calls = (0..32).map(|_| fails(&service));
    for outcome in futures_util::future::join_all(calls).await {
        let (error, _) = outcome?;
        ensure!(error.contains("no answer"), "{error}");
    }
    // The outage is known by now: nobody waits for it any more.
    eventually("calls fail at once", BACK, async || {
        let (_, took) = fails(&service).await?;
        Ok((took < Duration::from_millis(100)).then_some(()))
    })
    .await?;
    proxy.set(Traffic::Pass).await?;
    works_again(&service).await?;
    // Without a new connection it could not: the old one stays in the hole.
    ensure!(proxy.accepted() >= 2);
    Ok(())
}

#[tokio::test]
async fn an_unused_connection_into_a_black_hole_is_found_and_replaced() -> Result<()> {
    let server = RedisServer::start().await?;
    let proxy = Proxy::start(server.address()).await?;
    let service = RedisCoordination::start(&server.config_at(proxy.address()))?;
    service.ping().await?;
    proxy.set(Traffic::BlackHole).await?;
    eventually("somebody tries another connection", BACK, async || {
        Ok((proxy.accepted() >= 2).then_some(()))
    })
    .await?;
    proxy.set(Traffic::Pass).await?;
    works_again(&service).await
}

#[tokio::test]
async fn a_frozen_server_is_survived() -> Result<()> {
    let server = RedisServer::start().await?;
    let service = RedisCoordination::start(&server.config())?;
    service.ping().await?;
    server.freeze().await?;
    let (error, _) = fails(&service).await?;
    ensure!(error.contains("no answer"), "{error}");
    server.thaw().await?;
    works_again(&service).await
}

#[tokio::test]
async fn connections_that_are_reset_or_cut_are_replaced() -> Result<()> {
    let server = RedisServer::start().await?;
    let proxy = Proxy::start(server.address()).await?;
    let service = RedisCoordination::start(&server.config_at(proxy.address()))?;
    for round in 0..10 {
        service.ping().await.with_context(|| format!("round {round}"))?;
        if round % 2 == 0 {
            proxy.reset_all();
        } else {
            proxy.half_close_all();
        }
        // The call that was under way when it happened may fail; none hangs.
        works_again(&service).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_wrong_password_is_named_and_not_repeated() -> Result<()> {
    let server = RedisServer::start().await?;
    for url in [
        format!("redis://:hunter2@{}/0", server.address()),
        format!("redis://{}/0", server.address()),
    ] {
        let service = RedisCoordination::start(&CoordinationConfig {
            url: Secret::new(&url),
            ..CoordinationConfig::default()
        })?;
        let (error, _) = fails(&service).await?;
        ensure!(
            error.contains("coordination.url") && error.contains("password"),
            "{error}"
        );
        ensure!(!error.contains("hunter2"), "{error}");
    }
    Ok(())
}

#[tokio::test]
async fn flushed_scripts_are_sent_again() -> Result<()> {
    let server = RedisServer::start().await?;
    let service = RedisCoordination::start(&server.config())?;
    let mut admin = admin(&server.config()).await?;
    let (worker, dead) = (IncarnationId::generate(), IncarnationId::generate());
    ensure!(service.try_lock("lock", "one", LONG).await?);
    for _ in 0..3 {
        redis::cmd("SCRIPT")
            .arg("FLUSH")
            .query_async::<()>(&mut admin)
            .await?;
        ensure!(service.heartbeat(worker, "{}", LONG).await? == HeartbeatAnswer::Accepted);
        ensure!(service.renew_lock("lock", "one", LONG).await?);
        service.entomb(dead, LONG).await?;
        ensure!(service.heartbeats().await?.stored.len() == 1);
        ensure!(!service.release_lock("lock", "two").await?);
    }
    Ok(())
}

/// A copy of old data makes a server look as if it had been there all the time.
#[tokio::test]
async fn a_server_that_came_back_with_old_data_does_not_claim_to_know_better() -> Result<()> {
    let server = RedisServer::start().await?;
    let service = RedisCoordination::start(&server.config())?;
    let mut admin = admin(&server.config()).await?;
    service.heartbeat(IncarnationId::generate(), "{}", LONG).await?;
    let since = "{isocost}:since";
    let begun: i64 = redis::cmd("GET").arg(since).query_async(&mut admin).await?;
    redis::cmd("SET")
        .arg(since)
        .arg(begun - 3_600_000)
        .query_async::<()>(&mut admin)
        .await?;
    redis::cmd("SAVE").query_async::<()>(&mut admin).await?;
    server.kill().await?;
    server.restart().await?;
    works_again(&service).await?;
    let heartbeats = service.heartbeats().await?;
    ensure!(heartbeats.stored.len() == 1, "the copy was not loaded");
    ensure!(
        heartbeats.known_for < Duration::from_secs(60),
        "{:?}",
        heartbeats.known_for
    );
    Ok(())
}

#[tokio::test]
async fn evicted_and_foreign_keys_are_passed_over() -> Result<()> {
    let server = RedisServer::start().await?;
    let service = RedisCoordination::start(&server.config())?;
    let mut admin = admin(&server.config()).await?;
    let (kept, evicted, foreign) = (
        IncarnationId::generate(),
        IncarnationId::generate(),
        IncarnationId::generate(),
    );
    for worker in [kept, evicted, foreign] {
        service.heartbeat(worker, "{}", LONG).await?;
    }
    let key = |worker: IncarnationId| format!("{{isocost}}:heartbeat:{worker}");
    redis::cmd("DEL")
        .arg(key(evicted))
        .query_async::<()>(&mut admin)
        .await?;
    redis::cmd("SET")
        .arg(key(foreign))
        .arg(&b"\xff\xfe"[..])
        .query_async::<()>(&mut admin)
        .await?;
    let stored = service.heartbeats().await?.stored;
    ensure!(stored.len() == 1 && stored[0].incarnation == kept, "{stored:?}");
    // The next heartbeat makes it good.
    service.heartbeat(evicted, "{}", LONG).await?;
    ensure!(service.heartbeats().await?.stored.len() == 2);
    Ok(())
}

#[tokio::test]
async fn every_call_is_one_round_trip() -> Result<()> {
    let server = RedisServer::start().await?;
    let service = RedisCoordination::start(&server.config())?;
    let mut admin = admin(&server.config()).await?;
    let (worker, dead) = (IncarnationId::generate(), IncarnationId::generate());
    let all = async || -> Result<()> {
        service.try_lock("lock", "one", LONG).await?;
        service.renew_lock("lock", "one", LONG).await?;
        service.release_lock("lock", "one").await?;
        service.heartbeat(worker, "{}", LONG).await?;
        service.heartbeats().await?;
        service.entomb(dead, LONG).await?;
        service.claim_key("key", LONG).await?;
        service.free_key("key").await?;
        Ok(())
    };
    // The first time, scripts are sent along.
    all().await?;
    let client = redis::Client::open(server.config().url.reveal())?;
    let monitor = client.get_async_monitor().await?;
    all().await?;
    redis::cmd("ECHO")
        .arg("the end")
        .query_async::<()>(&mut admin)
        .await?;
    let mut commands = Vec::new();
    let mut lines = monitor.into_on_message::<String>();
    loop {
        let line = tokio::time::timeout(CALL, lines.next())
            .await?
            .context("the monitor ended")?;
        if line.contains("the end") {
            break;
        }
        // What a script does inside is no round trip; nor is the trial of an unused connection ours.
        if !line.contains(" lua]") && !line.contains("\"PING\"") {
            commands.push(line);
        }
    }
    ensure!(commands.len() == 8, "{commands:#?}");
    Ok(())
}

#[tokio::test]
async fn a_thousand_workers_are_listed_in_one_short_call() -> Result<()> {
    const WORKERS: usize = 1_000;
    let server = RedisServer::start().await?;
    let service = RedisCoordination::start(&server.config())?;
    let payload = format!(r#"{{"holdings":"{}"}}"#, "x".repeat(1_000));
    let beat = async |ttl: Duration| -> Result<()> {
        let sent = (0..WORKERS).map(|_| service.heartbeat(IncarnationId::generate(), &payload, ttl));
        for answer in futures_util::future::join_all(sent).await {
            ensure!(answer? == HeartbeatAnswer::Accepted);
        }
        Ok(())
    };
    // Of an earlier life: they must not be carried along.
    beat(Duration::from_millis(1)).await?;
    beat(LONG).await?;
    let before = Instant::now();
    let stored = service.heartbeats().await?.stored;
    let took = before.elapsed();
    ensure!(stored.len() == WORKERS, "{} are listed", stored.len());
    ensure!(stored.iter().all(|beat| beat.payload == payload));
    println!(
        "{WORKERS} heartbeats of {} bytes listed in {took:?}",
        payload.len()
    );
    ensure!(took < Duration::from_millis(500), "it took {took:?}");
    let mut admin = admin(&server.config()).await?;
    let members: usize = redis::cmd("ZCARD")
        .arg("{isocost}:alive")
        .query_async(&mut admin)
        .await?;
    ensure!(members == WORKERS, "{members} members");
    Ok(())
}

/// Whoever is gone leaves no task and no connection behind.
#[tokio::test]
async fn dropping_it_closes_the_connection() -> Result<()> {
    let server = RedisServer::start().await?;
    let mut admin = admin(&server.config()).await?;
    let service = RedisCoordination::start(&server.config())?;
    service.ping().await?;
    let clients = async |admin: &mut MultiplexedConnection| -> Result<usize> {
        let list: String = redis::cmd("CLIENT").arg("LIST").query_async(admin).await?;
        Ok(list.lines().count())
    };
    ensure!(clients(&mut admin).await? == 2);
    let weak = Arc::downgrade(&service);
    drop(service);
    ensure!(weak.upgrade().is_none());
    eventually("its connection is closed", BACK, async || {
        Ok((clients(&mut admin).await? == 1).then_some(()))
    })
    .await
}
