//! One field of a cron expression: its range, its names, and the forms that mean a plain set of values.

use super::dialect::CronDialect;
use super::error::ScheduleError;

/// A field of a cron expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldKind {
    /// 0 to 59, quartz only.
    Second,
    /// 0 to 59.
    Minute,
    /// 0 to 23.
    Hour,
    /// 1 to 31.
    DayOfMonth,
    /// 1 to 12, or JAN to DEC.
    Month,
    /// SUN to SAT, or a number that the two dialects count differently.
    DayOfWeek,
    /// 1970 to 2099, quartz only and optional.
    Year,
}

pub(super) const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
pub(super) const MONTHS: [&str; 12] = [
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
];

impl FieldKind {
    /// The name used in the API and in messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::DayOfMonth => "dayOfMonth",
            Self::Month => "month",
            Self::DayOfWeek => "dayOfWeek",
            Self::Year => "year",
        }
    }

    /// The fields every expression of this dialect has, in order. Quartz may add a year.
    pub(super) const fn of_dialect(dialect: CronDialect) -> &'static [Self] {
        const ALL: &[FieldKind] = &[
            FieldKind::Second,
            FieldKind::Minute,
            FieldKind::Hour,
            FieldKind::DayOfMonth,
            FieldKind::Month,
            FieldKind::DayOfWeek,
        ];
        match dialect {
            CronDialect::Quartz => ALL,
            CronDialect::Unix => ALL.split_at(1).1,
        }
    }

    /// The lowest and highest number a user may write.
    pub(super) const fn range(self, dialect: CronDialect) -> (u16, u16) {
        match (self, dialect) {
            (Self::Second | Self::Minute, _) => (0, 59),
            (Self::Hour, _) => (0, 23),
            (Self::DayOfMonth, _) => (1, 31),
            (Self::Month, _) => (1, 12),
            (Self::DayOfWeek, CronDialect::Quartz) => (1, 7),
            (Self::DayOfWeek, CronDialect::Unix) => (0, 7),
            (Self::Year, _) => (1970, 2099),
        }
    }

    /// Where `*` and an open `a/n` end: unix names Sunday twice, and 7 is only the second name.
    const fn open_end(self, dialect: CronDialect) -> u16 {
        match (self, dialect) {
            (Self::DayOfWeek, CronDialect::Unix) => 6,
            _ => self.range(dialect).1,
        }
    }

    /// How many different values the field can take.
    pub(super) const fn span(self) -> u16 {
        match self {
            Self::Second | Self::Minute => 60,
            Self::Hour => 24,
            Self::DayOfMonth => 31,
            Self::Month => 12,
            Self::DayOfWeek => 7,
            Self::Year => 130,
        }
    }

    const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Month => &MONTHS,
            Self::DayOfWeek => &WEEKDAYS,
            _ => &[],
        }
    }

    /// From the numbers a user writes to ours, where weekdays run from 0 = Sunday.
    const fn to_value(self, dialect: CronDialect, written: u16) -> u16 {
        match (self, dialect) {
            (Self::DayOfWeek, CronDialect::Quartz) => written - 1,
            (Self::DayOfWeek, CronDialect::Unix) => written % 7,
            _ => written,
        }
    }
}

/// The plain values of one field. `L`, `W` and `#` are kept beside it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Values {
    /// Ascending, without repeats; weekdays from 0 = Sunday.
    pub set: Vec<u16>,
    /// The text begins with `*`: in unix, the field then does not take part in the "either day" rule.
    pub begins_with_star: bool,
    /// A part is `*` or has a `/`: in minute or hour, the job then follows the wall clock (see `clock_change`).
    pub open: bool,
    /// The interval of a part like `*/n` or `a/n`, which starts over with each round of the field.
    pub open_step: Option<u16>,
}

impl Values {
    pub(super) fn covers(&self, kind: FieldKind) -> bool {
        self.set.len() == usize::from(kind.span())
    }

    /// The one value of a field that has only one.
    pub(super) fn single(&self) -> Option<u16> {
        match self.set[..] {
            [value] => Some(value),
            _ => None,
        }
    }

    fn finish(mut self) -> Self {
        self.set.sort_unstable();
        self.set.dedup();
        self
    }
}

