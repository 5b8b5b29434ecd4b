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
const MARKER_PATIENCE: Duration = Duration::from_secs(5);

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

/// What the death of `incarnation`, or of everybody, means for these locked rows; those that belong to somebody else by
/// now are left out.
#[must_use]
pub fn deaths(
    rows: Vec<ExecutionRow>,
    incarnation: Option<IncarnationId>,
    now: EpochMillis,
    policies: &HashMap<JobId, RetryPolicy>,
) -> Vec<Change> {
    rows.into_iter()
        .filter(|row| row.status.is_owned())
        .filter(|row| incarnation.is_none() || row.incarnation == incarnation)
        .filter_map(|row| death(row, now, policies))
        .collect()
}

fn death(row: ExecutionRow, now: EpochMillis, policies: &HashMap<JobId, RetryPolicy>) -> Option<Change> {
    let step = row.status.after(&ExecutionEvent::WorkerDead, row.facts()).ok()?;
    let policy = policies.get(&row.job).copied().unwrap_or_default();
    let failures = step.attempt.saturating_sub(step.interruptions).max(1);
    let retry = step.to == ExecutionStatus::Scheduled;
    Some(Change {
        step,
        at: now,
        started_at: None,
        not_before: retry.then(|| now + policy.pause_after(failures)),
        result: None,
        error: retry.then(|| ExecutionError::new("worker.lost", "its worker died while it ran")),
        message: Some("its worker died".into()),
        before: row,
    })
}
