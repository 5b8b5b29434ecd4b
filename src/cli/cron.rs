//! `isocost cron`: the same code that fires jobs, asked what it would do.

use crate::{exit::Failure, out};
use anyhow::{Context, anyhow};
use chrono::{DateTime, SecondsFormat};
use clap::Args;
use isocost_common::schedule::{CronDialect, CronSchedule, ScheduleWarning};
use isocost_common::time::EpochMillis;
use serde::Serialize;

/// `isocost cron '0 0 2 * * ?' --time-zone Asia/Shanghai`
#[derive(Debug, Args)]
pub(crate) struct CronArgs {
    /// The expression, in quotes: 6 or 7 fields (Quartz), 5 fields (Unix), or @daily and friends
    expr: String,
    /// An IANA time zone, such as Asia/Shanghai
    #[arg(long, value_name = "TZ", default_value = "UTC")]
    time_zone: String,
    /// The instant after which to look, such as 2026-12-01T00:00:00Z [default: now]
    #[arg(long, value_name = "INSTANT", value_parser = EpochMillis::parse_rfc3339)]
    from: Option<EpochMillis>,
    /// How many firings to show
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    count: u16,
    /// quartz or unix [default: by the number of fields]
    #[arg(long)]
    dialect: Option<CronDialect>,
    /// Print JSON, as `GET /openapi/cron/next` answers it
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Preview {
    next: Vec<EpochMillis>,
    description: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<ScheduleWarning>,
}

pub(super) fn run(args: &CronArgs) -> Result<(), Failure> {
    let schedule = CronSchedule::parse(&args.expr, args.dialect, &args.time_zone).map_err(Failure::usage)?;
    let from = args.from.unwrap_or_else(EpochMillis::system_now);
    let next = schedule.upcoming(from.as_millis(), usize::from(args.count));
    let preview = Preview {
        next: next.into_iter().map(EpochMillis).collect(),
        description: schedule.description(),
        warnings: schedule.warnings(),
    };
    if args.json {
        return out::line(serde_json::to_string(&preview).context("writing JSON")?);
    }
    out::line(&preview.description)?;
    for warning in &preview.warnings {
        out::line(format_args!("warning: {}", warning.message))?;
    }
    if preview.next.is_empty() {
        out::line(format_args!("nothing fires after {from}"))?;
    }
    for instant in preview.next {
        out::line(on_the_wall(instant, &schedule)?)?;
    }
    Ok(())
}

/// The local time with its offset, which is what the expression speaks of.
fn on_the_wall(instant: EpochMillis, schedule: &CronSchedule) -> Result<String, Failure> {
    let utc = DateTime::from_timestamp_millis(instant.as_millis())
        .ok_or_else(|| anyhow!("{instant} is beyond the calendar"))?;
    let local = utc.with_timezone(&schedule.time_zone());
    Ok(local.to_rfc3339_opts(SecondsFormat::Secs, true))
}
