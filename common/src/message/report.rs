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
// Tagged from outside: serde buffers what it reads of a tagged object, and text that is kept byte for byte
// ([`RawJson`](crate::raw_json::RawJson)) cannot be read from such a buffer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{execution::ExecutionError, id::ExecutionId, raw_json::RawJson};

    fn travelled(outcome: Outcome) -> Report {
        let report = Report {
            claim: Claim {
                execution: ExecutionId::generate(),
                dispatch_seq: 3,
            },
            event: ReportEvent::Finished {
                outcome,
                started_at: EpochMillis(1_000),
                at: EpochMillis(2_000),
                attempt: 1,
            },
        };
        let text = serde_json::to_vec(&report).expect("serialises");
        let read: Report = serde_json::from_slice(&text).expect("reads back");
        assert_eq!(read, report);
        read
    }

    #[test]
    fn a_result_travels_byte_for_byte() {
        let text = r#"{"n": 123456789012345678901234567890, "t" : "日报😀"}"#;
        let result = RawJson::parse(text.into()).expect("JSON");
        let ReportEvent::Finished {
            outcome: Outcome::Succeeded { result },
            ..
        } = travelled(Outcome::Succeeded { result }).event
        else {
            panic!("another event came back");
        };
        assert_eq!(result.as_str(), text);
    }

    #[test]
    fn every_other_outcome_travels_too() {
        travelled(Outcome::TimedOut);
        travelled(Outcome::Cancelled);
        travelled(Outcome::Interrupted {
            reason: "the worker stopped".into(),
        });
        travelled(Outcome::Failed {
            error: ExecutionError::new("handler.failed", "no"),
            retryable: true,
            retry_after_ms: Some(5),
        });
    }
}
