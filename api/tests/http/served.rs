//! An API that serves one test.

use anyhow::{Context, Result};
use isocost_api::run_on;
use isocost_common::{
    Ports,
    broker::memory::MemoryBroker,
    config::Config,
    coordination::memory::MemoryCoordination,
    store::{
        Store,
        apps::{self, App, NewKey, Scope},
    },
    telemetry,
};
use reqwest::{Method, RequestBuilder, StatusCode, header::HeaderMap};
use serde_json::Value;
use std::sync::OnceLock;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// A running API with a client that may do everything.
pub(crate) struct Served {
    pub(crate) store: Store,
    pub(crate) broker: std::sync::Arc<MemoryBroker>,
    pub(crate) base: String,
    pub(crate) app: isocost_common::id::AppId,
    http: reqwest::Client,
    key: String,
    shutdown: CancellationToken,
    running: JoinHandle<Result<(), isocost_api::Error>>,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) async fn of(request: RequestBuilder) -> Result<Self> {
        let response = request.send().await?;
        Ok(Self {
            status: response.status(),
            headers: response.headers().clone(),
            text: response.text().await?,
        })
    }

    /// The body as JSON; `null` when it is none.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }

    /// A header as text; empty when it is absent.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }
}

fn metrics() -> metrics_exporter_prometheus::PrometheusHandle {
    static HANDLE: OnceLock<metrics_exporter_prometheus::PrometheusHandle> = OnceLock::new();
    HANDLE
        .get_or_init(|| {
            let _ = rustls::crypto::ring::default_provider().install_default();
            telemetry::start(&isocost_common::config::TelemetryConfig {
                log: "warn,sqlx=error".into(),
                ..Default::default()
            })
            .expect("the filter is valid")
        })
        .clone()
}

impl Served {
    /// Starts an API on a free port.
    pub(crate) async fn on(store: &Store) -> Result<Self> {
        Self::configured(store, |_| {}).await
    }

    /// Starts an API whose configuration was changed by `change`.
    pub(crate) async fn configured(store: &Store, change: impl FnOnce(&mut Config)) -> Result<Self> {
        let metrics = metrics();
        let first = apps::ensure_first_app(store).await?;
        let key = match first.admin_key {
            Some(key) => key,
            None => new_key(store, first.app, &Scope::ALL).await?,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let base = format!("http://{}", listener.local_addr()?);
        let mut config = Config::default();
        change(&mut config);
        let broker = MemoryBroker::new();
        let ports = Ports {
            store: store.clone(),
            broker: broker.connect(),
            coordination: MemoryCoordination::new(),
            readiness: Default::default(),
        };
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(run_on(listener, config, ports, metrics, shutdown.clone()));
        Ok(Self {
            store: store.clone(),
            broker,
            base,
            app: first.app,
            http: reqwest::Client::builder().build()?,
            key,
            shutdown,
            running,
        })
    }

    /// Ends it in good order.
    pub(crate) async fn stop(self) -> Result<()> {
        self.shutdown.cancel();
        drop(self.http);
        Ok(self.running.await.context("the API panicked")??)
    }

    /// A request with the admin key.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.with_key(method, path, &self.key)
    }

    /// A request with some other key.
    pub(crate) fn with_key(&self, method: Method, path: &str, key: &str) -> RequestBuilder {
        self.without_key(method, path).bearer_auth(key)
    }

    /// A request without a key.
    pub(crate) fn without_key(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base))
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Answer> {
        Answer::of(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Answer> {
        self.post_text(path, &body.to_string()).await
    }

    /// A body exactly as written here.
    pub(crate) async fn post_text(&self, path: &str, body: &str) -> Result<Answer> {
        let request = self.request(Method::POST, path);
        Answer::of(
            request
                .header("content-type", "application/json")
                .body(body.to_owned()),
        )
        .await
    }

    /// How many jobs are stored.
    pub(crate) async fn job_count(&self) -> Result<i64> {
        let mut connection = self.store.reader().await?;
        Ok(sqlx::query_scalar("select count(*) from job_info")
            .fetch_one(&mut *connection)
            .await?)
    }
}

/// A key of an app.
pub(crate) async fn new_key(
    store: &Store,
    app: isocost_common::id::AppId,
    scopes: &[Scope],
) -> Result<String> {
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

/// Another tenant.
pub(crate) async fn new_app(store: &Store, name: &str) -> Result<isocost_common::id::AppId> {
    let app = App {
        id: isocost_common::id::AppId::generate(),
        name: name.into(),
        rate_limit_per_second: None,
        max_pending_jobs: None,
        max_running_executions: None,
        created_at: store.now(),
    };
    let mut tx = store.begin().await?;
    apps::insert(&mut tx, &app).await?;
    tx.commit().await?;
    Ok(app.id)
}
