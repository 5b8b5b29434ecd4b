//! One place of a good record spoilt: dropped, doubled, shifted or relabelled.

use anyhow::{Context, Result};
use isocost_tests::checker::{
    Cancel, Fault,
    Invariant::{self, I1, I2, I3, I4, I5, I6, I7, I8, I9, I10},
    Life, Record, TermOfOffice,
    tables::{ExecutionRow, status},
};
use isocost_tests::ledger::{End, Ending, Run};

/// A way to spoil a record, and what it breaks; nothing, where it is a run that must be accepted.
pub(super) struct Mutant {
    pub(super) name: &'static str,
    pub(super) breaks: Option<Invariant>,
    pub(super) spoil: fn(&mut Record) -> Result<()>,
}

const fn breaks(invariant: Invariant, name: &'static str, spoil: fn(&mut Record) -> Result<()>) -> Mutant {
    Mutant {
        name,
        breaks: Some(invariant),
        spoil,
    }
}

const fn accepted(name: &'static str, spoil: fn(&mut Record) -> Result<()>) -> Mutant {
    Mutant {
        name,
        breaks: None,
        spoil,
    }
}

pub(super) const MUTANTS: [Mutant; 61] = [
    breaks(I1, "drop a one-shot's only firing", |record| {
        let (id, _) = one_shot(record)?;
        forget(record, &id);
        Ok(())
    }),
    breaks(I1, "drop a firing of a cron", |record| {
        drop_middle(record, "recurring-0-0")
    }),
    breaks(I1, "drop a firing of a fixed rate", |record| {
        drop_middle(record, "recurring-0-5")
    }),
    breaks(I1, "drop a firing of a fixed delay", |record| {
        drop_middle(record, "recurring-0-8")
    }),
    breaks(I1, "drop the last firing of a fixed delay", |record| {
        let last = firings(record, "recurring-0-8")?.pop().context("firings")?;
        forget(record, &last.id);
        Ok(())
    }),
    breaks(I1, "drop a job", |record| {
        let (_, job) = one_shot(record)?;
        record.tables.jobs.retain(|row| row.id != job);
        Ok(())
    }),
    breaks(I1, "drop the reason of a failure", |record| {
        let failed = with_status(record, status::FAILED)?.id;
        execution(record, &failed)?.error_code = None;
        for step in record
            .tables
            .log
            .iter_mut()
            .filter(|step| step.execution_id.as_ref() == Some(&failed))
        {
            step.message = None;
        }
        Ok(())
    }),
    breaks(I1, "drop the request to cancel", |record| {
        let cancelled = with_status(record, status::CANCELLED)?.job_id;
        record.cancels.retain(|cancel| cancel.job != cancelled);
        Ok(())
    }),
    breaks(I1, "shift a firing of a fixed delay to later", |record| {
        let second = firings(record, "recurring-0-8")?.remove(1).id;
        execution(record, &second)?.scheduled_time += 1;
        Ok(())
    }),
    breaks(I2, "shift a start before its time", |record| {
        let id = delayed(record)?;
        run(record, &id)?.at_ms -= 3_000;
        Ok(())
    }),
    breaks(I2, "shift a time behind its firing", |record| {
        let (id, _) = one_shot(record)?;
        execution(record, &id)?.scheduled_time += 1_000;
        Ok(())
    }),
    breaks(I2, "shift a firing of a cron off its second", |record| {
        let first = firings(record, "recurring-0-2")?.remove(0).id;
        execution(record, &first)?.scheduled_time -= 137;
        Ok(())
    }),
    breaks(I2, "shift a firing of a fixed delay to earlier", |record| {
        let second = firings(record, "recurring-0-8")?.remove(1).id;
        execution(record, &second)?.scheduled_time -= 1;
        Ok(())
    }),
    breaks(I2, "double a one-shot", |record| {
        let (id, _) = one_shot(record)?;
        copy(record, &id, |copy| copy.scheduled_time += 1)
    }),
    breaks(I2, "double a firing of a fixed rate", |record| {
        let first = firings(record, "recurring-0-5")?.remove(0).id;
        copy(record, &first, |copy| copy.scheduled_time += 1)
    }),
    breaks(I2, "relabel a firing as that of another job", |record| {
        let to = firings(record, "recurring-0-0")?.remove(0).job_id;
        let from = firings(record, "recurring-0-5")?.remove(0).id;
        execution(record, &from)?.job_id = to;
        Ok(())
    }),
    breaks(I2, "shift a cancel before the last firing", |record| {
        let last = firings(record, "recurring-0-1")?.pop().context("firings")?;
        let cancel = cancel(record, &last.job_id)?;
        cancel.acked_at = last.scheduled_time - 500;
        Ok(())
    }),
    breaks(I3, "double an end", |record| {
        let (id, _) = one_shot(record)?;
        let last = steps(record, &id).pop().context("steps")?;
        let step = record.tables.log[last].clone();
        record.tables.log.insert(last + 1, step);
        Ok(())
    }),
    breaks(I3, "double a firing's execution", |record| {
        let (id, _) = one_shot(record)?;
        copy(record, &id, |_| {})
    }),
    breaks(I3, "relabel the state", |record| {
        let (id, _) = one_shot(record)?;
        execution(record, &id)?.status = status::LOST;
        Ok(())
    }),
    breaks(I3, "relabel the result as that of another handover", |record| {
        let (id, _) = one_shot(record)?;
        let row = execution(record, &id)?;
        row.result = row
            .result
            .as_ref()
            .map(|text| text.replace("\"seq\":1", "\"seq\":2"));
        Ok(())
    }),
    breaks(I3, "drop the run that a result comes from", |record| {
        let (id, _) = one_shot(record)?;
        record.runs.retain(|run| run.execution != id);
        Ok(())
    }),
    breaks(I3, "relabel that run as a failed one", |record| {
        let (id, _) = one_shot(record)?;
        run(record, &id)?.end.as_mut().context("an end")?.how = Ending::Failed;
        Ok(())
    }),
    breaks(I3, "drop an execution and leave its traces", |record| {
        let (id, _) = one_shot(record)?;
        record.tables.executions.retain(|row| row.id != id);
        Ok(())
    }),
    breaks(I3, "shift a step behind the end", |record| {
        let id = retried(record)?;
        let of_it = steps(record, &id);
        let (first, last) = (of_it[of_it.len() - 2], of_it[of_it.len() - 1]);
        record.tables.log.swap(first, last);
        Ok(())
    }),
    breaks(I4, "double a run under the same handover", |record| {
        let (id, _) = one_shot(record)?;
        again(record, &id, |copy| copy.at_ms += 10_000)
    }),
    breaks(I4, "double a run beside the first", |record| {
        overlap(record, None)
    }),
    breaks(I4, "double a run beside one that was cut off", |record| {
        overlap(
            record,
            Some(Frozen {
                froze: false,
                ..Frozen::PAST_LEASE
            }),
        )
    }),
    breaks(
        I4,
        "double a run beside one that was frozen for less than a lease",
        |record| {
            overlap(
                record,
                Some(Frozen {
                    for_ms: 500,
                    ..Frozen::PAST_LEASE
                }),
            )
        },
    ),
    breaks(
        I4,
        "double a run beside one that was frozen in another process",
        |record| {
            overlap(
                record,
                Some(Frozen {
                    process: 1,
                    ..Frozen::PAST_LEASE
                }),
            )
        },
    ),
    breaks(
        I4,
        "shift the end of a frozen run beyond a heartbeat and a second",
        |record| {
            overlap(
                record,
                Some(Frozen {
                    goes_on_ms: 4_000,
                    ..Frozen::PAST_LEASE
                }),
            )
        },
    ),
    accepted(
        "a run that was frozen past its lease ends right after its thaw",
        |record| overlap(record, Some(Frozen::PAST_LEASE)),
    ),
    accepted("a run whose process died is run again", |record| {
        let (id, _) = one_shot(record)?;
        let process = killed(record, &id)?;
        again(record, &id, |copy| {
            copy.seq += 1;
            copy.at_ms += 20_000;
        })?;
        let first = run(record, &id)?;
        let died = first.at_ms + 1_000;
        record.lives.push(Life {
            name: "standalone".into(),
            process,
            from: 0,
            to: Some(died),
        });
        record.faults.push(fault("kill", process, died, died, false));
        relabel_result(record, &id)
    }),
    breaks(I4, "double a run whose process died later", |record| {
        let (id, _) = one_shot(record)?;
        let process = killed(record, &id)?;
        again(record, &id, |copy| {
            copy.seq += 1;
            copy.at_ms += 20_000;
        })?;
        let died = run(record, &id)?.at_ms + 30_000;
        record.lives.push(Life {
            name: "standalone".into(),
            process,
            from: 0,
            to: Some(died),
        });
        record.faults.push(fault("kill", process, died, died, false));
        relabel_result(record, &id)
    }),
    accepted("two leaders, one after the other", two_leaders),
    breaks(I5, "relabel a late handover as one of the old leader", |record| {
        two_leaders(record)?;
        let last = record
            .tables
            .executions
            .iter_mut()
            .max_by_key(|row| row.dispatched_at);
        last.context("executions")?.epoch = Some(1);
        Ok(())
    }),
    breaks(
        I5,
        "relabel an early handover as one of the new leader",
        |record| {
            two_leaders(record)?;
            let first = record
                .tables
                .executions
                .iter_mut()
                .filter(|row| row.epoch.is_some());
            first
                .min_by_key(|row| row.dispatched_at)
                .context("executions")?
                .epoch = Some(2);
            Ok(())
        },
    ),
    breaks(
        I5,
        "relabel a handover as one of a leader that never was",
        |record| {
            let last = record
                .tables
                .executions
                .iter_mut()
                .max_by_key(|row| row.dispatched_at);
            last.context("executions")?.epoch = Some(99);
            Ok(())
        },
    ),
    breaks(I5, "drop the epoch of a handover", |record| {
        let (id, _) = one_shot(record)?;
        execution(record, &id)?.epoch = None;
        Ok(())
    }),
    breaks(
        I5,
        "shift a handover of the old leader into the term of the new one",
        |record| {
            two_leaders(record)?;
            let taken = record.terms_of_office[1].taken_at;
            let old = record
                .tables
                .executions
                .iter_mut()
                .find(|row| row.epoch == Some(1));
            old.context("executions")?.dispatched_at = Some(taken + 3_000);
            Ok(())
        },
    ),
    breaks(I6, "drop a step", |record| {
        let id = retried(record)?;
        let second = steps(record, &id)[1];
        record.tables.log.remove(second);
        Ok(())
    }),
    breaks(I6, "relabel a step", |record| {
        let id = retried(record)?;
        let of_it = steps(record, &id);
        record.tables.log[of_it[0]].to_status = Some(status::RUNNING);
        record.tables.log[of_it[1]].from_status = Some(status::RUNNING);
        Ok(())
    }),
    breaks(I6, "double a handover", |record| {
        let id = retried(record)?;
        let place = steps(record, &id)
            .into_iter()
            .find(|place| record.tables.log[*place].to_status == Some(status::DISPATCHED));
        let place = place.context("a handover")?;
        let step = record.tables.log[place].clone();
        record.tables.log.insert(place, step);
        Ok(())
    }),
    breaks(I6, "shift the number of a handover", |record| {
        let id = retried(record)?;
        for place in steps(record, &id).into_iter().skip(1) {
            record.tables.log[place].dispatch_seq += 1;
        }
        Ok(())
    }),
    breaks(I6, "shift the attempts beyond their limit", |record| {
        let failed = with_status(record, status::FAILED)?.id;
        execution(record, &failed)?.max_attempts -= 1;
        Ok(())
    }),
    breaks(I6, "shift the limit beyond the attempts", |record| {
        let failed = with_status(record, status::FAILED)?.id;
        execution(record, &failed)?.max_attempts += 1;
        Ok(())
    }),
    breaks(I6, "shift the count of attempts", |record| {
        let id = retried(record)?;
        execution(record, &id)?.attempt += 1;
        Ok(())
    }),
    breaks(I7, "drop a delivery", |record| {
        let id = told(record)?;
        record.tables.deliveries.retain(|row| row.execution_id != id);
        Ok(())
    }),
    breaks(I7, "double a delivery", |record| {
        let id = told(record)?;
        let row = record
            .tables
            .deliveries
            .iter()
            .find(|row| row.execution_id == id)
            .cloned();
        let mut row = row.context("a delivery")?;
        row.id = "another".into();
        record.tables.deliveries.push(row);
        Ok(())
    }),
    breaks(I7, "drop the calls of a delivery", |record| {
        let id = told(record)?;
        record.calls.retain(|call| call.execution != id);
        Ok(())
    }),
    breaks(I7, "relabel the answer to a call", |record| {
        let id = told(record)?;
        for call in record.calls.iter_mut().filter(|call| call.execution == id) {
            call.answered = 500;
        }
        Ok(())
    }),
    breaks(I7, "relabel what a call says", |record| {
        record.calls.first_mut().context("calls")?.status = "LOST".into();
        Ok(())
    }),
    breaks(I7, "relabel a call as one of another delivery", |record| {
        record.calls.first_mut().context("calls")?.delivery = "unheard of".into();
        Ok(())
    }),
    breaks(I7, "shift a call before the end", |record| {
        record.calls.first_mut().context("calls")?.at -= 60_000;
        Ok(())
    }),
    breaks(I7, "relabel a delivery as given up, without a reason", |record| {
        let row = record.tables.deliveries.first_mut().context("deliveries")?;
        (row.status, row.last_error) = (3, None);
        Ok(())
    }),
    breaks(I8, "shift an end beyond the bound", |record| {
        let (id, _) = one_shot(record)?;
        let late = record.terms.healed_at + record.terms.bound_ms + 1;
        execution(record, &id)?.finished_at = Some(late);
        Ok(())
    }),
    breaks(I8, "relabel an end as still running", |record| {
        let (id, _) = one_shot(record)?;
        record.terms.looked_at = record.terms.healed_at + record.terms.bound_ms + 1;
        let row = execution(record, &id)?;
        (row.status, row.finished_at) = (status::RUNNING, None);
        Ok(())
    }),
    breaks(I9, "double a job", |record| {
        let mut row = record.tables.jobs.first().context("jobs")?.clone();
        row.id = "another".into();
        record.tables.jobs.push(row);
        Ok(())
    }),
    breaks(I9, "relabel the second answer to a request", |record| {
        record
            .submissions
            .first_mut()
            .context("submissions")?
            .jobs
            .push("another".into());
        Ok(())
    }),
    breaks(I9, "drop a request", |record| {
        record.submissions.pop().context("submissions")?;
        Ok(())
    }),
    breaks(I10, "double a run after the first", |record| {
        let (id, _) = one_shot(record)?;
        again(record, &id, |copy| {
            copy.seq += 1;
            copy.at_ms += 20_000;
        })
    }),
];

