//! A process dies between every pair of durable steps, once in `isocost standalone` and once in a cluster: nothing is
//! lost, no firing has two applied results, and a handler runs again only where it was running.

mod cluster;
mod standalone;
mod visit;

use isocost_common::crash_point::CrashPoint::{self, *};
use std::collections::BTreeSet;
use visit::{Again, Visit, Work};

/// Every point, at the visit that matters, beneath the work that leads there.
const VISITS: &[Visit] = &[
    // What a user asks for.
    Visit::of(SubmissionUncommitted, Work::Run),
    Visit::of(SubmissionCommitted, Work::Run),
    Visit::of(AmqpStored, Work::OverAmqp),
    Visit::of(AmqpAnswered, Work::OverAmqp),
    Visit::of(SteeringCommitted, Work::Cancelled),
    Visit::of(DeletionRequested, Work::Deleted),
    Visit::of(DeletionDone, Work::Deleted),
    // From due to published.
    Visit::of(ClaimUncommitted, Work::Run),
    Visit::of(ClaimCommitted, Work::Run),
    Visit::of(ChangeCommitted, Work::Retried),
    Visit::of(PlacementUncommitted, Work::Retried),
    Visit::of(PlacementCommitted, Work::Retried),
    Visit::of(PublishUnsent, Work::Run),
    Visit::of(PublishConfirmed, Work::Run),
    // In the worker.
    Visit::of(WorkerTaken, Work::Run),
    Visit::of(WorkerStartKeySet, Work::Run),
    Visit::of(WorkerRunning, Work::Run),
    Visit::of(WorkerStartUnsent, Work::Run).again(Again::Always),
    Visit::of(WorkerStartConfirmed, Work::Run).again(Again::Always),
    Visit::of(WorkerFinished, Work::Run).again(Again::Always),
    Visit::of(WorkerEndUnsent, Work::Run).again(Again::Always),
    Visit::of(WorkerEndConfirmed, Work::Run).again(Again::InOneProcess),
    // The report of the start, and the one of the end.
    Visit::of(IntakeUncommitted, Work::Run).again(Again::InOneProcess),
    Visit::of(IntakeCommitted, Work::Run).again(Again::InOneProcess),
    Visit::of(IntakeAnnounced, Work::Run).again(Again::InOneProcess),
    Visit::of(IntakeUncommitted, Work::Run)
        .nth(2)
        .again(Again::InOneProcess),
    Visit::of(SettleWritten, Work::Run).again(Again::InOneProcess),
    Visit::of(IntakeCommitted, Work::Run).nth(2),
    Visit::of(IntakeAnnounced, Work::Run).nth(2),
    // Afterwards.
    Visit::of(OutcomeClaimed, Work::Run),
    Visit::of(OutcomePublished, Work::Run),
    Visit::of(RelayClaimed, Work::Run),
    Visit::of(RelayPosted, Work::Run),
    Visit::of(RelayRecorded, Work::Run),
    // A worker is dead, and then who looks after it.
    Visit::of(EpochBegun, Work::Orphaned),
    Visit::of(RecoveryBuried, Work::Orphaned),
    Visit::of(RecoveryUncommitted, Work::Orphaned),
    Visit::of(RecoveryCommitted, Work::Orphaned),
];

/// A program without a broker of its own submits nothing over it, and publishes nothing to it.
const fn needs_a_cluster(point: CrashPoint) -> bool {
    matches!(
        point,
        AmqpStored | AmqpAnswered | OutcomeClaimed | OutcomePublished
    )
}

#[test]
fn every_point_there_is_is_visited() {
    let visited: BTreeSet<CrashPoint> = VISITS.iter().map(|visit| visit.point).collect();
    let registered: BTreeSet<CrashPoint> = CrashPoint::ALL.iter().copied().collect();
    assert_eq!(visited, registered);
}
