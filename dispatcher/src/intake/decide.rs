//! From what a worker says and what the table holds to the change that is written: pure.

use super::fold::{End, Folded, Return};
use isocost_common::{
    execution::{Claim, ExecutionError, ExecutionEvent, ExecutionStatus, Outcome, Step, limit_text},
    id::{IncarnationId, JobId},
    job::RetryPolicy,
    message::Settled,
    store::{executions::ExecutionRow, transitions::Change},
    time::EpochMillis,
};
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

/// Most bytes of a handler's error that a step repeats.
const STEP_MESSAGE: usize = 300;
/// Longest pause a handler may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30 * 24 * 3_600);

/// A decided change and what is announced of it.
#[derive(Debug, Clone)]
pub struct Decision {
    /// For the table.
    pub change: Change,
    /// For the leader.
    pub settled: Settled,
}

/// What the reports of a batch change in the locked rows they are about. A row whose present handover nobody spoke of, or
/// about which nothing new was said, is left out.
pub fn decide_all(
    rows: impl IntoIterator<Item = ExecutionRow>,
    folded: &BTreeMap<Claim, Folded>,
    now: EpochMillis,
) -> Vec<Decision> {
    rows.into_iter()
        .filter_map(|row| {
            let said = folded.get(&row.claim())?;
            decide(row, said, now)
        })
        .collect()
}

