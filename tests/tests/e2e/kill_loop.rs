//! The program is killed again and again while it works; nothing that it accepted is lost.

use anyhow::{Context, Result, ensure};
use isocost_tests::api::{Api, text};
use isocost_tests::jobs::{once, with};
use isocost_tests::patience::eventually;
use isocost_tests::site::Site;
use isocost_tests::steps;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

const KILLS: usize = 50;
const SUBMITTERS: usize = 4;
/// Between two submissions of one submitter.
const PACE: Duration = Duration::from_millis(20);
/// Every so manieth job takes a while, so that something always runs when the process dies.
const LONG_JOB_EVERY: usize = 10;
const ALL_DONE: Duration = Duration::from_secs(180);

#[tokio::test(flavor = "multi_thread")]
async fn after_fifty_kills_every_accepted_job_has_succeeded_and_every_second_run_is_explained() -> Result<()>
{
    let seed = std::env::var("ISOCOST_TEST_SEED").map_or_else(|_| Ok(rand::random()), |text| text.parse())?;
    println!("ISOCOST_TEST_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let site = Site::with_ledger()?;
    let process = site.start().await?;
    let api = process.api().clone();
    let (enough, mut submitters) = (CancellationToken::new(), JoinSet::new());
    for submitter in 0..SUBMITTERS {
        submitters.spawn(submit_until(enough.clone(), api.clone(), submitter));
    }

    let mut victim = process.into_life();
    for _ in 0..KILLS {
        sleep(Duration::from_millis(random.random_range(0..1_000))).await;
        victim.kill().await?;
        // One in five may die before it is ready.
        victim = if random.random_bool(0.2) {
            site.spawn()?
        } else {
            site.start().await?.into_life()
        };
    }
    victim.kill().await?;
    let process = site.start().await?;
    enough.cancel();
    let mut accepted = HashMap::new();
    for submitter in submitters.join_all().await {
        accepted.extend(submitter?);
    }
    println!("{} jobs accepted over {KILLS} kills", accepted.len());

    all_succeed(&api, &accepted).await?;
    no_request_made_a_second_job(&api, &accepted).await?;
    let runs = site.ledger().runs()?;
    let again: Vec<_> = runs.iter().filter(|(_, attempts)| attempts.len() > 1).collect();
    println!(
        "{} executions, {} of them more than once",
        runs.len(),
        again.len()
    );
    for (execution, attempts) in again {
        second_runs_are_explained(&api, execution, attempts).await?;
    }
    process.stop().await?;
    let log = site.log()?;
    let panic = log.lines().find(|line| line.contains("panicked at"));
    assert_eq!(panic, None);
    Ok(())
}

/// The job that a request id stands for: the same at every attempt to submit it.
fn job(request: &str, number: usize) -> Value {
    let handler = if number.is_multiple_of(LONG_JOB_EVERY) {
        with(once("sleep"), json!({ "params": { "ms": 300 } }))
    } else {
        once("ledger")
    };
    with(
        handler,
        json!({
            "clientRequestId": request,
            "retry": { "maxAttempts": 100, "backoff": "fixed", "initialMs": 10, "maxMs": 10 }
        }),
    )
}

/// Submits job after job, each until it is accepted; returns the job ids by request id.
async fn submit_until(
    enough: CancellationToken,
    api: Api,
    submitter: usize,
) -> Result<HashMap<String, String>> {
    let mut accepted = HashMap::new();
    for number in 0.. {
        let request = format!("{submitter}-{number}");
        let job = job(&request, number);
        let id = loop {
            match api.post("/openapi/jobs", &job).await {
                Ok(answer) if answer.status.is_success() => break text(&answer.json(), "jobId")?,
                Ok(answer) => ensure!(
                    answer.status.is_server_error(),
                    "{}: {}",
                    answer.status,
                    answer.text
                ),
                // The process is dead, or died with the request in its hands: ask again.
                Err(_) => {}
            }
            sleep(PACE).await;
        };
        accepted.insert(request, id);
        if enough.is_cancelled() {
            break;
        }
        sleep(PACE).await;
    }
    Ok(accepted)
}

async fn all_succeed(api: &Api, accepted: &HashMap<String, String>) -> Result<()> {
    let mut open: Vec<String> = accepted.values().cloned().collect();
    eventually("every accepted job has ended", ALL_DONE, async || {
        let jobs = api.jobs(&open).await?;
        ensure!(
            jobs.len() == open.len(),
            "{} of {} jobs are there",
            jobs.len(),
            open.len()
        );
        let failed = jobs
            .iter()
            .find(|job| matches!(job["status"].as_str(), Some("FAILED" | "CANCELLED")));
        assert_eq!(failed, None, "an accepted job did not succeed");
        open = jobs
            .iter()
            .filter(|job| job["status"] != "SUCCESS")
            .map(|job| text(job, "jobId"))
            .collect::<Result<_>>()?;
        ensure!(open.is_empty(), "{} are open, such as {}", open.len(), open[0]);
        Ok(Some(()))
    })
    .await
}

/// Every request, made again, is answered with the job that it made first.
async fn no_request_made_a_second_job(api: &Api, accepted: &HashMap<String, String>) -> Result<()> {
    let requests: Vec<&String> = accepted.keys().collect();
    for requests in requests.chunks(1_000) {
        let jobs: Vec<Value> = requests
            .iter()
            .map(|request| {
                let (_, number) = request.split_once('-').context("a request id of ours")?;
                Ok(job(request, number.parse()?))
            })
            .collect::<Result<_>>()?;
        for (request, id) in requests.iter().zip(api.submit_batch(&jobs).await?) {
            assert_eq!(accepted[*request], id, "request {request} made two jobs");
        }
    }
    Ok(())
}

/// A run more than one is only right when the steps show a run, or a handover, that a death cut off.
async fn second_runs_are_explained(api: &Api, execution: &str, attempts: &[u32]) -> Result<()> {
    let shown = api.execution(execution).await?;
    let cut_off = steps::taken_back(&steps::of(&shown)?).len();
    assert!(
        attempts.len() <= cut_off + 1,
        "execution {execution} ran {} times, but its steps show {cut_off} interruptions: {shown:#}",
        attempts.len()
    );
    let mut distinct = attempts.to_vec();
    distinct.dedup();
    assert_eq!(distinct, attempts, "one attempt of {execution} ran twice");
    Ok(())
}
