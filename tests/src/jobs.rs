//! Jobs to submit, and waiting for their end.

use anyhow::Result;
use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use std::time::Duration;

use crate::{api::Api, patience::eventually};

/// Far more than anything here takes, for a busy machine.
pub const LONG: Duration = Duration::from_secs(30);

/// A job of a handler, run once, now.
#[must_use]
pub fn once(handler: &str) -> Value {
    json!({ "jobName": format!("test of {handler}"), "jobHandler": handler })
}

/// A job that fires by a cron expression in UTC.
#[must_use]
pub fn cron(handler: &str, expr: &str) -> Value {
    with(
        once(handler),
        json!({ "trigger": { "type": "cron", "expr": expr, "timeZone": "UTC" } }),
    )
}

/// A one-shot job that is due at an instant.
#[must_use]
pub fn due_together(handler: &str, at: DateTime<Utc>) -> Value {
    let trigger = json!({ "trigger": { "type": "once", "at": at.to_rfc3339() } });
    with(once(handler), trigger)
}

/// A cron job that fires at an instant, to the second, and not again for a year.
#[must_use]
pub fn fires_together(handler: &str, at: DateTime<Utc>) -> Value {
    cron(handler, &at.format("%-S %-M %-H %-d %-m ?").to_string())
}

/// With further fields, or others for those it has.
#[must_use]
pub fn with(mut job: Value, fields: Value) -> Value {
    if let (Value::Object(job), Value::Object(fields)) = (&mut job, fields) {
        job.extend(fields);
    }
    job
}

/// Waits until a one-shot job has ended, and returns it.
///
/// # Errors
/// When it does not end in time.
pub async fn wait_for_end(api: &Api, job: &str) -> Result<Value> {
    eventually(&format!("job {job} ends"), LONG, async || {
        let job = api.job(job).await?;
        let has_ended = matches!(
            job["status"].as_str(),
            Some("SUCCESS" | "FAILED" | "CANCELLED" | "COMPLETED")
        );
        Ok(has_ended.then_some(job))
    })
    .await
}

/// Waits until a job has an execution in this status, and returns that execution.
///
/// # Errors
/// When none gets there in time.
pub async fn wait_for_execution(api: &Api, job: &str, status: &str) -> Result<Value> {
    eventually(
        &format!("an execution of job {job} is {status}"),
        LONG,
        async || {
            let executions = api.executions(job).await?;
            Ok(executions
                .into_iter()
                .find(|execution| execution["status"] == status))
        },
    )
    .await
}
