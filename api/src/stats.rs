//! `/openapi/stats`: what an app's jobs did lately.

use crate::{
    access::{Authorized, Read},
    input::QueryText,
    problem::Problem,
    state::ApiState,
};
use axum::{Json, extract::State};
use isocost_common::{
    execution::ExecutionStatus,
    store::stats::{self, OutcomeCount, Timing},
    time::EpochMillis,
};
use serde::Serialize;
use std::{collections::BTreeMap, time::Duration};
use utoipa::ToSchema;

const DEFAULT_WINDOW: Duration = Duration::from_secs(3_600);
const LONGEST_WINDOW: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Executions that percentiles are taken from: the newest of the window.
const SAMPLE: i64 = 20_000;

/// What an app's jobs did in a window of time that ends now.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Stats {
    /// Length of the window.
    window_ms: u128,
    /// Jobs by stored status; recurring ones count as WAITING while they run.
    jobs: BTreeMap<&'static str, i64>,
    /// Open executions, now.
    open: BTreeMap<&'static str, i64>,
    /// Over all handlers.
    total: Group,
    /// By handler.
    handlers: BTreeMap<String, Group>,
    /// By the worker of the last handover.
    workers: BTreeMap<String, Group>,
}

/// Executions that ended in the window.
#[derive(Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Group {
    /// By how they ended.
    finished: BTreeMap<&'static str, i64>,
    /// How many ended in a second, over the window.
    per_second: f64,
    /// From planned, or submitted if that was later, to made: how late the trigger was.
    lateness_ms: Percentiles,
    /// From due, or submitted if that was later, to start.
    queue_wait_ms: Percentiles,
    /// From start to end.
    run_ms: Percentiles,
    /// From planned, or submitted if that was later, to end.
    total_ms: Percentiles,
}

/// Percentiles of the newest 20,000 executions of the window; absent without any.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Percentiles {
    /// Half are at most this.
    #[serde(skip_serializing_if = "Option::is_none")]
    p50: Option<i64>,
    /// 95 of 100 are at most this.
    #[serde(skip_serializing_if = "Option::is_none")]
    p95: Option<i64>,
    /// 99 of 100 are at most this.
    #[serde(skip_serializing_if = "Option::is_none")]
    p99: Option<i64>,
    /// The largest.
    #[serde(skip_serializing_if = "Option::is_none")]
    max: Option<i64>,
}

impl Percentiles {
    fn of(mut values: Vec<i64>) -> Self {
        values.sort_unstable();
        let at = |percent: usize| {
            let rank = (values.len() * percent).div_ceil(100);
            values.get(rank.saturating_sub(1)).copied()
        };
        Self {
            p50: at(50),
            p95: at(95),
            p99: at(99),
            max: values.last().copied(),
        }
    }
}

/// The earliest instant at which what was planned could be done: a job may be submitted for an instant in the past.
fn possible(planned: EpochMillis, timing: &Timing) -> EpochMillis {
    timing
        .submitted_at
        .map_or(planned, |submitted| planned.max(submitted))
}

impl Group {
    fn of(outcomes: &[&OutcomeCount], timings: &[&Timing], window: Duration) -> Self {
        let mut finished = BTreeMap::new();
        let mut count = 0_u32;
        for outcome in outcomes {
            *finished.entry(outcome.status.api_name()).or_insert(0) += outcome.amount;
            count = count.saturating_add(u32::try_from(outcome.amount).unwrap_or(u32::MAX));
        }
        let between = |distance: fn(&Timing) -> Option<i64>| {
            let values = timings.iter().filter_map(|timing| distance(timing));
            Percentiles::of(values.map(|value| value.max(0)).collect())
        };
        Self {
            finished,
            per_second: f64::from(count) / window.as_secs_f64(),
            lateness_ms: between(|t| Some(t.created_at.0 - possible(t.scheduled_time, t).0)),
            queue_wait_ms: between(|t| Some(t.started_at?.0 - possible(t.due_at?, t).0)),
            run_ms: between(|t| Some(t.finished_at.0 - t.started_at?.0)),
            total_ms: between(|t| Some(t.finished_at.0 - possible(t.scheduled_time, t).0)),
        }
    }

