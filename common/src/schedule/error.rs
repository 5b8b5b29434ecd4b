use super::dialect::CronDialect;
use super::field::FieldKind;

/// Why a schedule was refused. The message names the field, the text, what is allowed and a way out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// Longer than anybody would write by hand.
    #[error(
        "the cron expression has {length} characters, {limit} are allowed: shorten lists with ranges or steps"
    )]
    TooLong {
        /// Characters found.
        length: usize,
        /// Characters allowed.
        limit: usize,
    },
    /// Not as many fields as the dialect has.
    #[error("{}", describe_field_count(*.found, *.dialect))]
    WrongFieldCount {
        /// Fields found.
        found: usize,
        /// The dialect that was asked for; `None` when it was to be found out.
        dialect: Option<CronDialect>,
    },
    /// An `@` word that means nothing.
    #[error(
        "`{name}` is not a known macro: use @yearly, @annually, @monthly, @weekly, @daily, @midnight or @hourly"
    )]
    UnknownMacro {
        /// What was written.
        name: String,
    },
    /// Neither quartz nor unix.
    #[error("`{name}` is not a cron dialect: use quartz or unix")]
    UnknownDialect {
        /// What was written.
        name: String,
    },
    /// A number that the field does not have.
    #[error("`{text}` is out of range in {}: {allowed} is allowed{remedy}", .field.name())]
    OutOfRange {
        /// The field.
        field: FieldKind,
        /// The part that is wrong.
        text: String,
        /// The allowed range, with the meaning of its ends where the dialects differ.
        allowed: String,
        /// Empty, or a clause that begins with a separator.
        remedy: String,
    },
    /// A range that ends before it begins, in a field that does not wrap around.
    #[error("`{text}` runs backwards in {}: {remedy}", .field.name())]
    RangeBackwards {
        /// The field.
        field: FieldKind,
        /// The part that is wrong.
        text: String,
        /// What to write instead.
        remedy: String,
    },
    /// A part in no form that the field takes.
    #[error("cannot read `{text}` in {}: {remedy}", .field.name())]
    BadSyntax {
        /// The field.
        field: FieldKind,
        /// The part that is wrong.
        text: String,
        /// What to write instead.
        remedy: String,
    },
    /// Both day fields are set, which quartz does not combine.
    #[error(
        "dayOfMonth `{day_of_month}` and dayOfWeek `{day_of_week}` are both given: in the quartz dialect exactly one of the two must be `?`{}",
        describe_unset_day(.day_of_month, .day_of_week)
    )]
    BothDayFields {
        /// The text of the one.
        day_of_month: String,
        /// The text of the other.
        day_of_week: String,
    },
    /// Both day fields are `?`.
    #[error("dayOfMonth and dayOfWeek are both `?`: write `*` in dayOfMonth for every day")]
    NoDayField,
    /// Well formed, but no such day exists.
    #[error("the expression never fires: {reason}")]
    NeverFires {
        /// The field that makes it impossible.
        field: FieldKind,
        /// Why it is impossible.
        reason: String,
    },
    /// Not a name of the IANA database.
    #[error("`{name}` is not a known time zone: {}", describe_nearest_zone(*.nearest))]
    UnknownTimeZone {
        /// What was written.
        name: String,
        /// A zone that may have been meant.
        nearest: Option<&'static str>,
    },
    /// A form that passed our own checks but not croner's: a defect here, reported instead of a panic.
    #[error("the calendar engine refused the expression: {0}")]
    Engine(String),
}

