use isocost_common::{
    execution::{ExecutionError, ExecutionStatus},
    id::{ExecutionId, JobId},
    message::LogLevel,
    raw_json::RawJson,
    store::{
        callbacks::{DeliveryStatus, listing::DeliveryRow},
        executions::{ExecutionRow, TriggerKind},
        handler_logs::StoredLine,
        job_log::LogEntry,
    },
    time::EpochMillis,
};
use serde::Serialize;
use utoipa::ToSchema;

/// An execution: one firing of one job.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Execution)]
pub(crate) struct ExecutionView {
    /// The execution.
    #[schema(value_type = String, format = Uuid)]
    pub execution_id: ExecutionId,
    /// Its job.
    #[schema(value_type = String, format = Uuid)]
    pub job_id: JobId,
    /// What runs it.
    pub job_handler: String,
    /// PENDING, DISPATCHED, RUNNING, SUCCEEDED, FAILED, TIMED_OUT, LOST, EXPIRED, SKIPPED, CANCELLED; more may be added.
    #[schema(example = "SUCCEEDED")]
    pub status: &'static str,
    /// Why it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_reason: Option<String>,
    /// `schedule`, `manual`, `retry` or `parent`.
    pub triggered_by: &'static str,
    /// The instant it was planned for.
    #[schema(value_type = String, format = DateTime)]
    pub scheduled_time: EpochMillis,
    /// Its part of a sharded firing, from 0.
    pub shard: u32,
    /// Starts so far.
    pub attempt: u32,
    /// Starts allowed.
    pub max_attempts: u32,
    /// Starts that cost nothing, because the handler was not at fault.
    pub interruptions: u32,
    /// The worker it was last given to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: EpochMillis,
    /// When it became due.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub due_at: Option<EpochMillis>,
    /// When it was last given to a worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub dispatched_at: Option<EpochMillis>,
    /// Start of the last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<EpochMillis>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<EpochMillis>,
    /// Run time allowed.
    pub timeout_ms: i64,
    /// Not to be started after.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub start_deadline_at: Option<EpochMillis>,
    /// When a cancel was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub cancel_requested_at: Option<EpochMillis>,
    /// How far it has come, as the handler says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressView>,
    /// Params of its own; those of the job when absent. Absent in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub params: Option<RawJson>,
    /// What the handler returned, byte for byte. Absent in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<RawJson>,
    /// Why it did not succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<crate::routes::ErrorBody>)]
    pub error: Option<ExecutionError>,
    /// Every step it took; absent in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<Vec<Step>>,
}

/// How far an execution has come.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Progress)]
pub(crate) struct ProgressView {
    /// 0 to 100.
    pub percent: i64,
    /// In words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// One step in the life of an execution.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Step {
    /// SUBMITTED, DUE, a state of the execution, CANCEL_REQUESTED, CALLBACK_DELIVERED or NOTE; more may be added.
    #[schema(example = "RUNNING")]
    pub step: String,
    /// When; never before the step before.
    #[schema(value_type = String, format = DateTime)]
    pub at: EpochMillis,
    /// Starts so far.
    pub attempt: u32,
    /// The worker concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// Why, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A line that the handler logged.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct LineView {
    /// Grows with arrival; give the last one as `after` for what comes next.
    pub seq: i64,
    /// Of which start, from 1.
    pub attempt: u32,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: EpochMillis,
    /// `info`, `warn` or `error`.
    #[schema(value_type = String, example = "info")]
    pub level: LogLevel,
    /// What.
    pub message: String,
}

impl From<StoredLine> for LineView {
    fn from(line: StoredLine) -> Self {
        Self {
            seq: line.seq,
            attempt: line.attempt,
            at: line.at,
            level: line.level,
            message: line.message,
        }
    }
}

impl ExecutionView {
    /// An execution without its bulky parts, as in lists.
    #[must_use]
    pub(crate) fn light(row: ExecutionRow) -> Self {
        Self {
            params: None,
            result: None,
            ..Self::whole(row)
        }
    }

    /// An execution; steps are for the caller to fill in.
    #[must_use]
    pub(crate) fn whole(row: ExecutionRow) -> Self {
        Self {
            waiting_reason: waiting_reason(&row),
            execution_id: row.id,
            job_id: row.job,
            job_handler: row.handler,
            status: row.status.api_name(),
            triggered_by: match row.trigger_kind {
                TriggerKind::Schedule => "schedule",
                TriggerKind::Manual => "manual",
                TriggerKind::Retry => "retry",
                TriggerKind::Parent => "parent",
            },
            scheduled_time: row.scheduled_time,
            shard: row.shard,
            attempt: row.attempt,
            max_attempts: row.max_attempts,
            interruptions: row.interruptions,
            worker_id: row.worker.map(|worker| worker.to_string()),
            created_at: row.created_at,
            due_at: row.due_at,
            dispatched_at: row.dispatched_at,
            started_at: row.started_at,
            finished_at: row.finished_at,
            timeout_ms: row.timeout_ms,
            start_deadline_at: row.start_deadline_at,
            cancel_requested_at: row.cancel_requested_at,
            progress: row.progress_percent.map(|percent| ProgressView {
                percent,
                message: row.progress_message,
            }),
            params: row.params,
            result: row.result,
            error: row.error,
            steps: None,
        }
    }
}

fn waiting_reason(row: &ExecutionRow) -> Option<String> {
    match row.status {
        ExecutionStatus::Scheduled if row.attempt > 0 => Some(format!(
            "backs off until {} before its next attempt",
            row.not_before
        )),
        ExecutionStatus::Scheduled => Some(format!("is due at {}", row.not_before)),
        ExecutionStatus::Blocked => {
            Some("waits for an earlier execution under the same concurrency rule".into())
        }
        ExecutionStatus::Pending => Some("waits for a worker that offers the handler and has room".into()),
        _ => None,
    }
}

/// The steps of an execution, in an order of instants that never decreases: processes write them, and their clocks
/// agree only nearly.
pub(super) fn steps(
    row: &ExecutionRow,
    submitted_at: Option<EpochMillis>,
    log: &[LogEntry],
    deliveries: &[DeliveryRow],
) -> Vec<Step> {
    let bare = |step: &str, at: EpochMillis| Step {
        step: step.to_owned(),
        at,
        attempt: 0,
        worker_id: None,
        message: None,
    };
    let mut steps: Vec<Step> = Vec::with_capacity(log.len() + 3);
    steps.extend(submitted_at.map(|at| bare("SUBMITTED", at)));
    steps.extend(row.due_at.map(|at| bare("DUE", at)));
    // The relay notes every attempt; the one that ended a delivery well carries the instant of its end.
    let delivered: Vec<EpochMillis> = deliveries
        .iter()
        .filter(|delivery| delivery.status == DeliveryStatus::Delivered)
        .filter_map(|delivery| delivery.finished_at)
        .collect();
    let name = |entry: &LogEntry| match entry.to {
        Some(status) => status.name(),
        None if delivered.contains(&entry.at) => "CALLBACK_DELIVERED",
        None if row.cancel_requested_at == Some(entry.at) => "CANCEL_REQUESTED",
        None => "NOTE",
    };
    steps.extend(log.iter().map(|entry| Step {
        step: name(entry).to_owned(),
        at: entry.at,
        attempt: entry.attempt,
        worker_id: entry.worker.as_ref().map(ToString::to_string),
        message: entry.message.clone(),
    }));
    let mut latest = EpochMillis(i64::MIN);
    for step in &mut steps {
        latest = latest.max(step.at);
        step.at = latest;
    }
    steps
}
