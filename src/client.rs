//! A client of the REST API.

use crate::exit::{Failure, Reason};
use anyhow::{Context, anyhow};
use reqwest::{Method, StatusCode, header};
use serde::Deserialize;
use std::{fmt::Write, time::Duration};

/// Longest wait for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// One server and the key to speak to it.
pub(crate) struct Client {
    http: reqwest::Client,
    server: reqwest::Url,
    key: String,
}

impl Client {
    /// A client for a server such as `http://127.0.0.1:8080`.
    ///
    /// # Errors
    /// [`Failure`] when the HTTP client cannot be set up.
    pub(crate) fn new(server: reqwest::Url, key: String) -> Result<Self, Failure> {
        let http = reqwest::Client::builder()
            .timeout(ANSWER_TIMEOUT)
            // The key must go nowhere but to the server it was given for.
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("isocost/", env!("CARGO_PKG_VERSION")))
            .build()
            .context("setting up the HTTP client")?;
        Ok(Self { http, server, key })
    }

    pub(crate) async fn get(&self, path: &str, query: &[(&str, String)]) -> Result<String, Failure> {
        self.send(Method::GET, path, query, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: String) -> Result<String, Failure> {
        self.send(Method::POST, path, &[], Some(body)).await
    }

    /// The body of the answer, byte for byte: parsing it would shorten long numbers.
    async fn send(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, String)],
        body: Option<String>,
    ) -> Result<String, Failure> {
        let url = self.url(path, query)?;
        let mut request = self.http.request(method, url).bearer_auth(&self.key);
        if let Some(body) = body {
            request = request
                .header(header::CONTENT_TYPE, "application/json")
                .body(body);
        }
        let unreachable = |error: reqwest::Error| {
            // The address stands in our own text already.
            let error = anyhow::Error::new(error.without_url()).context(format!(
                "no answer from {}; is the server running, and is --server right?",
                self.server
            ));
            Failure::new(Reason::Unreachable, error)
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let text = response.text().await.map_err(unreachable)?;
        if status.is_success() {
            Ok(text)
        } else {
            Err(refusal(status, &text))
        }
    }

    fn url(&self, path: &str, query: &[(&str, String)]) -> Result<reqwest::Url, Failure> {
        let mut url = self
            .server
            .join(path)
            .with_context(|| format!("{path} does not fit behind {}", self.server))
            .map_err(Failure::usage)?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(url)
    }
}

/// The part of `application/problem+json` that a person needs.
#[derive(Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[derive(Default)]
struct Problem {
    title: String,
    detail: Option<String>,
    errors: Vec<FieldError>,
    request_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct FieldError {
    field: String,
    message: String,
}

/// A 5xx counts as no answer: the same request may succeed later, which a refusal's never will.
fn refusal(status: StatusCode, body: &str) -> Failure {
    let problem: Problem = serde_json::from_str(body).unwrap_or_default();
    let mut text = format!("the server answered {status}");
    if let Some(detail) = problem
        .detail
        .as_deref()
        .or(Some(&problem.title).filter(|t| !t.is_empty()).map(String::as_str))
    {
        let _ = write!(text, ": {detail}");
    }
    // With one wrong field, the detail says the same.
    for error in problem
        .errors
        .iter()
        .filter(|error| problem.detail.as_ref() != Some(&error.message))
    {
        let _ = write!(text, "\n  {}: {}", error.field, error.message);
    }
    if status == StatusCode::UNAUTHORIZED {
        text += "\n  give the key with --key or ISOCOST_KEY; standalone keeps it in DATA/admin.key";
    }
    let reason = if status.is_server_error() {
        if let Some(id) = problem.request_id {
            let _ = write!(text, " (request {id})");
        }
        Reason::Unreachable
    } else {
        Reason::Refused
    };
    Failure::new(reason, anyhow!(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::ExitCode;

    #[test]
    fn a_problem_is_told_with_its_fields() {
        let failure = refusal(
            StatusCode::BAD_REQUEST,
            r#"{"title": "Invalid", "detail": "the job is not valid", "status": 400,
                "errors": [{"pointer": "/jobName", "field": "jobName", "code": "x", "message": "is missing"}]}"#,
        );
        let text = failure.to_string();
        assert!(text.contains("the job is not valid"), "{text}");
        assert!(text.contains("jobName: is missing"), "{text}");
        assert_eq!(failure.code(), ExitCode::from(4));
    }

    #[test]
    fn an_answer_that_is_no_problem_document_is_told_by_its_status() {
        let failure = refusal(StatusCode::BAD_GATEWAY, "<html>");
        assert_eq!(failure.to_string(), "the server answered 502 Bad Gateway");
        assert_eq!(failure.code(), ExitCode::from(3));
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_told_with_a_remedy() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        drop(listener);
        let server = reqwest::Url::parse(&format!("http://{address}")).expect("a URL");
        let client = Client::new(server, "key".to_owned()).expect("a client");
        let failure = client.get("openapi/jobs", &[]).await.expect_err("nobody listens");
        assert_eq!(failure.code(), ExitCode::from(3));
        assert!(failure.to_string().contains("is the server running"), "{failure}");
    }
}
