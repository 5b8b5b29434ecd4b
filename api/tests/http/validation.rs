//! Whatever is wrong with a submission is refused by name, and nothing is stored.

use crate::served::Served;
use anyhow::{Context, Result, ensure};
use isocost_common::test_support::TestStore;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

isocost_common::store_tests! {
    every_bad_value_is_refused_by_name_and_stores_nothing,
    everything_wrong_is_named_at_once,
    cr05_right_expressions_are_accepted_and_previewed_alike,
    cr09_wrong_expressions_are_refused_by_field,
    cr11_the_next_time_is_in_the_zone_of_the_job,
    cr13_an_empty_schedule_and_an_unknown_zone_are_refused,
    cr20_rare_dates_are_planned_within_200_ms,
}

/// The body with `field` set to `text`, and where the error must point.
fn bad_values() -> Vec<(&'static str, String, &'static str)> {
    let cases: &[(&str, &str, &str)] = &[
        ("clientRequestId", "\"\"", "/clientRequestId"),
        ("clientRequestId", "\"a\\u0000b\"", "/clientRequestId"),
        ("clientRequestId", "7", "/clientRequestId"),
        ("jobName", "\"\"", "/jobName"),
        ("jobName", "null", "/jobName"),
        ("jobName", "\"\\ud800\"", "/jobName"),
        ("jobName", "\"line\\nbreak\"", "/jobName"),
        ("jobHandler", "\"a b\"", "/jobHandler"),
        ("jobHandler", "\"\"", "/jobHandler"),
        ("jobHandler", "\"hänsel\"", "/jobHandler"),
        ("trigger", "\"once\"", "/trigger"),
        ("trigger", "{}", "/trigger/type"),
        ("trigger", "{\"type\":\"crom\",\"expr\":\"x\"}", "/trigger/type"),
        (
            "trigger",
            "{\"type\":\"once\",\"at\":\"tomorrow\"}",
            "/trigger/at",
        ),
        (
            "trigger",
            "{\"type\":\"once\",\"at\":\"1969-12-31T23:59:59Z\"}",
            "/trigger/at",
        ),
        (
            "trigger",
            "{\"type\":\"once\",\"at\":\"2026-12-01T00:00:00Z\",\"delayMs\":1}",
            "/trigger/delayMs",
        ),
        (
            "trigger",
            "{\"type\":\"once\",\"delayMs\":-1}",
            "/trigger/delayMs",
        ),
        (
            "trigger",
            "{\"type\":\"once\",\"delayMs\":9007199254740992}",
            "/trigger/delayMs",
        ),
        (
            "trigger",
            "{\"type\":\"once\",\"delayMs\":1.5}",
            "/trigger/delayMs",
        ),
        ("trigger", "{\"type\":\"once\",\"delayMS\":1}", "/trigger/delayMS"),
        ("trigger", "{\"type\":\"cron\"}", "/trigger/expr"),
        (
            "trigger",
            "{\"type\":\"cron\",\"expr\":\"0 0 30 2 *\"}",
            "/trigger/expr",
        ),
        (
            "trigger",
            "{\"type\":\"cron\",\"expr\":\"0 0 12 * * ? 2020\"}",
            "/trigger",
        ),
        (
            "trigger",
            "{\"type\":\"cron\",\"expr\":\"@daily\",\"timeZone\":\"Mars/Olympus\"}",
            "/trigger/timeZone",
        ),
        (
            "trigger",
            "{\"type\":\"cron\",\"expr\":\"@daily\",\"dialect\":\"vixie\"}",
            "/trigger/dialect",
        ),
        ("trigger", "{\"type\":\"fixedRate\"}", "/trigger/everyMs"),
        (
            "trigger",
            "{\"type\":\"fixedRate\",\"everyMs\":99}",
            "/trigger/everyMs",
        ),
        (
            "trigger",
            "{\"type\":\"fixedDelay\",\"everyMs\":1}",
            "/trigger/everyMs",
        ),
        (
            "trigger",
            "{\"type\":\"fixedDelay\",\"everyMs\":\"1s\"}",
            "/trigger/everyMs",
        ),
        (
            "trigger",
            "{\"type\":\"manual\",\"everyMs\":1}",
            "/trigger/everyMs",
        ),
        ("trigger", "{\"type\":\"after\"}", "/trigger/jobId"),
        (
            "trigger",
            "{\"type\":\"after\",\"jobId\":\"x\"}",
            "/trigger/jobId",
        ),
        (
            "trigger",
            "{\"type\":\"after\",\"jobId\":\"01939c5e-7e2a-7000-8000-000000000000\"}",
            "/trigger/jobId",
        ),
        (
            "trigger",
            "{\"type\":\"manual\",\"type\":\"manual\"}",
            "/trigger/type",
        ),
        ("timeZone", "\"UTC\"", "/timeZone"),
        ("startAt", "\"2026-12-01\"", "/startAt"),
        ("startAt", "1796083200000", "/startAt"),
        ("endAt", "\"2020-01-01T00:00:00Z\"", "/endAt"),
        ("jobName", "\"  \\u3000 \"", "/jobName"),
        ("concurrencyKey", "\"   \"", "/concurrencyKey"),
        ("priority", "10", "/priority"),
        ("priority", "-1", "/priority"),
        ("priority", "\"5\"", "/priority"),
        ("timeoutMs", "0", "/timeoutMs"),
        ("timeoutMs", "9007199254740992", "/timeoutMs"),
        ("startDeadlineMs", "0", "/startDeadlineMs"),
        ("retry", "3", "/retry"),
        ("retry", "{\"maxAttempts\":0}", "/retry/maxAttempts"),
        ("retry", "{\"maxAttempts\":101}", "/retry/maxAttempts"),
        ("retry", "{\"backoff\":\"linear\"}", "/retry/backoff"),
        ("retry", "{\"initialMs\":5,\"maxMs\":4}", "/retry/maxMs"),
        ("retry", "{\"maxattempts\":3}", "/retry/maxattempts"),
        ("misfire", "{\"policy\":\"never\"}", "/misfire/policy"),
        ("misfire", "{\"maxCatchUp\":1001}", "/misfire/maxCatchUp"),
        ("concurrency", "\"Serial\"", "/concurrency"),
        ("shards", "0", "/shards"),
        ("shards", "1001", "/shards"),
        ("selector", "[]", "/selector"),
        ("selector", "{\"zone\":1}", "/selector/zone"),
        ("labels", "{\"a:b\":\"c\"}", "/labels"),
        ("labels", "{\"a/b\":1}", "/labels/a~1b"),
        ("concurrencyKey", "\"\"", "/concurrencyKey"),
        ("callbackUrl", "\"example.com/hook\"", "/callbackUrl"),
        ("callbackUrl", "\"ftp://example.com/\"", "/callbackUrl"),
        ("callbackUrl", "\"https://u:p@example.com/\"", "/callbackUrl"),
        ("callbackUrl", "\"http://127.0.0.1/\"", "/callbackUrl"),
        ("callbackUrl", "\"http://[::ffff:10.0.0.1]/\"", "/callbackUrl"),
        ("callbackURL", "\"https://example.com/\"", "/callbackURL"),
    ];
    let mut all: Vec<_> = cases
        .iter()
        .map(|(field, text, at)| (*field, (*text).to_owned(), *at))
        .collect();
    all.push((
        "clientRequestId",
        json!("x".repeat(256)).to_string(),
        "/clientRequestId",
    ));
    all.push((
        "clientRequestId",
        json!("😀".repeat(64)).to_string(),
        "/clientRequestId",
    ));
    all.push(("jobName", json!("x".repeat(129)).to_string(), "/jobName"));
    all.push(("jobHandler", json!("x".repeat(256)).to_string(), "/jobHandler"));
    all.push((
        "callbackUrl",
        json!(format!("https://example.com/{}", "x".repeat(2_048))).to_string(),
        "/callbackUrl",
    ));
    all
}

