//! The steps of an execution, as the API tells them.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::api::instant_ms;

/// One transition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// The status before; none for the first.
    pub from: Option<String>,
    /// The status after; none when it stayed.
    pub to: Option<String>,
    /// The worker concerned.
    pub worker: Option<String>,
    /// Why.
    pub message: Option<String>,
}

impl Step {
    /// Whether a worker lost the execution without an end to it.
    #[must_use]
    pub fn took_back(&self) -> bool {
        matches!(self.from.as_deref(), Some("DISPATCHED" | "RUNNING"))
            && matches!(self.to.as_deref(), Some("PENDING" | "SCHEDULED"))
    }
}

/// All steps of an execution, in order.
///
/// # Errors
/// When the answer has none.
pub fn of(execution: &Value) -> Result<Vec<Step>> {
    let steps = execution["steps"]
        .as_array()
        .with_context(|| format!("no steps in {execution}"))?;
    let text = |step: &Value, field: &str| step[field].as_str().map(str::to_owned);
    steps
        .iter()
        .map(|step| {
            Ok(Step {
                at_ms: instant_ms(step, "at")?,
                from: text(step, "from"),
                to: text(step, "to"),
                worker: text(step, "workerId"),
                message: text(step, "message"),
            })
        })
        .collect()
}
