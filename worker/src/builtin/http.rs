//! `http`: calls a URL.
//!
//! It may reach what the worker's machine may reach, which is its purpose; who may submit jobs decides whom it calls.
//! Redirects are not followed and proxies of the environment not used: the job says where the request goes.

use super::TEXT_LIMIT;
use crate::{JobContext, JobError, handler::Handler};
use chrono::{DateTime, Utc};
use isocost_common::{raw_json::RawJson, trace_parent::TRACEPARENT};
use reqwest::{
    Client, Method, Request, Response, StatusCode,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::OnceLock, time::Duration};
use url::Url;

/// Sent with the execution's id, so that a repeated attempt can have one effect.
const IDEMPOTENCY_KEY: &str = "idempotency-key";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest pause that a server may ask for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(24 * 3_600);
/// Response headers that become part of the result.
const SHOWN_HEADERS: [&str; 6] = [
    "content-type",
    "content-language",
    "etag",
    "last-modified",
    "location",
    "retry-after",
];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Params {
    url: String,
    /// Default `GET`, or `POST` with a body.
    method: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// A text is sent as it is; anything else as JSON, byte for byte.
    body: Option<RawJson>,
    /// Default: every 2xx.
    expected_statuses: Option<Vec<u16>>,
}

#[derive(Debug, Serialize)]
struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: String,
}

pub(super) fn handler() -> Handler {
    Handler::new(call)
}

async fn call(job: JobContext) -> Result<Answer, JobError> {
    let params: Params = job.params()?;
    let request = request(&params, &job)?;
    let cancelled = job.cancelled();
    // The job's own time limit ends a call that hangs: it arrives here as a cancellation.
    let answer = tokio::select! {
        answer = exchange(request) => answer?,
        () = cancelled.requested() => return Err(JobError::retry("the call was cancelled")),
    };
    judge(&params, answer)
}

async fn exchange(request: Request) -> Result<(Answer, HeaderMap), JobError> {
    let response = client()?.execute(request).await?;
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    let body = read_body(response).await?;
    let shown = SHOWN_HEADERS
        .iter()
        .filter_map(|name| {
            let value = headers.get(*name)?.to_str().ok()?;
            Some(((*name).to_owned(), value.to_owned()))
        })
        .collect();
    let answer = Answer {
        status,
        headers: shown,
        body,
    };
    Ok((answer, headers))
}

async fn read_body(mut response: Response) -> Result<String, JobError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        let room = TEXT_LIMIT - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if body.len() == TEXT_LIMIT {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&body).into_owned())
}

fn judge(params: &Params, (answer, headers): (Answer, HeaderMap)) -> Result<Answer, JobError> {
    let expected = match &params.expected_statuses {
        Some(statuses) => statuses.contains(&answer.status),
        None => (200..300).contains(&answer.status),
    };
    if expected {
        return Ok(answer);
    }
    let message = format!("the server answered {}: {}", answer.status, answer.body);
    let error = match headers
        .get(RETRY_AFTER)
        .and_then(|value| retry_after(value, Utc::now()))
    {
        _ if !may_be_cured(answer.status) => JobError::fatal(message),
        Some(pause) => JobError::retry_after(pause, message),
        None => JobError::retry(message),
    };
    Err(error.with_code("http.unexpected-status"))
}

fn may_be_cured(status: u16) -> bool {
    const TOO_EARLY: u16 = 425;
    status >= 500
        || status == StatusCode::REQUEST_TIMEOUT.as_u16()
        || status == StatusCode::TOO_MANY_REQUESTS.as_u16()
        || status == TOO_EARLY
}

/// Seconds or an HTTP date; anything else is ignored.
fn retry_after(value: &HeaderValue, now: DateTime<Utc>) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    let pause = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => DateTime::parse_from_rfc2822(text)
            .ok()?
            .signed_duration_since(now)
            .to_std()
            .ok()?,
    };
    Some(pause.min(LONGEST_RETRY_AFTER))
}

