//! From what a worker says and what the table holds to the change that is written: pure.

use super::fold::{End, Folded, Return};
use isocost_common::{
    execution::{ExecutionError, ExecutionEvent, ExecutionStatus, Outcome, Step, limit_text},
    id::{IncarnationId, JobId},
    job::RetryPolicy,
    message::Settled,
    store::{executions::ExecutionRow, transitions::Change},
    time::EpochMillis,
};
use std::{collections::HashMap, time::Duration};

/// Most bytes of a handler's error that a step repeats.
const STEP_MESSAGE: usize = 300;
/// Longest pause a handler may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30 * 24 * 3_600);

/// A decided change and what is announced of it.
pub(super) struct Decision {
    pub(super) change: Change,
    pub(super) settled: Settled,
}

/// What `folded` changes in `row`; none when it is stale: another handover, another worker, or a step that means
/// nothing in this state.
pub(super) fn decide(row: ExecutionRow, folded: &Folded, now: EpochMillis) -> Option<Decision> {
    if row.incarnation != Some(folded.incarnation) {
        return None;
    }
    let from = folded.incarnation;
    // Instants are the worker's estimate of our clock: none lies before the handover or in the future.
    let earliest = row.dispatched_at.unwrap_or(EpochMillis(0)).min(now);
    let within = |at: EpochMillis| at.clamp(earliest, now);
    let Some(end) = &folded.end else {
        let started_at = within(folded.started_at?);
        let step = row.status.after(&ExecutionEvent::Started, row.facts()).ok()?;
        return Some(Decision::new(row, from, step, started_at, Some(started_at)));
    };
    match end {
        End::Returned(reason) => {
            let step = row.status.after(&ExecutionEvent::GivenBack, row.facts()).ok()?;
            let mut decision = Decision::new(row, from, step, now, None);
            decision.settled.refused = matches!(reason, Return::Refused(_));
            decision.change.message = Some(returned_message(reason, step.to));
            Some(decision)
        }
        End::Finished {
            outcome,
            started_at,
            at,
        } => {
            let step = row
                .status
                .after(&ExecutionEvent::Finished(outcome), row.facts())
                .ok()?;
            let started_at = row
                .started_at
                .filter(|_| row.status == ExecutionStatus::Running)
                .unwrap_or_else(|| within(*started_at));
            let at = within(*at).max(started_at);
            let cost = at.since(started_at);
            let mut decision = Decision::new(row, from, step, at, Some(started_at));
            decision.settled.cost_ms = i64::try_from(cost.as_millis()).ok();
            decision.change.message = Some(finished_message(outcome, cost));
            match outcome {
                Outcome::Succeeded { result } => decision.change.result = Some(result.clone()),
                other => decision.change.error = error_of(other, step.to),
            }
            Some(decision)
        }
    }
}

impl Decision {
    fn new(
        before: ExecutionRow,
        incarnation: IncarnationId,
        step: Step,
        at: EpochMillis,
        started_at: Option<EpochMillis>,
    ) -> Self {
        let settled = Settled {
            claim: before.claim(),
            status: step.to,
            incarnation,
            handler: before.handler.clone(),
            cost_ms: None,
            refused: false,
        };
        Self {
            change: Change {
                before,
                step,
                at,
                started_at,
                not_before: None,
                result: None,
                error: None,
                message: None,
            },
            settled,
        }
    }

    /// The job whose retry policy says when the next attempt is due; none when the change needs no pause.
    pub(super) fn retries(&self) -> Option<JobId> {
        (self.change.step.to == ExecutionStatus::Scheduled).then_some(self.change.before.job)
    }

    /// Sets when the next attempt is due. `jitter`, 0 to 1, spreads attempts over up to 10 % more.
    pub(super) fn schedule_retry(
        &mut self,
        folded: &Folded,
        policies: &HashMap<JobId, RetryPolicy>,
        now: EpochMillis,
        jitter: f64,
    ) {
        let policy = policies.get(&self.change.before.job).copied().unwrap_or_default();
        let pause = self.pause(folded, policy).mul_f64(1.0 + jitter / 10.0);
        let due = now + pause;
        self.change.not_before = Some(due);
        if let Some(message) = &mut self.change.message {
            let next = self.change.step.attempt + 1;
            message.push_str(&format!("; attempt {next} is due at {due}"));
        }
    }

    fn pause(&self, folded: &Folded, policy: RetryPolicy) -> Duration {
        let Some(End::Finished { outcome, .. }) = &folded.end else {
            return Duration::ZERO;
        };
        match outcome {
            Outcome::Failed {
                retry_after_ms: Some(ms),
                ..
            } => Duration::from_millis(*ms).min(MAX_RETRY_AFTER),
            Outcome::Failed { .. } | Outcome::TimedOut => {
                let step = self.change.step;
                policy.pause_after(step.attempt.saturating_sub(step.interruptions).max(1))
            }
            // The handler was not at fault: it need not wait.
            Outcome::Succeeded { .. } | Outcome::Cancelled | Outcome::Interrupted { .. } => Duration::ZERO,
        }
    }
}

fn returned_message(reason: &Return, to: ExecutionStatus) -> String {
    let said = match reason {
        Return::Refused(reason) => format!("refused by the worker: {}", limit_text(reason, STEP_MESSAGE)),
        Return::Released => "given back by the worker before it started".to_owned(),
        Return::Unknown => "not known to the worker".to_owned(),
    };
    if to == ExecutionStatus::Cancelled {
        format!("{said}; cancelled on request")
    } else {
        said
    }
}

fn finished_message(outcome: &Outcome, cost: Duration) -> String {
    let ms = cost.as_millis();
    match outcome {
        Outcome::Succeeded { .. } => format!("succeeded after {ms} ms"),
        Outcome::Failed { error, .. } => format!(
            "failed after {ms} ms: {}: {}",
            error.code,
            limit_text(&error.message, STEP_MESSAGE)
        ),
        Outcome::TimedOut => format!("stopped at its time limit after {ms} ms"),
        Outcome::Cancelled => format!("stopped after {ms} ms"),
        Outcome::Interrupted { reason } => {
            format!("interrupted after {ms} ms: {}", limit_text(reason, STEP_MESSAGE))
        }
    }
}

/// The error to keep; `None` leaves the one that the end state implies.
fn error_of(outcome: &Outcome, to: ExecutionStatus) -> Option<ExecutionError> {
    match outcome {
        _ if to == ExecutionStatus::Cancelled => None,
        Outcome::Failed { error, .. } => Some(ExecutionError::new(&error.code, &error.message)),
        Outcome::Interrupted { reason } => Some(ExecutionError::new("run.interrupted", reason)),
        Outcome::Cancelled if to == ExecutionStatus::Failed => {
            Some(ExecutionError::new("run.interrupted", "its worker stopped it"))
        }
        Outcome::Succeeded { .. } | Outcome::TimedOut | Outcome::Cancelled => None,
    }
}
