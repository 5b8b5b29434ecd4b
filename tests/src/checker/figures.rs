//! Figures of a run, for its report.

use super::{index::Index, record::Fault, tables::status};
use std::collections::BTreeMap;

/// Counts and times, in milliseconds.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// Executions there are.
    pub executions: usize,
    /// Of these, by the word of their state.
    pub by_status: BTreeMap<&'static str, usize>,
    /// Runs of handlers.
    pub runs: usize,
    /// Callbacks that arrived, repeats included.
    pub calls: usize,
    /// Of these, deliveries.
    pub deliveries: usize,
    /// Leaders there were.
    pub leaders: usize,
    /// Incarnations of workers there were.
    pub incarnations: usize,
    /// From its time to the start of its first run, ascending; without those that waited their turn in a serial job.
    pub lateness: Vec<i64>,
    /// By kind of fault: how long after its end everything that became due while it lasted had begun to run, ascending.
    pub recovery: BTreeMap<String, Vec<i64>>,
    /// By kind of fault of a process: how long after its beginning what it held was given to others, ascending; of those
    /// that held something.
    pub given_on: BTreeMap<String, Vec<i64>>,
    /// From the last heal to the end of the last execution that was due by then.
    pub settled_after: i64,
}

impl Figures {
    pub(super) fn of(index: &Index<'_>) -> Self {
        let tables = &index.record.tables;
        let mut this = Self {
            executions: tables.executions.len(),
            runs: index.record.runs.len(),
            calls: index.record.calls.len(),
            deliveries: index.calls.len(),
            leaders: index.record.terms_of_office.len(),
            incarnations: tables.workers.len(),
            ..Self::default()
        };
        let mut begun: Vec<(i64, i64)> = Vec::new();
        for execution in &tables.executions {
            let place = usize::try_from(execution.status).unwrap_or(usize::MAX);
            let name = status::NAMES.get(place).copied().unwrap_or("no state");
            *this.by_status.entry(name).or_default() += 1;
            // What waited for its turn behind another run of a serial job tells nothing about the cluster.
            let steps = index.steps_of(&execution.id);
            let waited_its_turn = steps
                .first()
                .is_some_and(|step| step.to_status == Some(status::BLOCKED));
            if let Some(first) = index.runs_of(&execution.id).first().filter(|_| !waited_its_turn) {
                begun.push((execution.scheduled_time, first.at_ms));
            }
            let healed_at = index.record.terms.healed_at;
            if execution.scheduled_time <= healed_at {
                let after = execution.finished_at.unwrap_or(index.record.terms.looked_at) - healed_at;
                this.settled_after = this.settled_after.max(after);
            }
        }
        this.lateness = begun.iter().map(|(due, at)| at - due).collect();
        this.lateness.sort_unstable();
        for fault in &index.record.faults {
            let times = this.recovery.entry(fault.kind.clone()).or_default();
            times.push(recovered_after(fault, &begun));
        }
        for fault in index.record.faults.iter().filter(|fault| fault.process.is_some()) {
            if let Some(after) = given_on_after(index, fault) {
                this.given_on.entry(fault.kind.clone()).or_default().push(after);
            }
        }
        for times in this.recovery.values_mut().chain(this.given_on.values_mut()) {
            times.sort_unstable();
        }
        this
    }
}

fn recovered_after(fault: &Fault, begun: &[(i64, i64)]) -> i64 {
    let waiting = begun
        .iter()
        .filter(|(due, _)| (fault.from..=fault.to).contains(due));
    waiting.map(|(_, at)| at - fault.to).max().unwrap_or(0).max(0)
}

/// Whoever lost its work so long after a fault lost it by another one.
const BY_THIS_FAULT_MS: i64 = 60_000;

fn given_on_after(index: &Index<'_>, fault: &Fault) -> Option<i64> {
    let given_on = index.record.tables.log.iter().filter(|step| {
        step.message.as_deref() == Some(super::duplicates::WORKER_DIED)
            && step.worker_id.as_deref() == Some(&fault.target)
            && (fault.from..fault.from + BY_THIS_FAULT_MS).contains(&step.at)
    });
    given_on.map(|step| step.at - fault.from).min()
}
