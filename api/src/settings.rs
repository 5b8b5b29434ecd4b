//! `/openapi/settings`: what can be changed while everything runs.

use crate::{
    access::{Admin, Authorized},
    input::{Findings, JsonBody, Object, QueryText},
    problem::Problem,
    state::ApiState,
};
use axum::{Json, extract::State};
use isocost_common::{
    config::{BalancerStrategy, BalancerWeights},
    error_chain::chain,
    store::{audit, settings},
};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use tracing::warn;
use utoipa::ToSchema;

const STRATEGIES: [(&str, BalancerStrategy); 5] = [
    ("equal_cost", BalancerStrategy::EqualCost),
    ("round_robin", BalancerStrategy::RoundRobin),
    ("random", BalancerStrategy::Random),
    ("least_active", BalancerStrategy::LeastActive),
    ("consistent_hash", BalancerStrategy::ConsistentHash),
];

/// What can be changed at run time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub(crate) struct Settings {
    /// How workers are chosen.
    balancer: Balancer,
    /// While true, nothing is claimed or placed; what runs goes on, and submissions are accepted.
    maintenance: bool,
}

/// How workers are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Balancer {
    /// `equal_cost`, `round_robin`, `random`, `least_active` or `consistent_hash` (by job).
    #[schema(value_type = String, example = "equal_cost")]
    pub strategy: BalancerStrategy,
    /// Weights of the load score.
    #[schema(value_type = Weights)]
    pub weights: BalancerWeights,
}

/// Weights of the load score.
#[derive(ToSchema)]
#[allow(
    dead_code,
    reason = "the shape of `BalancerWeights`, which lives where there is no OpenAPI"
)]
#[schema(as = BalancerWeights)]
struct Weights {
    /// Points of one active execution.
    #[schema(minimum = 0)]
    active: f64,
    /// Points of one second of mean run time.
    #[schema(minimum = 0)]
    cost: f64,
    /// Points of one percent of CPU in use.
    #[schema(minimum = 0)]
    cpu: f64,
}

/// The settings as they stand: what was set, else the configuration.
async fn current(state: &ApiState) -> Result<Settings, Problem> {
    let stored = settings::all(&mut *state.store().reader().await?).await?;
    Ok(Settings {
        balancer: stored_balancer(state, &stored),
        maintenance: settings::is_maintenance(&stored),
    })
}

/// How workers are chosen now.
pub(crate) async fn balancer(state: &ApiState) -> Result<Balancer, Problem> {
    Ok(current(state).await?.balancer)
}

fn stored_balancer(state: &ApiState, stored: &HashMap<String, String>) -> Balancer {
    let configured = Balancer {
        strategy: state.config().dispatcher.strategy,
        weights: state.config().dispatcher.weights,
    };
    let Some(text) = stored.get(settings::BALANCER) else {
        return configured;
    };
    serde_json::from_str(text).unwrap_or_else(|cause| {
        warn!(error = %chain(&cause), "the stored balancer setting cannot be read; the configuration counts");
        configured
    })
}

/// The settings.
#[utoipa::path(
    get, path = "/openapi/settings", operation_id = "getSettings", tag = "settings", security(("key" = ["admin"])),
    responses((status = 200, body = Settings), crate::routes::Problems)
)]
pub(crate) async fn get(
    State(state): State<ApiState>,
    _caller: Authorized<Admin>,
    query: QueryText,
) -> Result<Json<Settings>, Problem> {
    query.close()?;
    Ok(Json(current(&state).await?))
}

/// Changes settings; what is left out stays as it is.
#[utoipa::path(
    put, path = "/openapi/settings", operation_id = "putSettings", tag = "settings", security(("key" = ["admin"])),
    request_body = Settings,
    responses((status = 200, body = Settings), crate::routes::Problems)
)]
pub(crate) async fn put(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Admin>,
    body: JsonBody,
) -> Result<Json<Settings>, Problem> {
    let raw = body.required()?;
    let before = current(&state).await?;
    let mut findings = Findings::default();
    let wanted = Object::of_body(raw, &mut findings)
        .map(|mut object| read(&mut object, before, &mut findings).closed(object, &mut findings));
    let wanted = findings.into_result(wanted)?;
    let by = caller.did("settings.put", &"settings", state.store().now());
    let text = serde_json::to_string(&wanted.balancer).map_err(|_| Problem::internal())?;
    let maintenance = wanted.maintenance.to_string();
    state
        .store()
        .transact(|| async {
            let mut tx = state.store().begin().await?;
            let dialect = tx.dialect();
            settings::put(&mut tx, dialect, settings::BALANCER, &text, by.at).await?;
            settings::put(&mut tx, dialect, settings::MAINTENANCE, &maintenance, by.at).await?;
            audit::append(&mut tx, &by).await?;
            tx.commit().await
        })
        .await?;
    state.waker().orders(by.at);
    Ok(Json(wanted))
}

impl Settings {
    fn closed(self, object: Object<'_>, findings: &mut Findings) -> Self {
        object.close(findings);
        self
    }
}

fn read(object: &mut Object<'_>, before: Settings, findings: &mut Findings) -> Settings {
    let maintenance = object
        .take("maintenance")
        .and_then(|value| value.boolean(findings));
    let mut wanted = before;
    wanted.maintenance = maintenance.unwrap_or(before.maintenance);
    let Some(mut balancer) = object
        .take("balancer")
        .and_then(|value| Object::open(&value, findings))
    else {
        return wanted;
    };
    if let Some(strategy) = balancer
        .take("strategy")
        .and_then(|value| value.choice(&STRATEGIES, findings))
    {
        wanted.balancer.strategy = strategy;
    }
    if let Some(mut weights) = balancer
        .take("weights")
        .and_then(|value| Object::open(&value, findings))
    {
        let mut weight = |name, old| {
            let given = weights.take(name).and_then(|value| value.weight(findings));
            given.unwrap_or(old)
        };
        let old = before.balancer.weights;
        wanted.balancer.weights = BalancerWeights {
            active: weight("active", old.active),
            cost: weight("cost", old.cost),
            cpu: weight("cpu", old.cpu),
        };
        weights.close(findings);
    }
    balancer.close(findings);
    wanted
}
