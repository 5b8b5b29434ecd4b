//! Named places between two durable steps. A test arms one, and the process dies there as `kill -9` would make it die, or
//! stands still there as SIGSTOP would: so what a crash leaves behind is looked at between every pair of steps, and not
//! only where chance hits.
//!
//! Only builds with debug assertions have this; in a release build [`reach`] is nothing, and the variables are not looked
//! at.
//!
//! ```text
//! ISOCOST_CRASH_POINT=intake.committed       dies when it comes there for the first time
//! ISOCOST_CRASH_POINT=intake.committed@2     … for the second time
//! ISOCOST_PAUSE_POINT=claim.uncommitted      stops itself there; SIGCONT lets it go on
//! ```

use crate::config::ConfigError;

/// The one list: every point with its name and what a crash there leaves behind.
macro_rules! points {
    ($($point:ident = $name:literal, $doc:literal;)+) => {
        /// A place between two durable steps.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum CrashPoint {
            $(#[doc = $doc] $point,)+
        }

        impl CrashPoint {
            /// Every point there is.
            pub const ALL: &'static [Self] = &[$(Self::$point),+];

            /// How it is armed.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$point => $name,)+
                }
            }
        }
    };
}

points! {
    SubmissionUncommitted = "submission.uncommitted", "A group of submissions is written and not committed.";
    SubmissionCommitted = "submission.committed", "It is committed, and nobody was answered.";
    AmqpStored = "amqp.stored", "Jobs submitted over AMQP are stored; no answer has left, nothing is acked.";
    AmqpAnswered = "amqp.answered", "Their answers have left; nothing is acked.";
    SteeringCommitted = "steering.committed", "What a user asked for is committed; neither user nor leader knows.";
    DeletionRequested = "deletion.requested", "A job is to be deleted, and what runs of it was not told to stop.";
    DeletionDone = "deletion.done", "A deletion that had to wait is done.";
    EpochBegun = "leader.epoch_begun", "A new epoch is committed; its leader has read nothing yet.";
    ClaimUncommitted = "claim.uncommitted", "Firings are written and not committed.";
    ClaimCommitted = "claim.committed", "They are committed, and nothing of them is published.";
    PlacementUncommitted = "placement.uncommitted", "Waiting executions are placed and not committed.";
    PlacementCommitted = "placement.committed", "They are committed, and nothing of them is published.";
    ChangeCommitted = "leader.changed", "The leader has changed states; neither its set nor the relay knows.";
    PublishUnsent = "publish.unsent", "A dispatch is about to be published.";
    PublishConfirmed = "publish.confirmed", "The broker has it, and the leader does not know.";
    WorkerTaken = "worker.taken", "A worker has taken executions and started none.";
    WorkerStartKeySet = "worker.start_key_set", "The start key is set and nothing has started.";
    WorkerRunning = "worker.running", "It runs by the worker's table; no report is on its way.";
    WorkerStartUnsent = "worker.start_unsent", "The report of a start is about to be published; the handler runs.";
    WorkerStartConfirmed = "worker.start_confirmed", "It is confirmed; its delivery is not acked.";
    WorkerFinished = "worker.finished", "The handler has returned, and nothing was said about it.";
    WorkerEndUnsent = "worker.end_unsent", "The report of an end is about to be published.";
    WorkerEndConfirmed = "worker.end_confirmed", "It is confirmed, and the worker does not know.";
    SettleWritten = "settle.outbox_written", "An end is written with its outbox rows and not committed.";
    IntakeUncommitted = "intake.uncommitted", "Reports are taken in and not committed.";
    IntakeCommitted = "intake.committed", "They are committed; neither leader nor relay was told.";
    IntakeAnnounced = "intake.announced", "They were told; the reports are not acked.";
    RelayClaimed = "relay.claimed", "Deliveries are claimed; their tickets are not acked, nothing is posted.";
    RelayPosted = "relay.posted", "A webhook was answered, and that is noted nowhere.";
    RelayRecorded = "relay.recorded", "It is noted; the ticket of a next attempt is not sent.";
    OutcomeClaimed = "outcome.claimed", "Outcomes are claimed and not published.";
    OutcomePublished = "outcome.published", "They are published and still in the outbox.";
    RecoveryBuried = "recovery.buried", "A worker is marked dead; it still owns what it held.";
    RecoveryUncommitted = "recovery.uncommitted", "What it held is given back and not committed.";
    RecoveryCommitted = "recovery.committed", "A chunk of it is given back.";
}

/// Dies, or stands still, if this point is armed and this is the visit meant.
#[inline]
pub fn reach(point: CrashPoint) {
    #[cfg(debug_assertions)]
    armed::reach(point);
    #[cfg(not(debug_assertions))]
    let _ = point;
}

