//! What proves a death, what must have happened before its work goes to others, and what it means for an execution.
//! Pure: the evidence is gathered elsewhere and instants are arguments, so that the protocol can be explored exhaustively
//! over this very code.

use isocost_common::{
    execution::{ExecutionError, ExecutionEvent, ExecutionStatus},
    id::{IncarnationId, JobId, WorkerId},
    job::RetryPolicy,
    message::Marker,
    store::{executions::ExecutionRow, transitions::Change},
    time::EpochMillis,
};
use std::{collections::HashMap, time::Duration};
use tokio::time::Instant;

/// Leases of silence that need no look at the worker's queue.
const SILENCE_THAT_PROVES: u32 = 3;
/// A marker that did not come back by then is sent again.
pub const MARKER_PATIENCE: Duration = Duration::from_secs(5);

/// A silent incarnation that is looked into.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The worker.
    pub worker: WorkerId,
    /// Its incarnation.
    pub incarnation: IncarnationId,
    /// Where `/livez` should answer.
    pub host: String,
    /// Where `/livez` should answer; 0 when it does not listen.
    pub port: u16,
    /// How long no heartbeat of it has come over the broker.
    pub silence: Duration,
    /// How long a lease is.
    pub lease: Duration,
    /// A newer incarnation of the same worker at the same address.
    pub successor: Option<IncarnationId>,
}

/// What is concluded about a silent incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Something of it answers, or its other path has not expired.
    Alive,
    /// A part of the evidence could not be had.
    Unclear,
    /// Nobody is there, and why that is certain.
    Dead(&'static str),
}

impl Subject {
    /// After asking at its address, where `answering` answered: the verdict, unless more must be known.
    #[must_use]
    pub fn after_probe(&self, answering: Option<IncarnationId>) -> Option<Verdict> {
        if answering == Some(self.incarnation) {
            return Some(Verdict::Alive);
        }
        if answering.is_some() && answering == self.successor {
            return Some(Verdict::Dead("its successor answers on its port"));
        }
        // Without a lease of silence only a successor proves anything.
        (self.silence < self.lease).then_some(Verdict::Unclear)
    }

    /// After asking the coordination service, which keeps a heartbeat of this age, if any, and has done so for
    /// `known_for`: the verdict, unless more must be known.
    #[must_use]
    pub fn after_last_heartbeat(&self, age: Option<Duration>, known_for: Duration) -> Option<Verdict> {
        if age.is_some_and(|age| age < self.lease) {
            return Some(Verdict::Alive);
        }
        // A service that was flushed or started meanwhile has forgotten heartbeats that renewed a lease.
        if known_for < self.lease {
            return Some(Verdict::Unclear);
        }
        (self.silence >= self.lease * SILENCE_THAT_PROVES).then_some(Verdict::Dead("silent for three leases"))
    }

    /// After asking the broker for its queue: how many consume it, or none when it is gone.
    #[must_use]
    pub fn after_queue(&self, consumers: Option<u64>) -> Verdict {
        if consumers.is_some_and(|consumers| consumers > 0) {
            Verdict::Alive
        } else {
            Verdict::Dead("silent for a lease, and nobody answers or consumes")
        }
    }
}

/// How an incarnation ended, which decides what is counted against its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// It said so itself, after its last run had ended and the broker had all of its reports.
    Goodbye,
    /// It was declared dead: whatever it held may have been in the middle.
    Death,
}

impl Departure {
    /// What it means for an execution in this state, once everything the incarnation had confirmed is taken in.
    fn event(self, status: ExecutionStatus) -> ExecutionEvent<'static> {
        match (self, status) {
            // Had it started, its start or its end would have been reported before the goodbye: it was never taken.
            (Self::Goodbye, ExecutionStatus::Dispatched) => ExecutionEvent::GivenBack,
            _ => ExecutionEvent::WorkerDead,
        }
    }
}

/// How far the work of an ended incarnation has come.
#[derive(Debug, Default)]
pub struct Aftermath {
    /// Its tombstone stands, or it needs none: it cannot renew its lease any more.
    pub entombed: bool,
    /// Sent through the results queue, and when.
    marker: Option<(Marker, Instant)>,
    /// Everything it had confirmed is taken in.
    results_in: bool,
}

