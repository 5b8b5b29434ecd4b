//! I1, I2, I9: what was acknowledged has its firings, at their times, and is there once.

use super::{
    Breaches,
    Invariant::{I1, I2, I9},
    expected::{self, Due, Expected},
    index::{Index, is_terminal},
    tables::{ExecutionRow, LogRow},
};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Code of `job_execution.trigger_kind`: the job's own trigger.
const BY_SCHEDULE: i64 = 0;
const LEFT_OUT: &str = "firings missed from ";
const MADE_UP_FOR: &str = "missed; made up for by policy";

pub(super) fn check(index: &Index<'_>, breaches: &mut Breaches) -> anyhow::Result<()> {
    requests(index, breaches);
    for submission in &index.record.submissions {
        let Some(job) = submission.jobs.first() else {
            continue;
        };
        if !index.jobs.contains_key(job.as_str()) {
            breaches.add(
                I1,
                format!("job {job} of request {} is not there", submission.request),
            );
            continue;
        }
        let expected = expected::firings(&submission.body, submission.asked_at, submission.acked_at)?;
        Firings::of(index, job).compare(&expected, breaches);
    }
    for execution in &index.record.tables.executions {
        not_early(index, execution, breaches);
    }
    Ok(())
}

/// Every answer to a request named the same job, and the table has that job and no other for it.
fn requests(index: &Index<'_>, breaches: &mut Breaches) {
    let mut by_request: HashMap<&str, Vec<&str>> = HashMap::new();
    for job in &index.record.tables.jobs {
        if let Some(request) = &job.client_request_id {
            by_request.entry(request).or_default().push(&job.id);
        }
    }
    let mut asked = HashSet::new();
    for submission in &index.record.submissions {
        let request = submission.request.as_str();
        breaches.require(asked.insert(request), I9, || {
            format!("request {request} twice in the log")
        });
        let answered: HashSet<&str> = submission.jobs.iter().map(String::as_str).collect();
        breaches.require(answered.len() == 1, I9, || {
            format!("request {request} was answered with {answered:?}")
        });
        let stored = by_request.get(request).map_or(&[][..], Vec::as_slice);
        breaches.require(stored.len() <= 1, I9, || {
            format!("request {request} made {stored:?}")
        });
        for job in stored {
            breaches.require(answered.contains(job), I9, || {
                format!("request {request} made {job} and was answered with {answered:?}")
            });
        }
    }
    for (request, jobs) in by_request {
        breaches.require(asked.contains(request), I9, || {
            format!("nobody made request {request}, of {jobs:?}")
        });
    }
}

/// Neither made nor started before it is due.
fn not_early(index: &Index<'_>, execution: &ExecutionRow, breaches: &mut Breaches) {
    let due = execution.scheduled_time - index.record.terms.clock_ms;
    let first_step = index.steps_of(&execution.id).first().map(|step| step.at);
    let made = first_step
        .unwrap_or(execution.created_at)
        .min(execution.created_at);
    breaches.require(made >= due, I2, || {
        let early = execution.scheduled_time - made;
        format!("execution {} was made {early} ms before its time", execution.id)
    });
    for run in index.runs_of(&execution.id) {
        breaches.require(run.at_ms >= due, I2, || {
            let early = execution.scheduled_time - run.at_ms;
            format!("execution {} ran {early} ms before its time", execution.id)
        });
    }
}

/// The firings of one job as they stand in the tables.
struct Firings<'a> {
    job: &'a str,
    executions: Vec<&'a ExecutionRow>,
    words: &'a [&'a LogRow],
    made: HashMap<&'a str, &'a LogRow>,
    /// When a cancel of it was acknowledged.
    cancelled_at: Option<i64>,
    clock_ms: i64,
}

impl<'a> Firings<'a> {
    fn of(index: &'a Index<'a>, job: &'a str) -> Self {
        let all = index.executions_of.get(job).map_or(&[][..], Vec::as_slice);
        let executions: Vec<_> = all
            .iter()
            .copied()
            .filter(|row| row.trigger_kind == BY_SCHEDULE)
            .collect();
        let first_step = |row: &&'a ExecutionRow| Some((row.id.as_str(), *index.steps_of(&row.id).first()?));
        Self {
            job,
            made: executions.iter().filter_map(first_step).collect(),
            executions,
            words: index.words.get(job).map_or(&[][..], Vec::as_slice),
            cancelled_at: index.cancels.get(job).map(|cancel| cancel.acked_at),
            clock_ms: index.record.terms.clock_ms,
        }
    }

