//! `isocost doctor` on services that are not as they should be.

use anyhow::{Context, Result, ensure};
use isocost_common::broker::{Broker, Queue, QueueKind, Topology, rabbitmq::RabbitBroker};
use isocost_tests::api::items;
use isocost_tests::cluster::{Cluster, Role};
use isocost_tests::jobs::LONG;
use isocost_tests::patience::eventually;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test(flavor = "multi_thread")]
async fn doctor_names_what_would_break_a_promise_and_what_to_do() -> Result<()> {
    let lossy = "--innodb-flush-log-at-trx-commit=2";
    let cluster = Cluster::on_database(&[lossy])
        .await?
        .with("ISOCOST__BROKER__NAMESPACE", "taken");
    cluster.migrate().await?;
    let findings = examine(&cluster).await?;
    for good in [
        "prepared statements",
        "indexes",
        "permissions",
        "eviction",
        "topology",
        "round trip",
    ] {
        assert_eq!(verdict(&findings, good)?, "ok", "{findings:#?}");
    }

    for spoil in [
        "drop index idx_execution_class on job_execution",
        "set global max_prepared_stmt_count = 12000",
    ] {
        cluster.servers().mariadb.execute(spoil).await?;
    }
    let redis = "CONFIG SET maxmemory 100mb\r\nCONFIG SET maxmemory-policy allkeys-lru\r\nACL SETUSER default -zadd\r\n";
    tell_redis(&cluster, redis, 4).await?;
    let broker = RabbitBroker::start(&cluster.servers().rabbitmq.config(), "somebody else")?;
    let wrong = Queue::new("taken.results.v1".into(), QueueKind::Classic);
    let wrong = Topology {
        queues: vec![wrong],
        ..Topology::default()
    };
    // What the doctor declared before was right, and stands in the way.
    broker.delete_queue("taken.results.v1").await?;
    broker.declare(&wrong).await?;
    broker.close().await;

    let findings = examine(&cluster).await?;
    for (what, expected) in [
        ("flush at commit", "warning"),
        ("prepared statements", "warning"),
        ("indexes", "problem"),
        ("eviction", "warning"),
        ("permissions", "problem"),
        ("topology", "problem"),
    ] {
        assert_eq!(verdict(&findings, what)?, expected, "{findings:#?}");
    }
    let without_remedy = |found: &&Value| found["verdict"] != "ok" && !found["remedy"].is_string();
    assert_eq!(findings.iter().find(without_remedy), None);

    let relay = cluster.spawn(Role::Relay, "relay", &[("ISOCOST__BROKER__NAMESPACE", "free")])?;
    eventually("the log warns of both settings", LONG, async || {
        let log = relay.log()?;
        let warned = log.contains("innodb_flush_log_at_trx_commit") && log.contains("maxmemory-policy");
        Ok(warned.then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_says_what_does_not_answer() -> Result<()> {
    let cluster = Cluster::new().await?;
    let servers = cluster.servers();
    servers.rabbitmq.kill().await?;
    servers.redis.kill().await?;
    servers.mariadb.kill().await?;
    let from = Instant::now();
    let (healthy, said) = cluster.run(["doctor".into()]).await?;
    ensure!(!healthy, "{said}");
    assert!(from.elapsed() < Duration::from_secs(30), "{:?}", from.elapsed());
    for key in ["store.url", "broker.url", "coordination.url"] {
        assert!(said.contains(key), "{key} is not named: {said}");
    }
    Ok(())
}

async fn examine(cluster: &Cluster) -> Result<Vec<Value>> {
    let (_, said) = cluster.run(["doctor".into(), "--json".into()]).await?;
    let line = said.lines().next().context("nothing was said")?;
    let mut report: Value = serde_json::from_str(line).with_context(|| said.clone())?;
    items(json!({ "items": report["findings"].take() }))
}

fn verdict(findings: &[Value], what: &str) -> Result<String> {
    let of_services = |found: &&Value| found["what"] == what && found["service"] != "program";
    let mut found = findings.iter().filter(of_services);
    // The worst of the services, where several have a check of this name.
    let worst = found
        .by_ref()
        .filter_map(|found| found["verdict"].as_str())
        .max_by_key(|verdict| {
            ["ok", "warning", "problem"]
                .iter()
                .position(|word| word == verdict)
        });
    Ok(worst.with_context(|| format!("no check of {what}"))?.to_owned())
}

/// Logs in, says something, and waits for so many good answers.
async fn tell_redis(cluster: &Cluster, commands: &str, answers: usize) -> Result<()> {
    let config = cluster.servers().redis.config();
    let password = config
        .url
        .reveal()
        .split([':', '@'])
        .nth(2)
        .context("a password")?;
    let mut connection = TcpStream::connect(cluster.servers().redis.address()).await?;
    connection
        .write_all(format!("AUTH {password}\r\n{commands}").as_bytes())
        .await?;
    let mut said = String::new();
    let mut buffer = [0; 256];
    while said.matches("+OK").count() < answers {
        let read = connection.read(&mut buffer).await?;
        said.push_str(&String::from_utf8_lossy(&buffer[..read]));
        ensure!(read > 0 && !said.contains("-ERR"), "Redis says {said}");
    }
    Ok(())
}
