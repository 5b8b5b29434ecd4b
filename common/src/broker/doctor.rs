//! What `isocost doctor` looks at in the broker: whether it answers, how old it is, whether the exchanges and queues of
//! all roles can be declared, and whether a message makes the way there and back.

use super::{
    Broker, BrokerError, BrokerHealth, ConsumeOptions, Message, Publication, PublishOutcome, Queue,
    QueueKind, Topology, rabbitmq::RabbitBroker, topology::Names,
};
use crate::{
    config::Config,
    doctor::{Finding, Findings, version_numbers},
    id::MessageId,
};
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};
use url::Url;

/// Longest wait for a connection, and for each answer.
const RIGHTS: &str = "grant the user configure and read on broker.namespace of the virtual host, and write on it and on \
     amq.default, and look at the broker's log";
const PATIENCE: Duration = Duration::from_secs(10);
const OLDEST: (u32, u32, u32) = (3, 10, 0);
/// Longer than this for a message there and back, and dispatching is felt to be slow.
const SLOW: Duration = Duration::from_millis(50);
/// The greeting of AMQP 0-9-1.
const GREETING: &[u8] = b"AMQP\x00\x00\x09\x01";

/// Everything there is to check.
pub async fn examine(config: &Config) -> Vec<Finding> {
    let mut findings = Findings::of("broker");
    check_version(config.broker.url.reveal(), &mut findings).await;
    let broker: Arc<dyn Broker> = match RabbitBroker::start(&config.broker, "isocost doctor") {
        Ok(broker) => broker,
        Err(error) => {
            let remedy = "correct broker.url: amqp://user:password@host:5672/vhost";
            findings.problem("reachable", error.to_string(), remedy);
            return findings.finish();
        }
    };
    look(broker.as_ref(), config, &mut findings).await;
    broker.close().await;
    findings.finish()
}

async fn look(broker: &dyn Broker, config: &Config, findings: &mut Findings) {
    match connected(broker).await {
        BrokerHealth::Ready => findings.ok("reachable", "connected"),
        BrokerHealth::Blocked(why) => findings.problem(
            "reachable",
            format!("the broker takes no messages for now: {why}"),
            "free memory or disk on the broker, or raise its limits",
        ),
        BrokerHealth::Down(why) => {
            let remedy =
                "check broker.url (host, port, user, password, virtual host) and that the broker runs";
            return findings.problem("reachable", why, remedy);
        }
    }
    let names = Names::new(&config.broker.namespace);
    let topology = names.shared_topology(&config.relay.delay_tiers());
    match timeout(PATIENCE, broker.declare(&topology)).await {
        Ok(Ok(())) => findings.ok(
            "topology",
            format!("{} exchanges and {} queues", topology.exchanges.len(), topology.queues.len()),
        ),
        Ok(Err(error @ BrokerError::Conflict { .. })) => findings.problem(
            "topology",
            error.to_string(),
            "another program or version declared it: delete it while no role runs, or choose another broker.namespace",
        ),
        Ok(Err(error)) => findings.problem(
            "topology",
            error.to_string(),
            RIGHTS,
        ),
        Err(_) => findings.problem(
            "topology",
            format!("not declared within {PATIENCE:?}"),
            "a quorum queue needs a majority of its nodes: look at the broker's log",
        ),
    }
    check_dead_letters(broker, &names, findings).await;
    check_round_trip(broker, &config.broker.namespace, findings).await;
    findings.ok(
        "acknowledgement timeout",
        "any consumer_timeout of a minute or more will do: a delivery is acked when its execution starts",
    );
}

async fn connected(broker: &dyn Broker) -> BrokerHealth {
    let mut health = broker.health();
    let is_up = |health: &BrokerHealth| !matches!(health, BrokerHealth::Down(_));
    match timeout(PATIENCE, health.wait_for(is_up)).await {
        Ok(Ok(up)) => up.clone(),
        _ => broker.health().borrow().clone(),
    }
}

/// What was given up waits for somebody to look at it.
async fn check_dead_letters(broker: &dyn Broker, names: &Names, findings: &mut Findings) {
    for queue in [
        names.dead_results_queue(),
        names.dead_submissions_queue(),
        names.dead_callbacks_queue(),
    ] {
        if let Ok(Ok(Some(state))) = timeout(PATIENCE, broker.inspect(&queue)).await
            && state.messages > 0
        {
            findings.warning(
                "dead letters",
                format!("{} in {queue}", state.messages),
                "read them in RabbitMQ's management: the header x-isocost-problem-detail says why; then purge the queue",
            );
        }
    }
}

