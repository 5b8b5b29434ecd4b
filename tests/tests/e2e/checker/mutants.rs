//! One place of a good record spoilt: dropped, doubled, shifted or relabelled.

use super::spoiling::{
    Frozen, again, cancel, copy, delayed, drop_middle, execution, fault, firings, forget, killed, one_shot,
    overlap, relabel_result, retried, run, steps, told, two_leaders, with_status,
};
use anyhow::{Context, Result};
use isocost_tests::checker::{
    Invariant::{self, I1, I2, I3, I4, I5, I6, I7, I8, I9, I10},
    Life, Record,
    tables::status,
};
use isocost_tests::ledger::Ending;

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
