//! A record with everything found by what it belongs to.

use super::{
    record::{Call, Cancel, Record},
    tables::{AttemptRow, DeliveryRow, ExecutionRow, JobRow, LogRow, status},
};
use crate::ledger::Run;
use std::collections::HashMap;

pub(super) struct Index<'a> {
    pub(super) record: &'a Record,
    pub(super) jobs: HashMap<&'a str, &'a JobRow>,
    pub(super) cancels: HashMap<&'a str, &'a Cancel>,
    pub(super) executions: HashMap<&'a str, &'a ExecutionRow>,
    /// In the order of their scheduled times.
    pub(super) executions_of: HashMap<&'a str, Vec<&'a ExecutionRow>>,
    /// Steps only, oldest first; words about a delivery or a request are left out.
    pub(super) steps: HashMap<&'a str, Vec<&'a LogRow>>,
    /// What was said about a job itself.
    pub(super) words: HashMap<&'a str, Vec<&'a LogRow>>,
    /// In the order in which they began.
    pub(super) runs: HashMap<&'a str, Vec<&'a Run>>,
    pub(super) deliveries: HashMap<&'a str, Vec<&'a DeliveryRow>>,
    pub(super) attempts: HashMap<&'a str, Vec<&'a AttemptRow>>,
    pub(super) calls: HashMap<&'a str, Vec<&'a Call>>,
}

impl<'a> Index<'a> {
    pub(super) fn of(record: &'a Record) -> Self {
        let tables = &record.tables;
        let mut executions_of = group(&tables.executions, |row| Some(row.job_id.as_str()));
        for executions in executions_of.values_mut() {
            executions.sort_by_key(|row| row.scheduled_time);
        }
        let mut runs = group(&record.runs, |run| Some(run.execution.as_str()));
        for runs in runs.values_mut() {
            runs.sort_by_key(|run| run.at_ms);
        }
        Self {
            record,
            jobs: tables.jobs.iter().map(|row| (row.id.as_str(), row)).collect(),
            cancels: record
                .cancels
                .iter()
                .map(|cancel| (cancel.job.as_str(), cancel))
                .collect(),
            executions: tables
                .executions
                .iter()
                .map(|row| (row.id.as_str(), row))
                .collect(),
            executions_of,
            steps: group(&tables.log, |row| {
                row.execution_id.as_deref().filter(|_| row.to_status.is_some())
            }),
            words: group(&tables.log, |row| {
                row.execution_id.is_none().then_some(row.job_id.as_str())
            }),
            runs,
            deliveries: group(&tables.deliveries, |row| Some(row.execution_id.as_str())),
            attempts: group(&tables.attempts, |row| Some(row.delivery_id.as_str())),
            calls: group(&record.calls, |call| Some(call.delivery.as_str())),
        }
    }

    pub(super) fn runs_of(&self, execution: &str) -> &[&'a Run] {
        self.runs.get(execution).map_or(&[], Vec::as_slice)
    }

    pub(super) fn steps_of(&self, execution: &str) -> &[&'a LogRow] {
        self.steps.get(execution).map_or(&[], Vec::as_slice)
    }

    /// When a run was over at the latest: its own word, or the end of its process.
    pub(super) fn over_at(&self, run: &Run) -> i64 {
        let gone = || {
            let lives = self.record.lives.iter();
            let mut life = lives.filter(|life| life.process == run.process && life.name == run.worker);
            life.find_map(|life| life.to)
        };
        let own = run.end.as_ref().map(|end| end.at_ms);
        own.or_else(gone).unwrap_or(self.record.terms.looked_at)
    }
}

pub(super) fn is_terminal(code: i64) -> bool {
    code >= status::SUCCEEDED
}

fn group<'a, T>(rows: &'a [T], key: impl Fn(&'a T) -> Option<&'a str>) -> HashMap<&'a str, Vec<&'a T>> {
    let mut groups: HashMap<&str, Vec<&T>> = HashMap::new();
    for row in rows {
        if let Some(key) = key(row) {
            groups.entry(key).or_default().push(row);
        }
    }
    groups
}
