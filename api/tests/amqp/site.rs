//! An API with a broker and a database, and a producer that publishes to it.

use anyhow::{Context, Result, ensure};
use isocost_api::run_on;
use isocost_common::{
    Ports,
    broker::{
        Broker, ConsumeOptions, Consumer, Delivery, Message, Publication, PublishOutcome, Queue, QueueKind,
        Topology, memory::MemoryBroker, rabbitmq::RabbitBroker, topology::Names,
    },
    config::{BrokerConfig, Config, Secret, TelemetryConfig},
    coordination::memory::MemoryCoordination,
    id::AppId,
    store::{
        Store,
        apps::{self, App, NewKey, Scope},
    },
    telemetry,
    test_support::{eventually, proxy::Proxy},
};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::Value;
use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use url::Url;
use uuid::Uuid;

/// Longest wait for something that must happen.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// A broker, and the name that a producer has on it.
pub(crate) struct Line {
    pub(crate) producer: Arc<dyn Broker>,
    api: Arc<dyn Broker>,
    pub(crate) user: String,
    lose: Box<dyn Fn() + Send + Sync>,
}

impl Line {
    /// The in-process broker.
    pub(crate) async fn memory() -> Result<Self> {
        let broker = MemoryBroker::new();
        let lost = broker.clone();
        Ok(Self {
            producer: broker.connect(),
            api: broker.connect(),
            user: "billing".into(),
            lose: Box::new(move || lost.disconnect_all()),
        })
    }

    /// The RabbitMQ of the tests, with a proxy between it and the API.
    pub(crate) async fn rabbit() -> Result<Self> {
        let url = rabbit_url()?;
        let user = url.username().to_owned();
        let host = url.host_str().context("the URL names no host")?;
        let target = tokio::net::lookup_host((host, url.port().unwrap_or(5672)))
            .await?
            .next();
        let proxy = Proxy::start(target.context("the host has no address")?).await?;
        let mut behind = url.clone();
        let _ = behind.set_ip_host(proxy.address().ip());
        let _ = behind.set_port(Some(proxy.address().port()));
        Ok(Self {
            producer: rabbit(&url)?,
            api: rabbit(&behind)?,
            user,
            lose: Box::new(move || proxy.reset_all()),
        })
    }
}

/// The server that the tests may use.
pub(crate) fn rabbit_url() -> Result<Url> {
    const VARIABLE: &str = "ISOCOST_TEST_AMQP_URL";
    let url = std::env::var(VARIABLE)
        .with_context(|| format!("no RabbitMQ: start with ./test, or set {VARIABLE}"))?;
    Url::parse(&url).with_context(|| format!("{VARIABLE} is no URL"))
}

fn rabbit(url: &Url) -> Result<Arc<dyn Broker>> {
    let config = BrokerConfig {
        url: Secret::new(url.as_str()),
        ..BrokerConfig::default()
    };
    Ok(RabbitBroker::start(&config, "test of submissions")?)
}

/// A running API and what its tests need.
pub(crate) struct Site {
    pub(crate) store: Store,
    pub(crate) line: Line,
    pub(crate) names: Names,
    /// The app that is named like the producer's user.
    pub(crate) app: App,
    stop: CancellationToken,
    running: JoinHandle<Result<(), isocost_api::Error>>,
}

fn metrics() -> PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE
        .get_or_init(|| {
            let _ = rustls::crypto::ring::default_provider().install_default();
            let quiet = TelemetryConfig {
                log: "error,sqlx=off".into(),
                ..TelemetryConfig::default()
            };
            telemetry::start(&quiet).expect("the filter is valid")
        })
        .clone()
}

