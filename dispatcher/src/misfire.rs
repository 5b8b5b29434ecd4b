//! What a due job fires now, and when it is due next: pure, of the job and the instant.

use isocost_common::{
    job::{MisfirePolicy, Trigger},
    schedule::ScheduleError,
    store::claim::DueJob,
    time::EpochMillis,
};
use std::{collections::VecDeque, time::Duration};

/// Firings of one job in one claim; what is due beyond them comes with the next claim, which follows at once.
const MOST_FIRINGS: usize = 100;
const MILLISECOND: Duration = Duration::from_millis(1);

/// One firing to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Firing {
    /// The instant it was planned for.
    pub(crate) scheduled: EpochMillis,
    /// It comes so late that the misfire policy decided about it.
    pub(crate) missed: bool,
}

/// What a due job does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FiringPlan {
    /// Oldest first.
    pub(crate) firings: Vec<Firing>,
    /// When it is due again; none when nothing is planned by time.
    pub(crate) next: Option<EpochMillis>,
    /// From when on missed firings were left out, if any were.
    pub(crate) left_out_from: Option<EpochMillis>,
}

/// Plans the firings of a due job at the instant `now`.
///
/// A firing later than `misfire_after` is missed. From then on all firings up to `now` go by the job's policy, and the
/// next one is computed from `now`: two weeks of missed seconds are never walked through one by one. A one-shot and a
/// fixed delay always fire, for there is nothing else that could stand for them.
///
/// # Errors
/// [`ScheduleError`] when the trigger cannot be evaluated.
pub(crate) fn plan(
    job: &DueJob,
    now: EpochMillis,
    misfire_after: Duration,
) -> Result<FiringPlan, ScheduleError> {
    let due = job.due;
    let late = due < now - misfire_after;
    let next_after = |after| job.trigger.next_firing(after, job.window);
    if !matches!(job.trigger, Trigger::Cron { .. } | Trigger::FixedRate { .. }) {
        return Ok(FiringPlan::once(due, late, None));
    }
    if !late {
        return on_time(due, now, next_after);
    }
    match job.misfire.policy {
        MisfirePolicy::FireOnce => Ok(FiringPlan::once(due, true, next_after(now)?)),
        MisfirePolicy::Skip => Ok(FiringPlan {
            firings: Vec::new(),
            next: next_after(now)?,
            left_out_from: Some(due),
        }),
        MisfirePolicy::CatchUp => {
            let limit = usize::try_from(job.misfire.max_catch_up)
                .unwrap_or(usize::MAX)
                .max(1);
            newest(due, now, limit, next_after)
        }
    }
}

impl FiringPlan {
    fn once(scheduled: EpochMillis, missed: bool, next: Option<EpochMillis>) -> Self {
        Self {
            firings: vec![Firing { scheduled, missed }],
            next,
            left_out_from: None,
        }
    }
}

fn on_time(
    due: EpochMillis,
    now: EpochMillis,
    next_after: impl Fn(EpochMillis) -> Result<Option<EpochMillis>, ScheduleError>,
) -> Result<FiringPlan, ScheduleError> {
    let mut firings = Vec::new();
    let mut next = Some(due);
    while let Some(scheduled) = next.filter(|at| *at <= now && firings.len() < MOST_FIRINGS) {
        firings.push(Firing {
            scheduled,
            missed: false,
        });
        next = next_after(scheduled)?;
    }
    Ok(FiringPlan {
        firings,
        next,
        left_out_from: None,
    })
}

/// The newest `limit` firings from `due` to `now`. Looks back from `now` in growing steps, because a schedule can only
/// be walked forwards.
fn newest(
    due: EpochMillis,
    now: EpochMillis,
    limit: usize,
    next_after: impl Fn(EpochMillis) -> Result<Option<EpochMillis>, ScheduleError>,
) -> Result<FiringPlan, ScheduleError> {
    let mut look_back = Duration::from_secs(1);
    loop {
        let from = (now - look_back).max(due);
        let mut next = if from == due {
            Some(due)
        } else {
            next_after(from - MILLISECOND)?
        };
        let mut kept = VecDeque::new();
        let mut dropped = from > due;
        while let Some(scheduled) = next.filter(|at| *at <= now) {
            if kept.len() == limit {
                kept.pop_front();
                dropped = true;
            }
            kept.push_back(Firing {
                scheduled,
                missed: true,
            });
            next = next_after(scheduled)?;
        }
        if kept.len() == limit || from == due {
            return Ok(FiringPlan {
                firings: kept.into(),
                next,
                left_out_from: dropped.then_some(due),
            });
        }
        look_back *= 2;
    }
}

#[cfg(test)]
mod tests;
