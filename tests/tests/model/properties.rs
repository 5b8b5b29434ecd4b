//! What must hold, judged from outside with knowledge that nobody in the cluster has.

use super::{
    cast::MAX_ATTEMPTS,
    steps::Setup,
    world::{At, Ending, LifeState, Row, World},
};
use isocost_common::execution::ExecutionStatus;
use std::fmt;

/// A property that a step broke. The numbers are those of the invariants in `docs/reliability.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Broken {
    /// I3: an outcome is applied twice.
    AppliedTwice,
    /// I3: the outcome of another handover is applied.
    ForeignOutcome,
    /// I3: something terminal changes.
    TerminalChanged,
    /// I4: two processes run it, and none of them is frozen past its lease.
    Overlap,
    /// I4: one incarnation starts the same handover twice.
    StartedTwice,
    /// I4: it runs again, and nobody died, failed or was interrupted.
    NeedlessRerun,
    /// I4: a handover starts that the database does not assign any more.
    StrayStart,
    /// I4: it starts after its end.
    StartAfterEnd,
    /// I6: a step that the table does not have.
    IllegalStep,
    /// I6: more attempts than allowed, a start that is not counted, or an interruption where nothing was interrupted.
    Miscounted,
    /// It is cancelled while it runs, or runs after that.
    RunsThoughCancelled,
    /// It is placed although a cancel was requested.
    PlacedThoughCancelled,
    /// It is cancelled and nobody asked.
    UnaskedCancel,
    /// I10: without any fault it starts twice.
    SecondRunWithoutFault,
    /// From here no end can be reached any more, although nothing fails from now on.
    Stuck,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What one step broke.
#[derive(Debug, Default, Clone)]
pub(crate) struct Found {
    pub(crate) broken: Vec<Broken>,
    /// Two runs overlapped, one of them in a process that was frozen past its lease: the stated exception.
    pub(crate) allowed_overlap: bool,
}

impl Found {
    pub(crate) fn note(&mut self, broken: Broken) {
        self.broken.push(broken);
    }
}

/// The table of the design, written down once more.
fn is_step(from: ExecutionStatus, to: ExecutionStatus) -> bool {
    use ExecutionStatus as S;
    match from {
        S::Scheduled => matches!(to, S::Pending | S::Cancelled),
        S::Pending => matches!(to, S::Dispatched | S::Cancelled),
        S::Dispatched => matches!(
            to,
            S::Pending
                | S::Running
                | S::Succeeded
                | S::Failed
                | S::TimedOut
                | S::Cancelled
                | S::Scheduled
                | S::Lost
        ),
        S::Running => matches!(
            to,
            S::Succeeded | S::Failed | S::TimedOut | S::Cancelled | S::Scheduled | S::Lost
        ),
        _ => false,
    }
}

/// Writes the row, and judges the change.
pub(crate) fn change_row(world: &mut World, number: u8, row: Row, found: &mut Found) {
    let before = world.row(number);
    if before.status.is_terminal() {
        found.note(Broken::TerminalChanged);
    } else if !is_step(before.status, row.status) {
        found.note(Broken::IllegalStep);
    }
    if row.attempt < before.attempt || row.attempt.saturating_sub(row.interruptions) > MAX_ATTEMPTS as u8 {
        found.note(Broken::Miscounted);
    }
    if row.interruptions > before.interruptions && never_taken(world, number) {
        found.note(Broken::Miscounted);
    }
    if row.status == ExecutionStatus::Cancelled {
        if !row.cancel_requested {
            found.note(Broken::UnaskedCancel);
        }
        if runs_somewhere(world, number) {
            found.note(Broken::RunsThoughCancelled);
        }
    }
    world.executions[number as usize].row = row;
    if row.status.is_terminal() && starts(world, number) > row.attempt {
        found.note(Broken::Miscounted);
    }
}

/// True when its last worker left in order without having started it.
fn never_taken(world: &World, number: u8) -> bool {
    let last = world.executions[number as usize].handovers.last();
    last.is_some_and(|last| !last.seen.started && world.lives[last.owner as usize].said_bye)
}

fn starts(world: &World, number: u8) -> u8 {
    let handovers = world.executions[number as usize].handovers.iter();
    let started = handovers.filter(|handover| handover.seen.started).count();
    u8::try_from(started).expect("few handovers")
}

/// True when a process that is not frozen past its lease runs it.
fn runs_somewhere(world: &World, number: u8) -> bool {
    world.executions[number as usize]
        .handovers
        .iter()
        .any(|handover| handover.runs && !is_frozen(world.lives[handover.owner as usize].state))
}

fn is_frozen(state: LifeState) -> bool {
    matches!(state, LifeState::Frozen | LifeState::Thawed)
}

/// Judges a placement, before it is made.
pub(crate) fn place_is_legal(world: &World, number: u8, found: &mut Found) {
    if world.row(number).cancel_requested {
        found.note(Broken::PlacedThoughCancelled);
    }
    if starts(world, number) > world.row(number).attempt {
        found.note(Broken::Miscounted);
    }
}

/// Judges a start, before it is made.
pub(crate) fn start_is_legal(world: &World, setup: &Setup, at: At, found: &mut Found) {
    let handover = world.handover(at);
    if handover.seen.started {
        found.note(Broken::StartedTwice);
    }
    let thawed = world.owner(at).state == LifeState::Thawed;
    let execution = &world.executions[at.execution as usize];
    for (other, seq) in execution.handovers.iter().zip(1..) {
        if seq == at.seq {
            continue;
        }
        let other_is_frozen = is_frozen(world.lives[other.owner as usize].state);
        if other.runs {
            if thawed || other_is_frozen {
                found.allowed_overlap = true;
            } else {
                found.note(Broken::Overlap);
            }
        }
        if seq < at.seq && other.seen.started && !thawed {
            let cause = other.seen.died
                || other_is_frozen
                || matches!(
                    other.ending,
                    Some(Ending::Failed | Ending::TimedOut | Ending::Interrupted)
                );
            let is_done = other.ending == Some(Ending::Succeeded) && other.seen.success_confirmed;
            if is_done || !cause {
                found.note(Broken::NeedlessRerun);
            }
        }
    }
    let status = execution.row.status;
    if !thawed && status == ExecutionStatus::Cancelled {
        found.note(Broken::RunsThoughCancelled);
    } else if !thawed && status.is_terminal() {
        found.note(Broken::StartAfterEnd);
    }
    if !thawed && !world.is_current(at) {
        found.note(Broken::StrayStart);
    }
    if setup.faults == 0 && starts(world, at.execution) > 0 {
        found.note(Broken::SecondRunWithoutFault);
    }
}
