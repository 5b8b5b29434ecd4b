//! A relay, a broker, and queues bound to the exchange of outcomes.

use anyhow::{Context, Result};
use async_trait::async_trait;
use isocost_common::{
    Ports,
    broker::{
        Binding, Broker, ConsumeOptions, Consumer, Delivery, Queue, QueueKind, Topology,
        memory::MemoryBroker, topology::Names,
    },
    config::Config,
    coordination::memory::MemoryCoordination,
    execution::ExecutionStatus,
    id::{AppId, ExecutionId},
    store::{
        Store,
        apps::{self, App},
        outcomes::{self, OutcomeRow},
    },
    test_support::eventually,
};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Longest wait for something that must happen.
pub(crate) const SOON: Duration = Duration::from_secs(30);

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
}

impl Line {
    /// The in-process broker.
    pub(crate) fn memory() -> Self {
        let broker = MemoryBroker::new();
        Self {
            relay: broker.connect(),
            consumer: broker.connect(),
            outage: broker,
        }
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
        line.consumer.declare(&topology).await?;
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
    pub(crate) fn outcome(&self, handler: &str, status: ExecutionStatus) -> OutcomeRow {
        OutcomeRow {
            execution: ExecutionId::generate(),
            app: self.app.id,
            handler: handler.into(),
            status,
            body: r#"{"data":{"n": 123456789012345678901234567890}}"#.into(),
            created_at: self.store.now(),
        }
    }

    pub(crate) async fn write(&self, rows: &[OutcomeRow]) -> Result<()> {
        let mut tx = self.store.begin().await?;
        outcomes::insert_many(&mut tx, rows).await?;
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