/// A freeze of the process of the first run, and what it does after its thaw.
#[derive(Clone, Copy)]
struct Frozen {
    froze: bool,
    for_ms: i64,
    goes_on_ms: i64,
    /// 0 for that of the run.
    process: u32,
}

impl Frozen {
    const PAST_LEASE: Self = Self {
        froze: true,
        for_ms: 10_000,
        goes_on_ms: 1_500,
        process: 0,
    };
}

/// A second run begins while the first one is still there.
fn overlap(record: &mut Record, frozen: Option<Frozen>) -> Result<()> {
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
fn relabel_result(record: &mut Record, id: &str) -> Result<()> {
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
fn two_leaders(record: &mut Record) -> Result<()> {
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

fn fault(kind: &str, process: u32, from: i64, to: i64, froze: bool) -> Fault {
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
fn killed(record: &mut Record, id: &str) -> Result<u32> {
    let first = run(record, id)?;
    first.end = None;
    first.process = 3_000_000;
    Ok(first.process)
}

/// Another run of an execution, changed.
fn again(record: &mut Record, id: &str, change: impl FnOnce(&mut Run)) -> Result<()> {
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
fn copy(record: &mut Record, id: &str, change: impl FnOnce(&mut ExecutionRow)) -> Result<()> {
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

fn drop_middle(record: &mut Record, request: &str) -> Result<()> {
    let mut firings = firings(record, request)?;
    let middle = firings.remove(firings.len() / 2).id;
    forget(record, &middle);
    Ok(())
}

/// Every trace of an execution.
fn forget(record: &mut Record, id: &str) {
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
fn one_shot(record: &Record) -> Result<(String, String)> {
    find(record, |row, body| {
        body["trigger"].is_null() && row.status == status::SUCCEEDED && row.attempt == 1
    })
    .map(|row| (row.id, row.job_id))
}

fn delayed(record: &Record) -> Result<String> {
    Ok(find(record, |row, body| {
        body["trigger"]["delayMs"].is_i64() && row.status == status::SUCCEEDED
    })?
    .id)
}

/// An execution that failed at first and succeeded then.
fn retried(record: &Record) -> Result<String> {
    Ok(find(record, |row, _| {
        row.status == status::SUCCEEDED && row.attempt > 1
    })?
    .id)
}

fn with_status(record: &Record, status: i64) -> Result<ExecutionRow> {
    find(record, |row, _| row.status == status)
}

/// An execution whose end was told to somebody.
fn told(record: &Record) -> Result<String> {
    let mut rows = record.tables.deliveries.iter();
    Ok(rows.next().context("a delivery")?.execution_id.clone())
}

fn find(record: &Record, fits: impl Fn(&ExecutionRow, &serde_json::Value) -> bool) -> Result<ExecutionRow> {
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
fn firings(record: &Record, request: &str) -> Result<Vec<ExecutionRow>> {
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

fn execution<'a>(record: &'a mut Record, id: &str) -> Result<&'a mut ExecutionRow> {
    record
        .tables
        .executions
        .iter_mut()
        .find(|row| row.id == id)
        .context("the execution")
}

/// The first run of an execution.
fn run<'a>(record: &'a mut Record, id: &str) -> Result<&'a mut Run> {
    record
        .runs
        .iter_mut()
        .find(|run| run.execution == id)
        .context("a run")
}

fn cancel<'a>(record: &'a mut Record, job: &str) -> Result<&'a mut Cancel> {
    record
        .cancels
        .iter_mut()
        .find(|cancel| cancel.job == job)
        .context("a cancel")
}

/// Where the steps of an execution stand in the log.
fn steps(record: &Record, id: &str) -> Vec<usize> {
    let log = record.tables.log.iter().enumerate();
    log.filter(|(_, step)| step.execution_id.as_deref() == Some(id) && step.to_status.is_some())
        .map(|(place, _)| place)
        .collect()
}
