//! When a trigger fires: the one code path of submission, preview, claim and resume.

use super::Trigger;
use crate::{
    schedule::{CronSchedule, ScheduleError, fixed_rate_next},
    time::EpochMillis,
};
use std::time::Duration;

/// The window in which a job may fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Window {
    /// No firing before this instant.
    pub start_at: Option<EpochMillis>,
    /// No firing after this instant.
    pub end_at: Option<EpochMillis>,
}

impl Window {
    fn closed_at(self, instant: EpochMillis) -> Option<EpochMillis> {
        self.end_at.is_none_or(|end| instant <= end).then_some(instant)
    }
}

impl Trigger {
    /// The first firing of a job accepted at `accepted`; none when nothing is planned by time (manual, after another
    /// job) or nothing is left in the window. A one-shot whose instant has passed fires at that past instant: now.
    ///
    /// # Errors
    /// [`ScheduleError`] when the cron expression or its zone is not valid.
    pub fn first_firing(
        &self,
        accepted: EpochMillis,
        window: Window,
    ) -> Result<Option<EpochMillis>, ScheduleError> {
        let opening = window.start_at.map_or(accepted, |start| start.max(accepted));
        let just_before = opening - Duration::from_millis(1);
        let first = match self {
            Self::Once { at } => Some(window.start_at.map_or(*at, |start| start.max(*at))),
            Self::Cron { .. } | Self::FixedRate { .. } => self.next_by_time(just_before)?,
            Self::FixedDelay { .. } => Some(opening),
            Self::Manual {} | Self::After { .. } => None,
        };
        Ok(first.and_then(|first| window.closed_at(first)))
    }

    /// The first firing strictly after `after`; none when nothing is planned by time.
    ///
    /// # Errors
    /// As [`Trigger::first_firing`].
    pub fn next_firing(
        &self,
        after: EpochMillis,
        window: Window,
    ) -> Result<Option<EpochMillis>, ScheduleError> {
        let from = window
            .start_at
            .map_or(after, |start| after.max(start - Duration::from_millis(1)));
        Ok(self.next_by_time(from)?.and_then(|next| window.closed_at(next)))
    }

    fn next_by_time(&self, after: EpochMillis) -> Result<Option<EpochMillis>, ScheduleError> {
        Ok(match self {
            Self::Cron {
                expr,
                time_zone,
                dialect,
            } => CronSchedule::parse(expr, Some(*dialect), time_zone)?
                .next_after(after.0)
                .map(EpochMillis),
            Self::FixedRate { every_ms, anchor } => {
                fixed_rate_next(anchor.0, *every_ms, after.0).map(EpochMillis)
            }
            Self::Once { .. } | Self::FixedDelay { .. } | Self::Manual {} | Self::After { .. } => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCEPTED: EpochMillis = EpochMillis(1_800_000_000_000);
    const OPEN: Window = Window {
        start_at: None,
        end_at: None,
    };

    fn later(ms: u64) -> EpochMillis {
        ACCEPTED + Duration::from_millis(ms)
    }

    #[test]
    fn a_fixed_rate_fires_at_its_anchor_and_every_multiple_after() {
        let trigger = Trigger::FixedRate {
            every_ms: 1_000,
            anchor: ACCEPTED,
        };
        assert_eq!(trigger.first_firing(ACCEPTED, OPEN), Ok(Some(ACCEPTED)));
        assert_eq!(trigger.next_firing(ACCEPTED, OPEN), Ok(Some(later(1_000))));
        assert_eq!(trigger.next_firing(later(1_500), OPEN), Ok(Some(later(2_000))));
    }

    #[test]
    fn a_cron_job_may_fire_at_the_very_start_of_its_window() {
        let trigger = Trigger::Cron {
            expr: "* * * * * ?".into(),
            time_zone: "UTC".into(),
            dialect: crate::schedule::CronDialect::Quartz,
        };
        let window = Window {
            start_at: Some(later(5_000)),
            end_at: Some(later(6_000)),
        };
        assert_eq!(trigger.first_firing(ACCEPTED, window), Ok(Some(later(5_000))));
        assert_eq!(trigger.next_firing(later(5_000), window), Ok(Some(later(6_000))));
        assert_eq!(trigger.next_firing(later(6_000), window), Ok(None));
    }

    #[test]
    fn a_one_shot_in_the_past_fires_at_its_own_instant() {
        let past = ACCEPTED - Duration::from_secs(60);
        assert_eq!(
            Trigger::Once { at: past }.first_firing(ACCEPTED, OPEN),
            Ok(Some(past))
        );
    }
}
