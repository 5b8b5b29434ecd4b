//! The recorded cron vectors, and the cron cases of the requirements as far as pure functions can show them.

use chrono::DateTime;
use isocost_common::schedule::{CronDialect, CronSchedule, ScheduleError};
use serde::Deserialize;

#[derive(Deserialize)]
struct VectorFile {
    vectors: Vec<Vector>,
    invalid: Vec<Invalid>,
}

#[derive(Deserialize)]
struct Vector {
    id: String,
    expr: String,
    dialect: CronDialect,
    tz: String,
    from: String,
    next: Vec<String>,
}

#[derive(Deserialize)]
struct Invalid {
    id: String,
    expr: String,
    dialect: CronDialect,
}

fn vector_file() -> VectorFile {
    serde_json::from_str(include_str!("data/cron-vectors.json")).expect("the vector file is readable")
}

fn millis(instant: &str) -> i64 {
    DateTime::parse_from_rfc3339(instant)
        .expect(instant)
        .timestamp_millis()
}

fn parse(expr: &str, dialect: CronDialect, zone: &str) -> CronSchedule {
    CronSchedule::parse(expr, Some(dialect), zone).unwrap_or_else(|error| panic!("{expr}: {error}"))
}

fn refused(expr: &str, dialect: CronDialect) -> ScheduleError {
    CronSchedule::parse(expr, Some(dialect), "UTC").expect_err(expr)
}

#[track_caller]
fn assert_upcoming(expr: &str, dialect: CronDialect, zone: &str, from: &str, next: &[&str]) {
    let expected: Vec<i64> = next.iter().copied().map(millis).collect();
    let found = parse(expr, dialect, zone).upcoming(millis(from), next.len());
    assert_eq!(found, expected, "`{expr}` in {zone} after {from}");
}

/// Five are asked for even where the file lists fewer, so "no further fire" is checked too.
fn failure(vector: &Vector) -> Option<String> {
    let expected: Vec<i64> = vector.next.iter().map(|instant| millis(instant)).collect();
    let found = match CronSchedule::parse(&vector.expr, Some(vector.dialect), &vector.tz) {
        Ok(schedule) => schedule.upcoming(millis(&vector.from), 5),
        Err(ScheduleError::NeverFires { .. }) => Vec::new(),
        Err(error) => return Some(format!("{} `{}`: {error}", vector.id, vector.expr)),
    };
    (found != expected).then(|| {
        format!(
            "{} `{}`: expected {expected:?}, found {found:?}",
            vector.id, vector.expr
        )
    })
}

