use serde::Serialize;

use super::describe::{month_name, numbers};
use super::field::{FieldKind, Values};
use super::normalise::{DayRule, Fields, longest};

/// Something legal that may not be meant. It never stops a job from being accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScheduleWarning {
    /// A stable identifier, such as `cron.uneven-step`.
    pub code: &'static str,
    /// What it selects, and what may have been meant.
    pub message: String,
}

pub(super) fn warnings(fields: &Fields) -> Vec<ScheduleWarning> {
    let mut found: Vec<ScheduleWarning> = [
        (FieldKind::Second, &fields.second),
        (FieldKind::Minute, &fields.minute),
        (FieldKind::Hour, &fields.hour),
        (FieldKind::DayOfMonth, &fields.month_day),
        (FieldKind::Month, &fields.month),
        (FieldKind::DayOfWeek, &fields.weekday),
    ]
    .into_iter()
    .filter_map(|(kind, values)| uneven_step(kind, values))
    .collect();
    found.extend(skips_months(fields));
    found.extend(two_day_fields(fields));
    found
}

/// A step starts over with each minute, hour, day, month, year or week.
fn uneven_step(kind: FieldKind, values: &Values) -> Option<ScheduleWarning> {
    let step = values.open_step?;
    // Months differ in length, so no step of days is even.
    if kind != FieldKind::DayOfMonth && kind.span().is_multiple_of(step) {
        return None;
    }
    let starts_over = match kind {
        FieldKind::Second => "minute",
        FieldKind::Minute => "hour",
        FieldKind::Hour => "day",
        FieldKind::DayOfMonth => "month",
        FieldKind::Month => "year",
        FieldKind::DayOfWeek => "week",
        FieldKind::Year => return None,
    };
    Some(ScheduleWarning {
        code: "cron.uneven-step",
        message: format!(
            "the step /{step} in {} starts over with each {starts_over}, so the interval is not even: it selects {}; use a fixed rate for an even interval",
            kind.name(),
            numbers(&values.set),
        ),
    })
}

fn skips_months(fields: &Fields) -> Option<ScheduleWarning> {
    let needed = fields.shortest_month_needed()?;
    // In most years February has one day less than in its longest.
    let usual = |month: u16| if month == 2 { 28 } else { longest(month) };
    let skipped: Vec<&str> = fields
        .month
        .set
        .iter()
        .filter(|month| usual(**month) < needed)
        .map(|month| month_name(*month))
        .collect();
    if skipped.is_empty() {
        return None;
    }
    let leap = if needed == 29 { " outside leap years" } else { "" };
    let has = if skipped.len() == 1 { "has" } else { "have" };
    Some(ScheduleWarning {
        code: "cron.skips-months",
        message: format!(
            "{} {has} fewer than {needed} days{leap}, so nothing fires there; `L` in the quartz dialect is the last day of every month",
            skipped.join(", "),
        ),
    })
}

fn two_day_fields(fields: &Fields) -> Option<ScheduleWarning> {
    match fields.day_rule {
        DayRule::Either => Some(ScheduleWarning {
            code: "cron.either-day",
            message: "dayOfMonth and dayOfWeek are both given: a day fires when either one matches, not only when both do"
                .to_owned(),
        }),
        DayRule::Both => Some(ScheduleWarning {
            code: "cron.both-days",
            message: "dayOfMonth and dayOfWeek are both given and one begins with `*`: a day fires only when both match"
                .to_owned(),
        }),
        DayRule::Every | DayRule::MonthDay | DayRule::Weekday => None,
    }
}