/// Reads a field that takes only `*`, numbers, names, ranges, steps and lists of them.
pub(super) fn parse_plain(
    kind: FieldKind,
    dialect: CronDialect,
    text: &str,
) -> Result<Values, ScheduleError> {
    let (values, _) = parse_with_specials(kind, dialect, text, |_| Ok(None::<()>))?;
    Ok(values)
}

/// Reads a field whose other parts, those `special` recognises, are kept by the caller.
pub(super) fn parse_with_specials<T>(
    kind: FieldKind,
    dialect: CronDialect,
    text: &str,
    mut special: impl FnMut(&str) -> Result<Option<T>, ScheduleError>,
) -> Result<(Values, Vec<T>), ScheduleError> {
    let mut values = Values::default();
    let mut specials = Vec::new();
    for part in text.split(',') {
        if part.is_empty() {
            let remedy = "a list has an empty item; remove the extra comma";
            return Err(bad_syntax(kind, text, remedy));
        }
        match special(part)? {
            Some(found) => specials.push(found),
            None => add_plain_part(&mut values, kind, dialect, part)?,
        }
    }
    values.begins_with_star = text.starts_with('*');
    Ok((values.finish(), specials))
}

/// Adds `*`, `a`, `a-b` or one of them with `/n`.
fn add_plain_part(
    into: &mut Values,
    kind: FieldKind,
    dialect: CronDialect,
    part: &str,
) -> Result<(), ScheduleError> {
    let (base, step) = match part.split_once('/') {
        Some((base, step)) => (base, Some(parse_step(kind, dialect, part, step)?)),
        None => (part, None),
    };
    let low = kind.range(dialect).0;
    let (first, last, open_ended) = if base == "*" {
        (low, kind.open_end(dialect), true)
    } else if let Some((from, to)) = base.split_once('-') {
        let (first, last) = parse_range(kind, dialect, base, from, to)?;
        (first, last, false)
    } else {
        let first = parse_value(kind, dialect, part, base)?;
        match step {
            Some(_) => (first, kind.open_end(dialect).max(first), true),
            None => (first, first, false),
        }
    };
    into.open |= base == "*" || step.is_some();
    if open_ended && step.is_some_and(|step| step > 1) {
        into.open_step = into.open_step.max(step);
    }
    // `last` is past the highest number where a range wraps; the remainder brings it back.
    let written = (first..=last).step_by(usize::from(step.unwrap_or(1)));
    into.set.extend(written.map(|number| {
        let high = kind.range(dialect).1;
        let wrapped = if number > high {
            number - kind.span()
        } else {
            number
        };
        kind.to_value(dialect, wrapped)
    }));
    Ok(())
}

/// Both ends as written, except that the last of a wrapping range lies one round further on.
fn parse_range(
    kind: FieldKind,
    dialect: CronDialect,
    range: &str,
    from: &str,
    to: &str,
) -> Result<(u16, u16), ScheduleError> {
    if from.is_empty() || to.is_empty() {
        let remedy = "a range needs a number on both sides of `-`, and negative numbers do not exist";
        return Err(bad_syntax(kind, range, remedy));
    }
    let first = parse_value(kind, dialect, range, from)?;
    let mut last = parse_value(kind, dialect, range, to)?;
    let is_unix_weekday = kind == FieldKind::DayOfWeek && dialect == CronDialect::Unix;
    if is_unix_weekday && first > 0 && to.eq_ignore_ascii_case("SUN") {
        last = 7;
    }
    if first <= last {
        return Ok((first, last));
    }
    if dialect == CronDialect::Unix || kind == FieldKind::Year {
        let (low, high) = (kind.range(dialect).0, kind.open_end(dialect));
        let remedy = if kind == FieldKind::Year {
            format!("write the earlier year first, `{last}-{first}`")
        } else {
            format!("write it as two ranges, `{first}-{high},{low}-{last}`")
        };
        return Err(ScheduleError::RangeBackwards {
            field: kind,
            text: range.to_owned(),
            remedy,
        });
    }
    Ok((first, last + kind.span()))
}

