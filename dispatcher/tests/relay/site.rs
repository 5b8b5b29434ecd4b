//! A relay with a database and broker of its own, and receivers that answer as told.

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use isocost_common::{
    Ports,
    broker::{Broker, Message, Publication, memory::MemoryBroker, topology::Names},
    config::Config,
    coordination::memory::MemoryCoordination,
    id::{AppId, DeliveryId, ExecutionId, JobId},
    message::{CallbackTicket, kind},
    store::{
        Store, StoreOptions,
        callbacks::{
            self, DeliveryStatus, NewDelivery,
            listing::{self, AttemptRow, DeliveryFilter, DeliveryRow},
        },
        migrations,
    },
};
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The secret of the published vectors of Standard Webhooks.
pub(crate) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// One request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) at: Instant,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }
}

type Script = dyn Fn(usize) -> Response + Send + Sync;

#[derive(Clone)]
struct Behaviour {
    received: Arc<Mutex<Vec<Received>>>,
    script: Arc<Script>,
}

/// A receiver that keeps what arrives; the script answers the request of the given number, from 0.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
    server: JoinHandle<()>,
}

impl Receiver {
    pub(crate) async fn start(
        script: impl Fn(usize) -> Response + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let received = Arc::new(Mutex::new(Vec::new()));
        let state = Behaviour {
            received: Arc::clone(&received),
            script: Arc::new(script),
        };
        let app = Router::new().route("/hook", post(receive)).with_state(state);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let server = tokio::spawn(async move {
            axum::serve(listener, app).await.expect("serving");
        });
        Ok(Self {
            address,
            received,
            server,
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().expect("unpoisoned").clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn receive(State(behaviour): State<Behaviour>, headers: HeaderMap, body: Bytes) -> Response {
    let number = {
        let mut received = behaviour.received.lock().expect("unpoisoned");
        received.push(Received {
            at: Instant::now(),
            headers,
            body,
        });
        received.len() - 1
    };
    (behaviour.script)(number)
}

pub(crate) fn status(code: u16) -> Response {
    StatusCode::from_u16(code).expect("a status").into_response()
}

/// A database with an app, and the settings of its relay.
pub(crate) struct Site {
    _folder: tempfile::TempDir,
    pub(crate) store: Store,
    pub(crate) config: Config,
    pub(crate) app: AppId,
}

impl Site {
    pub(crate) async fn new() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let url = format!("sqlite:{}", folder.path().join("relay.db").display());
        let store = Store::connect(&StoreOptions::new(&url)).await?;
        migrations::run(&store).await?;
        let app = AppId::generate();
        let mut config = Config::default();
        config.relay.allowed_networks = vec!["127.0.0.0/8".into(), "::1".into()];
        config.relay.retry_delays_ms = vec![50; 9];
        config.relay.timeout_ms = 1_000;
        let site = Self {
            _folder: folder,
            store,
            config,
            app,
        };
        site.add_secret(SECRET).await?;
        Ok(site)
    }

    pub(crate) async fn add_secret(&self, secret: &str) -> anyhow::Result<()> {
        let mut tx = self.store.begin().await?;
        sqlx::query("insert into webhook_secret (id, app_id, secret, created_at) values (?, ?, ?, ?)")
            .bind(JobId::generate().to_string())
            .bind(self.app.to_string())
            .bind(secret.to_owned())
            .bind(self.store.now().0)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(())
    }

    /// Writes deliveries of `body` to `url`, as settling does.
    pub(crate) async fn write(
        &self,
        url: &str,
        body: &str,
        count: usize,
    ) -> anyhow::Result<Vec<CallbackTicket>> {
        let deliveries: Vec<_> = (0..count)
            .map(|_| NewDelivery {
                id: DeliveryId::generate(),
                app: self.app,
                job: JobId::generate(),
                execution: ExecutionId::generate(),
                url: url.into(),
                event_type: "execution.succeeded",
                body: body.into(),
                traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
                    .parse()
                    .ok(),
                created_at: self.store.now(),
            })
            .collect();
        let mut tx = self.store.begin().await?;
        callbacks::insert_many(&mut tx, &deliveries).await?;
        tx.commit().await?;
        Ok(deliveries
            .iter()
            .map(|delivery| CallbackTicket {
                delivery: delivery.id,
                attempt: 1,
            })
            .collect())
    }

    /// Starts a relay on an empty broker, as a restart of the process does.
    pub(crate) fn start(&self) -> Relay {
        let broker = MemoryBroker::new();
        let ports = Ports {
            store: self.store.clone(),
            broker: broker.clone(),
            coordination: MemoryCoordination::new(),
            readiness: Default::default(),
        };
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(isocost_dispatcher::relay::run(
            self.config.clone(),
            ports,
            shutdown.clone(),
        ));
        Relay {
            broker,
            names: Names::new(&self.config.broker.namespace),
            shutdown,
            running,
        }
    }

    pub(crate) async fn deliveries(&self, status: DeliveryStatus) -> anyhow::Result<Vec<DeliveryRow>> {
        let filter = DeliveryFilter {
            status: Some(status),
            ..DeliveryFilter::default()
        };
        let mut reader = self.store.reader().await?;
        Ok(listing::list(&mut reader, &filter, 1_000).await?)
    }

    /// Waits until `count` deliveries have this status, at most ten seconds.
    pub(crate) async fn eventually(
        &self,
        status: DeliveryStatus,
        count: usize,
    ) -> anyhow::Result<Vec<DeliveryRow>> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let found = self.deliveries(status).await?;
            if found.len() == count {
                return Ok(found);
            }
            anyhow::ensure!(
                Instant::now() < deadline,
                "{} of {count} deliveries became {}",
                found.len(),
                status.name()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn attempts(&self, delivery: DeliveryId) -> anyhow::Result<Vec<AttemptRow>> {
        let mut reader = self.store.reader().await?;
        let mut attempts = listing::attempts_of(&mut reader, &[delivery]).await?;
        Ok(attempts.remove(&delivery).unwrap_or_default())
    }
}

/// A running relay.
pub(crate) struct Relay {
    broker: Arc<MemoryBroker>,
    names: Names,
    shutdown: CancellationToken,
    running: JoinHandle<Result<(), isocost_dispatcher::relay::Error>>,
}

impl Relay {
    pub(crate) async fn publish(&self, tickets: &[CallbackTicket]) -> anyhow::Result<()> {
        self.broker.declare(&self.names.shared_topology(&[])).await?;
        let publications = tickets
            .iter()
            .map(|ticket| Publication {
                exchange: self.names.callbacks_exchange(),
                routing_key: self.names.first_callbacks_queue(),
                mandatory: true,
                message: Message::json(kind::CALLBACK, ticket),
            })
            .collect();
        self.broker.publish(publications).await;
        Ok(())
    }

    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.shutdown.cancel();
        self.running.await??;
        Ok(())
    }
}