/// A message through a queue of our own: publishing, confirming, consuming and acking all work.
async fn check_round_trip(broker: &dyn Broker, namespace: &str, findings: &mut Findings) {
    let queue = format!("{namespace}.doctor.{}", MessageId::generate());
    match timeout(PATIENCE, round_trip(broker, &queue)).await {
        Ok(Ok(took)) if took > SLOW => findings.warning(
            "round trip",
            format!("a message took {took:?} there and back"),
            "keep the broker near, on fast disks",
        ),
        Ok(Ok(took)) => findings.ok("round trip", format!("a message took {took:?} there and back")),
        Ok(Err(why)) => findings.problem("round trip", why, RIGHTS),
        Err(_) => findings.problem(
            "round trip",
            format!("no message came back within {PATIENCE:?}"),
            "look at the broker's log",
        ),
    }
}

async fn round_trip(broker: &dyn Broker, queue: &str) -> Result<Duration, String> {
    let topology = Topology {
        queues: vec![Queue::new(queue.to_owned(), QueueKind::Exclusive)],
        ..Topology::default()
    };
    let options = ConsumeOptions {
        prefetch: 1,
        exclusive: true,
    };
    broker
        .declare(&topology)
        .await
        .map_err(|error| error.to_string())?;
    let mut consumer = broker
        .consume(queue, options)
        .await
        .map_err(|error| error.to_string())?;
    let mut took = Duration::MAX;
    // The first one may wait for a channel to open.
    for _ in 0..3 {
        let from = Instant::now();
        let publication = Publication {
            exchange: String::new(),
            routing_key: queue.to_owned(),
            mandatory: true,
            message: Message::json("doctor", &true),
        };
        match broker.publish(vec![publication]).await.first() {
            Some(PublishOutcome::Confirmed) => {}
            other => return Err(format!("a message was not taken: {other:?}")),
        }
        let delivery = consumer.next().await.map_err(|error| error.to_string())?;
        consumer.acker().ack(&[delivery.tag]).await;
        took = took.min(from.elapsed());
    }
    Ok(took)
}

async fn check_version(url: &str, findings: &mut Findings) {
    match timeout(PATIENCE, first_words(url)).await {
        Ok(Some(words)) => {
            let product = property(&words, "product").unwrap_or_else(|| "the broker".into());
            let version = property(&words, "version").unwrap_or_default();
            let cluster = property(&words, "cluster_name").unwrap_or_default();
            let says = format!("{product} {version}, cluster {cluster}");
            if version_numbers(&version) < OLDEST {
                findings.problem("version", says, "upgrade to RabbitMQ 3.10 or newer");
            } else {
                findings.ok("version", says);
            }
        }
        // Why it does not answer is said by the attempt to connect.
        _ if !url.starts_with("amqps:") => {}
        _ => findings.ok("version", "not asked over TLS"),
    }
}

/// What the server says of itself before anybody logs in.
async fn first_words(url: &str) -> Option<Vec<u8>> {
    let url = Url::parse(url).ok()?;
    if url.scheme() != "amqp" {
        return None;
    }
    let address = (
        url.host_str()?.trim_matches(['[', ']']),
        url.port().unwrap_or(5672),
    );
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(GREETING).await.ok()?;
    // A frame: one byte of type, two of channel, four of size.
    let mut head = [0; 7];
    stream.read_exact(&mut head).await.ok()?;
    let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
    let mut body = vec![0; usize::try_from(size).ok()?.min(64 * 1024)];
    stream.read_exact(&mut body).await.ok()?;
    Some(body)
}

/// A text of the server's properties: its name, the letter S, four bytes of length, the text.
fn property(words: &[u8], name: &str) -> Option<String> {
    let key = [&[u8::try_from(name.len()).ok()?], name.as_bytes(), b"S"].concat();
    let at = words.windows(key.len()).position(|window| window == key)? + key.len();
    let length: [u8; 4] = words.get(at..at + 4)?.try_into().ok()?;
    let length = usize::try_from(u32::from_be_bytes(length)).ok()?;
    let text = words.get(at + 4..at + 4 + length)?;
    Some(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_property_is_read_whatever_stands_around_it() {
        let words = b"\x00\x0a\x00\x0a\x00\x09\x07productS\x00\x00\x00\x08RabbitMQ\x07versionS\x00\x00\x00\x063.10.8\x04rest";
        assert_eq!(property(words, "product").as_deref(), Some("RabbitMQ"));
        assert_eq!(property(words, "version").as_deref(), Some("3.10.8"));
        assert_eq!(property(words, "platform"), None);
        assert_eq!(property(&words[..30], "version"), None);
        assert_eq!(property(b"\x07versionS\xff\xff\xff\xffx", "version"), None);
    }
}
