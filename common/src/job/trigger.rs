//! What makes a job fire.

use crate::{id::JobId, schedule::CronDialect, time::EpochMillis};
use serde::{Deserialize, Serialize};

/// What makes a job fire. The JSON form is the `trigger` object of the API, and is stored like that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum Trigger {
    /// Once, at an instant. The API resolves `delayMs` and "now" to an instant when it accepts the job.
    Once {
        /// When.
        at: EpochMillis,
    },
    /// At the local times of a cron expression.
    Cron {
        /// The expression.
        expr: String,
        /// IANA time zone name.
        time_zone: String,
        /// Which of the two grammars.
        dialect: CronDialect,
    },
    /// Every so many milliseconds, counted from the anchor, however long a run takes.
    FixedRate {
        /// Distance between two firings, in milliseconds; at least 1.
        every_ms: i64,
        /// The instant all firings are multiples of `every_ms` away from.
        anchor: EpochMillis,
    },
    /// So many milliseconds after the last run ended.
    FixedDelay {
        /// Pause after the end of a run, in milliseconds; at least 1.
        every_ms: i64,
    },
    /// Only when asked.
    Manual {},
    /// When another job has ended.
    After {
        /// The job it follows.
        job_id: JobId,
        /// Which endings of that job count.
        on: ParentOutcome,
    },
}

/// Which endings of a parent job make its children fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ParentOutcome {
    /// It succeeded.
    Success,
    /// It ended without success.
    Failure,
    /// It ended.
    Any,
}

impl Trigger {
    /// [`Trigger::code`] of [`Trigger::Once`].
    pub const ONCE_CODE: i64 = 0;

    /// The number stored in `job_info.trigger_type`.
    #[must_use]
    pub const fn code(&self) -> i64 {
        match self {
            Self::Once { .. } => Self::ONCE_CODE,
            Self::Cron { .. } => 1,
            Self::FixedRate { .. } => 2,
            Self::FixedDelay { .. } => 3,
            Self::Manual {} => 4,
            Self::After { .. } => 5,
        }
    }

    /// True when the job may fire more than once.
    #[must_use]
    pub const fn is_recurring(&self) -> bool {
        !matches!(self, Self::Once { .. })
    }
}
