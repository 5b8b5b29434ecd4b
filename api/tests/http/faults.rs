//! Every fault of a request is named, each of them once; and what is legal but odd is told and does no harm.

use crate::served::{Answer, Served};
use anyhow::{Context, Result, ensure};
use isocost_common::{
    execution::ExecutionStatus,
    store::jobs,
    test_support::{TestStore, given},
    time::EpochMillis,
};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::Duration;

isocost_common::store_tests! {
    a_fault_in_a_submission_is_told_once,
    several_faults_of_a_trigger_are_told_together,
    a_patch_is_told_everything_wrong_at_once,
    every_request_is_told_everything_wrong_at_once,
    a_one_shot_in_the_past_is_taken_with_a_warning,
    a_one_shot_in_the_past_does_not_count_as_late,
    a_running_job_shows_that_its_cancel_was_requested,
}

/// Where the errors of a refused request point, in their order.
fn places(answer: &Answer) -> Result<Vec<String>> {
    assert_eq!(answer.status, 400, "{}", answer.text);
    let problem = answer.json();
    let errors = problem["errors"].as_array().context("errors")?;
    let place = |error: &Value| {
        let place = error["pointer"].as_str().or(error["field"].as_str());
        place.unwrap_or_default().to_owned()
    };
    Ok(errors.iter().map(place).collect())
}

