use super::{Rules, Warning};
use crate::{
    input::{Findings, MAX_DURATION_MS, Object, Value},
    problem::FieldError,
};
use isocost_common::{
    job::{ParentOutcome, Trigger, Window},
    schedule::{CronDialect, CronSchedule, ScheduleError, parse_time_zone},
    time::EpochMillis,
};
use std::{borrow::Cow, time::Duration};

#[derive(Clone, Copy)]
enum Type {
    Once,
    Cron,
    FixedRate,
    FixedDelay,
    Manual,
    After,
}

const TYPES: [(&str, Type); 6] = [
    ("once", Type::Once),
    ("cron", Type::Cron),
    ("fixedRate", Type::FixedRate),
    ("fixedDelay", Type::FixedDelay),
    ("manual", Type::Manual),
    ("after", Type::After),
];
/// What the types have besides `type`.
const FIELDS: [&str; 9] = [
    "at", "delayMs", "expr", "timeZone", "dialect", "everyMs", "anchor", "jobId", "on",
];
/// What a client calls now is a moment ago when it arrives: that is not worth a warning.
const ON_ITS_WAY: Duration = Duration::from_secs(1);
/// Shortest distance of firings. Every firing is some rows in the database and a handover: ten a second are 26 million a
/// month, and who asks for more has most likely taken milliseconds for seconds, or wants a loop inside one handler.
const LEAST_EVERY_MS: i64 = 100;
const OUTCOMES: [(&str, ParentOutcome); 3] = [
    ("success", ParentOutcome::Success),
    ("failure", ParentOutcome::Failure),
    ("any", ParentOutcome::Any),
];
/// What may stand beside `cronExpr`.
const SHORT_FORM: [&str; 2] = ["timeZone", "dialect"];
const DIALECTS: [(&str, CronDialect); 2] = [("quartz", CronDialect::Quartz), ("unix", CronDialect::Unix)];

/// Reads `trigger`, or its short form `cronExpr` with `timeZone`, or neither: once, now. Also answers the first firing.
pub(super) fn read(
    job: &mut Object<'_>,
    window: Option<Window>,
    rules: Rules<'_>,
    warnings: &mut Vec<Warning>,
    findings: &mut Findings,
) -> Option<(Trigger, Option<EpochMillis>)> {
    let full = job.take("trigger");
    let expr = job.take("cronExpr");
    let place = if expr.is_some() { "cronExpr" } else { "trigger" };
    let trigger = match (full, expr) {
        (Some(_), Some(_)) => {
            let what = "cronExpr and trigger exclude each other; give one of them".to_owned();
            findings.push(job.error_at("cronExpr", "trigger.both-forms", what));
            for name in SHORT_FORM {
                job.take(name);
            }
            return None;
        }
        (Some(full), None) => {
            refuse_lone_short_form(job, findings);
            let mut fields = Object::open(&full, findings)?;
            let start_at = window.and_then(|window| window.start_at);
            let trigger = read_typed(&mut fields, start_at, rules, warnings, findings);
            fields.close(findings);
            trigger?
        }
        (None, Some(expr)) => read_cron(job, Some(&expr), rules, warnings, findings)?,
        (None, None) => {
            refuse_lone_short_form(job, findings);
            Trigger::Once { at: rules.now }
        }
    };
    let window = window?;
    let first = match trigger.first_firing(rules.now, window) {
        Ok(first) => first,
        Err(error) => {
            let what = error.to_string();
            findings.push(job.error_at(place, "trigger.invalid", what));
            return None;
        }
    };
    let by_time = !matches!(trigger, Trigger::Manual {} | Trigger::After { .. });
    if first.is_none() && by_time {
        let what = format!("{place} never fires between now, startAt and endAt; check its dates");
        findings.push(job.error_at(place, "trigger.never-fires", what));
        return None;
    }
    Some((trigger, first))
}

/// `timeZone` and `dialect` belong to `cronExpr`; alone they would be ignored.
fn refuse_lone_short_form(job: &mut Object<'_>, findings: &mut Findings) {
    for name in SHORT_FORM {
        if job.take(name).is_some() {
            let what = format!("{name} at the top level belongs to cronExpr; put it into trigger");
            findings.push(job.error_at(name, "trigger.stray-field", what));
        }
    }
}

fn read_typed(
    fields: &mut Object<'_>,
    start_at: Option<EpochMillis>,
    rules: Rules<'_>,
    warnings: &mut Vec<Warning>,
    findings: &mut Findings,
) -> Option<Trigger> {
    let kind = fields.require("type", findings);
    let Some(kind) = kind.and_then(|kind| kind.choice(&TYPES, findings)) else {
        // Which of them belong to the type that was meant nobody knows: only what no type has is wrong besides.
        for name in FIELDS {
            fields.take(name);
        }
        return None;
    };
    match kind {
        Type::Once => read_once(fields, rules.now, findings),
        Type::Cron => {
            let expr = fields.require("expr", findings);
            read_cron(fields, expr.as_ref(), rules, warnings, findings)
        }
        Type::FixedRate => {
            let every_ms = read_every(fields, findings);
            let anchor = match fields.take("anchor") {
                Some(value) => value.instant(findings),
                None => Some(start_at.unwrap_or(rules.now)),
            };
            Some(Trigger::FixedRate {
                every_ms: every_ms?,
                anchor: anchor?,
            })
        }
        Type::FixedDelay => read_every(fields, findings).map(|every_ms| Trigger::FixedDelay { every_ms }),
        Type::Manual => Some(Trigger::Manual {}),
        Type::After => read_after(fields, findings),
    }
}

