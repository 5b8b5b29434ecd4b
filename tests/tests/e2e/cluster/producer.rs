//! A client that goes on submitting whatever comes back, as a client should: the same key again until the answer is known.

use super::all_succeed;
use anyhow::{Result, ensure};
use isocost_common::store::Store;
use isocost_tests::api::{Api, text};
use isocost_tests::bounds;
use isocost_tests::cluster::Cluster;
use isocost_tests::jobs::with;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

const CLIENTS: usize = 8;
/// Of each client.
const PACE: Duration = Duration::from_millis(50);
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// Clients at work.
pub(super) struct Producer {
    enough: CancellationToken,
    clients: JoinSet<Result<Produced>>,
}

/// What became of the submissions.
#[derive(Debug, Default)]
pub(super) struct Produced {
    /// The jobs, one for every key.
    pub(super) ids: Vec<String>,
    /// Answers that said to come back later, and requests that found nobody.
    pub(super) refused: usize,
    /// The longest time to any answer.
    pub(super) slowest: Duration,
}

impl Producer {
    /// Starts submitting copies of `job`, round robin at these APIs.
    pub(super) fn start(apis: &[Api], job: &Value) -> Self {
        let enough = CancellationToken::new();
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let (apis, job, enough) = (apis.to_vec(), job.clone(), enough.clone());
            clients.spawn(async move { submit(client, &apis, &job, &enough).await });
        }
        Self { enough, clients }
    }

    /// Stops submitting, once every key has its answer.
    pub(super) async fn stop(mut self) -> Result<Produced> {
        self.enough.cancel();
        let mut all = Produced::default();
        while let Some(client) = self.clients.join_next().await {
            let client = client??;
            all.ids.extend(client.ids);
            all.refused += client.refused;
            all.slowest = all.slowest.max(client.slowest);
        }
        ensure!(!all.ids.is_empty(), "nothing was submitted");
        Ok(all)
    }
}

async fn submit(client: usize, apis: &[Api], job: &Value, enough: &CancellationToken) -> Result<Produced> {
    let mut produced = Produced::default();
    let mut turn = client;
    for number in 0_u32.. {
        if enough.is_cancelled() {
            break;
        }
        let keyed = with(
            job.clone(),
            json!({ "clientRequestId": format!("{client}-{number}") }),
        );
        let id = loop {
            turn += 1;
            let from = Instant::now();
            let answer = apis[turn % apis.len()].post("/openapi/jobs", &keyed).await;
            produced.slowest = produced.slowest.max(from.elapsed());
            match answer {
                Ok(answer) if answer.status.is_success() => break text(&answer.json(), "jobId")?,
                Ok(answer) => {
                    let may_retry = matches!(answer.status.as_u16(), 429 | 503);
                    ensure!(may_retry, "{}: {}", answer.status, answer.text);
                    ensure!(answer.headers.contains_key("retry-after"), "{:?}", answer.headers);
                }
                // Nobody listens, or the process went away in the middle.
                Err(error) => {
                    let lost = error.downcast_ref::<reqwest::Error>();
                    ensure!(lost.is_some_and(|error| !error.is_timeout()), "{error:#}");
                }
            }
            produced.refused += 1;
            sleep(AGAIN_AFTER).await;
        };
        produced.ids.push(id);
        sleep(PACE).await;
    }
    Ok(produced)
}

/// Everything accepted succeeds, at its first attempt and in its only run; and nothing else is there.
pub(super) async fn each_ran_once(
    cluster: &Cluster,
    api: &Api,
    ids: &[String],
    within: Duration,
) -> Result<()> {
    these_ran_once(cluster, api, ids, within).await?;
    so_many_are_stored(cluster, ids.len()).await
}

/// As [`each_ran_once`], where others are stored and have not run.
pub(super) async fn these_ran_once(
    cluster: &Cluster,
    api: &Api,
    ids: &[String],
    within: Duration,
) -> Result<()> {
    all_succeed(api, ids, within).await?;
    let runs = cluster.ledger().runs()?;
    let again: Vec<_> = runs.iter().filter(|(_, attempts)| attempts.len() > 1).collect();
    ensure!(again.is_empty(), "ran more than once: {again:?}");
    ensure!(
        runs.len() == ids.len(),
        "{} runs of {} jobs",
        runs.len(),
        ids.len()
    );
    let spent = count(cluster, "job_execution where attempt > 1 or interruptions > 0").await?;
    ensure!(
        spent <= bounds::count("roll-attempts")?,
        "{spent} executions were interrupted or tried again"
    );
    Ok(())
}

/// A refusal leaves nothing behind.
pub(super) async fn so_many_are_stored(cluster: &Cluster, jobs: usize) -> Result<()> {
    let stored = count(cluster, "job_info").await?;
    ensure!(
        stored == jobs as u64,
        "{stored} jobs are stored, {jobs} were answered"
    );
    Ok(())
}

async fn count(cluster: &Cluster, what: &str) -> Result<u64> {
    let store = Store::connect(&cluster.servers().mariadb.options()).await?;
    let sql = AssertSqlSafe(format!("select count(*) from {what}"));
    let counted: i64 = sqlx::query_scalar(sql)
        .fetch_one(&mut *store.reader().await?)
        .await?;
    store.close().await;
    Ok(u64::try_from(counted)?)
}
