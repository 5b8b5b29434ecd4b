//! Leader → worker: executions to run.

use crate::{
    execution::Claim,
    id::{AppId, JobId},
    raw_json::RawJson,
    time::EpochMillis,
};
use serde::{Deserialize, Serialize};

/// Executions for one worker incarnation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DispatchMessage {
    /// One to many.
    pub executions: Vec<DispatchedExecution>,
}

/// One handover of one execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DispatchedExecution {
    /// The execution and the number of this handover.
    pub claim: Claim,
    /// Its job.
    pub job: JobId,
    /// Its tenant.
    pub app: AppId,
    /// The leader's epoch.
    pub epoch: i64,
    /// The number this attempt will have, from 1.
    pub attempt: u32,
    /// Not to be taken after this instant, by the database's clock.
    pub not_after: EpochMillis,
    /// The database's clock when it was placed: lets the worker estimate the difference to its own clock.
    pub placed_at: EpochMillis,
    /// The instant it was planned for.
    pub scheduled_time: EpochMillis,
    /// The handler.
    pub handler: String,
    /// The job's name, for people.
    pub job_name: String,
    /// Its params, byte for byte.
    pub params: RawJson,
    /// Its part of a sharded firing, from 0.
    pub shard: u32,
    /// Parts of the firing.
    pub shards: u32,
    /// Run time allowed, in milliseconds.
    pub timeout_ms: i64,
    /// 0 to 9, higher first.
    pub priority: u8,
    /// W3C trace context of the submission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}
