//! The job: a definition that fires executions. Its status, its trigger and its policies.

mod plan;
mod policy;
mod trigger;

pub use plan::Window;
pub use policy::{Backoff, ConcurrencyPolicy, Misfire, MisfirePolicy, RetryPolicy};
pub use trigger::{ParentOutcome, Trigger};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Highest priority; higher goes first.
pub const MAX_PRIORITY: u8 = 9;
/// Priority of a job that names none.
pub const DEFAULT_PRIORITY: u8 = 5;
/// Run time allowed to a job that names none, in milliseconds.
pub const DEFAULT_TIMEOUT_MS: i64 = 600_000;

/// Labels that a worker must carry to be given the job. Empty: any worker that offers the handler.
pub type Selector = BTreeMap<String, String>;

/// Where a job stands. The number is stored and shown; the word is the JSON name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum JobStatus {
    /// Not yet due, or due and waiting; a recurring job is armed.
    Waiting,
    /// Shown while an execution is dispatched or running. Never stored: it is derived from the executions, so that
    /// starting a job writes one row less and the two can never disagree.
    Running,
    /// A one-shot that succeeded.
    Success,
    /// A one-shot that ended without success.
    Failed,
    /// Stopped from firing until resumed.
    Paused,
    /// Ended by request.
    Cancelled,
    /// A recurring job with nothing left to fire.
    Completed,
    /// Its trigger cannot be evaluated; see its reason.
    Invalid,
}

impl JobStatus {
    /// Every status, in the order of the codes.
    pub const ALL: [Self; 8] = [
        Self::Waiting,
        Self::Running,
        Self::Success,
        Self::Failed,
        Self::Paused,
        Self::Cancelled,
        Self::Completed,
        Self::Invalid,
    ];

    /// The number stored in the tables and named in the API's contract.
    #[must_use]
    pub const fn code(self) -> i64 {
        self as i64
    }

    /// The status with this stored number.
    #[must_use]
    pub fn from_code(code: i64) -> Option<Self> {
        usize::try_from(code)
            .ok()
            .and_then(|index| Self::ALL.get(index).copied())
    }

    /// The word of the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "WAITING",
            Self::Running => "RUNNING",
            Self::Success => "SUCCESS",
            Self::Failed => "FAILED",
            Self::Paused => "PAUSED",
            Self::Cancelled => "CANCELLED",
            Self::Completed => "COMPLETED",
            Self::Invalid => "INVALID",
        }
    }

    /// The status with this word of the API.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }

    /// True when the job will never fire again by itself and cannot be resumed.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Success | Self::Failed | Self::Cancelled | Self::Completed
        )
    }
}
