//! Cron jobs in the running product. What an expression means is tested where it is read.

use anyhow::{Context, Result};
use chrono::{DateTime, Datelike, Timelike, Utc};
use isocost_tests::api::{Api, instant_ms, items};
use isocost_tests::database;
use isocost_tests::jobs::{LONG, cron, once, wait_for_end, wait_for_execution, with};
use isocost_tests::patience::{eventually, never};
use isocost_tests::site::Site;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const TWO_WEEKS_MS: i64 = 14 * 24 * 3_600_000;

/// An expression that fires once, at this second.
fn only_at(instant: DateTime<Utc>) -> String {
    format!(
        "{} {} {} {} {} ? {}",
        instant.second(),
        instant.minute(),
        instant.hour(),
        instant.day(),
        instant.month(),
        instant.year()
    )
}

async fn healthy_jobs(api: &Api, count: usize) -> Result<Vec<String>> {
    api.submit_batch(&vec![cron("noop", "* * * * * ?"); count]).await
}

async fn all_fire(api: &Api, jobs: &[String]) -> Result<()> {
    for job in jobs {
        wait_for_execution(api, job, "SUCCEEDED").await?;
    }
    Ok(())
}

#[tokio::test]
async fn cr02_a_planned_time_in_the_gap_of_a_clock_change_stops_nobody() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let healthy = healthy_jobs(process.api(), 9).await?;
    let nightly =
        json!({ "trigger": { "type": "cron", "expr": "0 2 * * *", "timeZone": "America/New_York" } });
    let nightly = process.api().submit(&with(once("noop"), nightly)).await?;
    process.stop().await?;
    // As the night before the gap left it: due at an instant that New York's wall clock skipped.
    let gap = "2025-03-09T02:30:00-05:00"
        .parse::<DateTime<Utc>>()?
        .timestamp_millis();
    let rewritten = "update job_info set next_trigger_time = ? where id = ?";
    database::execute(&site, rewritten, &[gap.to_string(), nightly.clone()]).await?;

    let process = site.start().await?;
    let api = process.api();
    all_fire(api, &healthy).await?;
    let job = eventually("the night job is planned again", LONG, async || {
        let job = api.job(&nightly).await?;
        let is_planned =
            instant_ms(&job, "nextTriggerTime").is_ok_and(|next| next > Utc::now().timestamp_millis());
        Ok(is_planned.then_some(job))
    })
    .await?;
    let expected = api
        .get("/openapi/cron/next?expr=0%202%20*%20*%20*&timeZone=America/New_York&count=1")
        .await?
        .success()?;
    assert_eq!(job["nextTriggerTime"], expected["next"][0]);
    process.stop().await?;
    assert!(!site.log()?.contains("panicked"));
    Ok(())
}

#[tokio::test]
async fn cr04_a_manual_run_is_one_run_and_leaves_the_plan_alone() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let api = process.api();
    let trigger = json!({ "type": "cron", "expr": "0 0 3 * * ?", "timeZone": "Asia/Shanghai" });
    let job = api
        .submit(&with(once("noop"), json!({ "trigger": trigger })))
        .await?;
    let planned = api.job(&job).await?["nextTriggerTime"].clone();
    let answer = api
        .post(&format!("/openapi/jobs/{job}/trigger"), &json!({}))
        .await?;
    assert_eq!(answer.status, 202, "{}", answer.text);
    let execution = wait_for_execution(api, &job, "SUCCEEDED").await?;
    assert_eq!(execution["executionId"], answer.json()["executionId"]);
    assert_eq!(execution["triggeredBy"], "manual", "{execution}");
    never(
        "a second run, or another plan",
        Duration::from_secs(3),
        async || {
            let executions = api.executions(&job).await?.len();
            let next = api.job(&job).await?["nextTriggerTime"].clone();
            Ok((executions != 1 || next != planned).then_some((executions, next)))
        },
    )
    .await?;
    process.stop().await
}

#[tokio::test]
async fn cr09_a_wrong_expression_is_refused_with_the_field_and_nothing_is_stored() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let api = process.api();
    for wrong in ["0 0 12 * * ? 2026 1", "0 0 25 * * ?", "0 0 12 * *  ", "abc"] {
        let mut job = json!({ "jobName": "n", "jobHandler": "noop", "cronExpr": wrong });
        if wrong.starts_with("0 0 12 * *  ") {
            job = with(
                once("noop"),
                json!({ "trigger": { "type": "cron", "expr": wrong, "dialect": "quartz" } }),
            );
        }
        let answer = api.post("/openapi/jobs", &job).await?;
        assert_eq!(answer.status, 400, "{wrong}: {}", answer.text);
        let errors = answer.json()["errors"].clone();
        assert!(
            errors[0]["message"].is_string() && errors[0]["field"].is_string(),
            "{wrong}: {errors}"
        );
    }
    assert!(items(api.get("/openapi/jobs").await?.success()?)?.is_empty());
    process.stop().await
}

