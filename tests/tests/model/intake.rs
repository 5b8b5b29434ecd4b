//! The intake: reports of one batch, folded and decided by `isocost-dispatcher`, applied in one transaction.

use super::{
    cast,
    leader::{apply, last, reload},
    mutants::Guard,
    properties::{Broken, Found},
    steps::{Fault, Setup},
    world::{At, Report, World},
};
use isocost_common::{execution::ExecutionStatus, store::executions::ExecutionRow};
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

/// Drops the reports that change nothing whenever they are taken in: those about an older handover, and those after the
/// end. That they change nothing is the program's word; otherwise they stay.
pub(crate) fn drop_stale(world: &mut World) {
    let mut stale = Vec::new();
    for (at, handover) in world.all_handovers() {
        let is_last = last(world, at.execution) == at;
        let is_over = world.row(at.execution).status.is_terminal();
        if handover.results.is_empty() || (is_last && !is_over) {
            continue;
        }
        let row = cast::row(world, at.execution);
        for report in handover.results.members() {
            if is_ignored(world, at, report, &row) {
                stale.push((at, report));
            }
        }
    }
    for (at, report) in stale {
        world.handover_mut(at).results.remove(report);
    }
}

fn is_ignored(world: &World, at: At, report: Report, row: &ExecutionRow) -> bool {
    let handover = world.handover(at);
    let item = Item {
        delivery: 0,
        incarnation: cast::incarnation(handover.owner),
        claim: cast::claim(at),
        event: cast::event(report, handover.ending),
    };
    let folded = fold([&item]);
    // Terminal stays as it is; what is open may be in either of these when the report comes.
    let statuses = match row.status {
        over if over.is_terminal() => vec![over],
        _ => vec![ExecutionStatus::Dispatched, ExecutionStatus::Running],
    };
    statuses.into_iter().all(|status| {
        let row = ExecutionRow {
            status,
            ..row.clone()
        };
        decide_all([row], &folded, cast::now(world)).is_empty()
    })
}
