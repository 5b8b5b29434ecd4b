//! I4: runs of one execution that overlap.

use super::{Breaches, Invariant::I4, index::Index};
use crate::ledger::Run;
use std::collections::HashSet;

pub(super) fn check(index: &Index<'_>, breaches: &mut Breaches) {
    for (execution, runs) in &index.runs {
        let mut handovers = HashSet::new();
        for run in runs {
            breaches.require(handovers.insert(run.seq), I4, || {
                format!("handover {} of execution {execution} ran twice", run.seq)
            });
        }
        for (place, earlier) in runs.iter().enumerate() {
            for later in &runs[place + 1..] {
                together(index, earlier, later, breaches);
            }
        }
    }
}

/// The earlier one may still be there when the later one begins only if its process stands still, and after that for a
/// heartbeat and a second.
fn together(index: &Index<'_>, earlier: &Run, later: &Run, breaches: &mut Breaches) {
    let terms = index.record.terms;
    let over = index.over_at(earlier);
    if over <= later.at_ms {
        return;
    }
    let thawed = index.record.faults.iter().filter(|fault| {
        let same = fault.froze && fault.process == Some(earlier.process);
        let past_lease = fault.to - fault.from > terms.lease_ms - terms.heartbeat_ms;
        same && past_lease && fault.from <= later.at_ms
    });
    let allowed = thawed.map(|fault| fault.to).max();
    let until = allowed.map(|thawed| thawed + terms.heartbeat_ms + 1_000 + terms.slack_ms);
    breaches.require(until.is_some_and(|until| over <= until), I4, || {
        let by = over - later.at_ms;
        let why = match until {
            Some(until) => format!("and went on for {} ms too long after its thaw", over - until),
            None => "whose process was not frozen past its lease".to_owned(),
        };
        format!(
            "handover {} of execution {} on {} overlaps by {by} ms with handover {} on {}, {why}",
            earlier.seq, earlier.execution, earlier.worker, later.seq, later.worker
        )
    });
}