async fn every_bad_value_is_refused_by_name_and_stores_nothing(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    for (field, text, pointer) in bad_values() {
        let mut members = vec![format!("\"{field}\":{text}")];
        for (name, right) in [("jobName", "\"j\""), ("jobHandler", "\"h\"")] {
            if name != field {
                members.push(format!("\"{name}\":{right}"));
            }
        }
        let answer = api
            .post_text("/openapi/jobs", &format!("{{{}}}", members.join(",")))
            .await?;
        assert_eq!(answer.status, 400, "{field}: {text}: {}", answer.text);
        let problem = answer.json();
        let errors = problem["errors"].as_array().context("errors")?;
        let found = errors.iter().find(|error| error["pointer"] == pointer);
        let found =
            found.with_context(|| format!("{field}: {text}: no error at {pointer}: {}", answer.text))?;
        let message = found["message"].as_str().unwrap_or_default();
        let name = found["field"].as_str().unwrap_or_default();
        ensure!(
            !name.is_empty() && message.len() > name.len(),
            "{field}: {text}: {}",
            answer.text
        );
        ensure!(
            found["code"].as_str().is_some_and(|code| code.contains('.')),
            "{}",
            answer.text
        );
    }
    assert_eq!(api.job_count().await?, 0);
    api.stop().await
}

