//! The REST API, called with the words of its contract.

use anyhow::{Context, Result, bail, ensure};
use reqwest::{Method, StatusCode, header};
use serde_json::Value;
use std::time::Duration;

/// Longest wait for one answer: nothing may hang.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// One server and one key. Clones share the connections.
#[derive(Clone)]
pub struct Api {
    http: reqwest::Client,
    base: String,
    key: String,
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    /// The status line.
    pub status: StatusCode,
    /// The headers.
    pub headers: header::HeaderMap,
    /// The body, byte for byte.
    pub text: String,
}

impl Answer {
    /// The body as JSON; `null` when it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or(Value::Null)
    }

    /// The body of a 2xx.
    ///
    /// # Errors
    /// For every other status, with the body.
    pub fn success(self) -> Result<Value> {
        ensure!(
            self.status.is_success(),
            "the API answered {}: {}",
            self.status,
            self.text
        );
        Ok(self.json())
    }
}

impl Api {
    /// A client for a base URL.
    ///
    /// # Errors
    /// When the HTTP client cannot be set up.
    pub fn new(base: &str, key: &str) -> Result<Self> {
        let http = reqwest::Client::builder().timeout(ANSWER_LIMIT).build()?;
        Ok(Self {
            http,
            base: base.to_owned(),
            key: key.to_owned(),
        })
    }

    /// Where it is.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The API key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Any call.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn call(&self, method: Method, path: &str, body: Option<String>) -> Result<Answer> {
        let mut request = self
            .http
            .request(method, format!("{}{path}", self.base))
            .bearer_auth(&self.key);
        if let Some(body) = body {
            request = request
                .header(header::CONTENT_TYPE, "application/json")
                .body(body);
        }
        let response = request.send().await?;
        Ok(Answer {
            status: response.status(),
            headers: response.headers().clone(),
            text: response.text().await?,
        })
    }

    /// `GET`.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn get(&self, path: &str) -> Result<Answer> {
        self.call(Method::GET, path, None).await
    }

    /// `POST` of a JSON value.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Answer> {
        self.call(Method::POST, path, Some(body.to_string())).await
    }

    /// Submits a job that must be accepted, and returns its id.
    ///
    /// # Errors
    /// When it is not.
    pub async fn submit(&self, job: &Value) -> Result<String> {
        let accepted = self.post("/openapi/jobs", job).await?.success()?;
        text(&accepted, "jobId")
    }

    /// Submits up to 1,000 jobs that must all be accepted, and returns their ids in order.
    ///
    /// # Errors
    /// When one is not.
    pub async fn submit_batch(&self, jobs: &[Value]) -> Result<Vec<String>> {
        let body = Value::Array(jobs.to_vec());
        let answer = self.post("/openapi/jobs/batch", &body).await?.success()?;
        let results = answer["results"].as_array().context("no results")?;
        ensure!(
            results.len() == jobs.len(),
            "{} results for {} jobs",
            results.len(),
            jobs.len()
        );
        results
            .iter()
            .map(|result| text(&result["job"], "jobId").with_context(|| format!("refused: {result}")))
            .collect()
    }

    /// A job.
    ///
    /// # Errors
    /// When there is none.
    pub async fn job(&self, id: &str) -> Result<Value> {
        self.get(&format!("/openapi/jobs/{id}")).await?.success()
    }

    /// Jobs by their ids, any number of them.
    ///
    /// # Errors
    /// When the API refuses.
    pub async fn jobs(&self, ids: &[String]) -> Result<Vec<Value>> {
        let mut found = Vec::with_capacity(ids.len());
        for ids in ids.chunks(1_000) {
            let body = serde_json::json!({ "jobIds": ids });
            let answer = self.post("/openapi/jobs/status", &body).await?.success()?;
            found.extend(items(answer)?);
        }
        Ok(found)
    }

    /// The executions of a job, newest first; up to 500.
    ///
    /// # Errors
    /// When there is no such job.
    pub async fn executions(&self, job: &str) -> Result<Vec<Value>> {
        items(
            self.get(&format!("/openapi/jobs/{job}/executions?pageSize=500"))
                .await?
                .success()?,
        )
    }

    /// An execution with its steps.
    ///
    /// # Errors
    /// When there is none.
    pub async fn execution(&self, id: &str) -> Result<Value> {
        self.get(&format!("/openapi/executions/{id}")).await?.success()
    }
}

/// The items of a list.
///
/// # Errors
/// When it is no list.
pub fn items(list: Value) -> Result<Vec<Value>> {
    match list {
        Value::Object(mut fields) => match fields.remove("items") {
            Some(Value::Array(items)) => Ok(items),
            _ => bail!("no items in {fields:?}"),
        },
        other => bail!("not a list: {other}"),
    }
}

/// A field that must be text.
///
/// # Errors
/// When it is not.
pub fn text(object: &Value, field: &str) -> Result<String> {
    match &object[field] {
        Value::String(text) => Ok(text.clone()),
        _ => bail!("{field} is missing in {object}"),
    }
}

/// A field that must be an instant, in milliseconds since the Unix epoch.
///
/// # Errors
/// When it is not.
pub fn instant_ms(object: &Value, field: &str) -> Result<i64> {
    let text = text(object, field)?;
    let instant = chrono::DateTime::parse_from_rfc3339(&text).with_context(|| format!("{field}: {text}"))?;
    Ok(instant.timestamp_millis())
}
