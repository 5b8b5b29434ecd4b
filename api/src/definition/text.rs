use isocost_common::{
    job::{ConcurrencyPolicy, Misfire, RetryPolicy, Selector, Trigger},
    raw_json::RawJson,
    store::jobs::JobRow,
    time::EpochMillis,
};
use serde::Serialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// A stored job in the form of a submission: what a merge patch is applied to.
///
/// # Errors
/// The serialiser's error, which our types do not have.
pub(crate) fn text_of(job: &JobRow) -> Result<Box<RawValue>, serde_json::Error> {
    serde_json::value::to_raw_value(&Text {
        job_name: &job.name,
        job_handler: &job.handler,
        params: &job.params,
        trigger: &job.trigger,
        start_at: job.start_at,
        end_at: job.end_at,
        priority: job.priority,
        timeout_ms: job.timeout_ms,
        start_deadline_ms: job.start_deadline_ms,
        retry: job.retry,
        misfire: job.misfire,
        concurrency: job.concurrency,
        concurrency_key: job.concurrency_key.as_deref(),
        shards: job.shards,
        selector: &job.selector,
        labels: &job.labels,
        callback_url: job.callback_url.as_deref(),
    })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Text<'a> {
    job_name: &'a str,
    job_handler: &'a str,
    params: &'a RawJson,
    trigger: &'a Trigger,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_at: Option<EpochMillis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_at: Option<EpochMillis>,
    priority: u8,
    timeout_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    start_deadline_ms: Option<i64>,
    retry: RetryPolicy,
    misfire: Misfire,
    concurrency: ConcurrencyPolicy,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency_key: Option<&'a str>,
    shards: u32,
    selector: &'a Selector,
    labels: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    callback_url: Option<&'a str>,
}
