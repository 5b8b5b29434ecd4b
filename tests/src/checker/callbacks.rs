//! I7: every end that somebody wants to hear about is told, or it is recorded why not.

use super::{
    Breaches,
    Invariant::I7,
    index::{Index, is_terminal},
    tables::{DELIVERED, DeliveryRow, ExecutionRow, status},
};
use std::collections::HashSet;

/// Codes of `callback_delivery.status` up to this one: still to come.
const DELIVERING: i64 = 1;

pub(super) fn check(index: &Index<'_>, breaches: &mut Breaches) {
    for execution in &index.record.tables.executions {
        let job = index.jobs.get(execution.job_id.as_str());
        let wanted = job.is_some_and(|job| job.callback_url.is_some());
        let due = wanted && is_terminal(execution.status) && execution.status != status::SKIPPED;
        let deliveries = index
            .deliveries
            .get(execution.id.as_str())
            .map_or(&[][..], Vec::as_slice);
        breaches.require(deliveries.len() == usize::from(due), I7, || {
            format!(
                "execution {} is {} and has {} deliveries",
                execution.id,
                name(execution),
                deliveries.len()
            )
        });
        for delivery in deliveries {
            told(index, execution, delivery, breaches);
        }
    }
    let known: HashSet<&str> = index
        .record
        .tables
        .deliveries
        .iter()
        .map(|row| row.id.as_str())
        .collect();
    for delivery in index.calls.keys() {
        breaches.require(known.contains(delivery), I7, || {
            format!("delivery {delivery} came and is not there")
        });
    }
}

fn told(index: &Index<'_>, execution: &ExecutionRow, delivery: &DeliveryRow, breaches: &mut Breaches) {
    let id = &delivery.id;
    let calls = index.calls.get(id.as_str()).map_or(&[][..], Vec::as_slice);
    let attempts = index.attempts.get(id.as_str()).map_or(&[][..], Vec::as_slice);
    let arrived = calls.iter().any(|call| (200..300).contains(&call.answered));
    if delivery.status == DELIVERED {
        breaches.require(arrived, I7, || {
            format!("delivery {id} is delivered, and never arrived")
        });
        let noted = attempts
            .iter()
            .any(|attempt| attempt.status_code.is_some_and(|code| (200..300).contains(&code)));
        breaches.require(noted, I7, || format!("delivery {id} is delivered by no attempt"));
    } else if delivery.status > DELIVERING {
        breaches.require(delivery.last_error.is_some(), I7, || {
            format!("delivery {id} ended unsuccessful, and nothing says why")
        });
    } else {
        breaches.require(delivery.next_attempt_at > 0, I7, || {
            format!("delivery {id} has no next attempt")
        });
    }
    for call in calls {
        let says = (call.execution.as_str(), call.status.as_str());
        breaches.require(says == (execution.id.as_str(), name(execution)), I7, || {
            format!(
                "delivery {id} says {says:?}, and execution {} is {}",
                execution.id,
                name(execution)
            )
        });
        let ended = execution.finished_at.unwrap_or(i64::MAX);
        breaches.require(call.at >= ended - index.record.terms.clock_ms, I7, || {
            format!("delivery {id} came before execution {} had ended", execution.id)
        });
    }
}

fn name(execution: &ExecutionRow) -> &'static str {
    let place = usize::try_from(execution.status).unwrap_or(usize::MAX);
    status::NAMES.get(place).copied().unwrap_or("no state")
}