impl Site {
    /// Starts an API on names of its own, with an app for the producer.
    pub(crate) async fn start(store: &Store, line: Line) -> Result<Self> {
        let mut config = Config::default();
        config.broker.namespace = format!("t{}", Uuid::new_v4().simple());
        let names = Names::new(&config.broker.namespace);
        let app = new_app(store, &line.user).await?;
        let topology = names.shared_topology(&config.relay.delay_tiers());
        eventually("the topology is declared", SOON, async || {
            Ok(line.producer.declare(&topology).await.ok())
        })
        .await?;
        let ports = Ports {
            store: store.clone(),
            broker: line.api.clone(),
            coordination: MemoryCoordination::new(),
            readiness: Default::default(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let stop = CancellationToken::new();
        let running = tokio::spawn(run_on(listener, config, ports, metrics(), stop.clone()));
        Ok(Self {
            store: store.clone(),
            line,
            names,
            app,
            stop,
            running,
        })
    }

    /// Ends the API in good order.
    pub(crate) async fn stop(self) -> Result<()> {
        self.stop.cancel();
        self.running.await.context("the API panicked")??;
        self.line.producer.close().await;
        self.line.api.close().await;
        Ok(())
    }

    /// Cuts every connection to the broker.
    pub(crate) fn lose_connections(&self) {
        (self.line.lose)();
    }

    /// A message of the producer with this id and body.
    pub(crate) fn message(&self, id: &str, body: &str) -> Message {
        let mut message = Message::json("job", &());
        message.message_id = id.to_owned();
        message.user_id = Some(self.line.user.clone());
        message.body = body.to_owned().into();
        message
    }

    /// Publishes messages for the intake; each must be confirmed.
    pub(crate) async fn publish(&self, messages: Vec<Message>) -> Result<()> {
        let publications = messages.into_iter().map(|message| Publication {
            exchange: self.names.submissions_exchange(),
            routing_key: String::new(),
            mandatory: true,
            message,
        });
        let outcomes = self.line.producer.publish(publications.collect()).await;
        let all = outcomes.iter().all(|it| *it == PublishOutcome::Confirmed);
        ensure!(all, "not all were confirmed: {outcomes:?}");
        Ok(())
    }

    /// A queue for answers.
    pub(crate) async fn reply_queue(&self) -> Result<(String, Box<dyn Consumer>)> {
        let queue = Queue {
            expires: Some(Duration::from_secs(120)),
            ..Queue::new(format!("answers.{}", Uuid::new_v4()), QueueKind::Classic)
        };
        let name = queue.name.clone();
        let topology = Topology {
            queues: vec![queue],
            ..Topology::default()
        };
        self.line.producer.declare(&topology).await?;
        let consumer = self.consume(&name).await?;
        Ok((name, consumer))
    }

    /// Consumes a queue as the producer.
    pub(crate) async fn consume(&self, queue: &str) -> Result<Box<dyn Consumer>> {
        let options = ConsumeOptions {
            prefetch: 100,
            exclusive: false,
        };
        Ok(self.line.producer.consume(queue, options).await?)
    }

    /// How many jobs are stored.
    pub(crate) async fn job_count(&self) -> Result<i64> {
        let mut reader = self.store.reader().await?;
        Ok(sqlx::query_scalar("select count(*) from job_info")
            .fetch_one(&mut *reader)
            .await?)
    }

    /// Waits until `count` jobs are stored.
    pub(crate) async fn jobs_are(&self, count: i64) -> Result<()> {
        let what = format!("{count} jobs");
        eventually(&what, SOON, async || {
            // After an outage the pool may hand out a connection that broke in it.
            Ok(matches!(self.job_count().await, Ok(stored) if stored == count).then_some(()))
        })
        .await
    }

    /// Messages ready in a queue.
    pub(crate) async fn ready(&self, queue: &str) -> Result<u64> {
        let state = self.line.producer.inspect(queue).await?;
        Ok(state.context("the queue is missing")?.messages)
    }

    /// Stops the API and says how many submissions it had not acked.
    pub(crate) async fn stop_and_count_unacked(self) -> Result<u64> {
        self.stop.cancel();
        self.running.await.context("the API panicked")??;
        self.line.api.close().await;
        let mut consumer = {
            let options = ConsumeOptions {
                prefetch: 10_000,
                exclusive: false,
            };
            let queue = self.names.submissions_queue();
            self.line.producer.consume(&queue, options).await?
        };
        // A marker shows that everything before it has come.
        let marker = Message::json("marker", &());
        let id = marker.message_id.clone();
        let publication = Publication {
            exchange: self.names.submissions_exchange(),
            routing_key: self.names.submissions_queue(),
            mandatory: true,
            message: marker,
        };
        self.line.producer.publish(vec![publication]).await;
        let mut unacked = 0;
        while next(consumer.as_mut()).await?.message.message_id != id {
            unacked += 1;
        }
        Ok(unacked)
    }
}

/// The next delivery.
pub(crate) async fn next(consumer: &mut dyn Consumer) -> Result<Delivery> {
    let delivery = tokio::time::timeout(SOON, consumer.next()).await;
    Ok(delivery.context("no delivery came in time")??)
}

/// The next delivery, acked.
pub(crate) async fn take(consumer: &mut dyn Consumer) -> Result<Message> {
    let delivery = next(consumer).await?;
    consumer.acker().ack(&[delivery.tag]).await;
    Ok(delivery.message)
}

/// A body as JSON.
pub(crate) fn json(message: &Message) -> Value {
    serde_json::from_slice(&message.body).unwrap_or(Value::Null)
}

/// A header's text; empty when it is missing.
pub(crate) fn header<'a>(message: &'a Message, name: &str) -> &'a str {
    message.headers.get(name).map_or("", String::as_str)
}

/// Another tenant.
pub(crate) async fn new_app(store: &Store, name: &str) -> Result<App> {
    let app = App {
        id: AppId::generate(),
        name: name.into(),
        rate_limit_per_second: None,
        max_pending_jobs: None,
        max_running_executions: None,
        created_at: store.now(),
    };
    let mut tx = store.begin().await?;
    apps::insert(&mut tx, &app).await?;
    tx.commit().await?;
    Ok(app)
}

/// Changes the limits of an app.
pub(crate) async fn set_limits(store: &Store, app: &App) -> Result<()> {
    let mut tx = store.begin().await?;
    apps::set_limits(&mut tx, app).await?;
    tx.commit().await?;
    Ok(())
}

/// A key of an app.
pub(crate) async fn new_key(store: &Store, app: AppId, scopes: &[Scope]) -> Result<String> {
    let mut tx = store.begin().await?;
    let new = NewKey {
        app,
        name: "test".into(),
        scopes: scopes.to_vec(),
        expires_at: None,
    };
    let issued = apps::create_key(&mut tx, new, store.now()).await?;
    tx.commit().await?;
    Ok(issued.text)
}