impl ScheduleError {
    /// A stable identifier for programs; the message may change, this may not.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::TooLong { .. } => "cron.too-long",
            Self::WrongFieldCount { .. } => "cron.wrong-field-count",
            Self::UnknownMacro { .. } => "cron.unknown-macro",
            Self::UnknownDialect { .. } => "cron.unknown-dialect",
            Self::OutOfRange { .. } => "cron.field-out-of-range",
            Self::RangeBackwards { .. } => "cron.range-backwards",
            Self::BothDayFields { .. } | Self::NoDayField => "cron.day-fields",
            Self::NeverFires { .. } => "cron.never-fires",
            Self::UnknownTimeZone { .. } => "cron.unknown-time-zone",
            Self::BadSyntax { .. } | Self::Engine(_) => "cron.bad-syntax",
        }
    }

    /// The field to correct, spelled as in the API: `second` to `year`, or `timeZone`.
    /// `None` where the expression as a whole is wrong.
    #[must_use]
    pub fn field(&self) -> Option<&'static str> {
        match self {
            Self::OutOfRange { field, .. }
            | Self::RangeBackwards { field, .. }
            | Self::BadSyntax { field, .. }
            | Self::NeverFires { field, .. } => Some(field.name()),
            Self::BothDayFields { day_of_month, .. } if is_star(day_of_month) => {
                Some(FieldKind::DayOfMonth.name())
            }
            Self::BothDayFields { .. } => Some(FieldKind::DayOfWeek.name()),
            Self::NoDayField => Some(FieldKind::DayOfMonth.name()),
            Self::UnknownTimeZone { .. } => Some("timeZone"),
            Self::WrongFieldCount { found, dialect } => first_missing_field(*found, *dialect),
            Self::TooLong { .. }
            | Self::UnknownMacro { .. }
            | Self::UnknownDialect { .. }
            | Self::Engine(_) => None,
        }
    }
}

const QUARTZ_FIELDS: &str = "second minute hour dayOfMonth month dayOfWeek [year]";
const UNIX_FIELDS: &str = "minute hour dayOfMonth month dayOfWeek";

/// The field that a text in this dialect lacks first; a surplus has no name.
const fn first_missing_field(found: usize, dialect: Option<CronDialect>) -> Option<&'static str> {
    let Some(dialect) = dialect else { return None };
    let kinds = FieldKind::of_dialect(dialect);
    if found < kinds.len() {
        Some(kinds[found].name())
    } else {
        None
    }
}

fn describe_field_count(found: usize, dialect: Option<CronDialect>) -> String {
    let found_fields = match found {
        0 => "the cron expression is empty".to_owned(),
        1 => "the cron expression has 1 field".to_owned(),
        _ => format!("the cron expression has {found} fields"),
    };
    let missing = first_missing_field(found, dialect)
        .filter(|_| found > 0)
        .map(|field| format!(" ({field} is missing)"))
        .unwrap_or_default();
    match dialect {
        Some(CronDialect::Quartz) => {
            let remedy = if found == 5 {
                "; a five-field expression needs dialect unix, or put `0` for second in front and `?` in one day field"
            } else {
                ""
            };
            format!("{found_fields}{missing}: quartz takes 6 or 7 ({QUARTZ_FIELDS}){remedy}")
        }
        Some(CronDialect::Unix) => {
            let remedy = if matches!(found, 6 | 7) {
                "; an expression with seconds needs dialect quartz"
            } else {
                ""
            };
            format!("{found_fields}{missing}: unix takes 5 ({UNIX_FIELDS}){remedy}")
        }
        None => format!(
            "{found_fields}: give 6 or 7 for quartz ({QUARTZ_FIELDS}), 5 for unix ({UNIX_FIELDS}), or a macro such as @daily"
        ),
    }
}

fn is_star(text: &str) -> bool {
    text == "*"
}

fn describe_unset_day(day_of_month: &str, day_of_week: &str) -> &'static str {
    if is_star(day_of_week) {
        "; write it in dayOfWeek"
    } else if is_star(day_of_month) {
        "; write it in dayOfMonth"
    } else {
        "; for either of two days use two jobs"
    }
}

fn describe_nearest_zone(nearest: Option<&'static str>) -> String {
    match nearest {
        Some(zone) => format!("did you mean `{zone}`?"),
        None => "use an IANA name such as `Asia/Shanghai`, spelled exactly like that, or `UTC`".to_owned(),
    }
}