#[test]
fn every_valid_vector_fires_as_recorded() {
    let vectors = vector_file().vectors;
    let failures: Vec<String> = vectors.iter().filter_map(failure).collect();
    assert_eq!(vectors.len(), 191);
    assert!(
        failures.is_empty(),
        "{} failed:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[test]
fn every_invalid_vector_is_refused_with_a_reason() {
    let invalid = vector_file().invalid;
    let accepted: Vec<String> = invalid
        .iter()
        .filter(|case| CronSchedule::parse(&case.expr, Some(case.dialect), "UTC").is_ok())
        .map(|case| format!("{} `{}`", case.id, case.expr))
        .collect();
    assert_eq!(invalid.len(), 30);
    assert!(
        accepted.is_empty(),
        "{} accepted:\n{}",
        accepted.len(),
        accepted.join("\n")
    );
}

#[test]
fn cr02_local_time_that_does_not_exist_fires_after_the_gap() {
    assert_upcoming(
        "0 2 * * *",
        CronDialect::Unix,
        "America/New_York",
        "2025-03-09T01:30:00-05:00",
        &[
            "2025-03-09T03:00:00-04:00",
            "2025-03-10T02:00:00-04:00",
            "2025-03-11T02:00:00-04:00",
        ],
    );
}

#[test]
fn cr05_right_expressions_are_accepted_whatever_their_form_or_length() {
    let from = "2026-11-30T00:00:00Z";
    for (expr, next) in [
        (
            "0 10/40 22 ? * 1",
            [
                "2026-12-06T22:10:00Z",
                "2026-12-06T22:50:00Z",
                "2026-12-13T22:10:00Z",
            ],
        ),
        (
            "0 0 3 1 2/3 ?",
            [
                "2027-02-01T03:00:00Z",
                "2027-05-01T03:00:00Z",
                "2027-08-01T03:00:00Z",
            ],
        ),
        (
            "0 20/5 12,15,18 ? * 2,3,4,5",
            [
                "2026-11-30T12:20:00Z",
                "2026-11-30T12:25:00Z",
                "2026-11-30T12:30:00Z",
            ],
        ),
    ] {
        assert_upcoming(expr, CronDialect::Quartz, "UTC", from, &next);
    }
    let long = "0 0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38,40,42,44,46,48,50,52,54,56,58 0,2,4,6,8,10,12,14,16,18,20,22 ? * MON";
    assert!(long.len() >= 125);
    assert_upcoming(
        long,
        CronDialect::Quartz,
        "UTC",
        from,
        &["2026-11-30T00:02:00Z", "2026-11-30T00:04:00Z"],
    );
}

#[test]
fn cr06_either_day_field_is_enough_in_unix() {
    let from = "2024-12-01T00:00:00Z";
    let days = |days: [&str; 5]| days.map(|day| format!("{day}T00:00:00Z"));
    let first_days = days([
        "2024-12-02",
        "2024-12-03",
        "2024-12-04",
        "2024-12-05",
        "2024-12-06",
    ]);
    let thursdays = days([
        "2024-12-05",
        "2024-12-12",
        "2024-12-19",
        "2024-12-26",
        "2025-01-02",
    ]);
    for (expr, next) in [
        ("0 0 1-31 * 4", &first_days),
        ("0 0 * * 4", &thursdays),
        ("0 0 1-7 * 1", &first_days),
    ] {
        let next = next.each_ref().map(String::as_str);
        assert_upcoming(expr, CronDialect::Unix, "UTC", from, &next);
    }
    let mondays_too = parse("0 0 1-7 * 1", CronDialect::Unix, "UTC");
    assert_eq!(
        mondays_too.next_after(millis("2024-12-07T00:00:00Z")),
        Some(millis("2024-12-09T00:00:00Z"))
    );
    assert_eq!(codes(&mondays_too), ["cron.either-day"]);
}

#[test]
fn cr09_wrong_expression_is_refused_with_the_field_in_the_message() {
    for (expr, dialect, code, field) in [
        ("0 0 12 * * ? 2026 1", None, "cron.wrong-field-count", None),
        ("0 0 25 * * ?", None, "cron.field-out-of-range", Some("hour")),
        (
            "0 0 12 * *  ",
            Some(CronDialect::Quartz),
            "cron.wrong-field-count",
            Some("dayOfWeek"),
        ),
        ("abc", None, "cron.wrong-field-count", None),
        (
            "abc",
            Some(CronDialect::Unix),
            "cron.wrong-field-count",
            Some("hour"),
        ),
    ] {
        let error = CronSchedule::parse(expr, dialect, "UTC").expect_err(expr);
        assert_eq!((error.code(), error.field()), (code, field), "{expr}: {error}");
        let named = field.unwrap_or("dayOfWeek");
        assert!(error.to_string().contains(named), "{expr}: {error}");
    }
    let five_fields = refused("0 0 12 * *  ", CronDialect::Quartz).to_string();
    assert!(five_fields.contains("dialect unix"), "{five_fields}");
}

#[test]
fn cr17_step_that_does_not_divide_60_is_shown_as_it_is_with_a_warning() {
    let next = [
        "2026-11-30T00:00:47Z",
        "2026-11-30T00:01:00Z",
        "2026-11-30T00:01:47Z",
        "2026-11-30T00:02:00Z",
        "2026-11-30T00:02:47Z",
    ];
    let expr = "*/47 * * * * ?";
    assert_upcoming(expr, CronDialect::Quartz, "UTC", "2026-11-30T00:00:10Z", &next);
    let schedule = parse(expr, CronDialect::Quartz, "UTC");
    assert_eq!(codes(&schedule), ["cron.uneven-step"]);
    assert!(
        schedule.description().contains("seconds 0 and 47"),
        "{}",
        schedule.description()
    );
}

#[test]
fn cr18_nearest_weekday_stays_in_its_month() {
    let expr = "0 0 9 1W * ?";
    for (from, next) in [
        (
            "2021-07-15T00:00:00Z",
            ["2021-08-02T09:00:00Z", "2021-09-01T09:00:00Z"],
        ),
        (
            "2021-12-15T00:00:00Z",
            ["2022-01-03T09:00:00Z", "2022-02-01T09:00:00Z"],
        ),
    ] {
        assert_upcoming(expr, CronDialect::Quartz, "UTC", from, &next);
    }
}

#[test]
fn cr20_rare_dates_are_found_whatever_the_day_of_entry() {
    for from in ["2025-03-01T00:00:00Z", "2027-12-01T00:00:00Z"] {
        let next = [
            "2028-02-29T00:00:00Z",
            "2032-02-29T00:00:00Z",
            "2036-02-29T00:00:00Z",
        ];
        assert_upcoming("0 0 0 29 2 ?", CronDialect::Quartz, "UTC", from, &next);
    }
    let next = [
        "2044-02-29T08:00:00Z",
        "2072-02-29T08:00:00Z",
        "2112-02-29T08:00:00Z",
        "2140-02-29T08:00:00Z",
        "2168-02-29T08:00:00Z",
    ];
    assert_upcoming(
        "0 0 8 ? 2 MON#5",
        CronDialect::Quartz,
        "UTC",
        "2026-06-15T00:00:00Z",
        &next,
    );
}

fn codes(schedule: &CronSchedule) -> Vec<&'static str> {
    schedule.warnings().iter().map(|warning| warning.code).collect()
}

#[test]
fn warnings_name_what_may_not_be_meant() {
    for (expr, expected) in [
        ("0 0 2 * * ?", &[][..]),
        ("0 */15 * * * ?", &[]),
        ("0 0 */7 * * ?", &["cron.uneven-step"]),
        ("0 0 0 */2 * ?", &["cron.uneven-step"]),
        ("0 0 4 31 * ?", &["cron.skips-months"]),
        ("0 0 4 31 1,3,5 ?", &[]),
        ("0 0 4 L * ?", &[]),
        ("0 0 4 1,31 * ?", &[]),
        ("0 0 29 2 *", &["cron.skips-months"]),
        ("0 0 13 * 5", &["cron.either-day"]),
        ("0 0 13 * */7", &["cron.both-days"]),
    ] {
        let schedule = CronSchedule::parse(expr, None, "UTC").expect(expr);
        assert_eq!(codes(&schedule), expected, "{expr}");
    }
}

#[test]
fn refusals_have_stable_codes_fields_and_a_remedy() {
    for (expr, code, field, remedy) in [
        (
            "0 60 12 * * ?",
            "cron.field-out-of-range",
            Some("minute"),
            "0 to 59",
        ),
        (
            "0 0 12 ? * 0",
            "cron.field-out-of-range",
            Some("dayOfWeek"),
            "1 = SUN",
        ),
        (
            "0 0 12 * * ? 2100",
            "cron.field-out-of-range",
            Some("year"),
            "1970 to 2099",
        ),
        ("0 22-2 * * *", "cron.range-backwards", Some("hour"), "22-23,0-2"),
        (
            "0 0 * * 5-1",
            "cron.range-backwards",
            Some("dayOfWeek"),
            "5-6,0-1",
        ),
        ("0 0 * * 5#3", "cron.bad-syntax", Some("dayOfWeek"), "quartz"),
        ("0 0 L * *", "cron.bad-syntax", Some("dayOfMonth"), "quartz"),
        ("0 0 12 1 * MON", "cron.day-fields", Some("dayOfWeek"), "`?`"),
        (
            "0 0 0 30 2 ?",
            "cron.never-fires",
            Some("dayOfMonth"),
            "at most 29",
        ),
        (
            "0 0 0 29 2 ? 2025-2027",
            "cron.never-fires",
            Some("year"),
            "check year",
        ),
        ("/5 * * * *", "cron.bad-syntax", Some("minute"), "*/5"),
        ("*/90 * * * *", "cron.field-out-of-range", Some("minute"), "hour"),
        ("@reboot", "cron.unknown-macro", None, "@daily"),
        ("", "cron.wrong-field-count", None, "empty"),
    ] {
        let error = CronSchedule::parse(expr, None, "UTC").expect_err(expr);
        assert_eq!((error.code(), error.field()), (code, field), "{expr}: {error}");
        assert!(error.to_string().contains(remedy), "{expr}: {error}");
    }
    let too_long = CronSchedule::parse(&"1,".repeat(200), None, "UTC").expect_err("400 characters");
    assert_eq!(too_long.code(), "cron.too-long");
}

#[test]
fn macros_read_as_unix_whatever_dialect_is_named() {
    for dialect in [None, Some(CronDialect::Unix), Some(CronDialect::Quartz)] {
        let weekly = CronSchedule::parse("@weekly", dialect, "UTC").expect("a macro");
        assert_eq!(weekly.dialect(), CronDialect::Unix);
        assert_eq!(
            weekly.next_after(millis("2026-06-15T00:00:00Z")),
            Some(millis("2026-06-21T00:00:00Z"))
        );
    }
}

#[test]
fn forms_croner_lacks_are_found_too() {
    for (expr, next) in [
        (
            "0 0 9 L-3 * ?",
            [
                "2027-01-28T09:00:00Z",
                "2027-02-25T09:00:00Z",
                "2027-03-28T09:00:00Z",
            ],
        ),
        (
            "0 0 9 L-30 * ?",
            [
                "2027-01-01T09:00:00Z",
                "2027-03-01T09:00:00Z",
                "2027-05-01T09:00:00Z",
            ],
        ),
        (
            "0 0 9 1 NOV-FEB ?",
            [
                "2027-01-01T09:00:00Z",
                "2027-02-01T09:00:00Z",
                "2027-11-01T09:00:00Z",
            ],
        ),
        (
            "0 0 22-4/3 1 1 ?",
            [
                "2027-01-01T01:00:00Z",
                "2027-01-01T04:00:00Z",
                "2027-01-01T22:00:00Z",
            ],
        ),
        (
            "0 0 9 ? * L",
            [
                "2027-01-02T09:00:00Z",
                "2027-01-09T09:00:00Z",
                "2027-01-16T09:00:00Z",
            ],
        ),
    ] {
        assert_upcoming(expr, CronDialect::Quartz, "UTC", "2026-12-31T12:00:00Z", &next);
    }
    let next = [
        "2027-01-01T09:00:00Z",
        "2027-01-02T09:00:00Z",
        "2027-01-03T09:00:00Z",
        "2027-01-08T09:00:00Z",
    ];
    assert_upcoming(
        "0 9 * * FRI-SUN",
        CronDialect::Unix,
        "UTC",
        "2026-12-31T12:00:00Z",
        &next,
    );
}
