//! The execution: one firing of one job. Its states, and the one table of steps between them.

mod outcome;
mod transition;

pub use outcome::{ExecutionError, Outcome, limit_text};
pub use transition::{ExecutionEvent, Facts, IllegalTransition, Step};

use serde::{Deserialize, Serialize};
use std::fmt;

/// Interruptions (a drain, a worker that died before its start was known) that cost no attempt.
pub const FREE_INTERRUPTIONS: u32 = 10;

/// Names one handover of one execution: everything a worker says, it says about a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// The execution.
    #[serde(rename = "e")]
    pub execution: crate::id::ExecutionId,
    /// Its dispatch number: grows by one with each handover and fences all older ones.
    #[serde(rename = "s")]
    pub dispatch_seq: i64,
}

/// Where an execution stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ExecutionStatus {
    /// Waits for its `not_before`: not due yet, or backing off before the next attempt.
    Scheduled,
    /// Waits for a concurrency slot.
    Blocked,
    /// Due; waits for a worker with room.
    Pending,
    /// Given to one worker incarnation, not known to have started.
    Dispatched,
    /// Started on its worker.
    Running,
    /// Ended well.
    Succeeded,
    /// Ended with an error and no attempt left.
    Failed,
    /// Ran out of its run time.
    TimedOut,
    /// Stopped or prevented on request.
    Cancelled,
    /// Its worker died and no attempt was left.
    Lost,
    /// Its start deadline passed before it started.
    Expired,
    /// A policy decided that this firing does not run.
    Skipped,
}

impl ExecutionStatus {
    /// Every state, in the order of the codes.
    pub const ALL: [Self; 12] = [
        Self::Scheduled,
        Self::Blocked,
        Self::Pending,
        Self::Dispatched,
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::TimedOut,
        Self::Cancelled,
        Self::Lost,
        Self::Expired,
        Self::Skipped,
    ];

    /// The number stored in the tables.
    #[must_use]
    pub const fn code(self) -> i64 {
        self as i64
    }

    /// The state with this stored number.
    #[must_use]
    pub fn from_code(code: i64) -> Option<Self> {
        usize::try_from(code)
            .ok()
            .and_then(|index| Self::ALL.get(index).copied())
    }

    /// True when nothing can change this execution any more.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Succeeded
                | Self::Failed
                | Self::TimedOut
                | Self::Cancelled
                | Self::Lost
                | Self::Expired
                | Self::Skipped
        )
    }

    /// True while one worker incarnation owns it.
    #[must_use]
    pub const fn is_owned(self) -> bool {
        matches!(self, Self::Dispatched | Self::Running)
    }

    /// The word of the API: the three waiting states are all `PENDING` there, with a `waitingReason`.
    #[must_use]
    pub const fn api_name(self) -> &'static str {
        match self {
            Self::Scheduled | Self::Blocked | Self::Pending => "PENDING",
            Self::Dispatched => "DISPATCHED",
            Self::Running => "RUNNING",
            Self::Succeeded => "SUCCEEDED",
            Self::Failed => "FAILED",
            Self::TimedOut => "TIMED_OUT",
            Self::Cancelled => "CANCELLED",
            Self::Lost => "LOST",
            Self::Expired => "EXPIRED",
            Self::Skipped => "SKIPPED",
        }
    }

    /// The word used in steps and logs, which tells the waiting states apart.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scheduled => "SCHEDULED",
            Self::Blocked => "BLOCKED",
            other => other.api_name(),
        }
    }

    /// The webhook `type` of a terminal state; none for a skipped firing.
    #[must_use]
    pub const fn webhook_type(self) -> Option<&'static str> {
        match self {
            Self::Succeeded
            | Self::Failed
            | Self::TimedOut
            | Self::Cancelled
            | Self::Lost
            | Self::Expired => Some(self.outcome_type()),
            _ => None,
        }
    }

    /// The `type` of an outcome, which skipped firings have as well; that of an open state is never seen.
    #[must_use]
    pub const fn outcome_type(self) -> &'static str {
        match self {
            Self::Succeeded => "execution.succeeded",
            Self::Failed => "execution.failed",
            Self::TimedOut => "execution.timedOut",
            Self::Cancelled => "execution.cancelled",
            Self::Lost => "execution.lost",
            Self::Expired => "execution.expired",
            Self::Skipped => "execution.skipped",
            Self::Scheduled | Self::Blocked | Self::Pending | Self::Dispatched | Self::Running => {
                "execution.open"
            }
        }
    }
}

impl fmt::Display for ExecutionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
