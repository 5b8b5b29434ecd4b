//! A service is away: what can be accepted is accepted, nothing hangs, and everything catches up by itself.

use super::producer::each_ran_once;
use super::{all_succeed, leader, ledger, submit_all};
use anyhow::{Context, Result, ensure};
use isocost_tests::api::{Api, text};
use isocost_tests::bounds;
use isocost_tests::cluster::{Cluster, Process, Role};
use isocost_tests::jobs::{LONG, with};
use isocost_tests::patience::eventually;
use reqwest::StatusCode;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};

/// A hundred a second.
const PACE: Duration = Duration::from_millis(10);
const PRODUCED: usize = 1_500;
const BACK_TO_NORMAL: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_accepted_and_run_whatever_is_away() -> Result<()> {
    let cluster = Cluster::new().await?;
    cluster.servers().rabbitmq.stop().await?;
    cluster.servers().redis.stop().await?;
    let api_process = cluster.start(Role::Api, "api").await?;
    let api = cluster.api(&api_process)?;
    let mut processes = vec![
        cluster.spawn(Role::Dispatcher, "dispatcher", &[])?,
        cluster.spawn(Role::LedgerWorker, "worker", &[])?,
    ];
    wk09_a_submission_without_a_broker_is_answered_and_runs_later(&cluster, &api).await?;
    for process in &mut processes {
        process.wait_until_ready().await?;
    }
    wk07_nothing_hangs_when_the_broker_goes_away(&cluster, &api).await?;
    nothing_is_half_stored_without_the_database(&cluster, &api, &api_process).await?;
    for process in &mut processes {
        process.stop().await?;
    }
    Ok(())
}

async fn wk09_a_submission_without_a_broker_is_answered_and_runs_later(
    cluster: &Cluster,
    api: &Api,
) -> Result<()> {
    let mut ids = Vec::new();
    for _ in 0..10 {
        let from = Instant::now();
        let answer = api.post("/openapi/jobs", &ledger(0)).await?;
        assert_eq!(answer.status, StatusCode::ACCEPTED, "{}", answer.text);
        assert!(from.elapsed() < Duration::from_secs(5), "{:?}", from.elapsed());
        ids.push(text(&answer.json(), "jobId")?);
    }
    let health = api.get("/readyz").await?;
    assert_eq!(health.status, StatusCode::OK, "{}", health.text);
    assert_eq!(health.json()["broker"], "down", "{}", health.text);
    let stored = api.jobs(&ids).await?;
    assert!(stored.iter().all(|job| job["status"] == "WAITING"), "{stored:?}");

    cluster.servers().rabbitmq.restart().await?;
    cluster.servers().redis.restart().await?;
    let from = Instant::now();
    all_succeed(api, &ids, BACK_TO_NORMAL).await?;
    println!(
        "broker and Redis are back → the waiting jobs had run: {:.1?}",
        from.elapsed()
    );
    ran_once(cluster, ids.len())
}

async fn wk07_nothing_hangs_when_the_broker_goes_away(cluster: &Cluster, api: &Api) -> Result<()> {
    let before = cluster.ledger().runs()?.len();
    let rabbitmq = &cluster.servers().rabbitmq;
    let breaking = async {
        sleep(Duration::from_secs(2)).await;
        rabbitmq.kill().await?;
        sleep(Duration::from_secs(2)).await;
        rabbitmq.restart().await?;
        sleep(Duration::from_secs(1)).await;
        rabbitmq.stop().await?;
        sleep(Duration::from_secs(1)).await;
        rabbitmq.restart().await
    };
    let (produced, broken) = tokio::join!(produce(api), breaking);
    broken?;
    let (ids, slowest) = produced?;
    println!("{PRODUCED} submissions while the broker died and stopped: the slowest took {slowest:.2?}");
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    let from = Instant::now();
    all_succeed(api, &ids, BACK_TO_NORMAL).await?;
    println!("and all had run {:.1?} later", from.elapsed());
    ran_once(cluster, before + PRODUCED)
}

/// Submits at a steady pace whatever comes back; the ids, and the longest time to an answer.
async fn produce(api: &Api) -> Result<(Vec<String>, Duration)> {
    let mut pace = interval(PACE);
    let mut requests = JoinSet::new();
    for _ in 0..PRODUCED {
        pace.tick().await;
        let api = api.clone();
        requests.spawn(async move {
            let from = Instant::now();
            let answer = api.post("/openapi/jobs", &ledger(0)).await?;
            ensure!(
                answer.status == StatusCode::ACCEPTED,
                "{}: {}",
                answer.status,
                answer.text
            );
            Ok((text(&answer.json(), "jobId")?, from.elapsed()))
        });
    }
    let answered: Vec<(String, Duration)> = requests.join_all().await.into_iter().collect::<Result<_>>()?;
    let slowest = answered.iter().map(|(_, took)| *took).max().context("requests")?;
    Ok((answered.into_iter().map(|(id, _)| id).collect(), slowest))
}

fn ran_once(cluster: &Cluster, executions: usize) -> Result<()> {
    let runs = cluster.ledger().runs()?;
    let again: Vec<_> = runs.iter().filter(|(_, attempts)| attempts.len() > 1).collect();
    assert_eq!((runs.len(), again.len()), (executions, 0), "{again:?}");
    Ok(())
}

