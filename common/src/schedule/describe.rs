//! An English sentence for an expression. croner's own takes any step for an even one from the start of the field
//! and `LW` for `L`, so it is not used.

use super::field::{FieldKind, Values};
use super::normalise::{DayRule, Fields, SpecialDay, SpecialWeekday};

/// More times of day than this read better as "at minutes ... of hours ...".
const MOST_TIMES_LISTED: usize = 6;

pub(super) fn describe(fields: &Fields) -> String {
    let mut parts = vec![describe_time(fields)];
    let lists_times = parts[0].starts_with("at ") && parts[0].contains(':');
    parts.extend(describe_days(fields, lists_times));
    if !fields.month.covers(FieldKind::Month) {
        let names = fields.month.set.iter().map(|month| month_name(*month).to_owned());
        parts.push(format!("in {}", join(names.collect(), "and")));
    }
    if let Some(year) = &fields.year {
        parts.push(format!("in {}", numbers(&year.set)));
    }
    parts.join(", ")
}

fn describe_time(fields: &Fields) -> String {
    let (hours, minutes) = (&fields.hour.set, &fields.minute.set);
    if let Some(second) = fields.second.single()
        && hours.len() * minutes.len() <= MOST_TIMES_LISTED
    {
        let times = hours.iter().flat_map(|hour| {
            minutes.iter().map(move |minute| match second {
                0 => format!("{hour:02}:{minute:02}"),
                _ => format!("{hour:02}:{minute:02}:{second:02}"),
            })
        });
        return format!("at {}", join(times.collect(), "and"));
    }
    let mut parts = Vec::new();
    if fields.second.single() != Some(0) {
        parts.push(describe_unit(&fields.second, FieldKind::Second));
    }
    // "every minute" goes without saying behind seconds.
    if parts.is_empty() || !fields.minute.covers(FieldKind::Minute) {
        parts.push(describe_unit(&fields.minute, FieldKind::Minute));
    }
    let is_every_hour = fields.hour.covers(FieldKind::Hour);
    match parts.last_mut() {
        Some(last) if is_every_hour && last.starts_with("at ") => {
            *last += if fields.minute.covers(FieldKind::Minute) {
                " of every minute"
            } else {
                " of every hour"
            };
        }
        _ if is_every_hour => {}
        _ => parts.push(describe_unit(&fields.hour, FieldKind::Hour)),
    }
    parts.join(", ")
}

/// "every 5 minutes" only where it is true from one round to the next.
fn describe_unit(values: &Values, kind: FieldKind) -> String {
    let unit = kind.name();
    if values.covers(kind) {
        return format!("every {unit}");
    }
    if let Some(step) = values.open_step
        && kind.span().is_multiple_of(step)
        && values.set.len() == usize::from(kind.span() / step)
        && values.set.first() == Some(&0)
    {
        return format!("every {step} {unit}s");
    }
    let plural = if values.set.len() == 1 { "" } else { "s" };
    let place = if kind == FieldKind::Hour { "in" } else { "at" };
    format!("{place} {unit}{plural} {}", numbers(&values.set))
}

fn describe_days(fields: &Fields, after_times: bool) -> Option<String> {
    match fields.day_rule {
        DayRule::Every => after_times.then(|| "every day".to_owned()),
        DayRule::MonthDay => Some(format!("on {}", describe_month_days(fields))),
        DayRule::Weekday => Some(format!("on {}", describe_weekdays(fields, "and"))),
        DayRule::Either => Some(format!(
            "on {}, or on {}",
            describe_month_days(fields),
            describe_weekdays(fields, "or")
        )),
        DayRule::Both => Some(format!(
            "on {} if it is {}",
            describe_month_days(fields),
            describe_weekdays(fields, "or")
        )),
    }
}

fn describe_month_days(fields: &Fields) -> String {
    let mut parts = Vec::new();
    let days = &fields.month_day.set;
    if !days.is_empty() {
        let plural = if days.len() == 1 { "" } else { "s" };
        parts.push(format!("day{plural} {} of the month", numbers(days)));
    }
    parts.extend(fields.special_days.iter().map(|day| match day {
        SpecialDay::Last | SpecialDay::BeforeLast(0) => "the last day of the month".to_owned(),
        SpecialDay::BeforeLast(1) => "the day before the last day of the month".to_owned(),
        SpecialDay::BeforeLast(days) => {
            format!("the day {days} days before the last day of the month")
        }
        SpecialDay::LastWorkday => "the last day of the month from Monday to Friday".to_owned(),
        SpecialDay::NearestWorkday(day) => {
            format!("the day from Monday to Friday nearest to day {day} of the month")
        }
    }));
    join(parts, "and")
}

