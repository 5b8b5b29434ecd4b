//! A relay, a broker, and queues bound to the exchange of outcomes.

use anyhow::{Context, Result};
use async_trait::async_trait;
use isocost_common::{
    Ports,
    broker::{
        Binding, Broker, ConsumeOptions, Consumer, Delivery, Queue, QueueKind, Topology,
        memory::MemoryBroker, rabbitmq::RabbitBroker, topology::Names,
    },
    config::{BrokerConfig, Config, Secret},
    coordination::memory::MemoryCoordination,
    execution::ExecutionStatus,
    id::{AppId, ExecutionId},
    raw_json::RawJson,
    store::{
        Store,
        apps::{self, App},
        outcomes::{self, Outcome},
    },
    test_support::{
        eventually,
        proxy::{Proxy, Traffic},
    },
};
use std::{
    collections::BTreeSet,
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    process::{Child, Command},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;
use url::Url;
use uuid::Uuid;

/// Longest wait for something that must happen.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// The trace of every outcome here.
pub(crate) const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A broker that can be taken away for a while.
#[async_trait]
trait Outage: Send + Sync {
    async fn begin(&self) -> Result<()>;
    async fn end(&self) -> Result<()>;
}

#[async_trait]
impl Outage for MemoryBroker {
    async fn begin(&self) -> Result<()> {
        self.begin_outage();
        Ok(())
    }

    async fn end(&self) -> Result<()> {
        self.end_outage();
        Ok(())
    }
}

/// A broker as the relay and as a consumer see it.
pub(crate) struct Line {
    relay: Arc<dyn Broker>,
    consumer: Arc<dyn Broker>,
    outage: Arc<dyn Outage>,
    /// Where it listens, when it is a server.
    url: Option<String>,
}

/// RabbitMQ seems away when the proxy in front of it is shut.
#[async_trait]
impl Outage for Proxy {
    async fn begin(&self) -> Result<()> {
        self.set(Traffic::Refuse).await?;
        self.reset_all();
        Ok(())
    }

    async fn end(&self) -> Result<()> {
        Ok(self.set(Traffic::Pass).await?)
    }
}

impl Line {
    /// The in-process broker.
    pub(crate) async fn memory() -> Result<Self> {
        let broker = MemoryBroker::new();
        Ok(Self {
            relay: broker.connect(),
            consumer: broker.connect(),
            outage: broker,
            url: None,
        })
    }

    /// The RabbitMQ of the tests, behind a proxy.
    pub(crate) async fn rabbit() -> Result<Self> {
        const VARIABLE: &str = "ISOCOST_TEST_AMQP_URL";
        let url = std::env::var(VARIABLE)
            .with_context(|| format!("no RabbitMQ: start with ./test, or set {VARIABLE}"))?;
        let mut url = Url::parse(&url).with_context(|| format!("{VARIABLE} is no URL"))?;
        let host = url.host_str().context("the URL names no host")?;
        let target = tokio::net::lookup_host((host, url.port().unwrap_or(5672)))
            .await?
            .next();
        let proxy = Proxy::start(target.context("the host has no address")?).await?;
        let _ = url.set_ip_host(proxy.address().ip());
        let _ = url.set_port(Some(proxy.address().port()));
        let connect = || {
            let config = BrokerConfig {
                url: Secret::new(url.as_str()),
                ..BrokerConfig::default()
            };
            RabbitBroker::start(&config, "test of outcomes")
        };
        Ok(Self {
            relay: connect()?,
            consumer: connect()?,
            outage: Arc::new(proxy),
            url: Some(url.into()),
        })
    }
}

/// A database with an app, and a broker.
pub(crate) struct Site {
    pub(crate) store: Store,
    line: Line,
    config: Config,
    names: Names,
    app: App,
    bound: Mutex<Option<String>>,
}

impl Site {
    pub(crate) async fn start(store: &Store, line: Line) -> Result<Self> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut config = Config::default();
        config.broker.namespace = format!("t{}", Uuid::new_v4().simple());
        let names = Names::new(&config.broker.namespace);
        let topology = names.shared_topology(&config.relay.delay_tiers());
        eventually("the topology is declared", SOON, async || {
            Ok(line.consumer.declare(&topology).await.ok())
        })
        .await?;
        let app = App {
            id: AppId::generate(),
            name: "billing".into(),
            rate_limit_per_second: None,
            max_pending_jobs: None,
            max_running_executions: None,
            created_at: store.now(),
        };
        let mut tx = store.begin().await?;
        apps::insert(&mut tx, &app).await?;
        tx.commit().await?;
        Ok(Self {
            store: store.clone(),
            line,
            config,
            names,
            app,
            bound: Mutex::new(None),
        })
    }

    pub(crate) async fn close(&self) {
        self.line.relay.close().await;
        self.line.consumer.close().await;
    }

    /// An outcome as settling writes it.
    pub(crate) fn outcome(&self, handler: &str, status: ExecutionStatus) -> Outcome {
        let execution = ExecutionId::generate();
        Outcome {
            execution,
            app: self.app.id,
            handler: handler.into(),
            status,
            body: RawJson::parse(format!(
                r#"{{"type":"{}","data":{{"executionId":"{execution}","result": 123456789012345678901234567890}}}}"#,
                status.outcome_type()
            ))
            .expect("it is JSON"),
            traceparent: TRACE.parse().ok(),
            created_at: self.store.now(),
        }
    }

    /// The example program that follows outcomes, on a queue of its own, until it has seen `count`.
    pub(crate) fn follower(&self, pattern: &str, count: usize) -> Result<Child> {
        let python = std::env::var("ISOCOST_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../api/examples/outcomes.py");
        let exchange = self.names.outcomes_exchange();
        let child = Command::new(python)
            .arg(script)
            .args([
                "--url",
                self.line.url.as_deref().context("this broker has no URL")?,
            ])
            .args(["--namespace", exchange.trim_end_matches(".outcomes")])
            .args(["--queue", &format!("outcomes.{}", Uuid::new_v4())])
            .args(["--pattern", pattern, "--count", &count.to_string()])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        Ok(child)
    }

    pub(crate) async fn write(&self, rows: &[Outcome]) -> Result<()> {
        let mut tx = self.store.begin().await?;
        outcomes::insert(&mut tx, rows).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Starts a relay.
    pub(crate) fn relay(&self) -> Relay {
        let ports = Ports {
            store: self.store.clone(),
            broker: self.line.relay.clone(),
            coordination: MemoryCoordination::new(),
            readiness: Default::default(),
        };
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(isocost_dispatcher::relay::run(
            self.config.clone(),
            ports,
            shutdown.clone(),
        ));
        Relay { shutdown, running }
    }

    /// A consumer of a queue that is bound with this pattern.
    pub(crate) async fn bind(&self, pattern: &str) -> Result<Box<dyn Consumer>> {
        let queue = Queue {
            expires: Some(Duration::from_secs(120)),
            ..Queue::new(format!("outcomes.{}", Uuid::new_v4()), QueueKind::Quorum)
        };
        let name = queue.name.clone();
        let topology = Topology {
            queues: vec![queue],
            bindings: vec![Binding {
                exchange: self.names.outcomes_exchange(),
                queue: name.clone(),
                routing_key: pattern.into(),
            }],
            ..Topology::default()
        };
        self.line.consumer.declare(&topology).await?;
        *self.bound.lock().expect("unpoisoned") = Some(name.clone());
        self.consume(&name).await
    }

    async fn consume(&self, queue: &str) -> Result<Box<dyn Consumer>> {
        let options = ConsumeOptions {
            prefetch: 1_000,
            exclusive: false,
        };
        Ok(self.line.consumer.consume(queue, options).await?)
    }

    /// Takes the broker away for a moment.
    pub(crate) async fn break_line(&self) -> Result<()> {
        self.line.outage.begin().await?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        self.line.outage.end().await
    }

    /// Consumes the queue that was bound last, once the broker is back.
    pub(crate) async fn consume_again(&self) -> Result<Box<dyn Consumer>> {
        let queue = self.bound.lock().expect("unpoisoned").clone();
        let queue = queue.context("nothing was bound")?;
        eventually("the broker is back", SOON, async || {
            Ok(self.consume(&queue).await.ok())
        })
        .await
    }
}

/// A running relay.
pub(crate) struct Relay {
    shutdown: CancellationToken,
    running: JoinHandle<Result<(), isocost_dispatcher::relay::Error>>,
}

impl Relay {
    pub(crate) async fn stop(self) -> Result<()> {
        self.shutdown.cancel();
        self.running.await??;
        Ok(())
    }
}

/// The next delivery, acked.
pub(crate) async fn take(consumer: &mut dyn Consumer) -> Result<Delivery> {
    let delivery = tokio::time::timeout(SOON, consumer.next()).await;
    let delivery = delivery.context("no outcome came in time")??;
    consumer.acker().ack(&[delivery.tag]).await;
    Ok(delivery)
}

/// The routing keys of the next `count` deliveries.
pub(crate) async fn keys(consumer: &mut dyn Consumer, count: usize) -> Result<BTreeSet<String>> {
    let mut keys = BTreeSet::new();
    for _ in 0..count {
        keys.insert(take(consumer).await?.routing_key);
    }
    Ok(keys)
}
