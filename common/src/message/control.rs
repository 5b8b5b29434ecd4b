//! Leader → worker: requests about what it holds. Each is answered by a report; a repeated request is harmless.

use crate::{execution::Claim, time::EpochMillis};
use serde::{Deserialize, Serialize};

/// Requests to one worker incarnation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ControlMessage {
    /// In order.
    pub actions: Vec<ControlAction>,
}

/// One request.
///
/// `not_after` is that of the handover: a worker that has no entry for it answers *refused* before that instant and
/// *unknown* after it. Without it (the leader has only the row of a later handover) the answer is *unknown*.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ControlAction {
    /// Give it back unless it has started.
    Release {
        /// Which handover.
        claim: Claim,
        /// Until when it could be taken.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_after: Option<EpochMillis>,
    },
    /// Stop it, or never start it.
    Cancel {
        /// Exactly this handover, no other of the same execution.
        claim: Claim,
        /// Until when it could be taken.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_after: Option<EpochMillis>,
    },
    /// Say what became of it.
    Query {
        /// Which handover.
        claim: Claim,
        /// Until when it could be taken.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_after: Option<EpochMillis>,
    },
    /// Take nothing new, give back what has not started.
    Drain,
    /// Take work again.
    Undrain,
}
