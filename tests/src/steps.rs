//! The steps of an execution, as the API tells them.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::api::{instant_ms, text};

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Which: SUBMITTED, DUE, a status, CANCEL_REQUESTED, CALLBACK_DELIVERED or NOTE.
    pub name: String,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// The worker concerned.
    pub worker: Option<String>,
    /// Why.
    pub message: Option<String>,
}

/// All steps of an execution, in order.
///
/// # Errors
/// When the answer has none.
pub fn of(execution: &Value) -> Result<Vec<Step>> {
    let steps = execution["steps"]
        .as_array()
        .with_context(|| format!("no steps in {execution}"))?;
    let optional = |step: &Value, field: &str| step[field].as_str().map(str::to_owned);
    steps
        .iter()
        .map(|step| {
            Ok(Step {
                name: text(step, "step")?,
                at_ms: instant_ms(step, "at")?,
                worker: optional(step, "workerId"),
                message: optional(step, "message"),
            })
        })
        .collect()
}

/// The first step that may not follow the one before it; none in a story that the states allow.
///
/// Written down here once more, apart from the product's own table.
#[must_use]
pub fn first_illegal(steps: &[Step]) -> Option<(&Step, &Step)> {
    let may_follow = |from: &str, to: &str| match from {
        "SUBMITTED" => to == "DUE",
        "DUE" => matches!(
            to,
            "BLOCKED" | "PENDING" | "DISPATCHED" | "SKIPPED" | "CANCELLED" | "EXPIRED"
        ),
        "BLOCKED" | "SCHEDULED" => matches!(to, "PENDING" | "CANCELLED" | "EXPIRED" | "SKIPPED"),
        "PENDING" => matches!(to, "DISPATCHED" | "CANCELLED" | "EXPIRED" | "SKIPPED"),
        "DISPATCHED" => matches!(to, "PENDING" | "RUNNING" | "SCHEDULED") || is_end_of_a_run(to),
        "RUNNING" => matches!(to, "SCHEDULED" | "LOST") || is_end_of_a_run(to),
        _ => false,
    };
    let states: Vec<&Step> = steps.iter().filter(|step| is_state(step)).collect();
    let mut pairs = states.windows(2).map(|pair| (pair[0], pair[1]));
    pairs.find(|(from, to)| !may_follow(&from.name, &to.name))
}

fn is_end_of_a_run(name: &str) -> bool {
    matches!(name, "SUCCEEDED" | "FAILED" | "TIMED_OUT" | "CANCELLED")
}

/// Notes and callbacks stand beside the states.
fn is_state(step: &Step) -> bool {
    !matches!(
        step.name.as_str(),
        "NOTE" | "CANCEL_REQUESTED" | "CALLBACK_DELIVERED"
    )
}

/// The steps by which a worker lost the execution without an end to it: it waits again right after it was handed over
/// or ran.
#[must_use]
pub fn taken_back(steps: &[Step]) -> Vec<&Step> {
    let states: Vec<&Step> = steps.iter().filter(|step| is_state(step)).collect();
    let is_held = |step: &Step| matches!(step.name.as_str(), "DISPATCHED" | "RUNNING");
    let waits = |step: &Step| matches!(step.name.as_str(), "PENDING" | "SCHEDULED");
    let pairs = states
        .windows(2)
        .filter(|pair| is_held(pair[0]) && waits(pair[1]));
    pairs.map(|pair| pair[1]).collect()
}