/// What `folded` changes in `row`; none when it is stale: another handover, another worker, or a step that means
/// nothing in this state.
#[must_use]
pub fn decide(row: ExecutionRow, folded: &Folded, now: EpochMillis) -> Option<Decision> {
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
    #[must_use]
    pub fn retries(&self) -> Option<JobId> {
        (self.change.step.to == ExecutionStatus::Scheduled).then_some(self.change.before.job)
    }

    /// Sets when the next attempt is due. `jitter`, 0 to 1, spreads attempts over up to 10 % more.
    pub fn schedule_retry(
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

#[cfg(test)]
mod tests {
    use super::*;
    use isocost_common::test_support::given::job;
    use isocost_common::{
        id::{ExecutionId, WorkerId},
        job::Backoff,
        raw_json::RawJson,
        store::executions::TriggerKind,
    };

    const DISPATCHED: EpochMillis = EpochMillis(1_000_000);
    const NOW: EpochMillis = EpochMillis(1_010_000);

    fn dispatched(max_attempts: u32) -> ExecutionRow {
        let job = job();
        ExecutionRow {
            id: ExecutionId::generate(),
            job: job.id,
            app: job.app,
            handler: job.handler.clone(),
            scheduled_time: DISPATCHED,
            shard: 0,
            trigger_key: String::new(),
            trigger_kind: TriggerKind::Schedule,
            status: ExecutionStatus::Dispatched,
            not_before: DISPATCHED,
            class_key: job.class_key(),
            rank_time: 0,
            attempt: 0,
            interruptions: 0,
            max_attempts,
            dispatch_seq: 1,
            worker: WorkerId::parse("worker-a").ok(),
            incarnation: Some(IncarnationId::generate()),
            epoch: Some(1),
            not_after: None,
            slot_key: None,
            params: None,
            created_at: DISPATCHED,
            due_at: Some(DISPATCHED),
            dispatched_at: Some(DISPATCHED),
            started_at: None,
            finished_at: None,
            start_deadline_at: None,
            timeout_ms: 60_000,
            cancel_requested_at: None,
            progress_percent: None,
            progress_message: None,
            result: None,
            error: None,
        }
    }

    fn finished(row: &ExecutionRow, outcome: Outcome) -> Folded {
        Folded {
            incarnation: row.incarnation.expect("dispatched"),
            started_at: None,
            end: Some(End::Finished {
                outcome,
                started_at: EpochMillis(NOW.0 - 500),
                at: EpochMillis(NOW.0 - 100),
            }),
        }
    }

    fn failed(retry_after_ms: Option<u64>) -> Outcome {
        Outcome::Failed {
            error: ExecutionError::new("handler.failed", "no"),
            retryable: true,
            retry_after_ms,
        }
    }

    /// The pause before the next attempt, without jitter.
    fn pause_after(row: ExecutionRow, outcome: Outcome) -> Duration {
        let folded = finished(&row, outcome);
        let policy = RetryPolicy {
            backoff: Backoff::Exponential,
            initial_ms: 1_000,
            max_ms: 60_000,
            max_attempts: row.max_attempts,
        };
        let policies = HashMap::from([(row.job, policy)]);
        let mut decision = decide(row, &folded, NOW).expect("legal");
        assert!(decision.retries().is_some());
        decision.schedule_retry(&folded, &policies, NOW, 0.0);
        decision.change.not_before.expect("scheduled").since(NOW)
    }

    #[test]
    fn the_pause_grows_with_the_failed_attempts_and_not_with_interruptions() {
        assert_eq!(pause_after(dispatched(9), failed(None)), Duration::from_secs(1));
        let third = ExecutionRow {
            attempt: 2,
            ..dispatched(9)
        };
        assert_eq!(pause_after(third.clone(), failed(None)), Duration::from_secs(4));
        assert_eq!(
            pause_after(third.clone(), Outcome::TimedOut),
            Duration::from_secs(4)
        );
        let interrupted = ExecutionRow {
            interruptions: 2,
            ..third
        };
        assert_eq!(pause_after(interrupted, failed(None)), Duration::from_secs(1));
    }

    #[test]
    fn a_handler_may_ask_for_its_own_pause_and_an_interruption_needs_none() {
        assert_eq!(
            pause_after(dispatched(9), failed(Some(90_000))),
            Duration::from_secs(90)
        );
        assert_eq!(
            pause_after(dispatched(9), failed(Some(u64::MAX))),
            MAX_RETRY_AFTER
        );
        let drained = Outcome::Interrupted {
            reason: "drain".into(),
        };
        assert_eq!(pause_after(dispatched(1), drained), Duration::ZERO);
    }

    #[test]
    fn jitter_adds_at_most_a_tenth() {
        let row = dispatched(9);
        let folded = finished(&row, failed(Some(1_000)));
        let mut decision = decide(row, &folded, NOW).expect("legal");
        decision.schedule_retry(&folded, &HashMap::new(), NOW, 1.0);
        assert_eq!(
            decision.change.not_before,
            Some(NOW + Duration::from_millis(1_100))
        );
        let message = decision.change.message.expect("a step says why");
        assert!(
            message.contains("handler.failed: no; attempt 2 is due at"),
            "{message}"
        );
    }

    #[test]
    fn another_incarnation_and_a_row_that_moved_on_are_stale() {
        let row = dispatched(1);
        let success = Outcome::Succeeded {
            result: RawJson::null(),
        };
        let folded = finished(&row, success);
        let elsewhere = ExecutionRow {
            incarnation: Some(IncarnationId::generate()),
            ..row.clone()
        };
        let over = ExecutionRow {
            status: ExecutionStatus::Lost,
            ..row.clone()
        };
        assert!(decide(elsewhere, &folded, NOW).is_none());
        assert!(decide(over, &folded, NOW).is_none());
        assert!(decide(row, &folded, NOW).is_some());
    }

    #[test]
    fn a_worker_with_a_wrong_clock_moves_nothing_out_of_order() {
        let row = dispatched(1);
        let folded = Folded {
            end: Some(End::Finished {
                outcome: Outcome::Succeeded {
                    result: RawJson::null(),
                },
                started_at: EpochMillis(DISPATCHED.0 - 9_000_000),
                at: EpochMillis(NOW.0 + 9_000_000),
            }),
            ..finished(&row, Outcome::TimedOut)
        };
        let change = decide(row, &folded, NOW).expect("legal").change;
        assert_eq!((change.started_at, change.at), (Some(DISPATCHED), NOW));
    }

    #[test]
    fn a_refusal_is_announced_as_one_and_a_release_is_not() {
        let said = |reason| {
            let row = dispatched(1);
            let folded = Folded {
                incarnation: row.incarnation.expect("dispatched"),
                started_at: None,
                end: Some(End::Returned(reason)),
            };
            decide(row, &folded, NOW).expect("legal").settled
        };
        let refused = said(Return::Refused("no free slot".into()));
        assert_eq!(
            (refused.status, refused.refused),
            (ExecutionStatus::Pending, true)
        );
        assert!(!said(Return::Released).refused);
        assert!(!said(Return::Unknown).refused);
    }

    #[test]
    fn a_cancelled_execution_keeps_no_error_of_its_handler() {
        let row = ExecutionRow {
            cancel_requested_at: Some(NOW),
            ..dispatched(3)
        };
        let folded = finished(&row, failed(None));
        let change = decide(row, &folded, NOW).expect("legal").change;
        assert_eq!(change.step.to, ExecutionStatus::Cancelled);
        assert_eq!(change.error, None);
    }
}
