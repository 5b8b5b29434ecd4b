//! When a job fires: cron expressions in two dialects and fixed rates, as pure functions of an instant.
//!
//! Nothing here reads a clock. Instants are `i64` milliseconds since the Unix epoch, UTC, as in the database.
//! A text passes `field` (one field) and `normalise` (all of them, in one dialect) into plain sets of values;
//! `calendar` lets croner search those on the wall clock, and `clock_change` maps the wall clock to instants.

mod calendar;
mod clock_change;
mod cron;
mod describe;
mod dialect;
mod error;
mod field;
mod normalise;
mod warning;
mod zone;

pub use cron::CronSchedule;
pub use dialect::CronDialect;
pub use error::ScheduleError;
pub use field::FieldKind;
pub use warning::ScheduleWarning;
pub use zone::parse_time_zone;

/// The first `anchor_ms + k * every_ms` (k = 0, 1, 2, ...) strictly after `after_ms`.
///
/// `None` if the interval is not positive or the instant does not fit an `i64`.
#[must_use]
pub fn fixed_rate_next(anchor_ms: i64, every_ms: i64, after_ms: i64) -> Option<i64> {
    if every_ms <= 0 {
        return None;
    }
    if after_ms < anchor_ms {
        return Some(anchor_ms);
    }
    // The distance between two i64 needs 65 bits.
    let (anchor, every) = (i128::from(anchor_ms), i128::from(every_ms));
    let intervals = (i128::from(after_ms) - anchor) / every + 1;
    i64::try_from(anchor + intervals * every).ok()
}

#[cfg(test)]
mod tests {
    use super::fixed_rate_next;

    #[test]
    fn fixed_rate_keeps_to_multiples_of_the_interval_from_the_anchor() {
        assert_eq!(fixed_rate_next(1_000, 250, 0), Some(1_000));
        assert_eq!(fixed_rate_next(1_000, 250, 999), Some(1_000));
        assert_eq!(fixed_rate_next(1_000, 250, 1_000), Some(1_250));
        assert_eq!(fixed_rate_next(1_000, 250, 1_999), Some(2_000));
        assert_eq!(fixed_rate_next(-700, 500, -650), Some(-200));
    }

    #[test]
    fn fixed_rate_at_the_edge_of_time_is_none_and_not_a_panic() {
        assert_eq!(fixed_rate_next(0, 0, 5), None);
        assert_eq!(fixed_rate_next(0, -5, 5), None);
        assert_eq!(fixed_rate_next(0, 1_000, i64::MAX), None);
        assert_eq!(fixed_rate_next(i64::MIN, i64::MAX, i64::MAX), None);
        assert_eq!(fixed_rate_next(i64::MIN, 1, i64::MAX - 1), Some(i64::MAX));
    }
}
