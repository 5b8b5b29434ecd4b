//! One handover as the leader sees it, and what the leader asks its worker about it. Pure: instants are arguments, and
//! what is asked is returned, so that the protocol can be explored exhaustively over this very code.
//!
//! Whatever is asked here is only asked: a handover ends by its worker's word or its proven death, never by a request.

use isocost_common::{
    execution::{Claim, ExecutionStatus},
    id::{IncarnationId, WorkerId},
    message::ControlAction,
    store::{
        placement::Class,
        recovery::{Owned, Standing},
        workers::WorkerStatus,
    },
    time::EpochMillis,
};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// Heartbeats in a row that do not name an execution before its worker is asked about it.
pub const UNNAMED_REPORTS: u32 = 2;
/// A heartbeat may have been under way for this long when an execution was placed.
const REPORT_AGE: Duration = Duration::from_secs(1);
/// A request is repeated after this long.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// An execution that an incarnation owns.
#[derive(Debug, Clone)]
pub struct Held {
    /// Which handover.
    pub claim: Claim,
    /// The worker it was given to.
    pub worker: WorkerId,
    /// The incarnation that owns it.
    pub incarnation: IncarnationId,
    /// What it competes with for seats.
    pub class: Arc<Class>,
    /// Dispatched or running, as far as this leader has heard.
    pub status: ExecutionStatus,
    /// When it was placed.
    pub placed_at: EpochMillis,
    /// Until when its worker may take it.
    pub not_after: EpochMillis,
    /// Of the leader that placed it.
    pub epoch: i64,
    /// When this leader placed it or learned of it.
    pub since: Instant,
    /// When it was started.
    pub started_at: Option<EpochMillis>,
    /// Run time allowed, in milliseconds.
    pub timeout_ms: i64,
    /// A cancel was requested.
    pub cancel_requested: bool,
    /// The broker has confirmed its message.
    pub published: bool,
    /// Heartbeats in a row that did not name it.
    pub unnamed: u32,
    /// When its worker was last asked to release it.
    pub asked_at: Option<Instant>,
}

impl Held {
    /// What the database says is owned and this leader does not know: placed by a leader before, or by a commit whose
    /// answer was lost.
    #[must_use]
    pub fn found(owned: &Owned, class: Arc<Class>, now: Instant) -> Self {
        Self {
            claim: owned.claim,
            worker: owned.worker.clone(),
            incarnation: owned.incarnation,
            class,
            status: owned.status,
            placed_at: owned.dispatched_at,
            not_after: owned.not_after,
            epoch: owned.epoch,
            since: now,
            started_at: owned.started_at,
            timeout_ms: owned.timeout_ms,
            cancel_requested: owned.cancel_requested,
            published: owned.status != ExecutionStatus::Dispatched,
            unnamed: 0,
            asked_at: None,
        }
    }

    /// Takes over what the database says about the same handover.
    pub fn follow(&mut self, owned: &Owned) {
        self.status = owned.status;
        self.started_at = owned.started_at;
        self.cancel_requested |= owned.cancel_requested;
    }

    /// A heartbeat of its worker, heard at `heard_at`, names it or does not. Returns the query to send when it has been
    /// missing for long enough: its message may be lost, or its report.
    pub fn on_heartbeat(&mut self, is_named: bool, heard_at: Instant) -> Option<ControlAction> {
        if is_named {
            self.unnamed = 0;
            return None;
        }
        if !self.published || heard_at.duration_since(self.since) <= REPORT_AGE {
            return None;
        }
        self.unnamed += 1;
        (self.unnamed >= UNNAMED_REPORTS).then_some(ControlAction::Query {
            claim: self.claim,
            not_after: Some(self.not_after),
        })
    }

    /// Asks to give it back, or to stop it, when that was requested; again and again until it is gone.
    pub fn stop_request(&mut self, now: Instant) -> Option<ControlAction> {
        if !self.cancel_requested || self.was_just_asked(now) {
            return None;
        }
        if self.status != ExecutionStatus::Running {
            return Some(self.release_request(now));
        }
        self.asked_at = Some(now);
        Some(ControlAction::Cancel {
            claim: self.claim,
            not_after: Some(self.not_after),
        })
    }

    /// True when it has not started for longer than `patience`, and nobody is asked for it already.
    #[must_use]
    pub fn waits_too_long(&self, patience: Duration, now: Instant) -> bool {
        self.status == ExecutionStatus::Dispatched
            && self.published
            && !self.cancel_requested
            && !self.was_just_asked(now)
            && now.duration_since(self.since) > patience
    }

    /// Asks to give it back unless it has started.
    pub fn release_request(&mut self, now: Instant) -> ControlAction {
        self.asked_at = Some(now);
        ControlAction::Release {
            claim: self.claim,
            not_after: Some(self.not_after),
        }
    }

