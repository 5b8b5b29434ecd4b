//! Rows for unit tests.

use isocost_common::{
    id::{AppId, JobId},
    job::{ConcurrencyPolicy, JobStatus, Misfire, RetryPolicy, Selector, Trigger},
    raw_json::RawJson,
    store::jobs::JobRow,
    time::EpochMillis,
};
use std::collections::BTreeMap;

/// A job of no special kind, for `..job()`.
pub(crate) fn job() -> JobRow {
    JobRow {
        id: JobId::generate(),
        app: AppId::generate(),
        name: "a job".into(),
        handler: "noop".into(),
        params: RawJson::null(),
        trigger: Trigger::Manual {},
        start_at: None,
        end_at: None,
        next_trigger_time: None,
        status: JobStatus::Waiting,
        invalid_reason: None,
        version: 1,
        definition_version: 1,
        client_request_id: None,
        content_hash: String::new(),
        callback_url: None,
        priority: 5,
        timeout_ms: 600_000,
        start_deadline_ms: None,
        retry: RetryPolicy::default(),
        misfire: Misfire::default(),
        concurrency: ConcurrencyPolicy::default(),
        concurrency_key: None,
        shards: 1,
        selector: Selector::new(),
        labels: BTreeMap::new(),
        created_at: EpochMillis(0),
        updated_at: EpochMillis(0),
    }
}
