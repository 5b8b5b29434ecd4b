use isocost_common::{
    execution::{ExecutionError, ExecutionStatus},
    id::{ExecutionId, JobId},
    job::{ConcurrencyPolicy, JobStatus, Misfire, RetryPolicy, Selector, Trigger},
    raw_json::RawJson,
    store::{executions::ExecutionRow, jobs::JobRow, listing::Activity},
    time::EpochMillis,
};
use serde::Serialize;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A job.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Job)]
pub(crate) struct JobView {
    /// The job.
    #[schema(value_type = String, format = Uuid)]
    pub job_id: JobId,
    /// The submitter's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_request_id: Option<String>,
    /// For people.
    pub job_name: String,
    /// What runs it.
    pub job_handler: String,
    /// Where it stands: WAITING, RUNNING, SUCCESS, FAILED, PAUSED, CANCELLED, COMPLETED, INVALID; more may be added.
    #[schema(value_type = String, example = "WAITING")]
    pub status: JobStatus,
    /// The number of the status.
    pub status_code: i64,
    /// Why it is INVALID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invalid_reason: Option<String>,
    /// Why it is CANCELLED, when nobody asked for that: the job that it follows can no longer end as `trigger.on` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel_reason: Option<String>,
    /// True when it is deleted as soon as nothing of it is open any more; absent in lists.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
    /// Why nothing of it runs although something is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_reason: Option<String>,
    /// As submitted, byte for byte; absent in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub params: Option<RawJson>,
    /// What makes it fire.
    #[schema(value_type = crate::schema::Trigger)]
    pub trigger: Trigger,
    /// The next planned firing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_trigger_time: Option<EpochMillis>,
    /// No firing before.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub start_at: Option<EpochMillis>,
    /// No firing after.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub end_at: Option<EpochMillis>,
    /// 0 to 9, higher first.
    pub priority: u8,
    /// Run time allowed.
    pub timeout_ms: i64,
    /// Time from due to start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_deadline_ms: Option<i64>,
    /// Attempts.
    #[schema(value_type = crate::schema::Retry)]
    pub retry: RetryPolicy,
    /// Missed firings.
    #[schema(value_type = crate::schema::MisfireRule)]
    pub misfire: Misfire,
    /// Overlapping firings.
    #[schema(value_type = crate::schema::ConcurrencyWord)]
    pub concurrency: ConcurrencyPolicy,
    /// Executions of all jobs with this key take turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency_key: Option<String>,
    /// Executions that a firing is split into.
    pub shards: u32,
    /// Labels that a worker must carry.
    #[schema(value_type = BTreeMap<String, String>)]
    pub selector: Selector,
    /// For people and filters.
    pub labels: BTreeMap<String, String>,
    /// Gets the webhooks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callback_url: Option<String>,
    /// Grows with every change that a user makes: the ETag.
    pub version: i64,
    /// When it was accepted.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: EpochMillis,
    /// When it was last changed.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: EpochMillis,
    /// Executions that a worker owns now.
    pub running_executions: i64,
    /// The newest execution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_execution: Option<ExecutionSummary>,
    /// How many of its newest 1,000 executions are in which state; absent in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts: Option<BTreeMap<&'static str, i64>>,
}

/// The newest execution of a job.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExecutionSummary {
    /// The execution.
    #[schema(value_type = String, format = Uuid)]
    pub execution_id: ExecutionId,
    /// Where it stands.
    #[schema(example = "SUCCEEDED")]
    pub status: &'static str,
    /// Starts so far.
    pub attempt: u32,
    /// The instant it was planned for.
    #[schema(value_type = String, format = DateTime)]
    pub scheduled_time: EpochMillis,
    /// What the handler returned; absent in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<RawJson>,
    /// Why it did not succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<crate::routes::ErrorBody>)]
    pub error: Option<ExecutionError>,
    /// Start of the last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<EpochMillis>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<EpochMillis>,
    /// When a cancel was requested. Until it has ended, its worker is still stopping it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub cancel_requested_at: Option<EpochMillis>,
}

impl ExecutionSummary {
    fn of(row: &ExecutionRow) -> Self {
        Self {
            execution_id: row.id,
            status: row.status.api_name(),
            attempt: row.attempt,
            scheduled_time: row.scheduled_time,
            result: if row.status.is_terminal() {
                row.result.clone()
            } else {
                None
            },
            error: row.error.clone(),
            started_at: row.started_at,
            finished_at: row.finished_at,
            cancel_requested_at: row.cancel_requested_at,
        }
    }
}

impl JobView {
    /// A job with what it is doing. Its params, counts and waiting reason are for the caller to fill in.
    #[must_use]
    pub(crate) fn of(job: JobRow, activity: Option<&Activity>) -> Self {
        let running = activity.map_or(0, |activity| activity.running);
        let status = match job.status {
            JobStatus::Waiting if running > 0 => JobStatus::Running,
            stored => stored,
        };
        let reason_in = |wanted| job.invalid_reason.clone().filter(|_| status == wanted);
        Self {
            job_id: job.id,
            client_request_id: job.client_request_id,
            job_name: job.name,
            job_handler: job.handler,
            status,
            status_code: status.code(),
            invalid_reason: reason_in(JobStatus::Invalid),
            cancel_reason: reason_in(JobStatus::Cancelled),
            deleting: false,
            waiting_reason: None,
            params: None,
            trigger: job.trigger,
            next_trigger_time: job.next_trigger_time,
            start_at: job.start_at,
            end_at: job.end_at,
            priority: job.priority,
            timeout_ms: job.timeout_ms,
            start_deadline_ms: job.start_deadline_ms,
            retry: job.retry,
            misfire: job.misfire,
            concurrency: job.concurrency,
            concurrency_key: job.concurrency_key,
            shards: job.shards,
            selector: job.selector,
            labels: job.labels,
            callback_url: job.callback_url,
            version: job.definition_version,
            created_at: job.created_at,
            updated_at: job.updated_at,
            running_executions: running,
            last_execution: activity
                .and_then(|activity| activity.last.as_ref())
                .map(ExecutionSummary::of),
            counts: None,
        }
    }

    /// Leaves the bulky part out, for lists.
    #[must_use]
    pub(crate) fn without_result(mut self) -> Self {
        if let Some(last) = &mut self.last_execution {
            last.result = None;
        }
        self
    }
}

/// Counts by the word of the API.
pub(super) fn counts_by_name(counts: &[(ExecutionStatus, i64)]) -> BTreeMap<&'static str, i64> {
    let mut named = BTreeMap::new();
    for (status, count) in counts {
        *named.entry(status.api_name()).or_insert(0) += count;
    }
    named
}