async fn nothing_is_half_stored_without_the_database(
    cluster: &Cluster,
    api: &Api,
    process: &Process,
) -> Result<()> {
    cluster.servers().mariadb.kill().await?;
    let keyed = |number: usize| {
        with(
            ledger(0),
            json!({ "clientRequestId": format!("during-{number}") }),
        )
    };
    for number in 0..5 {
        let from = Instant::now();
        let answer = api.post("/openapi/jobs", &keyed(number)).await?;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{}", answer.text);
        assert!(answer.headers.contains_key("retry-after"), "{:?}", answer.headers);
        assert!(from.elapsed() < Duration::from_secs(15), "{:?}", from.elapsed());
    }
    assert_eq!(api.get("/readyz").await?.status, StatusCode::SERVICE_UNAVAILABLE);
    let failed = text(&api.get("/openapi/jobs").await?.json(), "requestId")?;
    assert!(process.log()?.contains(&failed), "the log does not name {failed}");

    cluster.servers().mariadb.restart().await?;
    eventually("the API is ready again", LONG, async || {
        let answer = api.get("/readyz").await?;
        Ok(answer.status.is_success().then_some(()))
    })
    .await?;
    let mut ids = HashSet::new();
    for number in 0..5 {
        let answer = api.post("/openapi/jobs", &keyed(number)).await?;
        let said: Value = answer.json();
        assert_eq!(
            (answer.status, &said["replayed"]),
            (StatusCode::ACCEPTED, &json!(false)),
            "what was refused had been stored: {said}"
        );
        ids.insert(text(&said, "jobId")?);
    }
    let ids: Vec<String> = ids.into_iter().collect();
    all_succeed(api, &ids, BACK_TO_NORMAL).await
}

/// A worker whose lease runs out because nobody can be told that it lives has done its work all the same.
#[tokio::test(flavor = "multi_thread")]
async fn what_ended_while_the_broker_and_redis_were_away_is_reported_when_they_are_back() -> Result<()> {
    let cluster = Cluster::new().await?.with_short_leases();
    let servers = cluster.servers();
    let dispatchers = [cluster.start(Role::Dispatcher, "dispatcher").await?];
    let worker = cluster.start(Role::LedgerWorker, "worker").await?;
    let api_process = cluster.start(Role::Api, "api").await?;
    let api = cluster.api(&api_process)?;
    leader(&dispatchers, LONG).await?;
    let only_one_attempt = with(ledger(1_000), json!({ "retry": { "maxAttempts": 1 } }));
    let ids = submit_all(&api, &vec![only_one_attempt; 20]).await?;
    eventually("all run", LONG, async || {
        Ok((cluster.ledger().len()? >= ids.len()).then_some(()))
    })
    .await?;
    servers.redis.kill().await?;
    servers.rabbitmq.kill().await?;
    let exit = Duration::from_millis(2_500);
    sleep(exit * 2).await;
    let log = worker.log()?;
    ensure!(
        log.contains("LeaseLost"),
        "the worker was not away for long enough"
    );

    servers.rabbitmq.restart().await?;
    servers.redis.restart().await?;
    let from = Instant::now();
    each_ran_once(&cluster, &api, &ids, LONG).await?;
    let took = from.elapsed();
    println!("both are back → what had ended meanwhile was known: {took:.1?}");
    ensure!(
        took < bounds::time_on_a_busy_machine("reported-after-the-lease")?,
        "{took:?}"
    );
    Ok(())
}

/// A full table, and an error that nobody has thought of.
const CANNOT_WRITE: [u16; 2] = [1114, 1729];

#[tokio::test(flavor = "multi_thread")]
async fn results_wait_for_a_database_that_cannot_write_them() -> Result<()> {
    let cluster = Cluster::new().await?;
    let (mariadb, rabbitmq) = (&cluster.servers().mariadb, &cluster.servers().rabbitmq);
    let dispatchers = [cluster.start(Role::Dispatcher, "dispatcher").await?];
    let _worker = cluster.start(Role::LedgerWorker, "worker").await?;
    let api_process = cluster.start(Role::Api, "api").await?;
    let api = cluster.api(&api_process)?;
    leader(&dispatchers, LONG).await?;
    let called_back = with(ledger(0), json!({ "callbackUrl": "http://127.0.0.1:9/nobody" }));
    let mut ids = Vec::new();
    for errno in CANNOT_WRITE {
        let refuse = format!(
            "create trigger isocost.refuse before insert on isocost.callback_delivery for each row \
             signal sqlstate 'HY000' set mysql_errno = {errno}, message_text = 'cannot be written'"
        );
        mariadb.execute(&refuse).await?;
        ids.extend(submit_all(&api, &vec![called_back.clone(); 20]).await?);
        eventually("the dispatcher says that reports wait", LONG, async || {
            let (ready, said) = dispatchers[0].readiness().await?;
            Ok((!ready && said.to_string().contains("reports wait")).then_some(()))
        })
        .await?;
        mariadb.execute("drop trigger isocost.refuse").await?;
        let from = Instant::now();
        each_ran_once(&cluster, &api, &ids, LONG).await?;
        let took = from.elapsed();
        println!("error {errno} is over → what had waited had ended: {took:.1?}");
        ensure!(took < bounds::time_on_a_busy_machine("reports-wait")?, "{took:?}");
    }
    let queues = rabbitmq
        .ctl(&["list_queues", "--quiet", "name", "messages"])
        .await?;
    let dead = queues
        .lines()
        .find(|line| line.starts_with("isocost.results.dead.v1"));
    let dead = dead.and_then(|line| line.split_whitespace().last());
    ensure!(dead == Some("0"), "reports were given up: {queues}");
    Ok(())
}