    fn each(
        outcomes: &[OutcomeCount],
        timings: &[Timing],
        window: Duration,
        name_of_outcome: fn(&OutcomeCount) -> Option<&String>,
        name_of_timing: fn(&Timing) -> Option<&String>,
    ) -> BTreeMap<String, Self> {
        let mut groups: BTreeMap<&String, (Vec<&OutcomeCount>, Vec<&Timing>)> = BTreeMap::new();
        for outcome in outcomes {
            if let Some(name) = name_of_outcome(outcome) {
                groups.entry(name).or_default().0.push(outcome);
            }
        }
        for timing in timings {
            if let Some(name) = name_of_timing(timing) {
                groups.entry(name).or_default().1.push(timing);
            }
        }
        groups
            .into_iter()
            .map(|(name, (outcomes, timings))| (name.clone(), Self::of(&outcomes, &timings, window)))
            .collect()
    }
}

/// Counts, rates and percentiles.
#[utoipa::path(
    get, path = "/openapi/stats", operation_id = "getStats", tag = "stats", security(("key" = ["read"])),
    params(("window" = Option<String>, Query,
            description = "How far to look back: `15m`, `1h`, `7d` at most; `1h` without it")),
    responses((status = 200, body = Stats), crate::routes::Problems)
)]
pub(crate) async fn get(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Read>,
    mut query: QueryText,
) -> Result<Json<Stats>, Problem> {
    let window = query
        .parsed(
            "window",
            "a time of 1s to 7d, such as 90s, 15m, 1h or 2d",
            parse_window,
        )
        .unwrap_or(DEFAULT_WINDOW);
    query.close()?;
    let since = state.store().now() - window;
    let mut connection = state.store().reader().await?;
    let jobs = stats::jobs_by_status(&mut connection, caller.app()).await?;
    let open = stats::open_by_status(&mut connection, caller.app()).await?;
    let outcomes = stats::outcomes_since(&mut connection, caller.app(), since).await?;
    let timings = stats::timings_since(&mut connection, caller.app(), since, SAMPLE).await?;
    drop(connection);
    let all_outcomes: Vec<_> = outcomes.iter().collect();
    let all_timings: Vec<_> = timings.iter().collect();
    Ok(Json(Stats {
        window_ms: window.as_millis(),
        jobs: jobs
            .into_iter()
            .map(|(status, amount)| (status.name(), amount))
            .collect(),
        open: by_name(&open),
        total: Group::of(&all_outcomes, &all_timings, window),
        handlers: Group::each(
            &outcomes,
            &timings,
            window,
            |o| Some(&o.handler),
            |t| Some(&t.handler),
        ),
        workers: Group::each(
            &outcomes,
            &timings,
            window,
            |o| o.worker.as_ref(),
            |t| t.worker.as_ref(),
        ),
    }))
}

fn by_name(counts: &[(ExecutionStatus, i64)]) -> BTreeMap<&'static str, i64> {
    counts
        .iter()
        .map(|(status, amount)| (status.name(), *amount))
        .collect()
}

fn parse_window(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 24 * 3_600,
        _ => return None,
    };
    let window = Duration::from_secs(number.parse::<u64>().ok()?.checked_mul(seconds)?);
    (Duration::from_secs(1)..=LONGEST_WINDOW)
        .contains(&window)
        .then_some(window)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let found = Percentiles::of((1..=200).rev().collect());
        assert_eq!(
            (found.p50, found.p95, found.p99, found.max),
            (Some(100), Some(190), Some(198), Some(200))
        );
        assert_eq!(Percentiles::of(Vec::new()), Percentiles::default());
        assert_eq!(Percentiles::of(vec![7]).p99, Some(7));
    }

    #[test]
    fn a_window_is_a_number_with_a_unit_within_its_bounds() {
        assert_eq!(parse_window("90s"), Some(Duration::from_secs(90)));
        assert_eq!(parse_window("7d"), Some(LONGEST_WINDOW));
        for bad in [
            "",
            "0s",
            "8d",
            "1",
            "h",
            "-1h",
            "1w",
            "99999999999999999999d",
            "1é",
        ] {
            assert_eq!(parse_window(bad), None, "{bad}");
        }
    }
}
