//! Rows to start from: sane values everywhere, to be changed with `..` where a test cares.

use crate::{
    execution::{ExecutionError, ExecutionStatus},
    id::{AppId, ExecutionId, IncarnationId, JobId, WorkerId},
    job::{ConcurrencyPolicy, DEFAULT_PRIORITY, JobStatus, Misfire, RetryPolicy, Selector, Trigger},
    raw_json::RawJson,
    store::{
        Store, StoreError,
        executions::{self, ExecutionRow, TriggerKind, rank_time},
        jobs::{self, JobRow},
    },
    time::EpochMillis,
};
use std::{collections::BTreeMap, time::Duration};

/// The instant for which the given rows are planned: in 2027, so that nothing here depends on today.
pub const PLANNED: EpochMillis = EpochMillis(1_800_000_000_000);

/// A one-shot of an app of its own, planned for [`PLANNED`] and not yet fired.
#[must_use]
pub fn job() -> JobRow {
    JobRow {
        next_trigger_time: Some(PLANNED),
        ..job_with(Trigger::Once { at: PLANNED })
    }
}

/// A job with this trigger and nothing planned.
#[must_use]
pub fn job_with(trigger: Trigger) -> JobRow {
    JobRow {
        id: JobId::generate(),
        app: AppId::generate(),
        name: "nightly settlement".into(),
        handler: "noop".into(),
        params: RawJson::null(),
        trigger,
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
        priority: DEFAULT_PRIORITY,
        timeout_ms: 60_000,
        start_deadline_ms: None,
        retry: RetryPolicy::default(),
        misfire: Misfire::default(),
        concurrency: ConcurrencyPolicy::Parallel,
        concurrency_key: None,
        shards: 1,
        selector: Selector::new(),
        labels: BTreeMap::new(),
        traceparent: None,
        created_at: PLANNED,
        updated_at: PLANNED,
    }
}

/// The worker that holds dispatched and running executions.
///
/// # Panics
/// Never: the name is valid.
#[must_use]
pub fn worker() -> WorkerId {
    WorkerId::parse("worker-a").expect("a valid name")
}

/// A firing of the job at [`PLANNED`] in this state, with everything that a row in that state has. Each has an
/// incarnation of its own.
#[must_use]
pub fn execution(job: &JobRow, status: ExecutionStatus) -> ExecutionRow {
    let is_handed_over = !matches!(
        status,
        ExecutionStatus::Scheduled
            | ExecutionStatus::Blocked
            | ExecutionStatus::Pending
            | ExecutionStatus::Expired
            | ExecutionStatus::Skipped
    );
    let is_started = is_handed_over && status != ExecutionStatus::Dispatched;
    let is_due = !matches!(status, ExecutionStatus::Scheduled | ExecutionStatus::Blocked);
    let failed = status.is_terminal() && status != ExecutionStatus::Succeeded;
    ExecutionRow {
        id: ExecutionId::generate(),
        job: job.id,
        app: job.app,
        handler: job.handler.clone(),
        scheduled_time: PLANNED,
        shard: 0,
        trigger_key: String::new(),
        trigger_kind: TriggerKind::Schedule,
        status,
        not_before: PLANNED,
        class_key: job.class_key(),
        rank_time: rank_time(PLANNED, job.priority),
        attempt: u32::from(is_started),
        interruptions: 0,
        max_attempts: job.retry.max_attempts,
        dispatch_seq: i64::from(is_handed_over),
        worker: is_handed_over.then(worker),
        incarnation: is_handed_over.then(IncarnationId::generate),
        epoch: is_handed_over.then_some(1),
        not_after: is_handed_over.then(|| PLANNED + Duration::from_secs(15)),
        slot_key: job.slot_key(),
        params: None,
        created_at: PLANNED,
        due_at: is_due.then_some(PLANNED),
        dispatched_at: is_handed_over.then_some(PLANNED),
        started_at: is_started.then(|| PLANNED + Duration::from_millis(5)),
        finished_at: status.is_terminal().then(|| PLANNED + Duration::from_secs(1)),
        start_deadline_at: None,
        timeout_ms: job.timeout_ms,
        cancel_requested_at: None,
        progress_percent: None,
        progress_message: None,
        result: (status == ExecutionStatus::Succeeded).then(RawJson::null),
        error: failed.then(|| ExecutionError::new("handler.failed", "no")),
    }
}

/// Stores jobs and executions in one transaction.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn insert(store: &Store, jobs: &[JobRow], executions: &[ExecutionRow]) -> Result<(), StoreError> {
    store
        .transact(|| async {
            let mut tx = store.begin().await?;
            jobs::insert_many(&mut tx, jobs).await?;
            executions::insert_many(&mut tx, executions).await?;
            tx.commit().await
        })
        .await
}
