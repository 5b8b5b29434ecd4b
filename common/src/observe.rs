//! The observability listener of a process: `/metrics` for Prometheus, `/healthz` (alive) and `/readyz` (can do its
//! job), on an address of its own that users of the API never see.

use crate::{config::ListenAt, http_server, readiness::Readiness};
use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use metrics_exporter_prometheus::PrometheusHandle;
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Histograms that nobody fetches are folded this often, so that they do not grow.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);
/// Ports tried from the first of a role on.
const PORTS_OF_A_ROLE: u16 = 10;

/// The address of `telemetry.listen` cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for metrics and health; choose another telemetry.listen, or `off`")]
pub struct ObserveError {
    /// The address.
    pub address: SocketAddr,
    /// Why.
    #[source]
    pub source: io::Error,
}

/// The running listener.
pub struct Observer {
    address: Option<SocketAddr>,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

struct Shared {
    metrics: PrometheusHandle,
    readiness: Readiness,
}

impl Observer {
    /// Listens as `telemetry.listen` says. Where it says nothing, on the first free one of ten loopback ports from
    /// `first_port` on, so that several processes of one role fit on one machine; with none free it does without.
    ///
    /// # Errors
    /// [`ObserveError`] when the configured address cannot be had.
    pub async fn start(
        listen: ListenAt,
        first_port: u16,
        metrics: PrometheusHandle,
        readiness: Readiness,
    ) -> Result<Self, ObserveError> {
        let listener = match listen {
            ListenAt::Nowhere => None,
            ListenAt::Address(address) => Some(
                TcpListener::bind(address)
                    .await
                    .map_err(|source| ObserveError { address, source })?,
            ),
            ListenAt::ByRole => first_free(first_port).await,
        };
        let stop = CancellationToken::new();
        let mut tasks = vec![tokio::spawn(keep_up(metrics.clone(), stop.clone()))];
        let address = listener.as_ref().and_then(|listener| listener.local_addr().ok());
        if let Some(listener) = listener {
            let router = router(metrics, readiness);
            let stop = stop.clone();
            tasks.push(tokio::spawn(async move {
                http_server::serve(listener, router, http_server::HEADER_TIMEOUT, &stop).await;
            }));
        }
        match address {
            Some(address) => info!(%address, "metrics and health are served"),
            None => info!("metrics and health are not served"),
        }
        Ok(Self { address, stop, tasks })
    }

    /// Where it listens, if it does.
    #[must_use]
    pub const fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.stop.cancel();
        // A scraper may keep its connection open for ever.
        for task in &self.tasks {
            task.abort();
        }
    }
}

async fn first_free(first_port: u16) -> Option<TcpListener> {
    for port in first_port..first_port + PORTS_OF_A_ROLE {
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)).await {
            return Some(listener);
        }
    }
    warn!(
        first_port,
        "ten ports are taken, so metrics and health are not served; set telemetry.listen"
    );
    None
}

async fn keep_up(metrics: PrometheusHandle, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(UPKEEP_EVERY) => metrics.run_upkeep(),
        }
    }
}

fn router(metrics: PrometheusHandle, readiness: Readiness) -> Router {
    Router::new()
        .route("/metrics", get(render))
        .route(
            "/healthz",
            get(async || Json(serde_json::json!({ "status": "ok" }))),
        )
        .route("/readyz", get(ready))
        .with_state(Arc::new(Shared { metrics, readiness }))
}

async fn render(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    (
        [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        shared.metrics.render(),
    )
}

async fn ready(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let report = shared.readiness.report().await;
    let status = if report.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(report))
}