fn parse_step(kind: FieldKind, dialect: CronDialect, part: &str, step: &str) -> Result<u16, ScheduleError> {
    if !is_number(step) {
        return Err(bad_syntax(
            kind,
            part,
            "a step is one whole number after `/`, such as `*/5`",
        ));
    }
    if part.starts_with('/') {
        let remedy = format!("write `*/{step}`");
        return Err(bad_syntax(kind, part, &remedy));
    }
    let largest = match kind {
        FieldKind::Year => kind.span() - 1,
        _ => kind.range(dialect).1,
    };
    match step.parse::<u16>() {
        Ok(number) if (1..=largest).contains(&number) => Ok(number),
        _ => Err(ScheduleError::OutOfRange {
            field: kind,
            text: part.escape_debug().to_string(),
            allowed: format!("a step of 1 to {largest}"),
            remedy: match kind {
                FieldKind::Second => "; for a longer interval use minute, or a fixed rate",
                FieldKind::Minute => "; for a longer interval use hour, or a fixed rate",
                FieldKind::Hour => "; for a longer interval use dayOfMonth, or a fixed rate",
                _ => "",
            }
            .to_owned(),
        }),
    }
}

/// A number or a three-letter name, as the number a user would write. `part` is what an error quotes.
pub(super) fn parse_value(
    kind: FieldKind,
    dialect: CronDialect,
    part: &str,
    text: &str,
) -> Result<u16, ScheduleError> {
    let (low, high) = kind.range(dialect);
    if is_number(text) {
        return match text.parse::<u16>() {
            Ok(number) if (low..=high).contains(&number) => Ok(number),
            _ => Err(out_of_range(kind, dialect, part)),
        };
    }
    let mut numbers = kind.names().iter().zip(low..);
    match numbers.find(|(name, _)| name.eq_ignore_ascii_case(text)) {
        Some((_, number)) => Ok(number),
        None => Err(bad_syntax(kind, part, &what_is_allowed(kind, dialect))),
    }
}

/// A weekday as written to one counted from 0 = Sunday.
pub(super) const fn weekday_value(dialect: CronDialect, written: u16) -> u16 {
    FieldKind::DayOfWeek.to_value(dialect, written)
}

pub(super) fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

pub(super) fn bad_syntax(field: FieldKind, text: &str, remedy: &str) -> ScheduleError {
    ScheduleError::BadSyntax {
        field,
        text: text.escape_debug().to_string(),
        remedy: remedy.to_owned(),
    }
}

pub(super) fn out_of_range(field: FieldKind, dialect: CronDialect, text: &str) -> ScheduleError {
    let (low, high) = field.range(dialect);
    let (meaning, remedy) = match (field, dialect) {
        (FieldKind::DayOfWeek, CronDialect::Quartz) => {
            (" (1 = SUN, 7 = SAT)", "; names such as MON are unambiguous")
        }
        (FieldKind::DayOfWeek, CronDialect::Unix) => {
            (" (0 or 7 = SUN)", "; names such as MON are unambiguous")
        }
        (FieldKind::Hour, _) => ("", "; midnight is 0"),
        (FieldKind::Minute | FieldKind::Second, _) => ("", "; the full minute or hour is 0"),
        (FieldKind::DayOfMonth, CronDialect::Quartz) => ("", "; the last day is L"),
        _ => ("", ""),
    };
    ScheduleError::OutOfRange {
        field,
        text: text.escape_debug().to_string(),
        allowed: format!("{low} to {high}{meaning}"),
        remedy: remedy.to_owned(),
    }
}

fn what_is_allowed(kind: FieldKind, dialect: CronDialect) -> String {
    let (low, high) = kind.range(dialect);
    let names = match kind.names() {
        [first, .., last] => format!(", names from {first} to {last}"),
        _ => String::new(),
    };
    let special = match (kind, dialect) {
        (FieldKind::DayOfMonth, CronDialect::Quartz) => ", also `?`, `L`, `L-3`, `LW` and `15W`",
        (FieldKind::DayOfWeek, CronDialect::Quartz) => ", also `?`, `6L` and `6#3`",
        _ => "",
    };
    format!(
        "it takes numbers from {low} to {high}{names}, ranges `a-b`, steps `*/n` and lists with commas{special}"
    )
}
