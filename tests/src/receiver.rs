//! An HTTP server of the test: receives webhooks, and answers as the test says.

use anyhow::{Context, Result};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::{Router, routing::any};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::patience::eventually;

/// One request that came in.
#[derive(Debug, Clone)]
pub struct Hit {
    /// When.
    pub at: Instant,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body, byte for byte.
    pub body: Bytes,
}

impl Hit {
    /// A header that must be there.
    ///
    /// # Errors
    /// When it is not.
    pub fn header(&self, name: &str) -> Result<&str> {
        let value = self
            .headers
            .get(name)
            .with_context(|| format!("no header {name}"))?;
        Ok(value.to_str()?)
    }
}

/// An answer of the receiver.
#[derive(Debug, Clone)]
pub struct Reply {
    /// None to leave the caller without an answer.
    status: Option<StatusCode>,
    retry_after: Option<String>,
}

impl Reply {
    /// With this status and no body.
    ///
    /// # Panics
    /// When the number is no status.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self {
            status: Some(StatusCode::from_u16(status).expect("a status")),
            retry_after: None,
        }
    }

    /// None at all: the request is taken, and the connection stays open.
    #[must_use]
    pub const fn silence() -> Self {
        Self {
            status: None,
            retry_after: None,
        }
    }

    /// And with `Retry-After`.
    #[must_use]
    pub fn retry_after(mut self, value: &str) -> Self {
        self.retry_after = Some(value.to_owned());
        self
    }
}

#[derive(Default)]
struct Record {
    hits: Mutex<Vec<Hit>>,
    replies: Mutex<VecDeque<Reply>>,
}

/// A server on loopback; dropped, it is gone.
pub struct Receiver {
    url: String,
    record: Arc<Record>,
    server: JoinHandle<()>,
}

impl Receiver {
    /// Answers with these in turn, and then 204 for ever.
    ///
    /// # Errors
    /// When there is no port to be had.
    pub async fn start(replies: impl IntoIterator<Item = Reply>) -> Result<Self> {
        let record = Arc::new(Record {
            hits: Mutex::default(),
            replies: Mutex::new(replies.into_iter().collect()),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/hook", listener.local_addr()?);
        let router = Router::new()
            .fallback(any(receive))
            .with_state(Arc::clone(&record));
        let server = tokio::spawn(async move {
            // Ends only with the test.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { url, record, server })
    }

    /// Where to send to.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What came so far.
    #[must_use]
    pub fn hits(&self) -> Vec<Hit> {
        self.record.hits.lock().clone()
    }

    /// Waits until so many requests have come.
    ///
    /// # Errors
    /// When they do not come in time.
    pub async fn wait_for(&self, count: usize, within: Duration) -> Result<Vec<Hit>> {
        let what = format!("{count} requests at {}", self.url);
        eventually(&what, within, async || {
            let hits = self.hits();
            Ok((hits.len() >= count).then_some(hits))
        })
        .await
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn receive(State(record): State<Arc<Record>>, headers: HeaderMap, body: Bytes) -> impl IntoResponse {
    record.hits.lock().push(Hit {
        at: Instant::now(),
        headers,
        body,
    });
    let reply = record
        .replies
        .lock()
        .pop_front()
        .unwrap_or_else(|| Reply::status(204));
    let mut headers = HeaderMap::new();
    if let Some(value) = reply.retry_after.and_then(|value| value.parse().ok()) {
        headers.insert("retry-after", value);
    }
    match reply.status {
        Some(status) => (status, headers),
        None => std::future::pending().await,
    }
}
