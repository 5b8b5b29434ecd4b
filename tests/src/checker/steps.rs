//! I3, I6, I8: how executions got to where they stand.

use super::{
    Breaches,
    Invariant::{I1, I3, I6, I8},
    index::{Index, is_terminal},
    tables::{ExecutionRow, LogRow, status as s},
};
use crate::ledger::Ending;
use serde_json::Value;
use std::collections::HashMap;

/// The steps an execution may take, and the states in which it may be made.
const LEGAL: [(Option<i64>, &[i64]); 6] = [
    (
        None,
        &[s::SCHEDULED, s::BLOCKED, s::PENDING, s::DISPATCHED, s::SKIPPED],
    ),
    (
        Some(s::SCHEDULED),
        &[s::PENDING, s::CANCELLED, s::EXPIRED, s::SKIPPED],
    ),
    (
        Some(s::BLOCKED),
        &[s::PENDING, s::CANCELLED, s::EXPIRED, s::SKIPPED],
    ),
    (
        Some(s::PENDING),
        &[s::DISPATCHED, s::CANCELLED, s::EXPIRED, s::SKIPPED],
    ),
    (
        Some(s::DISPATCHED),
        &[s::PENDING, s::RUNNING, s::CANCELLED, s::LOST],
    ),
    (
        Some(s::RUNNING),
        &[
            s::SCHEDULED,
            s::SUCCEEDED,
            s::FAILED,
            s::TIMED_OUT,
            s::CANCELLED,
            s::LOST,
        ],
    ),
];

pub(super) fn check(index: &Index<'_>, breaches: &mut Breaches) {
    let mut firings: HashMap<(&str, i64, i64, &str), usize> = HashMap::new();
    for execution in &index.record.tables.executions {
        let firing = (
            execution.job_id.as_str(),
            execution.scheduled_time,
            execution.shard,
            execution.trigger_key.as_str(),
        );
        *firings.entry(firing).or_default() += 1;
        let steps = index.steps_of(&execution.id);
        chain(execution, steps, breaches);
        handovers(execution, steps, breaches);
        attempts(execution, steps, breaches);
        end(index, execution, steps, breaches);
        in_time(index, execution, breaches);
    }
    for ((job, at, ..), count) in firings {
        breaches.require(count == 1, I3, || {
            format!("{job} has {count} executions of its firing at {at}")
        });
    }
    for execution in index.runs.keys().chain(index.steps.keys()) {
        breaches.require(index.executions.contains_key(execution), I3, || {
            format!("execution {execution} left traces and is not there")
        });
    }
}

/// Every step begins where the one before ended, and is legal; nothing follows a final state.
fn chain(execution: &ExecutionRow, steps: &[&LogRow], breaches: &mut Breaches) {
    let id = &execution.id;
    let mut state = None;
    let mut ends = 0;
    for step in steps {
        let to = step.to_status.unwrap_or_default();
        if state.is_some_and(is_terminal) {
            breaches.add(
                I3,
                format!("execution {id} was final and went on to {}", name(to)),
            );
        } else {
            breaches.require(step.from_status == state, I6, || {
                format!(
                    "execution {id} left {} and had not been there but {}",
                    step.from_status.map_or("nothing", name),
                    state.map_or("nothing", name)
                )
            });
            let legal = LEGAL.iter().find(|(from, _)| *from == step.from_status);
            breaches.require(legal.is_some_and(|(_, to_any)| to_any.contains(&to)), I6, || {
                format!(
                    "execution {id} went from {} to {}",
                    step.from_status.map_or("nothing", name),
                    name(to)
                )
            });
        }
        ends += usize::from(is_terminal(to));
        state = Some(to);
    }
    breaches.require(ends <= 1, I3, || format!("execution {id} ended {ends} times"));
    breaches.require(state == Some(execution.status), I3, || {
        format!(
            "execution {id} is {}, and its last step led to {}",
            name(execution.status),
            state.map_or("nothing", name)
        )
    });
}

