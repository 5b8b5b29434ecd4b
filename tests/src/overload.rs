//! More submissions than can be stored, for a while: an open loop, which goes on whatever comes back.

use anyhow::{Result, ensure};
use reqwest::Method;
use serde_json::Value;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::interval;

use crate::api::{Api, text};

/// Jobs of one request, the most that one may have.
const BATCH: usize = 1_000;
/// Requests at once while the rate is measured that can be sustained.
const AT_EASE: usize = 4;

/// What came of it.
#[derive(Debug, Default)]
pub struct Offered {
    /// The jobs that were accepted.
    pub ids: Vec<String>,
    /// Requests that were told to come back.
    pub refused: usize,
    /// All requests.
    pub requests: usize,
    /// The longest time to an answer, of whatever kind.
    pub slowest: Duration,
    /// The longest time to a refusal.
    pub slowest_refusal: Duration,
}

impl Offered {
    fn add(&mut self, other: Self) {
        self.ids.extend(other.ids);
        self.refused += other.refused;
        self.requests += other.requests;
        self.slowest = self.slowest.max(other.slowest);
        self.slowest_refusal = self.slowest_refusal.max(other.slowest_refusal);
    }
}

/// Submits as much as is taken at ease, and says what, and how many jobs a second that was. On a busy machine something
/// may be refused all the same.
///
/// # Errors
/// As [`offer`].
pub async fn sustainable(api: &Api, job: &Value, during: Duration) -> Result<(Offered, f64)> {
    let body = batch(job);
    let from = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..AT_EASE {
        let (api, body) = (api.clone(), body.clone());
        clients.spawn(async move {
            let mut taken = Offered::default();
            while from.elapsed() < during {
                taken.add(submit(&api, body.clone()).await?);
            }
            anyhow::Ok(taken)
        });
    }
    let mut all = Offered::default();
    while let Some(taken) = clients.join_next().await {
        all.add(taken??);
    }
    let rate = all.ids.len() as f64 / from.elapsed().as_secs_f64();
    Ok((all, rate))
}

/// Submits `rate` jobs a second for a while, and waits for the last answer.
///
/// # Errors
/// When a request is not answered, or with anything else than an acceptance or a refusal that says when to come back.
pub async fn offer(api: &Api, job: &Value, rate: f64, during: Duration) -> Result<Offered> {
    let body = batch(job);
    let mut pace = interval(Duration::from_secs_f64(BATCH as f64 / rate));
    let from = Instant::now();
    let mut requests = JoinSet::new();
    let mut all = Offered::default();
    while from.elapsed() < during {
        pace.tick().await;
        let (api, body) = (api.clone(), body.clone());
        requests.spawn(async move { submit(&api, body).await });
        while let Some(answered) = requests.try_join_next() {
            all.add(answered??);
        }
    }
    while let Some(answered) = requests.join_next().await {
        all.add(answered??);
    }
    Ok(all)
}

fn batch(job: &Value) -> String {
    Value::Array(vec![job.clone(); BATCH]).to_string()
}

async fn submit(api: &Api, body: String) -> Result<Offered> {
    let from = Instant::now();
    let answer = api.call(Method::POST, "/openapi/jobs/batch", Some(body)).await?;
    let took = from.elapsed();
    let mut offered = Offered {
        requests: 1,
        slowest: took,
        ..Offered::default()
    };
    if answer.status.is_success() {
        let said = answer.json();
        let results = said["results"].as_array().map_or(&[][..], Vec::as_slice);
        for result in results {
            offered.ids.push(text(&result["job"], "jobId")?);
        }
        return Ok(offered);
    }
    let says_when = answer.headers.contains_key("retry-after");
    ensure!(
        matches!(answer.status.as_u16(), 429 | 503) && says_when,
        "{}: {}",
        answer.status,
        answer.text
    );
    offered.refused = 1;
    offered.slowest_refusal = took;
    Ok(offered)
}
