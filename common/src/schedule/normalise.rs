//! From a text in either dialect to plain sets of values, so that nothing behind this file knows dialects.

use super::dialect::CronDialect;
use super::error::ScheduleError;
use super::field::{
    FieldKind, Values, bad_syntax, is_number, out_of_range, parse_plain, parse_value, parse_with_specials,
    weekday_value,
};

/// A day of the month that depends on the month.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpecialDay {
    /// `L`
    Last,
    /// `L-n`: this many days before the last.
    BeforeLast(u16),
    /// `LW`: the last day from Monday to Friday.
    LastWorkday,
    /// `nW`: the day from Monday to Friday nearest to this one, in the same month.
    NearestWorkday(u16),
}

/// A weekday, 0 = Sunday, that depends on its place in the month.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpecialWeekday {
    /// `dL`
    Last(u16),
    /// `d#n`, n from 1 to 5.
    Nth(u16, u16),
}

/// How the two day fields choose a day together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DayRule {
    Every,
    MonthDay,
    Weekday,
    /// Unix, both restricted: one matching is enough.
    Either,
    /// Unix, both restricted and one begins with `*`: both must match.
    Both,
}

/// What an expression means, free of its dialect.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fields {
    pub second: Values,
    pub minute: Values,
    pub hour: Values,
    pub month_day: Values,
    pub special_days: Vec<SpecialDay>,
    pub month: Values,
    pub weekday: Values,
    pub special_weekdays: Vec<SpecialWeekday>,
    /// `None`: every year, beyond 2099 too.
    pub year: Option<Values>,
    pub day_rule: DayRule,
}

impl Fields {
    /// How many days a month must have for the first of the chosen days of the month to exist in it.
    /// `None` where a weekday or any day is enough.
    pub(super) fn shortest_month_needed(&self) -> Option<u16> {
        if !matches!(self.day_rule, DayRule::MonthDay | DayRule::Both) {
            return None;
        }
        let special = self.special_days.iter().map(|day| match day {
            SpecialDay::Last | SpecialDay::LastWorkday => 1,
            SpecialDay::BeforeLast(days) => days + 1,
            SpecialDay::NearestWorkday(day) => *day,
        });
        special.chain(self.month_day.set.iter().copied()).min()
    }
}