/// What is to be done next about an ended incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextStep {
    /// Write its tombstone.
    Entomb,
    /// Send a marker through the results queue, behind everything it had confirmed.
    SendMarker,
    /// Wait for the marker.
    Wait,
    /// Give its executions to others.
    Recover,
}

impl Aftermath {
    /// Of one that said goodbye: it does not come back, so it needs no tombstone.
    #[must_use]
    pub fn of_goodbye() -> Self {
        Self {
            entombed: true,
            ..Self::default()
        }
    }

    /// The order of things: nothing of it is given to others before it cannot come back, and before everything it had
    /// confirmed is taken in, since a run that was reported must not run again.
    #[must_use]
    pub fn next_step(&self, now: Instant) -> NextStep {
        if !self.entombed {
            return NextStep::Entomb;
        }
        match self.marker {
            _ if self.results_in => NextStep::Recover,
            Some((_, sent_at)) if now < sent_at + MARKER_PATIENCE => NextStep::Wait,
            // The marker, or the word of its return, may be lost.
            Some(_) | None => NextStep::SendMarker,
        }
    }

    /// A marker was sent behind its reports.
    pub fn marker_sent(&mut self, marker: Marker, now: Instant) {
        self.marker = Some((marker, now));
    }

    /// A marker has come through the results queue.
    pub fn taken_in(&mut self, marker: Marker) {
        self.results_in |= self.marker.is_some_and(|(sent, _)| sent == marker);
    }
}

/// What the departure of `incarnation`, or of everybody, means for these locked rows; those that belong to somebody else
/// by now are left out.
#[must_use]
pub fn left_behind(
    rows: Vec<ExecutionRow>,
    incarnation: Option<IncarnationId>,
    departure: Departure,
    now: EpochMillis,
    policies: &HashMap<JobId, RetryPolicy>,
) -> Vec<Change> {
    rows.into_iter()
        .filter(|row| row.status.is_owned())
        .filter(|row| incarnation.is_none() || row.incarnation == incarnation)
        .filter_map(|row| take_back(row, departure, now, policies))
        .collect()
}