/// The number of the handover grows by one with each handover and never else.
fn handovers(execution: &ExecutionRow, steps: &[&LogRow], breaches: &mut Breaches) {
    let mut seq = 0;
    for step in steps {
        let expected = seq + i64::from(step.to_status == Some(s::DISPATCHED));
        breaches.require(step.dispatch_seq == expected, I6, || {
            format!(
                "execution {} has handover {} where {expected} was to come",
                execution.id, step.dispatch_seq
            )
        });
        seq = step.dispatch_seq;
    }
    breaches.require(execution.dispatch_seq == seq, I6, || {
        format!(
            "execution {} has handover {} and its steps end at {seq}",
            execution.id, execution.dispatch_seq
        )
    });
}

/// Attempts never shrink, and those that count stay within the limit; it is not given up while one is left.
fn attempts(execution: &ExecutionRow, steps: &[&LogRow], breaches: &mut Breaches) {
    let id = &execution.id;
    let mut attempt = 0;
    for step in steps {
        let grown = step.attempt - attempt;
        breaches.require((0..=1).contains(&grown), I6, || {
            format!("execution {id} went from attempt {attempt} to {}", step.attempt)
        });
        attempt = step.attempt;
    }
    breaches.require(attempt == execution.attempt, I6, || {
        format!(
            "execution {id} has attempt {} and its steps end at {attempt}",
            execution.attempt
        )
    });
    let counted = execution.attempt - execution.interruptions;
    breaches.require(counted <= execution.max_attempts, I6, || {
        format!(
            "execution {id} had {counted} attempts of {}",
            execution.max_attempts
        )
    });
    let given_up = matches!(execution.status, s::FAILED | s::LOST);
    breaches.require(!given_up || counted >= execution.max_attempts, I6, || {
        format!(
            "execution {id} was given up after {counted} attempts of {}",
            execution.max_attempts
        )
    });
}

/// What ended says how: a success names the one run that it comes from, everything else has a reason.
fn end(index: &Index<'_>, execution: &ExecutionRow, steps: &[&LogRow], breaches: &mut Breaches) {
    let id = &execution.id;
    match execution.status {
        s::SUCCEEDED => {
            let result: Value = execution
                .result
                .as_deref()
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or_default();
            // A handler that keeps no ledger has a result of another kind.
            if result["seq"].is_null() {
                return breaches.require(index.runs_of(id).is_empty(), I3, || {
                    format!("execution {id} succeeded without the result of its run")
                });
            }
            let comes_from = index.runs_of(id).iter().any(|run| {
                result["seq"] == run.seq
                    && result["attempt"] == run.attempt
                    && result["process"] == run.process
                    && run.seq == execution.dispatch_seq
                    && run.end.as_ref().is_some_and(|end| end.how == Ending::Ok)
            });
            breaches.require(comes_from, I3, || {
                format!("the result of execution {id} comes from no run of it: {result}")
            });
        }
        s::FAILED | s::TIMED_OUT | s::LOST | s::EXPIRED | s::CANCELLED => {
            let explained =
                execution.error_code.is_some() || steps.last().is_some_and(|step| step.message.is_some());
            breaches.require(explained, I1, || {
                format!(
                    "execution {id} is {} and nothing says why",
                    name(execution.status)
                )
            });
            let asked = index.cancels.contains_key(execution.job_id.as_str());
            breaches.require(execution.status != s::CANCELLED || asked, I1, || {
                format!("execution {id} is cancelled, and nobody asked for it")
            });
        }
        _ => {}
    }
}

/// Over within the bound after the heal, or after its own time when that was later.
fn in_time(index: &Index<'_>, execution: &ExecutionRow, breaches: &mut Breaches) {
    let terms = index.record.terms;
    let until = execution.scheduled_time.max(terms.healed_at) + terms.bound_ms;
    let id = &execution.id;
    match execution.finished_at.filter(|_| is_terminal(execution.status)) {
        Some(finished) => breaches.require(finished <= until, I8, || {
            format!("execution {id} ended {} ms after the bound", finished - until)
        }),
        None => breaches.require(terms.looked_at < until, I8, || {
            format!("execution {id} is still {}", name(execution.status))
        }),
    }
}

fn name(code: i64) -> &'static str {
    const NAMES: [&str; 3] = ["SCHEDULED", "BLOCKED", "PENDING"];
    let place = usize::try_from(code).unwrap_or(usize::MAX);
    let names = NAMES.get(place).or_else(|| s::NAMES.get(place));
    names.copied().unwrap_or("no state")
}
