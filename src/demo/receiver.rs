//! The built-in receiver of the demo's callbacks.

use anyhow::Context;
use axum::{Json, Router, extract::State, http::HeaderMap, http::StatusCode, routing::post};
use isocost_common::time::EpochMillis;
use parking_lot::Mutex;
use serde_json::Value;
use std::{mem, sync::Arc};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// A callback that arrived.
pub(super) struct Callback {
    pub(super) at: String,
    pub(super) id: String,
    pub(super) kind: String,
    pub(super) job: String,
    pub(super) attempt: i64,
}

type Arrived = Arc<Mutex<Vec<Callback>>>;

/// Listens on loopback and answers every callback with 204.
pub(super) struct Receiver {
    url: String,
    arrived: Arrived,
    stop: CancellationToken,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Receiver {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .context("listening on 127.0.0.1")?;
        let url = format!(
            "http://{}/callbacks",
            listener.local_addr().context("reading the port")?
        );
        let arrived = Arrived::default();
        let stop = CancellationToken::new();
        let routes = Router::new()
            .route("/callbacks", post(receive))
            .with_state(Arc::clone(&arrived));
        let until = stop.clone().cancelled_owned();
        let serving =
            tokio::spawn(async move { axum::serve(listener, routes).with_graceful_shutdown(until).await });
        Ok(Self {
            url,
            arrived,
            stop,
            serving,
        })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// What arrived since the last call.
    pub(super) fn news(&self) -> Vec<Callback> {
        mem::take(&mut *self.arrived.lock())
    }

    pub(super) async fn stop(self) {
        self.stop.cancel();
        // Whatever it ended with, the demo is over.
        let _ = self.serving.await;
    }
}

async fn receive(State(arrived): State<Arrived>, headers: HeaderMap, Json(body): Json<Value>) -> StatusCode {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    arrived.lock().push(Callback {
        at: EpochMillis::system_now().to_rfc3339(),
        id: headers
            .get("webhook-id")
            .and_then(|id| id.to_str().ok())
            .unwrap_or_default()
            .to_owned(),
        kind: text(&body["type"]),
        job: text(&body["data"]["jobName"]),
        attempt: body["data"]["attempt"].as_i64().unwrap_or_default(),
    });
    StatusCode::NO_CONTENT
}