fn take_back(
    row: ExecutionRow,
    departure: Departure,
    now: EpochMillis,
    policies: &HashMap<JobId, RetryPolicy>,
) -> Option<Change> {
    let event = departure.event(row.status);
    let step = row.status.after(&event, row.facts()).ok()?;
    let policy = policies.get(&row.job).copied().unwrap_or_default();
    let failures = step.attempt.saturating_sub(step.interruptions).max(1);
    let retry = step.to == ExecutionStatus::Scheduled;
    let message = match event {
        ExecutionEvent::GivenBack => "its worker stopped before it came to it",
        _ => "its worker died or lost its lease",
    };
    Some(Change {
        step,
        at: now,
        started_at: None,
        not_before: retry.then(|| now + policy.pause_after(failures)),
        result: None,
        error: retry
            .then(|| ExecutionError::new("worker.lost", "its worker died or lost its lease while it ran")),
        message: Some(message.into()),
        before: row,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use isocost_common::test_support::given;

    const LEASE: Duration = Duration::from_secs(15);
    const LONG: Duration = Duration::from_secs(3_600);

    fn silent_for(silence: Duration) -> Subject {
        Subject {
            worker: given::worker(),
            incarnation: IncarnationId::generate(),
            host: "localhost".into(),
            port: 7_000,
            silence,
            lease: LEASE,
            successor: Some(IncarnationId::generate()),
        }
    }

    #[test]
    fn one_that_answers_is_alive_however_long_it_was_silent() {
        let subject = silent_for(LEASE * 9);
        assert_eq!(
            subject.after_probe(Some(subject.incarnation)),
            Some(Verdict::Alive)
        );
    }

    #[test]
    fn before_a_lease_of_silence_only_a_successor_in_its_place_proves_its_death() {
        let subject = silent_for(LEASE - Duration::from_millis(1));
        assert_eq!(subject.after_probe(None), Some(Verdict::Unclear));
        assert_eq!(
            subject.after_probe(Some(IncarnationId::generate())),
            Some(Verdict::Unclear)
        );
        assert!(matches!(
            subject.after_probe(subject.successor),
            Some(Verdict::Dead(_))
        ));
        assert_eq!(silent_for(LEASE).after_probe(None), None, "more is asked");
    }

    #[test]
    fn a_fresh_heartbeat_on_the_other_path_means_alive_and_a_service_without_memory_nothing() {
        let subject = silent_for(LEASE);
        let almost = LEASE - Duration::from_millis(1);
        assert_eq!(
            subject.after_last_heartbeat(Some(almost), LONG),
            Some(Verdict::Alive)
        );
        assert_eq!(subject.after_last_heartbeat(None, almost), Some(Verdict::Unclear));
        assert_eq!(subject.after_last_heartbeat(Some(LEASE), LONG), None);
        assert_eq!(subject.after_queue(Some(1)), Verdict::Alive);
        assert!(matches!(subject.after_queue(Some(0)), Verdict::Dead(_)));
        assert!(matches!(subject.after_queue(None), Verdict::Dead(_)));
    }

    #[test]
    fn three_leases_of_silence_need_no_look_at_the_queue() {
        let subject = silent_for(LEASE * 3);
        let verdict = subject.after_last_heartbeat(Some(LEASE), LONG);
        assert!(matches!(verdict, Some(Verdict::Dead(_))));
    }

    #[test]
    fn work_is_given_to_others_after_the_tombstone_and_after_the_results() {
        let now = Instant::now();
        let mut aftermath = Aftermath::default();
        assert_eq!(aftermath.next_step(now), NextStep::Entomb);
        aftermath.entombed = true;
        assert_eq!(aftermath.next_step(now), NextStep::SendMarker);
        let marker = Marker::generate();
        aftermath.marker_sent(marker, now);
        assert_eq!(aftermath.next_step(now), NextStep::Wait);
        aftermath.taken_in(Marker::generate());
        assert_eq!(aftermath.next_step(now), NextStep::Wait, "another one's marker");
        aftermath.taken_in(marker);
        assert_eq!(aftermath.next_step(now), NextStep::Recover);
        assert_eq!(Aftermath::of_goodbye().next_step(now), NextStep::SendMarker);
    }

    #[test]
    fn a_marker_that_does_not_come_back_is_sent_again() {
        let now = Instant::now();
        let mut aftermath = Aftermath::of_goodbye();
        aftermath.marker_sent(Marker::generate(), now);
        assert_eq!(aftermath.next_step(now + MARKER_PATIENCE), NextStep::SendMarker);
    }

    #[test]
    fn a_death_concerns_only_what_is_still_the_dead_ones() {
        let job = given::job();
        let row = |status| given::execution(&job, status);
        let mine = row(ExecutionStatus::Running);
        let rows = vec![
            mine.clone(),
            row(ExecutionStatus::Running),
            ExecutionRow {
                incarnation: mine.incarnation,
                ..row(ExecutionStatus::Succeeded)
            },
        ];
        let changed = |incarnation| {
            let changes = left_behind(
                rows.clone(),
                incarnation,
                Departure::Death,
                given::PLANNED,
                &HashMap::new(),
            );
            changes.iter().map(|change| change.before.id).collect::<Vec<_>>()
        };
        assert_eq!(changed(mine.incarnation), [mine.id]);
        assert_eq!(changed(None).len(), 2, "everybody's death, but nothing terminal");
    }

    #[test]
    fn a_goodbye_gives_back_uncounted_what_was_never_taken_and_a_death_counts_what_may_have_started() {
        let job = given::job();
        let after = |departure, status| {
            let row = given::execution(&job, status);
            let counted = (row.attempt, row.interruptions);
            let changes = left_behind(
                vec![row.clone()],
                row.incarnation,
                departure,
                given::PLANNED,
                &HashMap::new(),
            );
            let change = changes.into_iter().next().expect("it was its own");
            let is_counted = (change.step.attempt, change.step.interruptions) != counted;
            (change.step.to, is_counted, change.message)
        };
        let (to, is_counted, said) = after(Departure::Goodbye, ExecutionStatus::Dispatched);
        assert_eq!((to, is_counted), (ExecutionStatus::Pending, false));
        assert_eq!(said.as_deref(), Some("its worker stopped before it came to it"));
        let (to, is_counted, _) = after(Departure::Death, ExecutionStatus::Dispatched);
        assert_eq!((to, is_counted), (ExecutionStatus::Pending, true));
        // A start whose end is missing although everything was confirmed: what was confirmed is lost, and it did run.
        let running = after(Departure::Goodbye, ExecutionStatus::Running);
        assert_eq!(running, after(Departure::Death, ExecutionStatus::Running));
    }
}
