//! What the roles say to each other. JSON; readers ignore unknown fields, so that an older program reads a newer one's.

pub mod control;
pub mod dispatch;
pub mod heartbeat;
pub mod log;
pub mod report;

pub use control::{ControlAction, ControlMessage};
pub use dispatch::{DispatchMessage, DispatchedExecution};
pub use heartbeat::{HandlerLoad, Heartbeat, Holdings, MAX_HOST_CHARS, Unfit, check_labels};
pub use log::{LogLevel, LogLine, LogMessage, Progress};
pub use report::{Report, ReportEvent, ReportMessage, Settled, SettledMessage};

use serde::{Deserialize, Serialize};

/// Values of a message's `type` property.
pub mod kind {
    /// Leader → worker: executions to run.
    pub const DISPATCH: &str = "dispatch";
    /// Leader → worker: release, cancel, query, drain.
    pub const CONTROL: &str = "control";
    /// Worker → intake: what became of handovers.
    pub const REPORT: &str = "report";
    /// Worker → dispatchers: alive, load, holdings.
    pub const HEARTBEAT: &str = "heartbeat";
    /// Worker → intake: handlers' log lines and progress.
    pub const LOG: &str = "log";
    /// Intake → leader: what left dispatched and running.
    pub const SETTLED: &str = "settled";
    /// API → leader: something is due now.
    pub const WAKE: &str = "wake";
    /// Relay's work: one attempt of one delivery.
    pub const CALLBACK: &str = "callback";
    /// API → producer: what became of a job submitted over AMQP.
    pub const SUBMISSION_ANSWER: &str = "submission-answer";
    /// Sent by the leader through a queue, to know when everything before it was consumed: see [`super::Marker`].
    pub const MARKER: &str = "marker";
}

/// One attempt of one callback delivery is due. Names the row, never its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallbackTicket {
    /// The delivery.
    pub delivery: crate::id::DeliveryId,
    /// The attempt this ticket is for, from 1; a ticket of an attempt already made is dropped.
    pub attempt: u32,
}

/// Something changed that the leader should look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wake {
    /// The earliest instant at which something is due now.
    pub due: crate::time::EpochMillis,
    /// Settings or workers' orders were changed: they are read again before anything else is placed.
    #[serde(default)]
    pub orders: bool,
}

/// What the leader sends through a queue to learn that everything before it is dealt with.
///
/// Through its own heartbeat queue it comes back by itself. Through the results queue the intake takes it for what it is,
/// and publishes the same message to the `settled` exchange once everything before it is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Marker {
    /// Which one.
    pub marker: crate::id::MessageId,
}

impl Marker {
    /// A new one.
    #[must_use]
    pub fn generate() -> Self {
        Self {
            marker: crate::id::MessageId::generate(),
        }
    }
}