fn read_once(fields: &mut Object<'_>, now: EpochMillis, findings: &mut Findings) -> Option<Trigger> {
    let at = fields.take("at");
    let delay = fields.take("delayMs");
    match (at, delay) {
        (Some(_), Some(_)) => {
            let what = "at and delayMs exclude each other; give one of them".to_owned();
            findings.push(fields.error_at("delayMs", "trigger.both-forms", what));
            None
        }
        (Some(at), None) => at.instant(findings).map(|at| Trigger::Once { at }),
        (None, Some(delay)) => {
            let delay_ms = delay.integer(0..=MAX_DURATION_MS, findings)?;
            Some(Trigger::Once {
                at: now + Duration::from_millis(delay_ms.unsigned_abs()),
            })
        }
        (None, None) => Some(Trigger::Once { at: now }),
    }
}

fn read_every(fields: &mut Object<'_>, findings: &mut Findings) -> Option<i64> {
    fields
        .require("everyMs", findings)?
        .integer(LEAST_EVERY_MS..=MAX_DURATION_MS, findings)
}

fn read_after(fields: &mut Object<'_>, findings: &mut Findings) -> Option<Trigger> {
    let parent = fields.require("jobId", findings);
    let on = match fields.take("on") {
        Some(value) => value.choice(&OUTCOMES, findings),
        None => Some(ParentOutcome::Success),
    };
    let parent = parent?;
    match parent.string(findings)?.parse() {
        Ok(job_id) => Some(Trigger::After { job_id, on: on? }),
        Err(_) => {
            findings.push(parent.error("id.invalid", "must be a job id: a UUID"));
            None
        }
    }
}

/// Reads `expr` with the `timeZone` and `dialect` beside it.
fn read_cron(
    fields: &mut Object<'_>,
    expr: Option<&Value<'_>>,
    rules: Rules<'_>,
    warnings: &mut Vec<Warning>,
    findings: &mut Findings,
) -> Option<Trigger> {
    let zone = read_zone(fields, rules, findings);
    let dialect = match fields.take("dialect") {
        Some(value) => value.choice(&DIALECTS, findings).map(Some),
        None => Some(None),
    };
    let expr = expr?;
    let text = expr.string(findings);
    // The expression is judged also when the zone is wrong, so that both are told at once.
    let judged_in = zone.as_deref().unwrap_or("UTC");
    match CronSchedule::parse(&text?, dialect?, judged_in) {
        Ok(schedule) => {
            zone?;
            warnings.extend(schedule.warnings().into_iter().map(|warning| Warning {
                code: warning.code,
                message: warning.message,
            }));
            Some(Trigger::Cron {
                expr: schedule.expr().to_owned(),
                time_zone: schedule.time_zone().name().to_owned(),
                dialect: schedule.dialect(),
            })
        }
        Err(error) => {
            findings.push(cron_error(&error, expr.pointer().to_owned()));
            None
        }
    }
}

fn read_zone(fields: &mut Object<'_>, rules: Rules<'_>, findings: &mut Findings) -> Option<String> {
    let Some(value) = fields.take("timeZone") else {
        return Some(rules.default_time_zone.to_owned());
    };
    let zone = value.string(findings)?;
    match parse_time_zone(&zone) {
        Ok(_) => Some(zone),
        Err(error) => {
            findings.push(cron_error(&error, value.pointer().to_owned()));
            None
        }
    }
}

fn cron_error(error: &ScheduleError, pointer: String) -> FieldError {
    let whole = pointer.rsplit('/').next().unwrap_or_default();
    FieldError {
        field: error.field().unwrap_or(whole).to_owned(),
        code: Cow::Borrowed(error.code()),
        message: error.to_string(),
        pointer: Some(pointer),
    }
}

/// A one-shot that is due already is taken, for it may have been on its way for long; but it may also be a slip.
pub(super) fn in_past(
    trigger: &Trigger,
    first_firing: Option<EpochMillis>,
    start_deadline_ms: Option<i64>,
    now: EpochMillis,
) -> Option<Warning> {
    let due = first_firing.filter(|_| matches!(trigger, Trigger::Once { .. }))?;
    let late = now.since(due);
    if late <= ON_ITS_WAY {
        return None;
    }
    let deadline_is_over =
        start_deadline_ms.is_some_and(|ms| late.as_millis() > u128::from(ms.unsigned_abs()));
    let what = if deadline_is_over {
        "and its startDeadlineMs is over as well, so it expires without being run"
    } else {
        "so it is due at once"
    };
    Some(Warning {
        code: "trigger.in-past",
        message: format!("the job was due at {due}, which is in the past, {what}"),
    })
}