    fn compare(&self, expected: &Expected, breaches: &mut Breaches) {
        if let Some(acked) = self.cancelled_at {
            for execution in &self.executions {
                breaches.require(execution.scheduled_time <= acked + self.clock_ms, I2, || {
                    format!(
                        "{} was cancelled and fired afterwards: {}",
                        self.job, execution.id
                    )
                });
            }
        }
        match expected {
            Expected::One { earliest, latest } => self.one(*earliest, *latest, breaches),
            Expected::Times(times) => self.times(times, breaches),
            Expected::Chain {
                earliest,
                latest,
                every_ms,
                end,
            } => self.chain(*earliest, *latest, *every_ms, *end, breaches),
        }
    }

    fn one(&self, earliest: i64, latest: i64, breaches: &mut Breaches) {
        match self.executions.as_slice() {
            [] => breaches.require(self.cancelled_at.is_some(), I1, || {
                format!("{} did not fire", self.job)
            }),
            [only] => self.is_within(only, earliest, latest, breaches),
            more => breaches.add(I2, format!("{} fired {} times", self.job, more.len())),
        }
    }

    fn is_within(&self, execution: &ExecutionRow, earliest: i64, latest: i64, breaches: &mut Breaches) {
        let at = execution.scheduled_time;
        let within = (earliest - self.clock_ms..=latest + self.clock_ms).contains(&at);
        breaches.require(within, I2, || {
            format!(
                "{} fired for {at}, and was due from {earliest} to {latest}",
                self.job
            )
        });
    }

    fn times(&self, times: &[Due], breaches: &mut Breaches) {
        let mut fired: BTreeMap<i64, usize> = BTreeMap::new();
        for execution in &self.executions {
            *fired.entry(execution.scheduled_time).or_default() += 1;
        }
        let due: HashSet<i64> = times.iter().map(|due| due.at).collect();
        for (at, count) in &fired {
            breaches.require(due.contains(at), I2, || {
                format!("{} fired at {at}, which is not its time", self.job)
            });
            breaches.require(*count == 1, I2, || {
                format!("{} fired {count} times at {at}", self.job)
            });
        }
        let last = fired.keys().next_back().copied().unwrap_or(i64::MIN);
        let excused = self.excused();
        for due in times {
            let cancelled = self.cancelled_at.is_some() && due.at > last;
            let needed = due.is_certain
                && !cancelled
                && !excused.iter().any(|(from, to)| (*from..=*to).contains(&due.at));
            breaches.require(!needed || fired.contains_key(&due.at), I1, || {
                format!("{} did not fire at {}, and nothing says why", self.job, due.at)
            });
        }
    }

    /// Times for which something is recorded in place of firings.
    fn excused(&self) -> Vec<(i64, i64)> {
        let left_out = self.words.iter().filter_map(|word| {
            let text = word.message.as_deref()?.strip_prefix(LEFT_OUT)?;
            let from = chrono::DateTime::parse_from_rfc3339(text.split(' ').next()?).ok()?;
            Some((from.timestamp_millis(), word.at))
        });
        let stands_for = self.executions.iter().filter_map(|execution| {
            let made = self.made.get(execution.id.as_str())?;
            let missed = made
                .message
                .as_deref()
                .is_some_and(|message| message.starts_with(MADE_UP_FOR));
            missed.then_some((execution.scheduled_time, made.at))
        });
        left_out.chain(stands_for).collect()
    }

    fn chain(&self, earliest: i64, latest: i64, every_ms: i64, end: i64, breaches: &mut Breaches) {
        let mut limits = (earliest, latest);
        let mut slack = self.clock_ms;
        for execution in &self.executions {
            if limits.0 > end {
                breaches.add(I2, format!("{} fired after the end of its window", self.job));
            }
            self.is_link(execution, limits, slack, breaches);
            let Some(finished) = execution.finished_at.filter(|_| is_terminal(execution.status)) else {
                return;
            };
            // From here on both sides are instants of the tables.
            (limits, slack) = ((finished + every_ms, finished + every_ms), 0);
        }
        let is_over = limits.1 > end || self.cancelled_at.is_some();
        breaches.require(is_over, I1, || {
            format!("{} did not fire at {}, its next time", self.job, limits.1)
        });
    }

    fn is_link(
        &self,
        execution: &ExecutionRow,
        (earliest, latest): (i64, i64),
        slack: i64,
        breaches: &mut Breaches,
    ) {
        let at = execution.scheduled_time;
        if at > latest + slack {
            breaches.add(
                I1,
                format!("{} fired at {at} and not at {latest}, its next time", self.job),
            );
        } else if at < earliest - slack {
            breaches.add(
                I2,
                format!("{} fired at {at}, before its next time {earliest}", self.job),
            );
        }
    }
}