async fn everything_wrong_is_named_at_once(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let body = r#"{"jobname":"x","jobHandler":"a b","priority":11,"priority":5,"retry":{"maxAttempts":0},
                   "trigger":{"type":"cron","expr":"0 0 25 * * ?"}}"#;
    let problem = api.post_text("/openapi/jobs", body).await?.json();
    let errors = problem["errors"].as_array().cloned().unwrap_or_default();
    let mut places: Vec<_> = errors
        .iter()
        .filter_map(|error| error["pointer"].as_str())
        .collect();
    places.sort_unstable();
    assert_eq!(
        places,
        [
            "/jobHandler",
            "/jobName",
            "/jobname",
            "/priority",
            "/priority",
            "/retry/maxAttempts",
            "/trigger/expr"
        ]
    );
    let unknown = errors
        .iter()
        .find(|error| error["pointer"] == "/jobname")
        .context("the unknown field")?;
    ensure!(
        unknown["message"]
            .as_str()
            .is_some_and(|text| text.contains("did you mean `jobName`?")),
        "{unknown}"
    );
    let cron = errors
        .iter()
        .find(|error| error["pointer"] == "/trigger/expr")
        .context("the expression")?;
    assert_eq!(
        (&cron["field"], &cron["code"]),
        (&json!("hour"), &json!("cron.field-out-of-range"))
    );
    api.stop().await
}

async fn cr05_right_expressions_are_accepted_and_previewed_alike(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let every = |last: usize| {
        (0..=last)
            .step_by(2)
            .map(|n| n.to_string())
            .collect::<Vec<_>>()
            .join(",")
    };
    let long = format!("0 {} {} ? * MON", every(58), every(22));
    assert_eq!(long.len(), 125);
    for expr in [
        "0 10/40 22 ? * 1",
        "0 0 3 1 2/3 ?",
        "0 20/5 12,15,18 ? * 2,3,4,5",
        &long,
    ] {
        let answer = api
            .post(
                "/openapi/jobs",
                &json!({"jobName": "j", "jobHandler": "h", "cronExpr": expr}),
            )
            .await?;
        assert_eq!(answer.status, 202, "{expr}: {}", answer.text);
        let preview = preview(&api, expr, "UTC").await?;
        assert_eq!(preview["next"].as_array().map(Vec::len), Some(5), "{preview}");
        assert_eq!(preview["next"][0], answer.json()["nextTriggerTime"], "{expr}");
    }
    api.stop().await
}