    /// True while its message is published again if the broker does not confirm it.
    #[must_use]
    pub fn wants_its_message(&self) -> bool {
        self.status == ExecutionStatus::Dispatched
    }

    fn was_just_asked(&self, now: Instant) -> bool {
        self.asked_at.is_some_and(|at| now < at + ASK_AGAIN)
    }
}

/// True when the message of a handover that this leader did not know may not have left: it is published again, under the
/// same number and the same `not_after`.
#[must_use]
pub fn must_be_published(owned: &Owned) -> bool {
    owned.status == ExecutionStatus::Dispatched && !owned.owner.is_some_and(WorkerStatus::has_ended)
}

/// True when a handover that a worker holds is none of its business any more: the database has given the execution to
/// somebody else, or ended it, or forgotten it. What it says about an older handover never becomes untrue.
#[must_use]
pub fn is_over(claim: Claim, standing: Option<&Standing>) -> bool {
    standing.is_none_or(|standing| {
        standing.claim.dispatch_seq > claim.dispatch_seq
            || (standing.claim == claim && !standing.status.is_owned())
    })
}

/// True when a run should have been reported by now: its run time and the grace are over, counted from no earlier than
/// the beginning of the term.
#[must_use]
pub fn is_result_overdue(
    started_at: Option<EpochMillis>,
    allowed: Duration,
    began_at: EpochMillis,
    now: EpochMillis,
) -> bool {
    started_at.is_some_and(|at| at.max(began_at) + allowed < now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use isocost_common::{id::AppId, job::Selector, test_support::given};

    const LATER: Duration = Duration::from_secs(10);

    fn held() -> Held {
        let row = given::execution(&given::job(), ExecutionStatus::Dispatched);
        Held {
            claim: row.claim(),
            worker: given::worker(),
            incarnation: row.incarnation.expect("dispatched"),
            class: Arc::new(Class {
                key: "noop".into(),
                app: AppId::generate(),
                handler: "noop".into(),
                selector: Selector::new(),
            }),
            status: ExecutionStatus::Dispatched,
            placed_at: given::PLANNED,
            not_after: given::PLANNED + LATER,
            epoch: 1,
            since: Instant::now(),
            started_at: None,
            timeout_ms: 1_000,
            cancel_requested: false,
            published: true,
            unnamed: 0,
            asked_at: None,
        }
    }

    #[test]
    fn a_query_takes_two_heartbeats_in_a_row_that_could_have_named_it() {
        let mut held = held();
        let later = held.since + LATER;
        assert_eq!(
            held.on_heartbeat(false, held.since + REPORT_AGE),
            None,
            "too early"
        );
        assert_eq!(held.on_heartbeat(false, later), None);
        assert_eq!(held.on_heartbeat(true, later), None);
        assert_eq!(held.on_heartbeat(false, later), None, "counted anew");
        let query = ControlAction::Query {
            claim: held.claim,
            not_after: Some(held.not_after),
        };
        assert_eq!(held.on_heartbeat(false, later), Some(query));
    }

    #[test]
    fn what_was_not_published_is_not_missed() {
        let mut held = Held {
            published: false,
            ..held()
        };
        let later = held.since + LATER;
        assert_eq!((0..9).find_map(|_| held.on_heartbeat(false, later)), None);
    }

    #[test]
    fn a_cancel_releases_what_waits_and_stops_what_runs_once_a_second() {
        let mut held = held();
        let now = held.since + LATER;
        assert_eq!(held.stop_request(now), None, "nobody asked");
        held.cancel_requested = true;
        assert!(matches!(
            held.stop_request(now),
            Some(ControlAction::Release { .. })
        ));
        assert_eq!(held.stop_request(now), None, "just asked");
        held.status = ExecutionStatus::Running;
        assert!(matches!(
            held.stop_request(now + ASK_AGAIN),
            Some(ControlAction::Cancel { .. })
        ));
    }

    #[test]
    fn a_handover_is_over_only_by_what_the_database_says_about_it_or_a_later_one() {
        let claim = held().claim;
        let standing = |dispatch_seq, status| Standing {
            claim: Claim {
                dispatch_seq,
                ..claim
            },
            status,
            incarnation: None,
        };
        let seq = claim.dispatch_seq;
        assert!(is_over(claim, None), "no row");
        assert!(is_over(
            claim,
            Some(&standing(seq + 1, ExecutionStatus::Dispatched))
        ));
        assert!(is_over(claim, Some(&standing(seq, ExecutionStatus::Pending))));
        assert!(!is_over(claim, Some(&standing(seq, ExecutionStatus::Running))));
        assert!(
            !is_over(claim, Some(&standing(seq - 1, ExecutionStatus::Pending))),
            "read before it was placed"
        );
    }
}
