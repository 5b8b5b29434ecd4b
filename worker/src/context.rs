//! What a handler is given: its job, its params, and the ways to say something while it runs.

use crate::{
    JobError,
    database_clock::DatabaseClock,
    handler_log::HandlerLog,
    run_control::{Cancellation, RunControl},
};
use isocost_common::{
    execution::limit_text,
    id::{ExecutionId, JobId},
    message::{DispatchedExecution, LogLevel, LogLine, Progress},
    raw_json::RawJson,
    time::EpochMillis,
};
use serde::de::DeserializeOwned;
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

/// Longest log line and progress message kept, in bytes.
const LINE_LIMIT: usize = 8 * 1024;

/// One attempt of one execution, as its handler sees it. Cheap to clone, and may be moved to other tasks.
#[derive(Clone)]
pub struct JobContext(Arc<Inner>);

struct Inner {
    execution: DispatchedExecution,
    control: Arc<RunControl>,
    log: HandlerLog,
    clock: Arc<DatabaseClock>,
    lines: AtomicU32,
}

impl JobContext {
    pub(crate) fn new(
        execution: DispatchedExecution,
        control: Arc<RunControl>,
        log: HandlerLog,
        clock: Arc<DatabaseClock>,
    ) -> Self {
        Self(Arc::new(Inner {
            execution,
            control,
            log,
            clock,
            lines: AtomicU32::new(0),
        }))
    }

    /// The params as a type.
    ///
    /// # Errors
    /// A fatal [`JobError`] with the code `params.invalid` when they have another shape: no attempt can change that.
    pub fn params<T: DeserializeOwned>(&self) -> Result<T, JobError> {
        serde_json::from_str(self.raw_params().as_str()).map_err(|error| {
            JobError::fatal(format!("the params do not fit the handler: {error}")).with_code("params.invalid")
        })
    }

    /// The params as the text the submitter sent, byte for byte.
    #[must_use]
    pub fn raw_params(&self) -> &RawJson {
        &self.0.execution.params
    }

    /// Writes a line to the execution's log.
    pub async fn log(&self, message: impl Into<String>) {
        self.write(LogLevel::Info, message.into()).await;
    }

    /// Writes a line that is worth a look.
    pub async fn warn(&self, message: impl Into<String>) {
        self.write(LogLevel::Warn, message.into()).await;
    }

    /// Writes a line about something that went wrong.
    pub async fn error(&self, message: impl Into<String>) {
        self.write(LogLevel::Error, message.into()).await;
    }

    /// Says how far it has come, 0 to 100, and in words.
    pub async fn progress(&self, percent: u8, message: impl Into<String>) {
        let claim = self.0.execution.claim;
        let progress = Progress {
            execution: claim.execution,
            dispatch_seq: claim.dispatch_seq,
            percent: percent.min(100),
            message: limit_text(&message.into(), LINE_LIMIT).into_owned(),
        };
        self.0.log.progress(progress).await;
    }

    /// The execution: the same in every attempt.
    #[must_use]
    pub fn execution_id(&self) -> ExecutionId {
        self.0.execution.claim.execution
    }

    /// The job it is a firing of.
    #[must_use]
    pub fn job_id(&self) -> JobId {
        self.0.execution.job
    }

    /// The job's name.
    #[must_use]
    pub fn job_name(&self) -> &str {
        &self.0.execution.job_name
    }

    /// Which start of the execution this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.0.execution.attempt
    }

    /// The number of this handover: it grows each time the execution is given to a worker. A resource that remembers the
    /// highest it has seen can refuse a run that is not the latest any more.
    #[must_use]
    pub fn dispatch_seq(&self) -> i64 {
        self.0.execution.claim.dispatch_seq
    }

    /// Its part of a sharded firing, from 0.
    #[must_use]
    pub fn shard(&self) -> u32 {
        self.0.execution.shard
    }

    /// Parts of the firing; 1 when it is not sharded.
    #[must_use]
    pub fn shards(&self) -> u32 {
        self.0.execution.shards
    }

    /// The instant it was planned for, which may lie before the one at which it runs.
    #[must_use]
    pub fn scheduled_time(&self) -> EpochMillis {
        self.0.execution.scheduled_time
    }

    /// Tells when to stop: `job.cancelled().await`, or `job.cancelled().is_requested()` in a loop. A handler that
    /// finishes in time reports its result; one that does not is dropped at its next `.await`.
    #[must_use]
    pub fn cancelled(&self) -> Cancellation {
        self.0.control.cancellation()
    }

    /// The W3C trace context that the job was submitted with: send it along to others.
    #[must_use]
    pub fn traceparent(&self) -> Option<&str> {
        self.0.execution.traceparent.as_deref()
    }

    /// A key for calls to others that must have one effect over all attempts: the execution's id.
    #[must_use]
    pub fn idempotency_key(&self) -> String {
        self.execution_id().to_string()
    }

    async fn write(&self, level: LogLevel, message: String) {
        let line = LogLine {
            execution: self.execution_id(),
            attempt: self.attempt(),
            line: self.0.lines.fetch_add(1, Ordering::Relaxed) + 1,
            at: self.0.clock.now(),
            level,
            message: limit_text(&message, LINE_LIMIT).into_owned(),
        };
        self.0.log.line(line).await;
    }
}