async fn preview(api: &Served, expr: &str, zone: &str) -> Result<Value> {
    let query: String = url::form_urlencoded::Serializer::new(String::new())
        .append_pair("expr", expr)
        .append_pair("timeZone", zone)
        .finish();
    let answer = api.get(&format!("/openapi/cron/next?{query}")).await?;
    assert_eq!(answer.status, 200, "{}", answer.text);
    Ok(answer.json())
}

async fn cr09_wrong_expressions_are_refused_by_field(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    for (expr, dialect, field) in [
        ("0 0 12 * * ? 2026 1", None, "cronExpr"),
        ("0 0 25 * * ?", None, "hour"),
        ("0 0 12 * *  ", Some("quartz"), "dayOfWeek"),
        ("abc", None, "cronExpr"),
    ] {
        let mut body = json!({"jobName": "j", "jobHandler": "h", "cronExpr": expr});
        if let Some(dialect) = dialect {
            body["dialect"] = json!(dialect);
        }
        let answer = api.post("/openapi/jobs", &body).await?;
        assert_eq!(answer.status, 400, "{expr}: {}", answer.text);
        let error = answer.json()["errors"][0].clone();
        assert_eq!(
            (&error["field"], &error["pointer"]),
            (&json!(field), &json!("/cronExpr")),
            "{expr}"
        );
    }
    assert_eq!(api.job_count().await?, 0);
    api.stop().await
}

async fn cr11_the_next_time_is_in_the_zone_of_the_job(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let trigger = json!({"type": "cron", "expr": "0 48 10 ? * WED", "timeZone": "America/Phoenix"});
    let answer = api
        .post(
            "/openapi/jobs",
            &json!({"jobName": "j", "jobHandler": "h", "trigger": trigger}),
        )
        .await?;
    let next = answer.json()["nextTriggerTime"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    ensure!(next.ends_with("T17:48:00.000Z"), "{next}");
    let shown = api.get(answer.header("location")).await?.json();
    assert_eq!(shown["nextTriggerTime"], json!(next));
    assert_eq!(
        preview(&api, "0 48 10 ? * WED", "America/Phoenix").await?["next"][0],
        json!(next)
    );
    api.stop().await
}

async fn cr13_an_empty_schedule_and_an_unknown_zone_are_refused(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    for (expr, zone) in [
        ("", "UTC"),
        ("   ", "UTC"),
        ("0 0 3 * * ?", "Mars/Olympus"),
        ("0 0 3 * * ?", ""),
    ] {
        let body = json!({"jobName": "j", "jobHandler": "h", "cronExpr": expr, "timeZone": zone});
        let answer = api.post("/openapi/jobs", &body).await?;
        assert_eq!(answer.status, 400, "{expr:?} {zone:?}: {}", answer.text);
    }
    assert_eq!(api.job_count().await?, 0);
    api.stop().await
}

async fn cr20_rare_dates_are_planned_within_200_ms(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    for (expr, day) in [
        ("0 0 0 29 2 ?", "2028-02-29T00:00"),
        ("0 0 8 ? 2 MON#5", "2044-02-29T08:00"),
    ] {
        let body = json!({"jobName": "j", "jobHandler": "h", "cronExpr": expr});
        // The quickest of a few: the machine may be busy with other tests, and the search is the same each time.
        let mut quickest = Duration::MAX;
        for _ in 0..5 {
            let asked = Instant::now();
            let answer = api.post("/openapi/jobs", &body).await?;
            quickest = quickest.min(asked.elapsed());
            assert_eq!(answer.status, 202, "{}", answer.text);
        }
        ensure!(quickest.as_millis() < 200, "{expr} took {quickest:?}");
        let answer = api.post("/openapi/jobs", &body).await?;
        let next = answer.json()["nextTriggerTime"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        ensure!(next.starts_with(day), "{expr}: {next}");
    }
    api.stop().await
}
