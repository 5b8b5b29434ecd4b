//! Runs beyond the first that no failed attempt explains, and what does. I4 where nothing does; I10 in a run without
//! faults.

use super::{
    Breaches,
    Invariant::{I4, I10},
    index::Index,
    tables::status,
};
use crate::ledger::{Ending, Run};

/// What a step says that the death of a worker made.
pub(super) const WORKER_DIED: &str = "its worker died or lost its lease";
/// Code of `worker_node.status`: was proven dead.
const DEAD: i64 = 3;

/// A second run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duplicate {
    /// Of which execution.
    pub execution: String,
    /// Of which handover.
    pub seq: i64,
    /// What happened to the worker of the run before.
    pub cause: Cause,
    /// The run before had come to its end, and its report was lost with its worker.
    pub was_over: bool,
}

/// What happened to the worker of the run before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// Its process died.
    Died,
    /// Its process was frozen past its lease.
    Frozen,
    /// It lost its lease while its process went on: it was cut off.
    CutOff,
    /// Nothing that is recorded.
    Nothing,
}

pub(super) fn find(index: &Index<'_>) -> Vec<Duplicate> {
    let mut duplicates = Vec::new();
    for (execution, runs) in &index.runs {
        for pair in runs.windows(2) {
            let (before, again) = (pair[0], pair[1]);
            if before.end.as_ref().is_some_and(|end| end.how == Ending::Failed) && is_retry(index, before) {
                continue;
            }
            duplicates.push(Duplicate {
                execution: (*execution).to_owned(),
                seq: again.seq,
                cause: cause(index, before, again),
                was_over: before.end.as_ref().is_some_and(|end| end.how != Ending::Stopped),
            });
        }
    }
    duplicates
}

/// Its failure was taken in, and another attempt follows from that.
fn is_retry(index: &Index<'_>, failed: &Run) -> bool {
    index.steps_of(&failed.execution).iter().any(|step| {
        step.dispatch_seq == failed.seq
            && step.to_status == Some(status::SCHEDULED)
            && step.message.as_deref() != Some(WORKER_DIED)
    })
}

/// The strongest of what happened to the worker between the two beginnings.
fn cause(index: &Index<'_>, before: &Run, again: &Run) -> Cause {
    let terms = index.record.terms;
    let between = before.at_ms - terms.clock_ms..=again.at_ms + terms.clock_ms;
    let lives = &index.record.lives;
    let mut of_process = lives
        .iter()
        .filter(|life| life.process == before.process && life.name == before.worker);
    if of_process.any(|life| life.to.is_some_and(|to| between.contains(&to))) {
        return Cause::Died;
    }
    let mut frozen = index.record.faults.iter().filter(|fault| {
        fault.froze
            && fault.process == Some(before.process)
            && fault.to - fault.from > terms.lease_ms - terms.heartbeat_ms
    });
    if frozen.any(|fault| fault.from <= again.at_ms && fault.to >= before.at_ms) {
        return Cause::Frozen;
    }
    let mut incarnations = index
        .record
        .tables
        .workers
        .iter()
        .filter(|row| row.worker_id == before.worker);
    let lost = incarnations
        .any(|row| row.status == DEAD && row.ended_at.is_some_and(|ended| between.contains(&ended)));
    if lost { Cause::CutOff } else { Cause::Nothing }
}

pub(super) fn check(index: &Index<'_>, duplicates: &[Duplicate], breaches: &mut Breaches) {
    for duplicate in duplicates {
        let Duplicate { execution, seq, .. } = duplicate;
        if index.record.faults.is_empty() {
            breaches.add(
                I10,
                format!("execution {execution} ran again as handover {seq}, and nothing was wrong"),
            );
        }
        breaches.require(duplicate.cause != Cause::Nothing, I4, || {
            format!("execution {execution} ran again as handover {seq}, and its worker had neither died nor lost its lease")
        });
    }
}
