use std::fmt;
use std::sync::Arc;

use chrono::{DateTime, NaiveDate};
use chrono_tz::Tz;

use super::calendar::Calendar;
use super::clock_change::{ClockRule, next_instant};
use super::describe::describe;
use super::dialect::CronDialect;
use super::error::ScheduleError;
use super::field::FieldKind;
use super::normalise::{Fields, longest, normalise};
use super::warning::{ScheduleWarning, warnings};
use super::zone::parse_time_zone;

/// A cron expression in a time zone, checked and ready to be asked for instants. Cheap to clone.
#[derive(Clone)]
pub struct CronSchedule {
    expr: Arc<str>,
    dialect: CronDialect,
    time_zone: Tz,
    plan: Arc<Plan>,
}

struct Plan {
    fields: Fields,
    calendar: Calendar,
    clock_rule: ClockRule,
}

impl CronSchedule {
    /// Reads an expression of at most 256 characters and an IANA zone name such as `Asia/Shanghai`.
    /// Without a dialect, 6 or 7 fields are quartz, 5 fields and `@daily` and friends are unix.
    ///
    /// # Errors
    /// [`ScheduleError`], also for an expression that can never fire, such as 30 February. An expression whose
    /// years are past is accepted, for there is no clock here: its [`CronSchedule::next_after`] is `None`.
    pub fn parse(expr: &str, dialect: Option<CronDialect>, time_zone: &str) -> Result<Self, ScheduleError> {
        let (dialect, fields) = normalise(expr, dialect)?;
        let time_zone = parse_time_zone(time_zone)?;
        refuse_days_no_month_has(&fields)?;
        let calendar = Calendar::new(&fields)?;
        refuse_empty(&calendar)?;
        let clock_rule = if fields.minute.open || fields.hour.open {
            ClockRule::FollowsWallClock
        } else {
            ClockRule::FixedTime
        };
        Ok(Self {
            expr: expr.trim().into(),
            dialect,
            time_zone,
            plan: Arc::new(Plan {
                fields,
                calendar,
                clock_rule,
            }),
        })
    }

    /// The first firing strictly after an instant, both in milliseconds since the Unix epoch, UTC.
    ///
    /// `None` if nothing fires any more. Nothing fires before 1970 or after 4999.
    #[must_use]
    pub fn next_after(&self, instant_ms: i64) -> Option<i64> {
        let after = DateTime::from_timestamp_millis(instant_ms.max(-1))?;
        // The last instant that still has a local time in every zone lies far beyond croner's last year.
        if after.naive_utc().date() >= NaiveDate::from_ymd_opt(5000, 1, 1)? {
            return None;
        }
        let after = after.with_timezone(&self.time_zone);
        let next = next_instant(&self.plan.calendar, self.plan.clock_rule, after)?;
        Some(next.timestamp_millis())
    }

    /// The next firings strictly after an instant, fewer than `count` where no more exist.
    #[must_use]
    pub fn upcoming(&self, after_ms: i64, count: usize) -> Vec<i64> {
        std::iter::successors(self.next_after(after_ms), |last| self.next_after(*last))
            .take(count)
            .collect()
    }

    /// The expression as it was given, without the space around it.
    #[must_use]
    pub fn expr(&self) -> &str {
        &self.expr
    }

    /// The dialect it was read in.
    #[must_use]
    pub fn dialect(&self) -> CronDialect {
        self.dialect
    }

    /// The zone whose wall clock it follows.
    #[must_use]
    pub fn time_zone(&self) -> Tz {
        self.time_zone
    }

    /// An English sentence that says when it fires, such as "at 02:00, every day (Asia/Shanghai)".
    #[must_use]
    pub fn description(&self) -> String {
        format!("{} ({})", describe(&self.plan.fields), self.time_zone.name())
    }

    /// What is legal but may not be meant.
    #[must_use]
    pub fn warnings(&self) -> Vec<ScheduleWarning> {
        warnings(&self.plan.fields)
    }
}

impl fmt::Debug for CronSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CronSchedule")
            .field("expr", &self.expr)
            .field("dialect", &self.dialect)
            .field("time_zone", &self.time_zone.name())
            .finish_non_exhaustive()
    }
}

/// The plan follows from these three.
impl PartialEq for CronSchedule {
    fn eq(&self, other: &Self) -> bool {
        (&self.expr, self.dialect, self.time_zone) == (&other.expr, other.dialect, other.time_zone)
    }
}

impl Eq for CronSchedule {}

/// The usual reason to fire never, found without a search of three thousand years.
fn refuse_days_no_month_has(fields: &Fields) -> Result<(), ScheduleError> {
    let most = fields.month.set.iter().map(|month| longest(*month)).max();
    match (fields.shortest_month_needed(), most) {
        (Some(day), Some(most)) if day > most => Err(ScheduleError::NeverFires {
            field: FieldKind::DayOfMonth,
            reason: format!(
                "dayOfMonth needs a month of at least {day} days, but those given in month have at most {most}; choose another day, or `L` for the last (quartz)"
            ),
        }),
        _ => Ok(()),
    }
}

/// What remains is a day that no given year has, such as 29 February 2025.
fn refuse_empty(calendar: &Calendar) -> Result<(), ScheduleError> {
    let start = NaiveDate::from_ymd_opt(1970, 1, 1).and_then(|date| date.and_hms_opt(0, 0, 0));
    match start.and_then(|start| calendar.first_from(start)) {
        Some(_) => Ok(()),
        None => Err(ScheduleError::NeverFires {
            field: FieldKind::Year,
            reason: "no day in the given years matches dayOfMonth, month and dayOfWeek; check year, or leave it out"
                .to_owned(),
        }),
    }
}
