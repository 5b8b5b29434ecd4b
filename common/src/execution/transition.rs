//! The transition table of an execution: pure, no clock and no I/O. Every UPDATE of the store repeats its guard.

use super::{ExecutionStatus, FREE_INTERRUPTIONS, Outcome};

/// What happened to an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecutionEvent<'a> {
    /// Its `not_before` was reached.
    Due,
    /// A concurrency slot became free for it.
    SlotFree,
    /// The leader gave it to a worker incarnation, under the next `dispatch_seq`.
    Placed,
    /// Its worker will never start this handover: refused, released, or unknown there.
    GivenBack,
    /// Its worker started it.
    Started,
    /// Its worker reports how the run ended. Implies the start.
    Finished(&'a Outcome),
    /// Its worker incarnation is proven dead.
    WorkerDead,
    /// A dispatcher decided that the result is overdue.
    ResultOverdue,
    /// Somebody asked for it to stop.
    CancelRequested,
    /// Its start deadline passed.
    StartDeadlinePassed,
    /// A policy decided that it does not run.
    SkippedByPolicy,
}

/// What the decision needs to know besides the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Starts so far, those presumed at a worker's death included.
    pub attempt: u32,
    /// Starts that cost nothing, because the handler was not at fault.
    pub interruptions: u32,
    /// Starts allowed, interruptions not counted; at least 1.
    pub max_attempts: u32,
    /// A cancel was requested and still stands.
    pub cancel_requested: bool,
}

/// The state after an event, with the counts that go with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The state it is in now.
    pub to: ExecutionStatus,
    /// Starts so far.
    pub attempt: u32,
    /// Free starts so far.
    pub interruptions: u32,
}

/// An event that means nothing in this state: late, repeated, or about another handover.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an execution that is {from} has no step for {event}")]
pub struct IllegalTransition {
    /// The state it stays in.
    pub from: ExecutionStatus,
    /// The event's name.
    pub event: &'static str,
}

impl ExecutionEvent<'_> {
    /// A stable word for logs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Due => "due",
            Self::SlotFree => "slotFree",
            Self::Placed => "placed",
            Self::GivenBack => "givenBack",
            Self::Started => "started",
            Self::Finished(_) => "finished",
            Self::WorkerDead => "workerDead",
            Self::ResultOverdue => "resultOverdue",
            Self::CancelRequested => "cancelRequested",
            Self::StartDeadlinePassed => "startDeadlinePassed",
            Self::SkippedByPolicy => "skippedByPolicy",
        }
    }
}

impl ExecutionStatus {
    /// Every legal step. A pair without an arm is refused, so a new state starts out unreachable.
    ///
    /// # Errors
    /// [`IllegalTransition`] when the event is stale here; callers change nothing then.
    pub fn after(self, event: &ExecutionEvent<'_>, facts: Facts) -> Result<Step, IllegalTransition> {
        use ExecutionEvent as Event;
        let keep = |to| Step {
            to,
            attempt: facts.attempt,
            interruptions: facts.interruptions,
        };
        match (self, event) {
            (Self::Scheduled, Event::Due) | (Self::Blocked, Event::SlotFree) => {
                Ok(keep(facts.unless_cancelled(Self::Pending)))
            }
            // Placing a cancelled execution would run what the user was told is stopped.
            (Self::Pending, Event::Placed) if !facts.cancel_requested => Ok(keep(Self::Dispatched)),
            (Self::Dispatched, Event::GivenBack) => Ok(keep(facts.unless_cancelled(Self::Pending))),
            (Self::Dispatched, Event::Started) => Ok(facts.started().step(Self::Running)),
            (Self::Dispatched, Event::Finished(outcome)) => Ok(facts.started().finished(outcome)),
            (Self::Running, Event::Finished(outcome)) => Ok(facts.finished(outcome)),
            (Self::Dispatched, Event::WorkerDead) => Ok(facts.died_unstarted()),
            (Self::Running, Event::WorkerDead) => Ok(facts.again_or(Self::Lost)),
            // Terminal: a run that was not proven stopped must not get a second one beside it.
            (Self::Running, Event::ResultOverdue) => Ok(keep(Self::TimedOut)),
            (Self::Scheduled | Self::Blocked | Self::Pending, Event::CancelRequested) => {
                Ok(keep(Self::Cancelled))
            }
            (Self::Dispatched | Self::Running, Event::CancelRequested) => Ok(keep(self)),
            (Self::Scheduled | Self::Blocked | Self::Pending, Event::StartDeadlinePassed) => {
                Ok(keep(Self::Expired))
            }
            (Self::Scheduled | Self::Blocked | Self::Pending, Event::SkippedByPolicy) => {
                Ok(keep(Self::Skipped))
            }
            (from, event) => Err(IllegalTransition {
                from,
                event: event.name(),
            }),
        }
    }
}

