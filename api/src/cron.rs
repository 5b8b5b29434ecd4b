//! Preview of cron expressions: the same evaluation that fires jobs.

use crate::{
    access::{Authorized, Read},
    definition::Warning,
    input::QueryText,
    problem::Problem,
    state::ApiState,
};
use axum::{Json, extract::State};
use isocost_common::{
    schedule::{CronDialect, CronSchedule, ScheduleError, parse_time_zone},
    time::EpochMillis,
};
use serde::Serialize;
use utoipa::ToSchema;

/// When an expression fires.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CronPreview {
    /// The next firings, UTC; fewer than asked for where no more exist.
    #[schema(value_type = Vec<String>, example = json!(["2026-12-01T18:00:00.000Z"]))]
    next: Vec<EpochMillis>,
    /// What the expression means, in words.
    description: String,
    /// The zone it is read in.
    time_zone: String,
    /// The grammar it is read by.
    #[schema(value_type = String, example = "quartz")]
    dialect: CronDialect,
    /// What is legal but may not be meant.
    warnings: Vec<Warning>,
}

/// The next firings of a cron expression.
#[utoipa::path(
    get, path = "/openapi/cron/next", operation_id = "previewCron", tag = "cron", security(("key" = ["read"])),
    params(
        ("expr" = String, Query, description = "The expression", example = "0 0 2 * * ?"),
        ("timeZone" = Option<String>, Query, description = "IANA name; the configured zone without it"),
        ("dialect" = Option<String>, Query, description = "`quartz` or `unix`; by the number of fields without it"),
        ("from" = Option<String>, Query, description = "Firings after this instant; now without it"),
        ("count" = Option<i64>, Query, description = "How many, 1 to 100; 5 without it")
    ),
    responses((status = 200, body = CronPreview), crate::routes::Problems)
)]
pub(crate) async fn next(
    State(state): State<ApiState>,
    _caller: Authorized<Read>,
    mut query: QueryText,
) -> Result<Json<CronPreview>, Problem> {
    let expr = query.text("expr");
    let zone = query
        .text("timeZone")
        .unwrap_or_else(|| state.config().api.default_time_zone.clone());
    let dialect = query.parsed("dialect", "quartz or unix", |text| {
        text.parse::<CronDialect>().ok()
    });
    let from = query.instant("from").unwrap_or_else(|| state.store().now());
    let count = query.integer("count", 1..=100).unwrap_or(5);
    let mut refuse = |error: ScheduleError| {
        query.refuse(error.field().unwrap_or("expr"), error.code(), &error.to_string());
    };
    let zone = parse_time_zone(&zone).map_err(&mut refuse).ok();
    // The expression is judged also when the zone is wrong, so that both are told at once.
    let judged_in = zone.map_or("UTC", |zone| zone.name());
    let schedule = expr.as_ref().and_then(|expr| {
        CronSchedule::parse(expr, dialect, judged_in)
            .map_err(&mut refuse)
            .ok()
    });
    if expr.is_none() {
        query.refuse("expr", "parameter.required", "expr is required");
    }
    query.close()?;
    // Without a schedule the query was refused just above.
    let schedule = schedule.ok_or_else(Problem::internal)?;
    let upcoming = schedule.upcoming(from.0, usize::try_from(count).unwrap_or(1));
    Ok(Json(CronPreview {
        next: upcoming.into_iter().map(EpochMillis).collect(),
        description: schedule.description(),
        time_zone: schedule.time_zone().name().to_owned(),
        dialect: schedule.dialect(),
        warnings: schedule
            .warnings()
            .into_iter()
            .map(|warning| Warning {
                code: warning.code,
                message: warning.message,
            })
            .collect(),
    }))
}
