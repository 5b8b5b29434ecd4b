//! `/openapi/workers` and `/openapi/handlers`: who runs things, how busy they are, and taking them out.

use crate::{
    access::{Authorized, Manage, Read},
    input::QueryText,
    problem::Problem,
    state::ApiState,
};
use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use isocost_common::{
    config::BalancerWeights,
    id::{IncarnationId, WorkerId},
    job::Selector,
    store::{
        steering,
        workers::{self, WorkerRow, WorkerStatus},
    },
    time::EpochMillis,
};
use serde::Serialize;
use std::{collections::BTreeMap, time::Duration};
use utoipa::ToSchema;

/// Workers that have ended stay in the list for so long.
const SHOWN_FOR: Duration = Duration::from_secs(3_600);

/// A worker and its load.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Worker)]
pub(crate) struct WorkerView {
    /// Its name.
    #[schema(value_type = String)]
    worker_id: WorkerId,
    /// This life of it.
    #[schema(value_type = String)]
    incarnation: IncarnationId,
    /// ONLINE, DRAINING, OFFLINE or DEAD.
    #[schema(example = "ONLINE")]
    status: &'static str,
    /// Where it runs.
    host: String,
    /// Where it answers; 0 when it does not listen.
    port: u16,
    /// What it offers.
    handlers: Vec<HandlerView>,
    /// Labels that selectors are matched against.
    #[schema(value_type = BTreeMap<String, String>)]
    labels: Selector,
    /// Runs at once over all handlers.
    capacity: u32,
    /// Executions that it owns: running, or on their way to it.
    running: u32,
    /// Its load: the smallest score gets the next execution.
    load: LoadView,
    /// A drain was requested.
    drain_requested: bool,
    /// First heartbeat of this life.
    #[schema(value_type = String, format = DateTime)]
    registered_at: EpochMillis,
    /// Last heartbeat.
    #[schema(value_type = String, format = DateTime)]
    last_heartbeat: EpochMillis,
}

/// `score = active × weights.active + meanCostMs / 1000 × weights.cost + (100 − cpuIdlePercent) × weights.cpu`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = WorkerLoad)]
pub(crate) struct LoadView {
    /// Executions it owns.
    active: u32,
    /// Mean run time of the last minutes.
    mean_cost_ms: i64,
    /// CPU idle, 0 to 100.
    cpu_idle_percent: u8,
    /// The sum.
    score: f64,
}

/// A handler of a worker.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WorkerHandler)]
pub(crate) struct HandlerView {
    /// Its name.
    name: String,
    /// Runs at once.
    slots: u32,
    /// Slots in use, by the last heartbeat.
    busy: u32,
    /// Runs that were told to stop and go on regardless.
    stuck: u32,
}

impl WorkerView {
    fn of(row: WorkerRow, weights: BalancerWeights) -> Self {
        let busy_percent = f64::from(100_u8.saturating_sub(row.cpu_idle_percent));
        let mean_cost_ms = u32::try_from(row.mean_cost_ms).unwrap_or(u32::MAX);
        let score = f64::from(row.active) * weights.active
            + f64::from(mean_cost_ms) / 1_000.0 * weights.cost
            + busy_percent * weights.cpu;
        Self {
            worker_id: row.worker,
            incarnation: row.incarnation,
            status: match row.status {
                WorkerStatus::Online => "ONLINE",
                WorkerStatus::Draining => "DRAINING",
                WorkerStatus::Offline => "OFFLINE",
                WorkerStatus::Dead => "DEAD",
            },
            host: row.host,
            port: row.port,
            capacity: row.handlers.iter().map(|handler| handler.slots).sum(),
            handlers: row
                .handlers
                .into_iter()
                .map(|handler| HandlerView {
                    name: handler.name,
                    slots: handler.slots,
                    busy: handler.busy,
                    stuck: handler.stuck,
                })
                .collect(),
            labels: row.labels,
            running: row.active,
            load: LoadView {
                active: row.active,
                mean_cost_ms: row.mean_cost_ms,
                cpu_idle_percent: row.cpu_idle_percent,
                score,
            },
            drain_requested: row.drain_requested,
            registered_at: row.registered_at,
            last_heartbeat: row.last_heartbeat,
        }
    }
}

