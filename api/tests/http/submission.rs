use crate::served::Served;
use anyhow::{Result, ensure};
use isocost_common::test_support::TestStore;
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::sync::Barrier;

isocost_common::store_tests! {
    a_minimal_job_is_accepted_with_its_address,
    fifty_parallel_submissions_of_one_key_make_one_job,
    the_same_key_with_other_content_is_refused,
    a_replay_is_answered_when_its_window_is_over,
    params_keep_every_byte,
    four_byte_characters_and_near_keys_are_told_apart,
    a_bad_item_of_a_batch_hurts_no_other,
}

fn job() -> Value {
    json!({"jobName": "a job", "jobHandler": "noop"})
}

async fn a_minimal_job_is_accepted_with_its_address(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let answer = api.post("/openapi/jobs", &job()).await?;
    assert_eq!(answer.status, 202, "{}", answer.text);
    let body = answer.json();
    let id = body["jobId"].as_str().unwrap_or_default();
    assert_eq!(answer.header("location"), format!("/openapi/jobs/{id}"));
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(
        (&body["status"], &body["replayed"]),
        (&json!("WAITING"), &json!(false))
    );
    assert_eq!(body["warnings"][0]["code"], "handler.not-offered");
    let shown = api.get(&format!("/openapi/jobs/{id}")).await?;
    assert_eq!(shown.status, 200, "{}", shown.text);
    assert_eq!(shown.header("etag"), "\"1\"");
    let shown = shown.json();
    assert_eq!(shown["trigger"]["type"], "once");
    assert_eq!(shown["nextTriggerTime"], body["nextTriggerTime"]);
    api.stop().await
}

async fn fifty_parallel_submissions_of_one_key_make_one_job(store: &TestStore) -> Result<()> {
    // Two APIs, as two processes would be.
    let apis = [
        Arc::new(Served::on(store).await?),
        Arc::new(Served::on(store).await?),
    ];
    for round in 0..10 {
        let barrier = Arc::new(Barrier::new(50));
        let mut calls = tokio::task::JoinSet::new();
        for call in 0..50 {
            let (api, barrier) = (Arc::clone(&apis[call % 2]), Arc::clone(&barrier));
            calls.spawn(async move {
                let mut body = job();
                body["clientRequestId"] = json!(format!("order-7f3a-{round}"));
                barrier.wait().await;
                api.post("/openapi/jobs", &body).await
            });
        }
        let mut ids = BTreeSet::new();
        let mut accepted = 0;
        while let Some(answer) = calls.join_next().await {
            let answer = answer??;
            ensure!(
                matches!(answer.status.as_u16(), 200 | 202),
                "{}: {}",
                answer.status,
                answer.text
            );
            accepted += i32::from(answer.status == 202);
            ids.insert(answer.json()["jobId"].to_string());
        }
        assert_eq!((ids.len(), accepted), (1, 1), "round {round}");
    }
    assert_eq!(apis[0].job_count().await?, 10);
    for api in apis {
        if let Ok(api) = Arc::try_unwrap(api).map_err(|_| anyhow::anyhow!("still in use")) {
            api.stop().await?;
        }
    }
    Ok(())
}

