//! A broker under test, and what the cases say in one word.

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use isocost_common::broker::{
    Binding, Broker, ConsumeOptions, Consumer, Delivery, Exchange, ExchangeKind, Message, Publication,
    PublishOutcome, Queue, QueueKind, QueueState, Topology, memory::MemoryBroker, rabbitmq::RabbitBroker,
};
use isocost_common::{
    config::{BrokerConfig, Secret},
    test_support::proxy::Proxy,
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Longest wait for something that must happen.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// One implementation, as the cases need it.
#[async_trait]
pub(crate) trait UnderTest: Send + Sync {
    /// A connection of its own, as another process would have.
    async fn connect(&self) -> Result<Arc<dyn Broker>>;

    /// Cuts every connection made so far.
    async fn lose_connections(&self) -> Result<()>;
}

/// The in-process broker.
pub(crate) struct MemoryUnderTest(Arc<MemoryBroker>);

impl MemoryUnderTest {
    pub(crate) fn start() -> Self {
        Self(MemoryBroker::new())
    }
}

#[async_trait]
impl UnderTest for MemoryUnderTest {
    async fn connect(&self) -> Result<Arc<dyn Broker>> {
        Ok(self.0.connect())
    }

    async fn lose_connections(&self) -> Result<()> {
        self.0.disconnect_all();
        Ok(())
    }
}

/// Names the RabbitMQ that the tests may use.
const SERVER_URL: &str = "ISOCOST_TEST_AMQP_URL";

/// A RabbitMQ, behind a proxy of this test.
pub(crate) struct RabbitUnderTest {
    url: url::Url,
    proxy: Proxy,
}

impl RabbitUnderTest {
    pub(crate) async fn start() -> Result<Self> {
        let mut url = url::Url::parse(&shared_url()?).with_context(|| format!("{SERVER_URL} is no URL"))?;
        let host = url.host_str().context("the URL names no host")?;
        let target = tokio::net::lookup_host((host, url.port().unwrap_or(5672)))
            .await?
            .next();
        let proxy = Proxy::start(target.context("the host has no address")?).await?;
        url.set_ip_host(proxy.address().ip()).ok();
        url.set_port(Some(proxy.address().port())).ok();
        Ok(Self { url, proxy })
    }

    /// A client that goes through the proxy.
    pub(crate) fn broker(&self) -> Result<Arc<RabbitBroker>> {
        rabbit(self.url.as_str())
    }

    pub(crate) fn proxy(&self) -> &Proxy {
        &self.proxy
    }
}

/// A client of the RabbitMQ that the tests share.
pub(crate) fn shared_rabbit() -> Result<Arc<RabbitBroker>> {
    rabbit(&shared_url()?)
}

/// A client of the RabbitMQ at `url`.
pub(crate) fn rabbit(url: &str) -> Result<Arc<RabbitBroker>> {
    let config = BrokerConfig {
        url: Secret::new(url),
        ..BrokerConfig::default()
    };
    Ok(RabbitBroker::start(&config, "contract test")?)
}

/// The RabbitMQ that the tests share.
pub(crate) fn shared_url() -> Result<String> {
    std::env::var(SERVER_URL).with_context(|| format!("no RabbitMQ: start with ./test, or set {SERVER_URL}"))
}

#[async_trait]
impl UnderTest for RabbitUnderTest {
    async fn connect(&self) -> Result<Arc<dyn Broker>> {
        Ok(self.broker()?)
    }

    async fn lose_connections(&self) -> Result<()> {
        self.proxy.reset_all();
        Ok(())
    }
}

/// A name that no other test uses.
pub(crate) fn unique(name: &str) -> String {
    format!("contract.{name}.{}", uuid::Uuid::new_v4())
}

/// A durable queue that goes away by itself when the test is over.
pub(crate) fn classic(name: &str) -> Queue {
    Queue {
        expires: Some(Duration::from_secs(120)),
        ..Queue::new(unique(name), QueueKind::Classic)
    }
}

pub(crate) fn exchange(kind: ExchangeKind) -> Exchange {
    Exchange {
        name: unique("exchange"),
        kind,
    }
}

pub(crate) async fn declare(broker: &dyn Broker, queues: &[&Queue]) -> Result<()> {
    declare_bound(broker, &[], queues, &[]).await
}

/// Declares exchanges, queues and bindings given as (exchange, queue, key).
pub(crate) async fn declare_bound(
    broker: &dyn Broker,
    exchanges: &[&Exchange],
    queues: &[&Queue],
    bindings: &[(&Exchange, &Queue, &str)],
) -> Result<()> {
    let bindings = bindings.iter().map(|(exchange, queue, routing_key)| Binding {
        exchange: exchange.name.clone(),
        queue: queue.name.clone(),
        routing_key: (*routing_key).to_owned(),
    });
    let topology = Topology {
        exchanges: exchanges.iter().copied().cloned().collect(),
        queues: queues.iter().copied().cloned().collect(),
        bindings: bindings.collect(),
    };
    broker.declare(&topology).await?;
    Ok(())
}

/// A message whose body is `text` as JSON.
pub(crate) fn message(text: &str) -> Message {
    Message::json("test", &text)
}

/// A mandatory publication.
pub(crate) fn publication(exchange: &str, routing_key: &str, message: Message) -> Publication {
    Publication {
        exchange: exchange.to_owned(),
        routing_key: routing_key.to_owned(),
        mandatory: true,
        message,
    }
}

/// Publishes messages straight to a queue and expects each to be confirmed.
pub(crate) async fn send(broker: &dyn Broker, queue: &Queue, messages: Vec<Message>) -> Result<()> {
    let publications = messages.into_iter().map(|m| publication("", &queue.name, m));
    confirmed(broker, publications.collect()).await
}

pub(crate) async fn send_texts(broker: &dyn Broker, queue: &Queue, texts: &[&str]) -> Result<()> {
    send(broker, queue, texts.iter().map(|text| message(text)).collect()).await
}

/// Publishes and expects each to be confirmed.
pub(crate) async fn confirmed(broker: &dyn Broker, publications: Vec<Publication>) -> Result<()> {
    let outcomes = broker.publish(publications).await;
    ensure!(
        outcomes
            .iter()
            .all(|outcome| *outcome == PublishOutcome::Confirmed),
        "not all were confirmed: {outcomes:?}"
    );
    Ok(())
}

pub(crate) async fn consume(broker: &dyn Broker, queue: &Queue, prefetch: u16) -> Result<Box<dyn Consumer>> {
    let options = ConsumeOptions {
        prefetch,
        exclusive: false,
    };
    Ok(broker.consume(&queue.name, options).await?)
}

pub(crate) async fn next(consumer: &mut dyn Consumer) -> Result<Delivery> {
    let delivery = tokio::time::timeout(DEADLINE, consumer.next()).await;
    Ok(delivery.context("no delivery came in time")??)
}

pub(crate) fn text(delivery: &Delivery) -> String {
    delivery
        .message
        .parse()
        .unwrap_or_else(|error| format!("unreadable: {error}"))
}

/// Receives one delivery, acks it and returns its text.
pub(crate) async fn take(consumer: &mut dyn Consumer) -> Result<String> {
    let delivery = next(consumer).await?;
    consumer.acker().ack(&[delivery.tag]).await;
    Ok(text(&delivery))
}

/// Receives and acks `count` deliveries.
pub(crate) async fn take_many(consumer: &mut dyn Consumer, count: usize) -> Result<Vec<String>> {
    let mut texts = Vec::with_capacity(count);
    for _ in 0..count {
        texts.push(take(consumer).await?);
    }
    Ok(texts)
}

/// Waits until a queue looks as it should.
pub(crate) async fn eventually(
    broker: &dyn Broker,
    queue: &Queue,
    what: &str,
    is_so: impl Fn(Option<QueueState>) -> bool,
) -> Result<()> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let state = broker.inspect(&queue.name).await?;
        if is_so(state) {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "never so: {what}; the last look showed {state:?}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Expects that nothing comes by proving the consumer alive: a marker sent now is the next thing it receives.
pub(crate) async fn nothing_but_a_marker(
    broker: &dyn Broker,
    queue: &Queue,
    consumer: &mut dyn Consumer,
) -> Result<()> {
    send_texts(broker, queue, &["marker"]).await?;
    let next = take(consumer).await?;
    ensure!(next == "marker", "`{next}` came, which should not exist");
    Ok(())
}