#[tokio::test]
async fn cr11_the_shown_time_is_the_time_of_firing_in_the_zone_of_the_job() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let api = process.api();
    // Phoenix has no clock changes: always seven hours behind.
    let at = Utc::now() + Duration::from_secs(4);
    let expr = only_at(at - Duration::from_secs(7 * 3_600));
    let trigger = json!({ "type": "cron", "expr": expr, "timeZone": "America/Phoenix" });
    let job = api
        .submit(&with(once("noop"), json!({ "trigger": trigger })))
        .await?;
    let shown = instant_ms(&api.job(&job).await?, "nextTriggerTime")?;
    assert_eq!(shown / 1_000, at.timestamp());
    let path = format!(
        "/openapi/cron/next?expr={}&timeZone=America/Phoenix&count=1",
        expr.replace(' ', "%20").replace('?', "%3F")
    );
    let preview = api.get(&path).await?.success()?;
    let preview = preview["next"][0]
        .as_str()
        .context("a preview")?
        .parse::<DateTime<Utc>>()?;
    assert_eq!(preview.timestamp_millis(), shown);
    let execution = wait_for_execution(api, &job, "SUCCEEDED").await?;
    assert_eq!(instant_ms(&execution, "scheduledTime")?, shown);
    assert!(instant_ms(&execution, "startedAt")? >= shown, "{execution}");
    process.stop().await
}

#[tokio::test]
async fn cr13_two_rows_that_cannot_be_evaluated_stop_nobody_and_are_shown_as_invalid() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let healthy = healthy_jobs(process.api(), 20).await?;
    let broken = healthy_jobs(process.api(), 2).await?;
    process.stop().await?;
    for (job, trigger) in [
        (
            &broken[0],
            r#"{"type":"cron","expr":"","timeZone":"UTC","dialect":"quartz"}"#,
        ),
        (
            &broken[1],
            r#"{"type":"cron","expr":"* * * * * ?","timeZone":"Mars/Olympus","dialect":"quartz"}"#,
        ),
    ] {
        let rewritten = "update job_info set trigger_spec = ? where id = ?";
        database::execute(&site, rewritten, &[trigger.to_owned(), job.clone()]).await?;
    }

    let process = site.start().await?;
    let api = process.api();
    all_fire(api, &healthy).await?;
    for job in &broken {
        let job = eventually("the job is INVALID", LONG, async || {
            let job = api.job(job).await?;
            Ok((job["status"] == "INVALID").then_some(job))
        })
        .await?;
        assert!(job["invalidReason"].is_string(), "{job}");
    }
    for (expr, zone) in [("", "UTC"), ("* * * * * ?", "Mars/Olympus")] {
        let trigger = json!({ "type": "cron", "expr": expr, "timeZone": zone });
        let answer = api
            .post(
                "/openapi/jobs",
                &with(once("noop"), json!({ "trigger": trigger })),
            )
            .await?;
        assert_eq!(answer.status, 400, "`{expr}` in {zone}: {}", answer.text);
    }
    process.stop().await
}

#[tokio::test]
async fn cr14_after_a_long_stop_a_skipping_job_goes_on_at_the_next_instant() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let job = with(
        cron("noop", "*/5 * * * * ?"),
        json!({ "misfire": { "policy": "skip" } }),
    );
    let job = process.api().submit(&job).await?;
    process.stop().await?;
    let rewritten = "update job_info set next_trigger_time = next_trigger_time - ? where id = ?";
    database::execute(&site, rewritten, &[TWO_WEEKS_MS.to_string(), job.clone()]).await?;

    let (started_at, from) = (Utc::now().timestamp_millis(), Instant::now());
    let process = site.start().await?;
    assert!(
        from.elapsed() < Duration::from_secs(5),
        "the start took {:?}",
        from.elapsed()
    );
    wait_for_execution(process.api(), &job, "SUCCEEDED").await?;
    let executions = process.api().executions(&job).await?;
    assert!(executions.len() <= 3, "caught up: {executions:?}");
    for execution in &executions {
        let scheduled = instant_ms(execution, "scheduledTime")?;
        assert_eq!(scheduled % 5_000, 0, "{execution}");
        // One may have fired before the stop.
        assert!(scheduled > started_at - 10_000, "{execution}");
    }
    process.stop().await
}

#[tokio::test]
async fn du03_a_schedule_with_one_instant_fires_once_and_is_then_complete() -> Result<()> {
    let site = Site::with_ledger()?;
    let process = site.start().await?;
    let api = process.api();
    let job = api
        .submit(&cron("ledger", &only_at(Utc::now() + Duration::from_secs(3))))
        .await?;
    let ended = wait_for_end(api, &job).await?;
    assert_eq!(ended["status"], "COMPLETED", "{ended}");
    assert_eq!(ended["nextTriggerTime"], Value::Null, "{ended}");
    never("a second firing", Duration::from_secs(2), async || {
        let executions = api.executions(&job).await?;
        Ok((executions.len() != 1).then_some(executions))
    })
    .await?;
    process.stop().await?;
    assert_eq!(site.ledger().len()?, 1);
    Ok(())
}