async fn the_same_key_with_other_content_is_refused(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let first = r#"{"clientRequestId":"k","jobName":"a","jobHandler":"noop","params":{"a":1,"b":"x"}}"#;
    let accepted = api.post_text("/openapi/jobs", first).await?;
    assert_eq!(accepted.status, 202, "{}", accepted.text);
    let same =
        r#"{"params": {"b":"\u0078", "a":1}, "jobHandler":"noop","jobName":"a","clientRequestId":"k"}"#;
    let replayed = api.post_text("/openapi/jobs", same).await?;
    assert_eq!(replayed.status, 200, "{}", replayed.text);
    assert_eq!(replayed.json()["replayed"], true);
    assert_eq!(replayed.json()["jobId"], accepted.json()["jobId"]);
    let by_header = api
        .request(reqwest::Method::POST, "/openapi/jobs")
        .header("idempotency-key", "k")
        .header("content-type", "application/json")
        .body(first.replacen(r#""clientRequestId":"k","#, "", 1));
    assert_eq!(crate::served::Answer::of(by_header).await?.status, 200);
    let other = api
        .post_text("/openapi/jobs", &first.replace("\"a\":1", "\"a\":2"))
        .await?;
    assert_eq!(other.status, 422, "{}", other.text);
    assert_eq!(other.json()["code"], "key.reused");
    assert_eq!(api.job_count().await?, 1);
    api.stop().await
}

/// What was in order when it was accepted is a replay for ever, and no fault.
async fn a_replay_is_answered_when_its_window_is_over(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let end = store.now() + Duration::from_millis(1_500);
    let body = json!({
        "jobName": "a", "jobHandler": "noop", "clientRequestId": "k", "endAt": end.to_string(),
        "trigger": {"type": "fixedRate", "everyMs": 1_000}
    });
    let accepted = api.post("/openapi/jobs", &body).await?;
    assert_eq!(accepted.status, 202, "{}", accepted.text);
    while store.now() <= end {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let replayed = api.post("/openapi/jobs", &body).await?;
    assert_eq!(replayed.status, 200, "{}", replayed.text);
    assert_eq!(replayed.json()["jobId"], accepted.json()["jobId"]);
    let batch = api.post("/openapi/jobs/batch", &json!({"jobs": [body]})).await?;
    assert_eq!(batch.json()["results"][0]["status"], 200, "{}", batch.text);

    let mut other = body.clone();
    other["jobName"] = json!("b");
    let reused = api.post("/openapi/jobs", &other).await?;
    assert_eq!(reused.json()["code"], "key.reused", "{}", reused.text);
    other["clientRequestId"] = json!("new");
    let late = api.post("/openapi/jobs", &other).await?;
    assert_eq!(late.status, 400, "{}", late.text);
    assert_eq!(late.json()["errors"][0]["code"], "window.over", "{}", late.text);
    api.stop().await
}

async fn params_keep_every_byte(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let params = r#"{"n":123456789012345678901234567890, "f" : 1.50e+2,"t":"👨‍👩‍👧\u0041"}"#;
    let body = format!(r#"{{"jobName":"bytes","jobHandler":"echo","params":{params}}}"#);
    let id = api.post_text("/openapi/jobs", &body).await?.json()["jobId"].clone();
    let shown = api
        .get(&format!("/openapi/jobs/{}", id.as_str().unwrap_or_default()))
        .await?;
    ensure!(shown.text.contains(params), "{}", shown.text);
    api.stop().await
}

async fn four_byte_characters_and_near_keys_are_told_apart(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let mut ids = BTreeSet::new();
    for key in ["a", "A", "á", "a ", "日报😀"] {
        let mut body = job();
        body["clientRequestId"] = json!(key);
        body["jobName"] = json!(format!("日报😀 {key}"));
        let answer = api.post("/openapi/jobs", &body).await?;
        assert_eq!(answer.status, 202, "{key}: {}", answer.text);
        let id = answer.json()["jobId"].as_str().unwrap_or_default().to_owned();
        let shown = api.get(&format!("/openapi/jobs/{id}")).await?.json();
        assert_eq!(
            (&shown["jobName"], &shown["clientRequestId"]),
            (&body["jobName"], &body["clientRequestId"])
        );
        ids.insert(id);
    }
    assert_eq!(ids.len(), 5);
    api.stop().await
}

async fn a_bad_item_of_a_batch_hurts_no_other(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let with_key =
        |key: &str, name: &str| json!({"jobName": name, "jobHandler": "noop", "clientRequestId": key});
    let batch = json!({"jobs": [
        job(), {"jobName": ""}, with_key("k", "one"), with_key("k", "one"), with_key("k", "two"), 7
    ]});
    let answer = api.post("/openapi/jobs/batch", &batch).await?;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let answer = answer.json();
    let results = answer["results"].as_array().cloned().unwrap_or_default();
    let statuses: Vec<_> = results
        .iter()
        .map(|result| result["status"].as_u64().unwrap_or(0))
        .collect();
    assert_eq!(statuses, [202, 400, 202, 200, 422, 400]);
    assert_eq!((&answer["accepted"], &answer["rejected"]), (&json!(3), &json!(3)));
    assert_eq!(results[2]["job"]["jobId"], results[3]["job"]["jobId"]);
    assert_eq!(results[1]["problem"]["errors"].as_array().map(Vec::len), Some(2));
    assert_eq!(api.job_count().await?, 2);
    api.stop().await
}
