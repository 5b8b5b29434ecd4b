//! Finding a place in a record, and spoiling it.

use anyhow::{Context, Result};
use isocost_tests::checker::{
    Cancel, Fault, Record, TermOfOffice,
    tables::{ExecutionRow, status},
};
use isocost_tests::ledger::{End, Ending, Run};

/// A freeze of the process of the first run, and what it does after its thaw.
#[derive(Clone, Copy)]
pub(super) struct Frozen {
    pub(super) froze: bool,
    pub(super) for_ms: i64,
    pub(super) goes_on_ms: i64,
    /// 0 for that of the run.
    pub(super) process: u32,
}

impl Frozen {
    pub(super) const PAST_LEASE: Self = Self {
        froze: true,
        for_ms: 10_000,
        goes_on_ms: 1_500,
        process: 0,
    };
}

/// A second run begins while the first one is still there.
pub(super) fn overlap(record: &mut Record, frozen: Option<Frozen>) -> Result<()> {
    let (id, _) = one_shot(record)?;
    let first = run(record, &id)?;
    let (begun, process) = (first.at_ms, first.process);
    let frozen_for = frozen.map_or(10_000, |frozen| frozen.for_ms);
    let goes_on = frozen.map_or(1_500, |frozen| frozen.goes_on_ms);
    let thaw = begun + frozen_for;
    first.end = Some(End {
        at_ms: thaw + goes_on,
        how: Ending::Stopped,
    });
    again(record, &id, |copy| {
        copy.seq += 1;
        copy.process = 4_000_000;
        copy.at_ms = thaw - 200;
        copy.end = Some(End {
            at_ms: thaw - 100,
            how: Ending::Ok,
        });
    })?;
    if let Some(frozen) = frozen {
        let of = if frozen.process == 0 {
            process
        } else {
            frozen.process
        };
        record.faults.push(fault("freeze", of, begun, thaw, frozen.froze));
    }
    relabel_result(record, &id)
}

/// The table says that the second run of an execution was the one that counted.
pub(super) fn relabel_result(record: &mut Record, id: &str) -> Result<()> {
    let mut runs = record.runs.iter().filter(|run| run.execution == id);
    let Run {
        seq,
        process,
        attempt,
        ..
    } = runs.next_back().context("a run")?.clone();
    let row = execution(record, id)?;
    row.result = Some(format!(
        r#"{{"attempt":{attempt},"seq":{seq},"process":{process}}}"#
    ));
    row.dispatch_seq = seq;
    let dispatched = steps(record, id)[0];
    let (mut back, mut placed) = (
        record.tables.log[dispatched].clone(),
        record.tables.log[dispatched].clone(),
    );
    (back.from_status, back.to_status) = (Some(status::DISPATCHED), Some(status::PENDING));
    (placed.from_status, placed.to_status, placed.dispatch_seq) =
        (Some(status::PENDING), Some(status::DISPATCHED), seq);
    for place in steps(record, id).into_iter().skip(1) {
        record.tables.log[place].dispatch_seq = seq;
    }
    record
        .tables
        .log
        .splice(dispatched + 1..dispatched + 1, [back, placed]);
    Ok(())
}

/// The later half of the handovers is that of a second leader.
pub(super) fn two_leaders(record: &mut Record) -> Result<()> {
    let handed_over = |row: &&ExecutionRow| row.epoch.is_some();
    let mut rows: Vec<_> = record
        .tables
        .executions
        .iter()
        .filter(handed_over)
        .cloned()
        .collect();
    rows.sort_by_key(|row| row.dispatched_at);
    let taken_at = rows[rows.len() / 2].dispatched_at.context("an instant")?;
    for row in &mut record.tables.executions {
        row.epoch = row
            .epoch
            .map(|_| 1 + i64::from(row.dispatched_at > Some(taken_at)));
    }
    record.terms_of_office = [(1, 0), (2, taken_at)]
        .map(|(epoch, taken_at)| TermOfOffice {
            epoch,
            holder: String::new(),
            taken_at,
        })
        .to_vec();
    record.tables.epochs.first_mut().context("an epoch")?.epoch = 2;
    Ok(())
}

pub(super) fn fault(kind: &str, process: u32, from: i64, to: i64, froze: bool) -> Fault {
    Fault {
        kind: kind.into(),
        target: "standalone".into(),
        process: Some(process),
        from,
        to,
        froze,
    }
}

/// The first run of an execution has no end of its own; returns its process, which nobody else has.
pub(super) fn killed(record: &mut Record, id: &str) -> Result<u32> {
    let first = run(record, id)?;
    first.end = None;
    first.process = 3_000_000;
    Ok(first.process)
}