fn request(params: &Params, job: &JobContext) -> Result<Request, JobError> {
    let invalid = |what: String| JobError::fatal(what).with_code("params.invalid");
    let url = Url::parse(&params.url).map_err(|error| invalid(format!("`url`: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(invalid("`url` must begin with http:// or https://".into()));
    }
    let method = match (&params.method, &params.body) {
        (Some(method), _) => Method::from_bytes(method.to_ascii_uppercase().as_bytes())
            .map_err(|error| invalid(format!("`method`: {error}")))?,
        (None, Some(_)) => Method::POST,
        (None, None) => Method::GET,
    };
    let mut request = Request::new(method, url);
    if let Some(body) = &params.body {
        let (content_type, bytes) = encode(body);
        request.headers_mut().insert(CONTENT_TYPE, content_type);
        *request.body_mut() = Some(bytes.into());
    }
    for (name, value) in &params.headers {
        let name: HeaderName = name
            .parse()
            .map_err(|_| invalid(format!("header `{name}` has no valid name")))?;
        let value = HeaderValue::from_str(value)
            .map_err(|_| invalid(format!("header `{name}` has no valid value")))?;
        request.headers_mut().insert(name, value);
    }
    if let Some(parent) = job.traceparent()
        && let Ok(parent) = HeaderValue::from_str(parent)
    {
        request
            .headers_mut()
            .entry(HeaderName::from_static(TRACEPARENT))
            .or_insert(parent);
    }
    let key = HeaderValue::from_str(&job.idempotency_key()).map_err(|error| invalid(error.to_string()))?;
    request
        .headers_mut()
        .insert(HeaderName::from_static(IDEMPOTENCY_KEY), key);
    Ok(request)
}

fn encode(body: &RawJson) -> (HeaderValue, Vec<u8>) {
    match serde_json::from_str::<String>(body.as_str()) {
        Ok(text) => (
            HeaderValue::from_static("text/plain; charset=utf-8"),
            text.into_bytes(),
        ),
        Err(_) => (
            HeaderValue::from_static("application/json"),
            body.as_str().as_bytes().to_vec(),
        ),
    }
}

/// One connection pool for the process.
fn client() -> Result<&'static Client, JobError> {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    if let Some(client) = CLIENT.get() {
        return Ok(client);
    }
    // A program that embeds a worker may not have chosen a TLS provider; the error means that it has.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .connect_timeout(CONNECT_TIMEOUT)
        .build()?;
    Ok(CLIENT.get_or_init(|| client))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<u64> {
        let now = DateTime::parse_from_rfc2822("Wed, 21 Oct 2015 07:28:00 GMT")
            .expect("a date")
            .to_utc();
        retry_after(&HeaderValue::from_str(text).expect("a header"), now).map(|pause| pause.as_secs())
    }

    #[test]
    fn a_pause_asked_for_is_read_as_seconds_or_as_a_date_and_bounded() {
        assert_eq!(parsed("120"), Some(120));
        assert_eq!(parsed("Wed, 21 Oct 2015 07:29:00 GMT"), Some(60));
        assert_eq!(parsed("99999999999"), Some(86_400));
        assert_eq!(parsed("banana"), None);
        assert_eq!(parsed("Wed, 21 Oct 2015 07:27:00 GMT"), None);
    }

    #[test]
    fn only_server_faults_and_pleas_for_patience_are_retried() {
        let retried: Vec<u16> = [301, 400, 404, 408, 425, 429, 500, 503]
            .into_iter()
            .filter(|status| may_be_cured(*status))
            .collect();
        assert_eq!(retried, [408, 425, 429, 500, 503]);
    }

    #[test]
    fn a_json_body_is_sent_byte_for_byte_and_a_text_as_it_is() {
        let number = RawJson::parse(r#"{"n": 123456789012345678901234567890}"#.into()).expect("JSON");
        assert_eq!(encode(&number).1, number.as_str().as_bytes());
        let text = RawJson::parse(r#""line\n""#.into()).expect("JSON");
        assert_eq!(encode(&text).1, b"line\n");
    }
}