/// Arms the point that this variable names, for the rest of the process; other variables are none of ours. Called with
/// the whole environment where the configuration is read, so that a name that does not exist stops the start.
///
/// # Errors
/// [`ConfigError::Shape`] with the names there are.
pub(crate) fn arm(variable: &str, value: &str) -> Result<(), ConfigError> {
    #[cfg(debug_assertions)]
    armed::arm(variable, value)?;
    #[cfg(not(debug_assertions))]
    let _ = (variable, value);
    Ok(())
}

#[cfg(debug_assertions)]
mod armed {
    use super::{ConfigError, CrashPoint};
    use rustix::process::{Signal, getpid, kill_process};
    use std::sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    };

    /// What happens at a point.
    #[derive(Debug)]
    struct Order {
        point: CrashPoint,
        /// Visits until it happens.
        left: AtomicU64,
    }

    static DEATH: OnceLock<Order> = OnceLock::new();
    static PAUSE: OnceLock<Order> = OnceLock::new();

    pub(super) fn reach(point: CrashPoint) {
        if PAUSE.get().is_some_and(|order| order.is_due(point)) {
            take(point, Signal::STOP, "standing still");
        }
        if DEATH.get().is_some_and(|order| order.is_due(point)) {
            take(point, Signal::KILL, "dying");
        }
    }

    /// The whole process, at once: nothing is dropped, nothing is flushed.
    fn take(point: CrashPoint, signal: Signal, what: &str) {
        eprintln!("crash point {}: {what}", point.name());
        if kill_process(getpid(), signal).is_err() || signal == Signal::KILL {
            std::process::abort();
        }
    }

    pub(super) fn arm(variable: &str, value: &str) -> Result<(), ConfigError> {
        let armed = match variable {
            "ISOCOST_CRASH_POINT" => &DEATH,
            "ISOCOST_PAUSE_POINT" => &PAUSE,
            _ => return Ok(()),
        };
        let order = Order::parse(value).ok_or_else(|| {
            let names: Vec<&str> = CrashPoint::ALL.iter().map(|point| point.name()).collect();
            ConfigError::Shape(format!(
                "{variable} is `{value}`; it must be NAME or NAME@VISIT with one of {}",
                names.join(", ")
            ))
        })?;
        // The first one stands: the environment does not change while a process runs.
        let _ = armed.set(order);
        Ok(())
    }

    impl Order {
        pub(super) fn parse(text: &str) -> Option<Self> {
            let (name, visit) = text.split_once('@').unwrap_or((text, "1"));
            let point = CrashPoint::ALL.iter().find(|point| point.name() == name)?;
            let left = visit.parse().ok().filter(|visit| *visit > 0)?;
            Some(Self {
                point: *point,
                left: AtomicU64::new(left),
            })
        }

        /// Counts a visit; true at the one that is meant, and never again.
        pub(super) fn is_due(&self, point: CrashPoint) -> bool {
            self.point == point && self.left.fetch_sub(1, Ordering::Relaxed) == 1
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use std::collections::BTreeSet;

        #[test]
        fn names_are_unique_words_with_a_dot() {
            let names: BTreeSet<&str> = CrashPoint::ALL.iter().map(|point| point.name()).collect();
            assert_eq!(names.len(), CrashPoint::ALL.len());
            for name in names {
                let is_word = |text: &str| {
                    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
                };
                let dotted = name.split_once('.');
                assert!(
                    dotted.is_some_and(|(area, step)| is_word(area) && is_word(step)),
                    "{name}"
                );
            }
        }

        #[test]
        fn a_point_is_due_at_the_visit_meant_and_at_no_other() {
            let order = Order::parse("intake.committed@2").expect("a point");
            let visits = [
                CrashPoint::IntakeCommitted,
                CrashPoint::IntakeAnnounced,
                CrashPoint::IntakeCommitted,
                CrashPoint::IntakeCommitted,
            ];
            let due = visits.map(|point| order.is_due(point));
            assert_eq!(due, [false, false, true, false]);
        }

        #[test]
        fn what_names_no_point_is_refused_with_the_names() {
            for wrong in [
                "",
                "intake",
                "intake.committed@0",
                "intake.committed@x",
                "no.such",
            ] {
                let refused = arm("ISOCOST_CRASH_POINT", wrong).expect_err(wrong).to_string();
                assert!(refused.contains("claim.uncommitted"), "{refused}");
            }
            assert!(
                arm("ISOCOST_CRASH", "no.such").is_ok(),
                "another variable is none of ours"
            );
        }
    }
}
