//! `/livez` and `/readyz`. The leader asks `/livez` before it calls an incarnation dead.

use crate::runtime::Runtime;
use axum::{Json, Router, extract::State, http::StatusCode, routing::get};
use isocost_common::http_server;
use serde::Serialize;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Who answers.
#[derive(Debug, Serialize)]
struct Alive {
    worker: String,
    /// Absent between two incarnations.
    #[serde(skip_serializing_if = "Option::is_none")]
    incarnation: Option<String>,
    /// Why it takes no work.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<&'static str>,
}

/// Answers until `stop`.
pub(crate) async fn serve(listener: TcpListener, runtime: Arc<Runtime>, stop: CancellationToken) {
    let router = Router::new()
        .route("/livez", get(livez))
        .route("/healthz", get(livez))
        .route("/readyz", get(readyz))
        .with_state(runtime);
    http_server::serve(listener, router, http_server::HEADER_TIMEOUT, &stop).await;
}

fn alive(runtime: &Runtime) -> Alive {
    Alive {
        worker: runtime.worker.to_string(),
        incarnation: runtime.current().map(|incarnation| incarnation.id.to_string()),
        missing: None,
    }
}

async fn livez(State(runtime): State<Arc<Runtime>>) -> Json<Alive> {
    Json(alive(&runtime))
}

/// Ready when it consumes under a valid lease.
async fn readyz(State(runtime): State<Arc<Runtime>>) -> (StatusCode, Json<Alive>) {
    let missing = runtime.missing();
    let status = if missing.is_none() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let alive = Alive {
        missing,
        ..alive(&runtime)
    };
    (status, Json(alive))
}