impl Facts {
    /// With a cancel requested, every way back to waiting leads to cancelled instead.
    fn unless_cancelled(self, waiting: ExecutionStatus) -> ExecutionStatus {
        if self.cancel_requested {
            ExecutionStatus::Cancelled
        } else {
            waiting
        }
    }

    fn step(self, to: ExecutionStatus) -> Step {
        Step {
            to,
            attempt: self.attempt,
            interruptions: self.interruptions,
        }
    }

    fn started(self) -> Self {
        Self {
            attempt: self.attempt.saturating_add(1),
            ..self
        }
    }

    fn interrupted(self) -> Self {
        let free = self.interruptions < FREE_INTERRUPTIONS;
        Self {
            interruptions: self.interruptions + u32::from(free),
            ..self
        }
    }

    fn attempt_left(self) -> bool {
        self.attempt.saturating_sub(self.interruptions) < self.max_attempts
    }

    fn again_or(self, end: ExecutionStatus) -> Step {
        let again = self.unless_cancelled(ExecutionStatus::Scheduled);
        self.step(if self.attempt_left() { again } else { end })
    }

    /// The start may have died with the worker, so it is counted; it was nobody's fault, so it is free.
    fn died_unstarted(self) -> Step {
        let facts = self.started().interrupted();
        let again = facts.unless_cancelled(ExecutionStatus::Pending);
        facts.step(if facts.attempt_left() {
            again
        } else {
            ExecutionStatus::Lost
        })
    }

