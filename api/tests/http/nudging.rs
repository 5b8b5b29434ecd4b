//! What others learn from the API: the leader that something is due, people who watch what happened.

use crate::served::{Answer, Served, new_key};
use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use isocost_common::{
    broker::{Broker, ConsumeOptions, topology::Names},
    message::{Wake, kind},
    store::apps::Scope,
    test_support::TestStore,
};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::timeout;

isocost_common::store_tests! {
    a_job_that_is_due_wakes_the_leader,
    events_tell_each_transition_once_and_continue_where_they_were_left,
    a_last_event_id_that_is_none_is_refused,
    an_app_over_its_pending_limit_waits,
}

const SOON: Duration = Duration::from_secs(10);

async fn a_job_that_is_due_wakes_the_leader(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let names = Names::new("isocost");
    api.get("/readyz").await?;
    let broker = api.broker.connect();
    broker
        .declare(&names.listener_topology(&names.wake_exchange(), "leader"))
        .await?;
    let options = ConsumeOptions {
        prefetch: 10,
        exclusive: true,
    };
    let queue = names.listener_queue(&names.wake_exchange(), "leader");
    let mut consumer = broker.consume(&queue, options).await?;
    let later = json!({"jobName": "j", "jobHandler": "h", "trigger": {"type": "once", "delayMs": 3_600_000}});
    assert_eq!(api.post("/openapi/jobs", &later).await?.status, 202);
    let now = api
        .post("/openapi/jobs", &json!({"jobName": "j", "jobHandler": "h"}))
        .await?
        .json();
    let delivery = timeout(SOON, consumer.next()).await.context("no wake-up")??;
    assert_eq!(delivery.message.kind, kind::WAKE);
    // The first one is for the job that is due, so the later one woke nobody.
    let wake: Wake = delivery.message.parse()?;
    assert_eq!(json!(wake.due), now["nextTriggerTime"]);
    api.stop().await
}

/// The next `count` events of a stream, as (id, body).
async fn events(answer: reqwest::Response, count: usize) -> Result<Vec<(String, Value)>> {
    let mut chunks = answer.bytes_stream();
    let mut text = String::new();
    while text.matches("data:").count() < count || !text.ends_with("\n\n") {
        let chunk = timeout(SOON, chunks.next())
            .await
            .context("no event")?
            .context("the stream ended")??;
        text.push_str(std::str::from_utf8(&chunk)?);
    }
    let field = |event: &str, name: &str| {
        let line = event.lines().find_map(|line| line.strip_prefix(name));
        line.map(|text| text.trim_start_matches([':', ' ']).to_owned())
    };
    text.split("\n\n")
        .filter(|event| event.contains("data:"))
        .map(|event| {
            let id = field(event, "id").context("an id")?;
            let data = field(event, "data").context("data")?;
            Ok((id, serde_json::from_str(&data)?))
        })
        .collect()
}

async fn events_tell_each_transition_once_and_continue_where_they_were_left(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let job = json!({"jobName": "j", "jobHandler": "h", "trigger": {"type": "manual"}});
    let job = api.post("/openapi/jobs", &job).await?.json()["jobId"]
        .as_str()
        .context("an id")?
        .to_owned();
    let live = api.request(Method::GET, "/openapi/events").send().await?;
    assert_eq!(live.headers()["content-type"], "text/event-stream");
    let run = Answer::of(api.request(Method::POST, &format!("/openapi/jobs/{job}/trigger")))
        .await?
        .json();
    Answer::of(api.request(Method::POST, &format!("/openapi/jobs/{job}/cancel"))).await?;
    // Made, cancelled, and the cancel of the job itself.
    let seen = events(live, 3).await?;
    assert_eq!(seen[0].1["to"], "PENDING");
    assert_eq!(seen[0].1["executionId"], run["executionId"]);
    assert_eq!(
        (&seen[1].1["from"], &seen[1].1["to"]),
        (&json!("PENDING"), &json!("CANCELLED"))
    );
    assert_eq!(seen[2].1.get("executionId"), None);
    let again = api
        .request(Method::GET, "/openapi/events")
        .header("last-event-id", &seen[0].0)
        .send()
        .await?;
    assert_eq!(events(again, 2).await?, seen[1..]);
    api.stop().await
}

async fn a_last_event_id_that_is_none_is_refused(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    for bad in ["x", "1.5", "-1", "", "99999999999999999999", "\u{e9}"] {
        let request = api.request(Method::GET, "/openapi/events");
        let answer = timeout(SOON, Answer::of(request.header("last-event-id", bad))).await;
        let answer = answer.with_context(|| format!("{bad:?} was passed over"))??;
        assert_eq!(answer.status, 400, "{bad:?}: {}", answer.text);
        assert_eq!(answer.header("content-type"), "application/problem+json");
        assert_eq!(answer.json()["errors"][0]["field"], "Last-Event-ID");
    }
    api.stop().await
}

async fn an_app_over_its_pending_limit_waits(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let made = api
        .post("/openapi/apps", &json!({"name": "small", "maxPendingJobs": 3}))
        .await?
        .json();
    let key = new_key(
        store,
        made["appId"].as_str().context("an app")?.parse()?,
        &[Scope::Submit],
    )
    .await?;
    let job = json!({"jobName": "j", "jobHandler": "h"});
    let call = async |path: &str, body: &Value| {
        let request = api.with_key(Method::POST, path, &key);
        Answer::of(
            request
                .header("content-type", "application/json")
                .body(body.to_string()),
        )
        .await
    };
    assert_eq!(call("/openapi/jobs", &job).await?.status, 202);
    let batch = call("/openapi/jobs/batch", &json!([job, {}, job, job]))
        .await?
        .json();
    let statuses: Vec<_> = batch["results"]
        .as_array()
        .context("results")?
        .iter()
        .map(|one| one["status"].clone())
        .collect();
    assert_eq!(statuses, [202, 400, 202, 429]);
    let refused = call("/openapi/jobs", &job).await?;
    assert_eq!(
        (refused.status.as_u16(), &refused.json()["code"]),
        (429, &json!("quota.pending-jobs"))
    );
    ensure!(refused.header("retry-after") == "1", "{:?}", refused.headers);
    assert_eq!(api.job_count().await?, 3);
    api.stop().await
}
