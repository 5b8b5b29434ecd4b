use crate::served::Served;
use anyhow::{Context, Result, ensure};
use isocost_common::test_support::TestStore;
use serde_json::{Value, json};
use std::collections::BTreeSet;

isocost_common::store_tests! {
    ap02_filters_are_data_and_never_sql,
    pages_hold_every_job_once,
    filters_find_what_they_say,
    statuses_of_many_jobs_come_in_the_order_asked_for,
    an_execution_shows_its_steps_in_order_of_time,
}

async fn submit(api: &Served, body: Value) -> Result<String> {
    let answer = api.post("/openapi/jobs", &body).await?;
    assert_eq!(answer.status, 202, "{}", answer.text);
    Ok(answer.json()["jobId"].as_str().context("an id")?.to_owned())
}

fn named(name: &str) -> Value {
    json!({"jobName": name, "jobHandler": "h", "trigger": {"type": "manual"}})
}

fn query(pairs: &[(&str, &str)]) -> String {
    url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs(pairs)
        .finish()
}

async fn names(api: &Served, pairs: &[(&str, &str)]) -> Result<BTreeSet<String>> {
    let answer = api.get(&format!("/openapi/jobs?{}", query(pairs))).await?;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let items = answer.json()["items"].as_array().cloned().unwrap_or_default();
    Ok(items
        .iter()
        .filter_map(|job| job["jobName"].as_str())
        .map(str::to_owned)
        .collect())
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

async fn ap02_filters_are_data_and_never_sql(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    for name in ["plain", "100%", "under_score", "' OR 1=1 -- "] {
        submit(&api, named(name)).await?;
    }
    for (name, text) in [
        ("status", "id;DROP TABLE x"),
        ("pageToken", "../../x"),
        ("pageToken", "am9iczp4"),
        ("pageSize", "-1"),
        ("pageSize", "100000"),
        ("pageSize", "0"),
        ("label", "no-colon"),
    ] {
        let answer = api
            .get(&format!("/openapi/jobs?{}", query(&[(name, text)])))
            .await?;
        assert_eq!(answer.status, 400, "{name}={text}: {}", answer.text);
        assert_eq!(answer.json()["errors"][0]["field"], name);
        ensure!(!answer.text.to_lowercase().contains("sql"), "{}", answer.text);
    }
    assert_eq!(
        names(&api, &[("name", "' OR 1=1 -- ")]).await?,
        set(&["' OR 1=1 -- "])
    );
    assert_eq!(names(&api, &[("name", "%")]).await?, set(&["100%"]));
    assert_eq!(names(&api, &[("name", "_")]).await?, set(&["under_score"]));
    assert_eq!(names(&api, &[("name", "PLAIN")]).await?, set(&[]));
    assert_eq!(api.job_count().await?, 4);
    api.stop().await
}

async fn pages_hold_every_job_once(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let jobs: Vec<Value> = (0..25).map(|number| named(&format!("job {number}"))).collect();
    api.post("/openapi/jobs/batch", &json!({ "jobs": jobs })).await?;
    let mut seen = Vec::new();
    let mut path = "/openapi/jobs?pageSize=10".to_owned();
    loop {
        let page = api.get(&path).await?.json();
        let items = page["items"].as_array().context("items")?;
        seen.extend(
            items
                .iter()
                .filter_map(|job| job["jobId"].as_str())
                .map(str::to_owned),
        );
        let Some(token) = page["nextPageToken"].as_str() else {
            break;
        };
        assert_eq!(items.len(), 10);
        path = format!("/openapi/jobs?pageSize=10&{}", query(&[("pageToken", token)]));
    }
    let mut newest_first = seen.clone();
    newest_first.sort_unstable_by(|left, right| right.cmp(left));
    newest_first.dedup();
    assert_eq!(seen, newest_first);
    assert_eq!(seen.len(), 25);
    api.stop().await
}

async fn filters_find_what_they_say(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    submit(&api, json!({"jobName": "one", "jobHandler": "mail", "labels": {"team": "a"}, "trigger": {"type": "manual"}})).await?;
    submit(&api, json!({"jobName": "two", "jobHandler": "http", "labels": {"team": "b"}, "trigger": {"type": "manual"}})).await?;
    let paused = submit(&api, named("three")).await?;
    let answer = api
        .post(&format!("/openapi/jobs/{paused}/pause"), &Value::Null)
        .await?;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(names(&api, &[("handler", "mail")]).await?, set(&["one"]));
    assert_eq!(names(&api, &[("label", "team:b")]).await?, set(&["two"]));
    assert_eq!(names(&api, &[("status", "PAUSED")]).await?, set(&["three"]));
    assert_eq!(names(&api, &[("status", "WAITING")]).await?, set(&["one", "two"]));
    assert_eq!(names(&api, &[("status", "RUNNING")]).await?, set(&[]));
    assert_eq!(
        names(&api, &[("status", "WAITING"), ("handler", "http")]).await?,
        set(&["two"])
    );
    api.stop().await
}

async fn statuses_of_many_jobs_come_in_the_order_asked_for(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let (first, second) = (submit(&api, named("a")).await?, submit(&api, named("b")).await?);
    let nobody = "01939c5e-7e2a-7000-8000-000000000000";
    let asked = json!({"jobIds": [second, nobody, first, second]});
    let answer = api.post("/openapi/jobs/status", &asked).await?.json();
    let ids: Vec<_> = answer["items"]
        .as_array()
        .context("items")?
        .iter()
        .map(|job| job["jobId"].clone())
        .collect();
    assert_eq!(ids, [json!(second), json!(first)]);
    assert_eq!(answer["notFound"], json!([nobody]));
    api.stop().await
}

async fn an_execution_shows_its_steps_in_order_of_time(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let job = submit(&api, named("steps")).await?;
    let run = api
        .post(
            &format!("/openapi/jobs/{job}/trigger"),
            &json!({"params": {"n": 1.50}}),
        )
        .await?;
    assert_eq!(run.status, 202, "{}", run.text);
    let execution = run.json()["executionId"]
        .as_str()
        .context("an execution")?
        .to_owned();
    let cancelled = api
        .post(&format!("/openapi/executions/{execution}/cancel"), &Value::Null)
        .await?;
    assert_eq!(
        (cancelled.status.as_u16(), &cancelled.json()["status"]),
        (200, &json!("CANCELLED"))
    );
    let shown = api.get(&format!("/openapi/executions/{execution}")).await?;
    ensure!(
        shown.text.contains("1.50") || shown.text.contains("1.5"),
        "{}",
        shown.text
    );
    let shown = shown.json();
    let steps = shown["steps"].as_array().context("steps")?;
    let words: Vec<_> = steps.iter().filter_map(|step| step["step"].as_str()).collect();
    assert_eq!(words, ["SUBMITTED", "DUE", "PENDING", "CANCELLED"]);
    let times: Vec<_> = steps.iter().filter_map(|step| step["at"].as_str()).collect();
    ensure!(times.is_sorted(), "{times:?}");
    let logs = api
        .get(&format!("/openapi/executions/{execution}/logs"))
        .await?
        .json();
    assert_eq!((&logs["items"], &logs["ended"]), (&json!([]), &json!(true)));
    let of_job = api
        .get(&format!("/openapi/jobs/{job}/executions?status=CANCELLED"))
        .await?
        .json();
    assert_eq!(of_job["items"][0]["executionId"], json!(execution));
    assert_eq!(of_job["items"][0]["triggeredBy"], "manual");
    let stats = api.get("/openapi/stats?window=1h").await?.json();
    assert_eq!(stats["total"]["finished"]["CANCELLED"], 1);
    api.stop().await
}
