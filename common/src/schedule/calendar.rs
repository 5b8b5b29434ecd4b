//! The search on the wall clock, without time zones: croner's, fed with plain sets of values.

use std::fmt::Write;
use std::sync::LazyLock;

use chrono::{Datelike, Days, NaiveDateTime};
use croner::parser::{CronParser, Seconds, Year};
use croner::{Cron, CronComponent};

use super::error::ScheduleError;
use super::field::{FieldKind, Values};
use super::normalise::{DayRule, Fields, SpecialDay, SpecialWeekday};

/// Local times that match an expression. The search ends in the year 4999.
#[derive(Debug, Clone)]
pub(super) struct Calendar {
    cron: Cron,
    /// croner has no `L-n`. It is given the days that can lie `n` before the end of a month, and this decides.
    days_before_last: Option<u16>,
}

impl Calendar {
    pub(super) fn new(fields: &Fields) -> Result<Self, ScheduleError> {
        let mut cron = engine(&to_croner(fields))?;
        if fields.year.is_none() {
            cron.pattern.years.clone_from(&EVERY_YEAR);
        }
        let days_before_last = fields.special_days.iter().find_map(|day| match day {
            SpecialDay::BeforeLast(days) => Some(*days),
            _ => None,
        });
        Ok(Self {
            cron,
            days_before_last,
        })
    }

    /// The first match in a later second than `local`.
    pub(super) fn first_after(&self, local: NaiveDateTime) -> Option<NaiveDateTime> {
        self.search(local, false)
    }

    /// The first match in the second of `local` or later.
    pub(super) fn first_from(&self, local: NaiveDateTime) -> Option<NaiveDateTime> {
        self.search(local, true)
    }

    fn search(&self, local: NaiveDateTime, inclusive: bool) -> Option<NaiveDateTime> {
        let mut found = self.cron.find_next_occurrence(&local, inclusive).ok()?;
        while !self.is_right_distance_from_month_end(found) {
            // The whole day is wrong, not only this time of it.
            let next_day = found.date().succ_opt()?.and_hms_opt(0, 0, 0)?;
            found = self.cron.find_next_occurrence(&next_day, true).ok()?;
        }
        Some(found)
    }

    fn is_right_distance_from_month_end(&self, local: NaiveDateTime) -> bool {
        let Some(days) = self.days_before_last else {
            return true;
        };
        let past_the_end = local.date().checked_add_days(Days::new(u64::from(days) + 1));
        past_the_end.is_some_and(|date| date.day() == 1)
    }
}

/// Setting croner's 5,000 years one by one takes two thirds of the time of a parse, copying them next to nothing.
static EVERY_YEAR: LazyLock<CronComponent> = LazyLock::new(|| {
    let mut years = CronComponent::new(1, 5_000, 0, 0);
    // `*` is a form every field takes.
    let _ = years.parse("*");
    years
});

fn engine(pattern: &str) -> Result<Cron, ScheduleError> {
    CronParser::builder()
        .seconds(Seconds::Required)
        .year(Year::Required)
        .build()
        .parse(pattern)
        .map_err(|error| ScheduleError::Engine(error.to_string()))
}

/// croner's own form: seven fields of numbers, weekdays from 0 = Sunday, `+` where both day fields must match.
fn to_croner(fields: &Fields) -> String {
    let (month_day, weekday) = match fields.day_rule {
        DayRule::Every => ("*".to_owned(), "*".to_owned()),
        DayRule::MonthDay => (month_days_to_croner(fields), "*".to_owned()),
        DayRule::Weekday => ("*".to_owned(), weekdays_to_croner(fields)),
        DayRule::Either => (month_days_to_croner(fields), weekdays_to_croner(fields)),
        DayRule::Both => (
            month_days_to_croner(fields),
            format!("+{}", weekdays_to_croner(fields)),
        ),
    };
    format!(
        "{} {} {} {month_day} {} {weekday} {}",
        time_to_croner(&fields.second, FieldKind::Second),
        time_to_croner(&fields.minute, FieldKind::Minute),
        time_to_croner(&fields.hour, FieldKind::Hour),
        time_to_croner(&fields.month, FieldKind::Month),
        match &fields.year {
            Some(year) => list(year.set.iter().copied()),
            // Replaced by `EVERY_YEAR`.
            None => "1970".to_owned(),
        },
    )
}

fn time_to_croner(values: &Values, kind: FieldKind) -> String {
    if values.covers(kind) {
        "*".to_owned()
    } else {
        list(values.set.iter().copied())
    }
}

fn month_days_to_croner(fields: &Fields) -> String {
    let mut text = list(fields.month_day.set.iter().copied());
    for day in &fields.special_days {
        let part = match day {
            SpecialDay::Last => "L".to_owned(),
            SpecialDay::LastWorkday => "LW".to_owned(),
            SpecialDay::NearestWorkday(day) => format!("{day}W"),
            SpecialDay::BeforeLast(days) => {
                list((28..=31).filter(|last| last > days).map(|last| last - days))
            }
        };
        append(&mut text, &part);
    }
    text
}

fn weekdays_to_croner(fields: &Fields) -> String {
    let mut text = list(fields.weekday.set.iter().copied());
    for weekday in &fields.special_weekdays {
        let part = match weekday {
            SpecialWeekday::Last(day) => format!("{day}L"),
            SpecialWeekday::Nth(day, place) => format!("{day}#{place}"),
        };
        append(&mut text, &part);
    }
    text
}

fn list(values: impl Iterator<Item = u16>) -> String {
    let mut text = String::new();
    for value in values {
        if !text.is_empty() {
            text.push(',');
        }
        // Writing to a String cannot fail.
        let _ = write!(text, "{value}");
    }
    text
}

fn append(text: &mut String, part: &str) {
    if !text.is_empty() {
        text.push(',');
    }
    text.push_str(part);
}