/// Another run of an execution, changed.
pub(super) fn again(record: &mut Record, id: &str, change: impl FnOnce(&mut Run)) -> Result<()> {
    let mut copy = run(record, id)?.clone();
    copy.end = None;
    change(&mut copy);
    let at_ms = copy.at_ms + 5;
    copy.end.get_or_insert(End {
        at_ms,
        how: Ending::Ok,
    });
    record.runs.push(copy);
    Ok(())
}

/// Another execution with traces of its own, changed.
pub(super) fn copy(record: &mut Record, id: &str, change: impl FnOnce(&mut ExecutionRow)) -> Result<()> {
    let mut row = execution(record, id)?.clone();
    row.id = "another".into();
    change(&mut row);
    record.tables.executions.push(row);
    let steps: Vec<_> = steps(record, id)
        .into_iter()
        .map(|place| record.tables.log[place].clone())
        .collect();
    for mut step in steps {
        step.execution_id = Some("another".into());
        record.tables.log.push(step);
    }
    Ok(())
}

pub(super) fn drop_middle(record: &mut Record, request: &str) -> Result<()> {
    let mut firings = firings(record, request)?;
    let middle = firings.remove(firings.len() / 2).id;
    forget(record, &middle);
    Ok(())
}

/// Every trace of an execution.
pub(super) fn forget(record: &mut Record, id: &str) {
    record.tables.executions.retain(|row| row.id != id);
    record
        .tables
        .log
        .retain(|row| row.execution_id.as_deref() != Some(id));
    record.tables.deliveries.retain(|row| row.execution_id != id);
    record.runs.retain(|run| run.execution != id);
    record.calls.retain(|call| call.execution != id);
}

/// A one-shot that was due at once, ran once and succeeded; the execution and its job.
pub(super) fn one_shot(record: &Record) -> Result<(String, String)> {
    find(record, |row, body| {
        body["trigger"].is_null() && row.status == status::SUCCEEDED && row.attempt == 1
    })
    .map(|row| (row.id, row.job_id))
}

pub(super) fn delayed(record: &Record) -> Result<String> {
    Ok(find(record, |row, body| {
        body["trigger"]["delayMs"].is_i64() && row.status == status::SUCCEEDED
    })?
    .id)
}

/// An execution that failed at first and succeeded then.
pub(super) fn retried(record: &Record) -> Result<String> {
    Ok(find(record, |row, _| {
        row.status == status::SUCCEEDED && row.attempt > 1
    })?
    .id)
}

pub(super) fn with_status(record: &Record, status: i64) -> Result<ExecutionRow> {
    find(record, |row, _| row.status == status)
}

/// An execution whose end was told to somebody.
pub(super) fn told(record: &Record) -> Result<String> {
    let mut rows = record.tables.deliveries.iter();
    Ok(rows.next().context("a delivery")?.execution_id.clone())
}

pub(super) fn find(
    record: &Record,
    fits: impl Fn(&ExecutionRow, &serde_json::Value) -> bool,
) -> Result<ExecutionRow> {
    let mut pairs = record.submissions.iter().flat_map(|submission| {
        let rows = record
            .tables
            .executions
            .iter()
            .filter(|row| row.job_id == submission.jobs[0]);
        rows.map(|row| (row, &submission.body))
    });
    let found = pairs.find(|(row, body)| fits(row, body));
    Ok(found.context("an execution of that kind")?.0.clone())
}

/// The firings of a recurring job, in the order of their times.
pub(super) fn firings(record: &Record, request: &str) -> Result<Vec<ExecutionRow>> {
    let submission = record
        .submissions
        .iter()
        .find(|submission| submission.request == request);
    let job = &submission.context("the job")?.jobs[0];
    let of_it = record.tables.executions.iter().filter(|row| row.job_id == *job);
    let mut firings: Vec<_> = of_it.cloned().collect();
    firings.sort_by_key(|row| row.scheduled_time);
    anyhow::ensure!(firings.len() >= 2, "{request} fired {} times", firings.len());
    Ok(firings)
}

pub(super) fn execution<'a>(record: &'a mut Record, id: &str) -> Result<&'a mut ExecutionRow> {
    record
        .tables
        .executions
        .iter_mut()
        .find(|row| row.id == id)
        .context("the execution")
}

/// The first run of an execution.
pub(super) fn run<'a>(record: &'a mut Record, id: &str) -> Result<&'a mut Run> {
    record
        .runs
        .iter_mut()
        .find(|run| run.execution == id)
        .context("a run")
}

pub(super) fn cancel<'a>(record: &'a mut Record, job: &str) -> Result<&'a mut Cancel> {
    record
        .cancels
        .iter_mut()
        .find(|cancel| cancel.job == job)
        .context("a cancel")
}

/// Where the steps of an execution stand in the log.
pub(super) fn steps(record: &Record, id: &str) -> Vec<usize> {
    let log = record.tables.log.iter().enumerate();
    log.filter(|(_, step)| step.execution_id.as_deref() == Some(id) && step.to_status.is_some())
        .map(|(place, _)| place)
        .collect()
}
