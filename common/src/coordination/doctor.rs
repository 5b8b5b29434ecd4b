//! What `isocost doctor` looks at in the coordination service, and what the roles look at when they start.

use crate::{
    config::CoordinationConfig,
    doctor::{Finding, Findings, version_numbers},
};
use redis::{AsyncConnectionConfig, Client, ErrorKind, ServerErrorKind, aio::MultiplexedConnection, cmd};
use std::time::Duration;
use tokio::time::Instant;

const PATIENCE: Duration = Duration::from_secs(5);
const OLDEST: (u32, u32, u32) = (6, 0, 0);
/// Locks and heartbeats bear more, but something is wrong then.
const SLOW: Duration = Duration::from_millis(20);
const PINGS: usize = 11;
const RIGHTS: &str = "allow this user get, set, del, exists, pexpire, mget, zadd, zrem, zrange, zremrangebyscore, eval, evalsha, \
     time, info and ping on the keys that begin with {coordination.prefix}:, braces included";
/// What the scripts of the coordination use; a server looks at the user's rights for each.
const EVERY_COMMAND: &str = "redis.call('time') redis.call('get', KEYS[1]) redis.call('exists', KEYS[1]) \
     redis.call('mget', KEYS[1]) redis.call('pexpire', KEYS[1], 1000) redis.call('del', KEYS[1]) \
     redis.call('zadd', KEYS[1], 1, 'x') redis.call('zrange', KEYS[1], 0, -1) redis.call('zrem', KEYS[1], 'x') \
     redis.call('zadd', KEYS[1], 1, 'x') return redis.call('zremrangebyscore', KEYS[1], 0, 1)";

/// Everything there is to check.
pub async fn examine(config: &CoordinationConfig) -> Vec<Finding> {
    let mut findings = Findings::of("coordination");
    match connect(config).await {
        Ok(mut connection) => {
            findings.ok("reachable", "connected");
            let outcome = look(&mut connection, config, &mut findings).await;
            note_failure(&mut findings, outcome);
        }
        Err(error) => findings.problem(
            "reachable",
            describe(&error),
            "check coordination.url (host, port, user, password) and that Redis runs; until then no dispatcher leads",
        ),
    }
    findings.finish()
}

/// What would break a promise although everything seems to work; nothing when the service is away.
pub async fn promises(config: &CoordinationConfig) -> Vec<Finding> {
    let mut findings = Findings::of("coordination");
    if let Ok(mut connection) = connect(config).await
        && let Ok(info) = info(&mut connection).await
    {
        check_eviction(&info, &mut findings);
        check_role(&info, &mut findings);
    }
    findings.finish()
}

async fn connect(config: &CoordinationConfig) -> redis::RedisResult<MultiplexedConnection> {
    let limits = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    Client::open(config.url.reveal())?
        .get_multiplexed_async_connection_with_config(&limits)
        .await
}

/// Without the URL, which may hold a password.
fn describe(error: &redis::RedisError) -> String {
    error.detail().map_or_else(
        || error.to_string(),
        |detail| format!("{:?}: {detail}", error.kind()),
    )
}

fn note_failure(findings: &mut Findings, outcome: redis::RedisResult<()>) {
    if let Err(error) = outcome {
        findings.problem("permissions", describe(&error), RIGHTS);
    }
}

async fn look(
    connection: &mut MultiplexedConnection,
    config: &CoordinationConfig,
    findings: &mut Findings,
) -> redis::RedisResult<()> {
    let info = info(connection).await?;
    let version = value(&info, "redis_version");
    let says = format!("Redis {version}");
    if version_numbers(version) < OLDEST {
        findings.problem("version", says, "upgrade to Redis 6 or newer");
    } else {
        findings.ok("version", says);
    }
    check_eviction(&info, findings);
    check_role(&info, findings);
    check_latency(connection, findings).await?;
    check_permissions(connection, config, findings).await
}

async fn info(connection: &mut MultiplexedConnection) -> redis::RedisResult<String> {
    cmd("INFO").query_async(connection).await
}

/// A value of `INFO`; empty when it is not there.
fn value<'a>(info: &'a str, name: &str) -> &'a str {
    info.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| *key == name)
        .map_or("", |(_, value)| value.trim())
}

fn check_eviction(info: &str, findings: &mut Findings) {
    let policy = value(info, "maxmemory_policy");
    let says = format!("maxmemory-policy = {policy}");
    if policy == "noeviction" || value(info, "maxmemory") == "0" {
        findings.ok("eviction", says);
    } else {
        findings.warning(
            "eviction",
            format!("{says}: the leader's lock, heartbeats and start keys may vanish"),
            "set maxmemory-policy noeviction, or give Isocost a Redis of its own",
        );
    }
}

fn check_role(info: &str, findings: &mut Findings) {
    match value(info, "role") {
        "master" => findings.ok("role", "primary"),
        other => findings.problem(
            "role",
            format!("{other}: it takes no writes"),
            "point coordination.url at the primary",
        ),
    }
}

async fn check_latency(
    connection: &mut MultiplexedConnection,
    findings: &mut Findings,
) -> redis::RedisResult<()> {
    let mut took = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let from = Instant::now();
        cmd("PING").query_async::<()>(connection).await?;
        took.push(from.elapsed());
    }
    took.sort_unstable();
    let median = took[PINGS / 2];
    let says = format!("median {median:?} of {PINGS} answers");
    if median > SLOW {
        findings.warning("latency", says, "keep Redis near, and free of slow commands");
    } else {
        findings.ok("latency", says);
    }
    Ok(())
}

/// Really writes and runs a script, and takes it back.
async fn check_permissions(
    connection: &mut MultiplexedConnection,
    config: &CoordinationConfig,
    findings: &mut Findings,
) -> redis::RedisResult<()> {
    let key = format!("{{{}}}:doctor", config.prefix);
    cmd("SET")
        .arg(&key)
        .arg("1")
        .arg("PX")
        .arg(1_000)
        .query_async::<()>(connection)
        .await?;
    cmd("EVAL")
        .arg(EVERY_COMMAND)
        .arg(1)
        .arg(&key)
        .query_async::<i64>(connection)
        .await?;
    cmd("DEL").arg(&key).query_async::<i64>(connection).await?;
    // Nobody knows a script of this hash, which is answered after the look at the user's rights.
    let mut unknown = cmd("EVALSHA");
    unknown.arg("0".repeat(40)).arg(0);
    match unknown.query_async::<()>(connection).await {
        Err(error) if error.kind() != ErrorKind::Server(ServerErrorKind::NoScript) => Err(error),
        _ => {
            findings.ok("permissions", "writes keys and runs scripts");
            Ok(())
        }
    }
}
