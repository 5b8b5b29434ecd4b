//! Leader → worker: requests about what it holds. Each is answered by a report; a repeated request is harmless.

use crate::execution::Claim;
use serde::{Deserialize, Serialize};

/// Requests to one worker incarnation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ControlMessage {
    /// In order.
    pub actions: Vec<ControlAction>,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "camelCase")]
pub enum ControlAction {
    /// Give it back unless it has started.
    Release {
        /// Which handover.
        claim: Claim,
    },
    /// Stop it, or never start it.
    Cancel {
        /// Exactly this handover, no other of the same execution.
        claim: Claim,
    },
    /// Say what became of it.
    Query {
        /// Which handover.
        claim: Claim,
    },
    /// Take nothing new, give back what has not started.
    Drain,
    /// Take work again.
    Undrain,
}
