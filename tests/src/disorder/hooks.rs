//! The receiver of the callbacks: it is not well either.

use super::now_ms;
use crate::checker::Call;
use anyhow::Result;
use axum::{Router, body::Bytes, extract::State, http::HeaderMap, http::StatusCode, routing::post};
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::Value;
use std::{sync::Arc, time::Duration};
use tokio::{net::TcpListener, task::JoinHandle, time::sleep};

/// Of a hundred calls, so many are refused.
const REFUSED_PERCENT: u32 = 6;
/// And so many are answered late.
const SLOW_PERCENT: u32 = 2;
const SLOW: Duration = Duration::from_millis(700);

pub(super) struct Hooks {
    url: String,
    record: Arc<Book>,
    server: JoinHandle<()>,
}

struct Book {
    calls: Mutex<Vec<Call>>,
    random: Mutex<StdRng>,
}

impl Hooks {
    pub(super) async fn start(seed: u64) -> Result<Self> {
        let record = Arc::new(Book {
            calls: Mutex::default(),
            random: Mutex::new(StdRng::seed_from_u64(seed ^ 0x686f_6f6b)),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/hook", listener.local_addr()?);
        let router = Router::new()
            .route("/hook", post(receive))
            .with_state(Arc::clone(&record));
        let server = tokio::spawn(async move {
            // Ends only with the run.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { url, record, server })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.record.calls.lock().clone()
    }
}

impl Drop for Hooks {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn receive(State(record): State<Arc<Book>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let at = now_ms();
    let chance = record.random.lock().random_range(0..100);
    let answer = if chance < REFUSED_PERCENT {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::NO_CONTENT
    };
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let id = headers.get("webhook-id").and_then(|id| id.to_str().ok());
    record.calls.lock().push(Call {
        delivery: id.unwrap_or_default().to_owned(),
        at,
        answered: answer.as_u16(),
        execution: text(&body["data"]["executionId"]),
        status: text(&body["data"]["status"]),
    });
    if chance >= 100 - SLOW_PERCENT {
        sleep(SLOW).await;
    }
    answer
}
