//! One POST of one attempt: vetted, signed, under one deadline.

use super::{
    signature::signatures,
    vetting::{AddressPolicy, AddressRefused},
};
use isocost_common::{
    store::callbacks::attempts::RESPONSE_LIMIT,
    time::EpochMillis,
    trace_parent::{TRACEPARENT, TraceParent},
};
use reqwest::{Client, Response, header, redirect};
use std::{error::Error as _, io, time::Duration};
use url::Url;

/// What is sent.
#[derive(Debug, Clone)]
pub(super) struct Request {
    /// `webhook-id`.
    pub(super) id: String,
    /// Where.
    pub(super) url: String,
    /// Byte for byte.
    pub(super) body: String,
    /// Sent along when the job was submitted with one.
    pub(super) traceparent: Option<TraceParent>,
    /// Live secrets of the app.
    pub(super) secrets: Vec<String>,
    /// The instant of this attempt.
    pub(super) now: EpochMillis,
}

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Answer {
    /// Status, when there was an answer.
    pub(super) status: Option<u16>,
    /// Why there was none.
    pub(super) failure: Option<String>,
    /// The `Retry-After` header.
    pub(super) retry_after: Option<String>,
    /// The beginning of the body.
    pub(super) body: Option<String>,
}

impl Answer {
    fn failed(why: impl Into<String>) -> Self {
        Self {
            failure: Some(why.into()),
            ..Self::default()
        }
    }

    /// In words, for people.
    pub(super) fn summary(&self) -> String {
        match (self.status, &self.failure) {
            (Some(status), _) => format!("HTTP {status}"),
            (None, Some(failure)) => failure.clone(),
            (None, None) => "no answer".to_owned(),
        }
    }
}

/// Sends requests. Cheap to clone; clones share connections.
#[derive(Clone)]
pub(super) struct Poster {
    client: Client,
    policy: AddressPolicy,
    timeout: Duration,
}

impl Poster {
    /// A client without redirects, proxies and decompression, whose resolver vets what it dials.
    pub(super) fn new(policy: AddressPolicy, timeout: Duration) -> Result<Self, reqwest::Error> {
        let client = Client::builder()
            .dns_resolver(policy.clone())
            .redirect(redirect::Policy::none())
            .no_proxy()
            .referer(false)
            .pool_idle_timeout(Duration::from_secs(30))
            .user_agent(concat!("Isocost/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(Self {
            client,
            policy,
            timeout,
        })
    }

    /// Posts once. Never fails: whatever goes wrong is the answer.
    pub(super) async fn post(&self, request: Request) -> Answer {
        let Ok(url) = Url::parse(&request.url) else {
            return Answer::failed("the callback URL cannot be read");
        };
        if let Err(refused) = self.policy.check_literal(&url) {
            return Answer::failed(refused.to_string());
        }
        let timestamp = request.now.as_millis().div_euclid(1_000);
        let Some(signature) = signatures(&request.secrets, &request.id, timestamp, &request.body) else {
            return Answer::failed("the app has no usable webhook secret");
        };
        let mut post = self
            .client
            .post(url)
            .header(header::CONTENT_TYPE, "application/json")
            .header("webhook-id", request.id)
            .header("webhook-timestamp", timestamp)
            .header("webhook-signature", signature)
            .body(request.body);
        if let Some(parent) = &request.traceparent {
            post = post.header(TRACEPARENT, parent.as_str());
        }
        let deadline = tokio::time::Instant::now() + self.timeout;
        match tokio::time::timeout_at(deadline, post.send()).await {
            Ok(Ok(response)) => read(response, deadline).await,
            Ok(Err(error)) => Answer::failed(reason(&error)),
            Err(_) => Answer::failed(format!("no answer within {} ms", self.timeout.as_millis())),
        }
    }
}

/// Reads the beginning of the body, as far as it comes before the deadline: the status has decided already.
async fn read(mut response: Response, deadline: tokio::time::Instant) -> Answer {
    let status = response.status().as_u16();
    let retry_after = response
        .headers()
        .get(header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    let mut body = Vec::new();
    while body.len() < RESPONSE_LIMIT {
        match tokio::time::timeout_at(deadline, response.chunk()).await {
            Ok(Ok(Some(chunk))) => {
                body.extend_from_slice(&chunk[..chunk.len().min(RESPONSE_LIMIT - body.len())]);
            }
            Ok(Ok(None) | Err(_)) | Err(_) => break,
        }
    }
    Answer {
        status: Some(status),
        failure: None,
        retry_after,
        body: (!body.is_empty()).then(|| String::from_utf8_lossy(&body).into_owned()),
    }
}

/// Why a request failed, without addresses: what a name resolves to inside is nobody's business outside.
fn reason(error: &reqwest::Error) -> String {
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(refused) = cause.downcast_ref::<AddressRefused>() {
            return refused.to_string();
        }
        if let Some(kind) = cause.downcast_ref::<io::Error>().map(io::Error::kind) {
            match kind {
                io::ErrorKind::ConnectionRefused => return "connection refused".to_owned(),
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                    return "connection reset".to_owned();
                }
                _ => {}
            }
        }
        source = cause.source();
    }
    if error.is_connect() {
        "the connection could not be made (name, network or TLS)".to_owned()
    } else if error.is_builder() {
        "the callback URL cannot be used".to_owned()
    } else {
        "the connection broke before an answer".to_owned()
    }
}