async fn a_fault_in_a_submission_is_told_once(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let cases = [
        (
            r#""trigger":{"type":"crn","expr":"0 0 3 * * ?","timeZone":"UTC"}"#,
            "/trigger/type",
        ),
        (r#""trigger":{"expr":"0 0 3 * * ?"}"#, "/trigger/type"),
        (r#""trigger":{"type":7,"everyMs":1000}"#, "/trigger/type"),
        (
            r#""trigger":{"type":"cron","timeZone":"UTC","dialect":"unix"}"#,
            "/trigger/expr",
        ),
        (
            r#""trigger":{"type":"manual"},"cronExpr":"0 0 3 * * ?","timeZone":"UTC","dialect":"quartz""#,
            "/cronExpr",
        ),
        (
            r#""startAt":"2099-01-02T00:00:00Z","endAt":"2099-01-01T00:00:00Z""#,
            "/endAt",
        ),
        (r#""endAt":"2020-01-01T00:00:00Z""#, "/endAt"),
        (r#""retry":{"initialMs":-1,"maxMs":10}"#, "/retry/initialMs"),
    ];
    for (fields, place) in cases {
        let body = format!(r#"{{"jobName":"j","jobHandler":"h",{fields}}}"#);
        let answer = api.post_text("/openapi/jobs", &body).await?;
        assert_eq!(places(&answer)?, [place], "{fields}: {}", answer.text);
    }
    let misspelt = json!({"jobName": "j", "jobHandler": "h", "trigger": {"types": "cron", "expr": "@daily"}});
    let answer = api.post("/openapi/jobs", &misspelt).await?;
    assert_eq!(places(&answer)?, ["/trigger/type", "/trigger/types"]);
    ensure!(answer.text.contains("did you mean `type`?"), "{}", answer.text);
    assert_eq!(api.job_count().await?, 0);
    api.stop().await
}

async fn several_faults_of_a_trigger_are_told_together(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let trigger = json!({"type": "cron", "expr": "0 0 25 * * ?", "timeZone": "Mars/Olympus"});
    let body = json!({"jobName": "j", "jobHandler": "h", "trigger": trigger});
    let answer = api.post("/openapi/jobs", &body).await?;
    assert_eq!(places(&answer)?, ["/trigger/timeZone", "/trigger/expr"]);
    let preview = api
        .get("/openapi/cron/next?expr=0+0+25+*+*+?&timeZone=Mars/Olympus&count=0")
        .await?;
    assert_eq!(places(&preview)?, ["count", "timeZone", "hour"]);
    api.stop().await
}

async fn patch(api: &Served, job: &str, body: &str) -> Result<Answer> {
    let request = api
        .request(Method::PATCH, &format!("/openapi/jobs/{job}"))
        .header("content-type", "application/merge-patch+json")
        .header("if-match", "*")
        .body(body.to_owned());
    Answer::of(request).await
}

async fn submitted(api: &Served, body: &Value) -> Result<Value> {
    let answer = api.post("/openapi/jobs", body).await?;
    assert_eq!(answer.status, 202, "{}", answer.text);
    Ok(answer.json())
}

fn id_of(job: &Value) -> Result<String> {
    Ok(job["jobId"].as_str().context("an id")?.to_owned())
}

fn manual() -> Value {
    json!({"jobName": "j", "jobHandler": "h", "trigger": {"type": "manual"}})
}

async fn a_patch_is_told_everything_wrong_at_once(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let id = id_of(&submitted(&api, &manual()).await?)?;
    let cases: &[(&str, &[&str])] = &[
        (
            r#"{"clientRequestId":"x","priority":11,"timeoutMs":0,"prio":1}"#,
            &["/clientRequestId", "/priority", "/timeoutMs", "/prio"],
        ),
        (
            r#"{"trigger":null,"jobName":"","retry":{"maxAttempts":0}}"#,
            &["/trigger", "/jobName", "/retry/maxAttempts"],
        ),
        (
            r#"{"timeZone":"UTC","cronExpr":"x","shards":0}"#,
            &["/cronExpr", "/timeZone", "/shards"],
        ),
        (r#"{"clientRequestId":7}"#, &["/clientRequestId"]),
        (r#"{"labels":{"\ud800":"x"}}"#, &[""]),
        ("[]", &[""]),
    ];
    for (body, expected) in cases {
        let answer = patch(&api, &id, body).await?;
        assert_eq!(places(&answer)?, *expected, "{body}: {}", answer.text);
    }
    let shown = api.get(&format!("/openapi/jobs/{id}")).await?.json();
    assert_eq!(shown["version"], 1);
    api.stop().await
}

async fn every_request_is_told_everything_wrong_at_once(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let apps = format!("/openapi/apps/{}", api.app);
    let cases = [
        (
            "/openapi/jobs/bulk".to_owned(),
            json!({"action": "stop", "filter": {"status": 5}, "dryRun": "no"}),
            vec!["/action", "/filter/status", "/dryRun"],
        ),
        (
            "/openapi/jobs/status".to_owned(),
            json!({"jobIds": [1, "x", 2]}),
            vec!["/jobIds/0", "/jobIds/1", "/jobIds/2"],
        ),
        (
            format!("{apps}/keys"),
            json!({"name": "", "scopes": ["reed", "write"]}),
            vec!["/name", "/scopes/0", "/scopes/1"],
        ),
    ];
    for (path, body, expected) in cases {
        let answer = api.post(&path, &body).await?;
        assert_eq!(places(&answer)?, expected, "{path}: {}", answer.text);
    }
    api.stop().await
}

async fn a_one_shot_in_the_past_is_taken_with_a_warning(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let at = |at: String, more: Value| {
        let mut body = json!({"jobName": "j", "jobHandler": "h", "trigger": {"type": "once", "at": at}});
        for (name, value) in more.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        body
    };
    let told = async |body: &Value| {
        let mut told = Vec::new();
        for path in ["/openapi/jobs", "/openapi/validate"] {
            let answer = api.post(path, body).await?.json();
            let warnings = answer["warnings"].as_array().context("warnings")?;
            let in_past = warnings
                .iter()
                .find(|warning| warning["code"] == "trigger.in-past");
            let message = in_past.and_then(|warning| warning["message"].as_str());
            told.push(message.unwrap_or_default().to_owned());
        }
        assert_eq!(told[0], told[1]);
        anyhow::Ok(told.swap_remove(0))
    };
    let long_ago = || "2020-01-01T00:00:00Z".to_owned();
    let past = told(&at(long_ago(), json!({}))).await?;
    ensure!(
        past.contains("2020-01-01T00:00:00.000Z") && past.contains("at once"),
        "{past}"
    );
    let over = told(&at(long_ago(), json!({"startDeadlineMs": 1_000}))).await?;
    ensure!(over.contains("expires"), "{over}");
    let opens_later = told(&at(long_ago(), json!({"startAt": "2099-01-01T00:00:00Z"}))).await?;
    let now = told(&at(store.now().to_rfc3339(), json!({}))).await?;
    assert_eq!((opens_later.as_str(), now.as_str()), ("", ""));
    api.stop().await
}

async fn a_one_shot_in_the_past_does_not_count_as_late(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let body =
        json!({"jobName": "j", "jobHandler": "h", "trigger": {"type": "once", "at": "2020-01-01T00:00:00Z"}});
    let id = id_of(&submitted(&api, &body).await?)?;
    let job = jobs::get(&mut *store.reader().await?, id.parse()?).await?;
    let job = job.context("the job")?;
    let after = |ms| job.created_at + Duration::from_millis(ms);
    let mut ended = given::execution(&job, ExecutionStatus::Succeeded);
    ended.scheduled_time = EpochMillis(1_577_836_800_000);
    ended.due_at = Some(ended.scheduled_time);
    ended.created_at = after(10);
    ended.started_at = Some(after(30));
    ended.finished_at = Some(after(70));
    given::insert(store, &[], std::slice::from_ref(&ended)).await?;
    let measured = async || {
        let total = api.get("/openapi/stats").await?.json()["total"].clone();
        let most = |name: &str| total[name]["max"].clone();
        anyhow::Ok([most("latenessMs"), most("queueWaitMs"), most("totalMs")])
    };
    assert_eq!(measured().await?, [json!(10), json!(30), json!(70)]);
    // What was submitted in time and fired late still counts in full.
    sqlx::query("update job_info set created_at = ?")
        .bind(ended.scheduled_time.0 - 1)
        .execute(&mut *store.reader().await?)
        .await?;
    let late = after(10).0 - ended.scheduled_time.0;
    assert_eq!(measured().await?[0], json!(late));
    api.stop().await
}

async fn a_running_job_shows_that_its_cancel_was_requested(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let id = id_of(&submitted(&api, &manual()).await?)?;
    let job = jobs::get(&mut *store.reader().await?, id.parse()?).await?;
    let running = given::execution(&job.context("the job")?, ExecutionStatus::Running);
    given::insert(store, &[], std::slice::from_ref(&running)).await?;
    let path = format!("/openapi/jobs/{id}");
    let before = api.get(&path).await?.json();
    assert_eq!(before["lastExecution"].get("cancelRequestedAt"), None);
    let cancel = Answer::of(api.request(Method::POST, &format!("{path}/cancel"))).await?;
    assert_eq!(cancel.status, 202, "{}", cancel.text);
    let shown = api.get(&path).await?.json();
    let execution = api
        .get(&format!("/openapi/executions/{}", running.id))
        .await?
        .json();
    let requested = &shown["lastExecution"]["cancelRequestedAt"];
    ensure!(requested.is_string(), "{shown}");
    assert_eq!(&execution["cancelRequestedAt"], requested);
    assert_eq!(execution["status"], "RUNNING");
    api.stop().await
}