fn describe_weekdays(fields: &Fields, conjunction: &str) -> String {
    const PLACES: [&str; 5] = ["first", "second", "third", "fourth", "fifth"];
    let plain = fields.weekday.set.iter().map(|day| weekday_name(*day).to_owned());
    let special = fields.special_weekdays.iter().map(|weekday| match weekday {
        SpecialWeekday::Last(day) => format!("the last {} of the month", weekday_name(*day)),
        SpecialWeekday::Nth(day, place) => {
            let place = PLACES.get(usize::from(*place).wrapping_sub(1)).unwrap_or(&"");
            format!("the {place} {} of the month", weekday_name(*day))
        }
    });
    join(plain.chain(special).collect(), conjunction)
}

/// "1, 3 and 5-9"
pub(super) fn numbers(values: &[u16]) -> String {
    let runs = values.chunk_by(|one, next| one + 1 == *next);
    let mut parts = Vec::new();
    for run in runs {
        match run {
            [first, _, .., last] => parts.push(format!("{first}-{last}")),
            _ => parts.extend(run.iter().map(ToString::to_string)),
        }
    }
    join(parts, "and")
}

fn join(mut parts: Vec<String>, conjunction: &str) -> String {
    match parts.pop() {
        None => String::new(),
        Some(only) if parts.is_empty() => only,
        Some(last) => format!("{} {conjunction} {last}", parts.join(", ")),
    }
}

/// `month` from 1; anything else has no name.
pub(super) fn month_name(month: u16) -> &'static str {
    const NAMES: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    NAMES
        .get(usize::from(month).wrapping_sub(1))
        .copied()
        .unwrap_or("")
}

fn weekday_name(day: u16) -> &'static str {
    const NAMES: [&str; 7] = [
        "Sunday",
        "Monday",
        "Tuesday",
        "Wednesday",
        "Thursday",
        "Friday",
        "Saturday",
    ];
    NAMES.get(usize::from(day)).copied().unwrap_or("")
}

#[cfg(test)]
mod tests {
    use crate::schedule::CronSchedule;

    #[test]
    fn description_says_when_it_fires() {
        for (expr, sentence) in [
            ("0 0 2 * * ?", "at 02:00, every day"),
            ("0 0 8,13,18 * * ?", "at 08:00, 13:00 and 18:00, every day"),
            ("*/5 * * * * ?", "every 5 seconds"),
            ("* * * * *", "every minute"),
            ("*/47 * * * * ?", "at seconds 0 and 47 of every minute"),
            ("0 5/15 * * * ?", "at minutes 5, 20, 35 and 50 of every hour"),
            ("0 */5 14 * * ?", "every 5 minutes, in hour 14"),
            ("*/5 10 * * * ?", "every 5 seconds, at minute 10 of every hour"),
            (
                "0 0 9 ? * MON-FRI",
                "at 09:00, on Monday, Tuesday, Wednesday, Thursday and Friday",
            ),
            (
                "0 30 17 LW 3,6 ?",
                "at 17:30, on the last day of the month from Monday to Friday, in March and June",
            ),
            ("0 0 8 ? * 6#3", "at 08:00, on the third Friday of the month"),
            ("0 0 1-7 * 1", "at 00:00, on days 1-7 of the month, or on Monday"),
            (
                "0 0 13 * */5",
                "at 00:00, on day 13 of the month if it is Sunday or Friday",
            ),
            (
                "0 0 0 1 1 ? 2026-2028",
                "at 00:00, on day 1 of the month, in January, in 2026-2028",
            ),
            (
                "0 0 0 L-3 * ?",
                "at 00:00, on the day 3 days before the last day of the month",
            ),
        ] {
            let schedule = CronSchedule::parse(expr, None, "UTC").expect(expr);
            assert_eq!(schedule.description(), format!("{sentence} (UTC)"), "{expr}");
        }
    }
}