/// All of a short list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Workers {
    /// By name; those that ended stay for an hour.
    items: Vec<WorkerView>,
}

/// The workers with their load.
#[utoipa::path(
    get, path = "/openapi/workers", operation_id = "listWorkers", tag = "workers", security(("key" = ["read"])),
    responses((status = 200, body = Workers), crate::routes::Problems)
)]
pub(crate) async fn list(
    State(state): State<ApiState>,
    _caller: Authorized<Read>,
    query: QueryText,
) -> Result<Json<Workers>, Problem> {
    query.close()?;
    let weights = crate::settings::balancer(&state).await?.weights;
    let rows = heard_of(&state).await?;
    Ok(Json(Workers {
        items: rows.into_iter().map(|row| WorkerView::of(row, weights)).collect(),
    }))
}

async fn heard_of(state: &ApiState) -> Result<Vec<WorkerRow>, Problem> {
    let since = state.store().now() - SHOWN_FOR;
    Ok(workers::heard_since(&mut *state.store().reader().await?, since).await?)
}

/// Takes a worker out: it finishes what runs, and gets nothing new.
#[utoipa::path(
    post, path = "/openapi/workers/{id}/drain", operation_id = "drainWorker", tag = "workers", security(("key" = ["manage"])),
    params(("id" = String, Path, description = "Worker id")),
    responses((status = 202, description = "The leader tells the worker"), crate::routes::SteerProblems)
)]
pub(crate) async fn drain(
    State(state): State<ApiState>,
    caller: Authorized<Manage>,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    set_drain(&state, &caller, &id, true).await
}

/// Lets a drained worker take work again.
#[utoipa::path(
    post, path = "/openapi/workers/{id}/undrain", operation_id = "undrainWorker", tag = "workers", security(("key" = ["manage"])),
    params(("id" = String, Path, description = "Worker id")),
    responses((status = 202, description = "The leader tells the worker"), crate::routes::SteerProblems)
)]
pub(crate) async fn undrain(
    State(state): State<ApiState>,
    caller: Authorized<Manage>,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    set_drain(&state, &caller, &id, false).await
}

async fn set_drain(
    state: &ApiState,
    Authorized { caller, .. }: &Authorized<Manage>,
    id: &str,
    drain: bool,
) -> Result<StatusCode, Problem> {
    let worker = WorkerId::parse(id).map_err(|_| Problem::not_found("worker"))?;
    let action = if drain { "worker.drain" } else { "worker.undrain" };
    let by = caller.did(action, &id, state.store().now());
    steering::set_drain(state.store(), &worker, drain, &by).await?;
    state.waker().orders(by.at);
    Ok(StatusCode::ACCEPTED)
}

/// A handler over all workers.
#[derive(Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Handler)]
pub(crate) struct OfferedHandler {
    /// Its name.
    name: String,
    /// Online workers that offer it.
    workers: u32,
    /// Runs at once over all of them.
    slots: u32,
    /// Slots in use, by their last heartbeats.
    busy: u32,
    /// Runs that were told to stop and go on regardless.
    stuck: u32,
}

/// All of a short list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Handlers {
    /// By name.
    items: Vec<OfferedHandler>,
}

/// What online workers offer.
#[utoipa::path(
    get, path = "/openapi/handlers", operation_id = "listHandlers", tag = "workers", security(("key" = ["read"])),
    responses((status = 200, body = Handlers), crate::routes::Problems)
)]
pub(crate) async fn handlers(
    State(state): State<ApiState>,
    _caller: Authorized<Read>,
    query: QueryText,
) -> Result<Json<Handlers>, Problem> {
    query.close()?;
    let mut offered: BTreeMap<String, OfferedHandler> = BTreeMap::new();
    let online = heard_of(&state).await?;
    for handler in online
        .into_iter()
        .filter(|row| row.status == WorkerStatus::Online)
        .flat_map(|row| row.handlers)
    {
        let entry = offered
            .entry(handler.name.clone())
            .or_insert_with(|| OfferedHandler {
                name: handler.name,
                ..OfferedHandler::default()
            });
        entry.workers += 1;
        entry.slots += handler.slots;
        entry.busy += handler.busy;
        entry.stuck += handler.stuck;
    }
    Ok(Json(Handlers {
        items: offered.into_values().collect(),
    }))
}
