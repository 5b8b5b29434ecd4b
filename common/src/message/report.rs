//! Worker → intake: what became of handovers. Intake → leader: what that changed.

use crate::{
    execution::{Claim, ExecutionStatus, Outcome},
    id::{IncarnationId, WorkerId},
    time::EpochMillis,
};
use serde::{Deserialize, Serialize};

/// Reports of one worker incarnation, in the order they were made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportMessage {
    /// The worker.
    pub worker: WorkerId,
    /// Its incarnation.
    pub incarnation: IncarnationId,
    /// At least one.
    pub reports: Vec<Report>,
}

/// What became of one handover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The execution and the number of the handover.
    pub claim: Claim,
    /// What happened.
    pub event: ReportEvent,
}

/// What happened to a handover.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ReportEvent {
    /// Its handler was started.
    Started {
        /// When, by the database's clock as the worker estimates it.
        at: EpochMillis,
        /// Which start of the execution this is, from 1.
        attempt: u32,
    },
    /// It was not taken and never will be started: no free slot, draining, unknown handler, start key taken.
    Refused {
        /// Why, for people.
        reason: String,
    },
    /// It was given back on request before it started, and never will be started.
    Released,
    /// It came too late to know what an earlier copy of it did. Applied only after everything this incarnation had
    /// confirmed before it.
    Unknown,
    /// Its run ended. Implies the start.
    Finished {
        /// How.
        outcome: Outcome,
        /// When it was started.
        started_at: EpochMillis,
        /// When it ended.
        at: EpochMillis,
        /// Which start of the execution this was, from 1.
        attempt: u32,
    },
}

/// What a batch of reports changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SettledMessage {
    /// At least one.
    pub settled: Vec<Settled>,
}

/// One handover changed state: started, or left its worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Settled {
    /// The handover.
    pub claim: Claim,
    /// The state it is in now. Running: it started; anything else: the worker does not hold it any more.
    pub status: ExecutionStatus,
    /// The worker it ran on.
    pub incarnation: IncarnationId,
    /// Its handler.
    pub handler: String,
    /// Run time, when it finished, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_ms: Option<i64>,
    /// The worker refused it: leave that worker out for a while.
    #[serde(default)]
    pub refused: bool,
}
