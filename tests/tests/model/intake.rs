//! The intake: reports of one batch, folded and decided by `isocost-dispatcher`, applied in one transaction.

use super::{
    cast,
    leader::{apply, last, reload},
    mutants::Guard,
    properties::{Broken, Found},
    steps::{Fault, Setup},
    world::{At, Report, World},
};
use isocost_common::execution::ExecutionStatus;
use isocost_dispatcher::intake::{
    decide::decide_all,
    fold::{Item, fold},
};

/// Takes in one report, or two of one batch.
pub(crate) fn take_in(
    world: &mut World,
    setup: &Setup,
    at: At,
    reports: [Option<Report>; 2],
    fault: Option<Fault>,
    found: &mut Found,
) {
    let handover = world.handover(at);
    let (owner, ending) = (handover.owner, handover.ending);
    let mut row = cast::row(world, at.execution);
    let (mut claim, mut incarnation) = (cast::claim(at), cast::incarnation(owner));
    if setup.without == Some(Guard::DispatchSeq) {
        // As if it were about whatever handover the row is at.
        claim = row.claim();
        incarnation = row.incarnation.unwrap_or(incarnation);
    }
    if setup.without == Some(Guard::TerminalIsFinal) && row.status.is_terminal() {
        row.status = ExecutionStatus::Running;
    }
    let items: Vec<Item> = reports
        .into_iter()
        .flatten()
        .map(|report| Item {
            delivery: 0,
            incarnation,
            claim,
            event: cast::event(report, ending),
        })
        .collect();
    let is_end = reports.contains(&Some(Report::Finished));
    for decision in decide_all([row], &fold(&items), cast::now(world)) {
        if is_end {
            if last(world, at.execution) != at {
                found.note(Broken::ForeignOutcome);
            }
            if world.handover(at).seen.applied {
                found.note(Broken::AppliedTwice);
            }
            world.handover_mut(at).seen.applied = true;
        }
        apply(world, at.execution, &decision.change, found);
        if fault != Some(Fault::AnnouncementLost) {
            reload(world, setup, at.execution);
        }
    }
    if fault != Some(Fault::AckLost) {
        for report in reports.into_iter().flatten() {
            world.handover_mut(at).results.remove(report);
        }
    }
}