/// The most days a month can have, by its number.
pub(super) const fn longest(month: u16) -> u16 {
    match month {
        2 => 29,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

const LONGEST_EXPRESSION: usize = 256;

/// Reads an expression. Without a dialect the number of fields decides.
pub(super) fn normalise(
    expr: &str,
    dialect: Option<CronDialect>,
) -> Result<(CronDialect, Fields), ScheduleError> {
    let length = expr.chars().count();
    if length > LONGEST_EXPRESSION {
        return Err(ScheduleError::TooLong {
            length,
            limit: LONGEST_EXPRESSION,
        });
    }
    // A macro reads the same whatever dialect was named, since it has no numbers to disagree on.
    if expr.trim_start().starts_with('@') {
        let fields = parse_unix(expand_macro(expr.trim())?)?;
        return Ok((CronDialect::Unix, fields));
    }
    let dialect = match dialect {
        Some(dialect) => dialect,
        None => CronDialect::detect(expr)?,
    };
    let fields = match dialect {
        CronDialect::Quartz => parse_quartz(expr)?,
        CronDialect::Unix => parse_unix(expr)?,
    };
    Ok((dialect, fields))
}

fn expand_macro(text: &str) -> Result<&'static str, ScheduleError> {
    match text.to_ascii_lowercase().as_str() {
        "@yearly" | "@annually" => Ok("0 0 1 1 *"),
        "@monthly" => Ok("0 0 1 * *"),
        "@weekly" => Ok("0 0 * * 0"),
        "@daily" | "@midnight" => Ok("0 0 * * *"),
        "@hourly" => Ok("0 * * * *"),
        _ => Err(ScheduleError::UnknownMacro {
            name: text.escape_debug().to_string(),
        }),
    }
}

fn parse_unix(expr: &str) -> Result<Fields, ScheduleError> {
    const DIALECT: CronDialect = CronDialect::Unix;
    let parts: Vec<&str> = expr.split_whitespace().collect();
    let [minute, hour, month_day, month, weekday] = parts[..] else {
        return Err(wrong_field_count(&parts, DIALECT));
    };
    for (kind, text) in [
        (FieldKind::DayOfMonth, month_day),
        (FieldKind::DayOfWeek, weekday),
    ] {
        refuse_quartz_forms(kind, text)?;
    }
    let minute = parse_plain(FieldKind::Minute, DIALECT, minute)?;
    let hour = parse_plain(FieldKind::Hour, DIALECT, hour)?;
    let month_day = parse_plain(FieldKind::DayOfMonth, DIALECT, month_day)?;
    let month = parse_plain(FieldKind::Month, DIALECT, month)?;
    let weekday = parse_plain(FieldKind::DayOfWeek, DIALECT, weekday)?;
    Ok(Fields {
        day_rule: unix_day_rule(&month_day, &weekday),
        second: parse_plain(FieldKind::Second, DIALECT, "0")?,
        minute,
        hour,
        month_day,
        special_days: Vec::new(),
        month,
        weekday,
        special_weekdays: Vec::new(),
        year: None,
    })
}

/// The rule of Vixie cron: "either" applies only if neither day field begins with `*`.
fn unix_day_rule(month_day: &Values, weekday: &Values) -> DayRule {
    let restricts = |values: &Values, kind| !(values.begins_with_star && values.covers(kind));
    let by_month_day = restricts(month_day, FieldKind::DayOfMonth);
    let by_weekday = restricts(weekday, FieldKind::DayOfWeek);
    match (by_month_day, by_weekday) {
        (false, false) => DayRule::Every,
        (true, false) => DayRule::MonthDay,
        (false, true) => DayRule::Weekday,
        (true, true) if month_day.begins_with_star || weekday.begins_with_star => DayRule::Both,
        (true, true) => DayRule::Either,
    }
}

fn refuse_quartz_forms(kind: FieldKind, text: &str) -> Result<(), ScheduleError> {
    let belongs = match text {
        "?" => "`?` belongs to the quartz dialect; write `*`",
        _ if text.contains('#') => "`#` belongs to the quartz dialect; add a second field and use that",
        _ if text.ends_with(['L', 'l', 'W', 'w']) && !text.bytes().all(|b| b.is_ascii_alphabetic()) => {
            "`L` and `W` belong to the quartz dialect; add a second field and use that"
        }
        "L" | "l" | "LW" | "lw" => "`L` belongs to the quartz dialect; add a second field and use that",
        _ => return Ok(()),
    };
    Err(bad_syntax(kind, text, belongs))
}

fn parse_quartz(expr: &str) -> Result<Fields, ScheduleError> {
    const DIALECT: CronDialect = CronDialect::Quartz;
    let parts: Vec<&str> = expr.split_whitespace().collect();
    let (second, minute, hour, month_day, month, weekday, year) = match parts[..] {
        [second, minute, hour, month_day, month, weekday] => {
            (second, minute, hour, month_day, month, weekday, "*")
        }
        [second, minute, hour, month_day, month, weekday, year] => {
            (second, minute, hour, month_day, month, weekday, year)
        }
        _ => return Err(wrong_field_count(&parts, DIALECT)),
    };
    let unset = |text| if text == "?" { "*" } else { text };
    let second = parse_plain(FieldKind::Second, DIALECT, second)?;
    let minute = parse_plain(FieldKind::Minute, DIALECT, minute)?;
    let hour = parse_plain(FieldKind::Hour, DIALECT, hour)?;
    let (month_days, special_days) = parse_quartz_days(unset(month_day))?;
    let month = parse_plain(FieldKind::Month, DIALECT, month)?;
    let (weekdays, special_weekdays) = parse_quartz_weekdays(unset(weekday))?;
    // After both were read, so that a typing error in one is reported as that.
    let day_rule = quartz_day_rule(month_day, weekday)?;
    let year = match year {
        "*" => None,
        _ => Some(parse_plain(FieldKind::Year, DIALECT, year)?),
    };
    Ok(Fields {
        second,
        minute,
        hour,
        month_day: month_days,
        special_days,
        month,
        weekday: weekdays,
        special_weekdays,
        year,
        day_rule,
    })
}

/// Quartz lets one day field decide and asks for `?` in the other. Two plain `*` are accepted as well: they can
/// only mean every day, and other schedulers with a second field write it so.
fn quartz_day_rule(month_day: &str, weekday: &str) -> Result<DayRule, ScheduleError> {
    match (month_day, weekday) {
        ("?", "?") => Err(ScheduleError::NoDayField),
        ("*", "?" | "*") | ("?", "*") => Ok(DayRule::Every),
        ("?", _) => Ok(DayRule::Weekday),
        (_, "?") => Ok(DayRule::MonthDay),
        _ => Err(ScheduleError::BothDayFields {
            day_of_month: month_day.escape_debug().to_string(),
            day_of_week: weekday.escape_debug().to_string(),
        }),
    }
}

fn parse_quartz_days(text: &str) -> Result<(Values, Vec<SpecialDay>), ScheduleError> {
    const KIND: FieldKind = FieldKind::DayOfMonth;
    let (values, specials) = parse_with_specials(KIND, CronDialect::Quartz, text, parse_special_day)?;
    // croner keeps one "last" mark a field, and a distance to the end is checked on the whole field.
    let is_alone = values.set.is_empty() && specials.len() == 1;
    let must_be_alone = |day: &SpecialDay| matches!(day, SpecialDay::BeforeLast(_) | SpecialDay::LastWorkday);
    if !is_alone && specials.iter().any(must_be_alone) {
        let remedy = "`LW` and `L-n` cannot be combined with other days; use two jobs";
        return Err(bad_syntax(KIND, text, remedy));
    }
    Ok((values, specials))
}

fn parse_special_day(part: &str) -> Result<Option<SpecialDay>, ScheduleError> {
    const KIND: FieldKind = FieldKind::DayOfMonth;
    let upper = part.to_ascii_uppercase();
    if upper == "L" {
        return Ok(Some(SpecialDay::Last));
    }
    if upper == "LW" {
        return Ok(Some(SpecialDay::LastWorkday));
    }
    if let Some(distance) = upper.strip_prefix("L-") {
        if !is_number(distance) {
            let remedy = "after `L-` comes the number of days before the last, 0 to 30, and nothing else";
            return Err(bad_syntax(KIND, part, remedy));
        }
        return match distance.parse::<u16>() {
            Ok(days @ 0..=30) => Ok(Some(SpecialDay::BeforeLast(days))),
            _ => Err(ScheduleError::OutOfRange {
                field: KIND,
                text: part.to_owned(),
                allowed: "L-0 to L-30".to_owned(),
                remedy: String::new(),
            }),
        };
    }
    match upper.strip_suffix('W') {
        Some(day) => {
            let day = parse_value(KIND, CronDialect::Quartz, part, day)?;
            Ok(Some(SpecialDay::NearestWorkday(day)))
        }
        None => Ok(None),
    }
}

fn parse_quartz_weekdays(text: &str) -> Result<(Values, Vec<SpecialWeekday>), ScheduleError> {
    // Quartz reads a lone `L` as the last day of the week.
    let text = if text.eq_ignore_ascii_case("L") { "7" } else { text };
    parse_with_specials(FieldKind::DayOfWeek, CronDialect::Quartz, text, |part| {
        parse_special_weekday(part)
    })
}

fn parse_special_weekday(part: &str) -> Result<Option<SpecialWeekday>, ScheduleError> {
    const KIND: FieldKind = FieldKind::DayOfWeek;
    const DIALECT: CronDialect = CronDialect::Quartz;
    if let Some((day, place)) = part.split_once('#') {
        let day = parse_value(KIND, DIALECT, part, day)?;
        return match place.parse::<u16>() {
            Ok(place @ 1..=5) => Ok(Some(SpecialWeekday::Nth(weekday_value(DIALECT, day), place))),
            _ => Err(ScheduleError::OutOfRange {
                field: KIND,
                text: part.escape_debug().to_string(),
                allowed: "#1 to #5".to_owned(),
                remedy: "; the last one of a month is written `6L`".to_owned(),
            }),
        };
    }
    match part.strip_suffix(['L', 'l']) {
        Some(day) if !day.is_empty() => {
            let day = parse_value(KIND, DIALECT, part, day)?;
            Ok(Some(SpecialWeekday::Last(weekday_value(DIALECT, day))))
        }
        _ if part.eq_ignore_ascii_case("L") => Err(out_of_range(KIND, DIALECT, part)),
        _ => Ok(None),
    }
}

fn wrong_field_count(parts: &[&str], dialect: CronDialect) -> ScheduleError {
    ScheduleError::WrongFieldCount {
        found: parts.len(),
        dialect: Some(dialect),
    }
}