    fn finished(self, outcome: &Outcome) -> Step {
        match outcome {
            Outcome::Succeeded { .. } => self.step(ExecutionStatus::Succeeded),
            Outcome::Failed { retryable: false, .. } => self.step(ExecutionStatus::Failed),
            Outcome::Failed { retryable: true, .. } => self.again_or(ExecutionStatus::Failed),
            Outcome::TimedOut => self.again_or(ExecutionStatus::TimedOut),
            Outcome::Cancelled if self.cancel_requested => self.step(ExecutionStatus::Cancelled),
            // Stopped although nobody asked for this execution to end: it has to run again.
            Outcome::Cancelled | Outcome::Interrupted { .. } => {
                self.interrupted().again_or(ExecutionStatus::Failed)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{execution::ExecutionError, raw_json::RawJson};
    use ExecutionStatus as S;

    const FRESH: Facts = Facts {
        attempt: 0,
        interruptions: 0,
        max_attempts: 3,
        cancel_requested: false,
    };

    fn outcomes() -> Vec<Outcome> {
        let failed = |retryable| Outcome::Failed {
            error: ExecutionError::new("handler.failed", "no"),
            retryable,
            retry_after_ms: None,
        };
        vec![
            Outcome::Succeeded {
                result: RawJson::null(),
            },
            failed(true),
            failed(false),
            Outcome::TimedOut,
            Outcome::Cancelled,
            Outcome::Interrupted {
                reason: "drain".into(),
            },
        ]
    }

    fn events(outcomes: &[Outcome]) -> Vec<ExecutionEvent<'_>> {
        use ExecutionEvent as E;
        let mut all = vec![
            E::Due,
            E::SlotFree,
            E::Placed,
            E::GivenBack,
            E::Started,
            E::WorkerDead,
            E::ResultOverdue,
            E::CancelRequested,
            E::StartDeadlinePassed,
            E::SkippedByPolicy,
        ];
        all.extend(outcomes.iter().map(E::Finished));
        all
    }

    /// The table of the design, written out a second time: state, event, and where it may lead.
    fn allowed(from: S, event: &ExecutionEvent<'_>) -> &'static [S] {
        use ExecutionEvent as E;
        match (from, event) {
            (S::Scheduled, E::Due) | (S::Blocked, E::SlotFree) => &[S::Pending, S::Cancelled],
            (S::Pending, E::Placed) => &[S::Dispatched],
            (S::Dispatched, E::GivenBack) => &[S::Pending, S::Cancelled],
            (S::Dispatched, E::Started) => &[S::Running],
            (S::Dispatched | S::Running, E::Finished(Outcome::Succeeded { .. })) => &[S::Succeeded],
            (S::Dispatched | S::Running, E::Finished(Outcome::Failed { retryable: false, .. })) => {
                &[S::Failed]
            }
            (S::Dispatched | S::Running, E::Finished(Outcome::TimedOut)) => {
                &[S::Scheduled, S::TimedOut, S::Cancelled]
            }
            (S::Dispatched | S::Running, E::Finished(_)) => &[S::Scheduled, S::Failed, S::Cancelled],
            (S::Dispatched, E::WorkerDead) => &[S::Pending, S::Lost, S::Cancelled],
            (S::Running, E::WorkerDead) => &[S::Scheduled, S::Lost, S::Cancelled],
            (S::Running, E::ResultOverdue) => &[S::TimedOut],
            (S::Scheduled | S::Blocked | S::Pending, E::CancelRequested) => &[S::Cancelled],
            (S::Dispatched, E::CancelRequested) => &[S::Dispatched],
            (S::Running, E::CancelRequested) => &[S::Running],
            (S::Scheduled | S::Blocked | S::Pending, E::StartDeadlinePassed) => &[S::Expired],
            (S::Scheduled | S::Blocked | S::Pending, E::SkippedByPolicy) => &[S::Skipped],
            _ => &[],
        }
    }

    #[test]
    fn every_pair_of_state_and_event_leads_where_the_table_says() {
        let outcomes = outcomes();
        for from in S::ALL {
            for event in events(&outcomes) {
                for cancel_requested in [false, true] {
                    for attempt in 0..=14 {
                        for interruptions in 0..=attempt {
                            let facts = Facts {
                                attempt,
                                interruptions,
                                max_attempts: 3,
                                cancel_requested,
                            };
                            let expected = allowed(from, &event);
                            match from.after(&event, facts) {
                                Ok(step) => assert!(
                                    expected.contains(&step.to),
                                    "{from} on {event:?} with {facts:?} led to {}",
                                    step.to
                                ),
                                Err(_) => assert!(
                                    expected.is_empty()
                                        || (cancel_requested && event == ExecutionEvent::Placed),
                                    "{from} on {event:?} with {facts:?} was refused"
                                ),
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn terminal_is_final() {
        let outcomes = outcomes();
        for from in S::ALL.into_iter().filter(|s| s.is_terminal()) {
            for event in events(&outcomes) {
                assert!(from.after(&event, FRESH).is_err(), "{from} left by {event:?}");
            }
        }
    }

    #[test]
    fn a_requested_cancel_leaves_no_way_back_to_waiting() {
        let outcomes = outcomes();
        let facts = Facts {
            cancel_requested: true,
            ..FRESH
        };
        for from in S::ALL {
            for event in events(&outcomes) {
                if let Ok(step) = from.after(&event, facts) {
                    assert!(
                        !matches!(step.to, S::Scheduled | S::Pending | S::Blocked),
                        "{from} went to {} on {event:?}",
                        step.to
                    );
                }
            }
        }
    }

    #[test]
    fn a_job_that_kills_its_worker_every_time_ends_after_its_last_attempt() {
        let mut facts = Facts {
            max_attempts: 3,
            ..FRESH
        };
        let mut starts = 0;
        loop {
            let running = S::Dispatched
                .after(&ExecutionEvent::Started, facts)
                .expect("starts");
            starts += 1;
            facts = Facts {
                attempt: running.attempt,
                interruptions: running.interruptions,
                ..facts
            };
            let dead = S::Running
                .after(&ExecutionEvent::WorkerDead, facts)
                .expect("dies");
            if dead.to == S::Lost {
                break;
            }
            assert_eq!(dead.to, S::Scheduled);
        }
        assert_eq!(starts, 3);
    }

    #[test]
    fn interruptions_are_free_only_up_to_the_limit() {
        let mut facts = Facts {
            max_attempts: 1,
            ..FRESH
        };
        let outcome = Outcome::Interrupted {
            reason: "drain".into(),
        };
        let mut starts = 0;
        loop {
            let step = S::Dispatched
                .after(&ExecutionEvent::Finished(&outcome), facts)
                .expect("finishes");
            starts += 1;
            facts = Facts {
                attempt: step.attempt,
                interruptions: step.interruptions,
                ..facts
            };
            if step.to.is_terminal() {
                break;
            }
        }
        assert_eq!(starts, FREE_INTERRUPTIONS + 1);
    }

    #[test]
    fn a_stop_nobody_asked_for_is_an_interruption() {
        let step = S::Running
            .after(&ExecutionEvent::Finished(&Outcome::Cancelled), FRESH)
            .expect("legal");
        assert_eq!((step.to, step.interruptions), (S::Scheduled, 1));
    }

    #[test]
    fn codes_are_read_back() {
        for status in S::ALL {
            assert_eq!(S::from_code(status.code()), Some(status));
        }
        assert_eq!(S::from_code(12), None);
        assert_eq!(S::from_code(-1), None);
    }
}
