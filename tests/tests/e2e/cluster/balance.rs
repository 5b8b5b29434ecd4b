//! Many jobs over several workers: each runs once, and every worker carries the same load.

use super::{all_succeed, ledger, start_many, submit_all};
use anyhow::{Context, Result, ensure};
use isocost_tests::api::{Api, items, text};
use isocost_tests::cluster::{Cluster, Role};
use isocost_tests::jobs::with;
use isocost_tests::receiver::Receiver;
use isocost_tests::signature::is_signed_by;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};
use tokio::time::{MissedTickBehavior, interval};

const JOBS: usize = 20_000;
/// One job in so many has a callback.
const CALLBACK_EVERY: usize = 10;
const ALL_DONE: Duration = Duration::from_secs(180);

#[tokio::test(flavor = "multi_thread")]
async fn twenty_thousand_jobs_run_once_and_every_worker_carries_its_share() -> Result<()> {
    let cluster = Cluster::new().await?.with("ISOCOST__WORKER__SLOTS", "8");
    let mut dispatchers = start_many(&cluster, Role::Dispatcher, "dispatcher", 2).await?;
    let mut workers = start_many(&cluster, Role::LedgerWorker, "worker", 3).await?;
    let mut relay = cluster.start(Role::Relay, "relay").await?;
    let mut api_process = cluster.start(Role::Api, "api").await?;
    let api = cluster.api(&api_process)?;
    let secret = new_secret(&api).await?;
    let receiver = Receiver::start([]).await?;

    let mut random = StdRng::seed_from_u64(7);
    let jobs: Vec<Value> = (0..JOBS)
        .map(|number| {
            let job = with(
                ledger(random.random_range(0..20)),
                json!({ "clientRequestId": format!("job-{number}") }),
            );
            if number.is_multiple_of(CALLBACK_EVERY) {
                with(job, json!({ "callbackUrl": receiver.url() }))
            } else {
                job
            }
        })
        .collect();
    let from = Instant::now();
    let ids = submit_all(&api, &jobs).await?;
    let submitted = from.elapsed();
    all_succeed(&api, &ids, ALL_DONE).await?;
    println!(
        "{JOBS} jobs: submitted in {submitted:.1?}, all done after {:.1?}",
        from.elapsed()
    );

    let runs = cluster.ledger().runs()?;
    assert_eq!(runs.len(), JOBS, "executions that ran");
    let again: Vec<_> = runs.iter().filter(|(_, attempts)| attempts.len() > 1).collect();
    assert_eq!(again.len(), 0, "ran more than once: {again:?}");
    let shares = cluster.ledger().runs_by_worker()?;
    println!("shares of the workers: {shares:?}");
    let mean = JOBS as f64 / 3.0;
    for (worker, runs) in &shares {
        let off = (*runs as f64 - mean).abs() / mean;
        assert!(off < 0.10, "{worker} is {:.1} % off: {shares:?}", off * 100.0);
    }

    let hits = receiver
        .wait_for(JOBS / CALLBACK_EVERY, Duration::from_secs(60))
        .await?;
    let mut called_back = HashSet::new();
    for hit in &hits {
        ensure!(is_signed_by(hit, &secret)?, "a signature is wrong: {hit:?}");
        let body: Value = serde_json::from_slice(&hit.body)?;
        called_back.insert(text(&body["data"], "jobId")?);
    }
    let asked: HashSet<String> = ids.iter().step_by(CALLBACK_EVERY).cloned().collect();
    assert_eq!(called_back, asked, "the jobs that were called back about");

    let mut slow = workers.pop().context("a worker")?;
    slow.stop().await?;
    let slow = cluster
        .start_with(
            Role::LedgerWorker,
            "slow",
            &[
                ("ISOCOST_TEST_SLOWNESS", "5"),
                // So many that it is the strategy which decides, and not that there is no room.
                ("ISOCOST__WORKER__SLOTS", "32"),
            ],
        )
        .await?;
    let equal_cost = share_of_the_slow_one(&cluster, &api, "equal_cost").await?;
    let round_robin = share_of_the_slow_one(&cluster, &api, "round_robin").await?;
    println!(
        "share of a worker that is five times slower: equal_cost {equal_cost:.3}, round_robin {round_robin:.3}"
    );
    assert!(
        equal_cost < 0.8 * round_robin,
        "equal_cost {equal_cost:.3}, round_robin {round_robin:.3}"
    );
    drop(slow);

    // In good order everybody ends with success, whatever the order is.
    for process in workers.iter_mut().chain(&mut dispatchers) {
        process.stop().await?;
    }
    relay.stop().await?;
    api_process.stop().await
}

/// The share of the runs that the slow worker got, of a steady load that all of them can bear.
async fn share_of_the_slow_one(cluster: &Cluster, api: &Api, strategy: &str) -> Result<f64> {
    let settings = json!({ "balancer": { "strategy": strategy } });
    api.call(Method::PUT, "/openapi/settings", Some(settings.to_string()))
        .await?
        .success()?;
    // The leader reads its settings every two seconds.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = cluster.ledger().runs_by_worker()?;
    let mut ids = Vec::new();
    let mut pace = interval(Duration::from_millis(100));
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for _ in 0..80 {
        pace.tick().await;
        ids.extend(api.submit_batch(&vec![ledger(200); 2]).await?);
    }
    all_succeed(api, &ids, ALL_DONE).await?;
    let after = cluster.ledger().runs_by_worker()?;
    let of = |runs: &BTreeMap<String, usize>, worker: &str| runs.get(worker).copied().unwrap_or(0);
    let gained = of(&after, "slow") - of(&before, "slow");
    Ok(gained as f64 / ids.len() as f64)
}

/// A new webhook secret of the only app.
async fn new_secret(api: &Api) -> Result<String> {
    let apps = items(api.get("/openapi/apps").await?.success()?)?;
    let app = text(apps.first().context("an app")?, "appId")?;
    let path = format!("/openapi/apps/{app}/webhook-secrets");
    let secret = api.post(&path, &json!({})).await?.success()?;
    text(&secret, "secret")
}
