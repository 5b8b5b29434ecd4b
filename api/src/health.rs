//! Alive, ready, and measured.

use crate::{
    problem::{Kind, Problem},
    state::ApiState,
};
use axum::{Json, extract::State, http::header, response::IntoResponse};
use isocost_common::broker::BrokerHealth;
use serde::Serialize;
use utoipa::ToSchema;

/// Where the process stands.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Health {
    /// `ok`.
    #[schema(value_type = String)]
    status: &'static str,
    /// The database takes writes. Without it nothing can be accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    database: Option<bool>,
    /// `ready`, `blocked` or `down`. Jobs are accepted in every case.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    broker: Option<&'static str>,
    /// `consuming` or `waiting`: whether submissions over AMQP are being taken in. Those that wait stay in their queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    submissions: Option<&'static str>,
}

/// Alive: the process answers.
#[utoipa::path(get, path = "/healthz", operation_id = "getHealth", tag = "health", responses((status = 200, body = Health)), security(()))]
pub(crate) async fn healthz() -> Json<Health> {
    Json(Health {
        status: "ok",
        database: None,
        broker: None,
        submissions: None,
    })
}

/// Ready: the process can accept jobs.
#[utoipa::path(
    get, path = "/readyz", operation_id = "getReadiness", tag = "health", security(()),
    responses((status = 200, body = Health), (status = 503, body = crate::problem::ProblemBody,
               content_type = "application/problem+json", description = "The database takes no writes"))
)]
pub(crate) async fn readyz(State(state): State<ApiState>) -> Result<Json<Health>, Problem> {
    if state.closing().is_cancelled() {
        return Err(Problem::new(
            Kind::Unavailable,
            "process.ending",
            "this process is about to end",
        )
        .retry_after(1));
    }
    state.store().takes_writes().await?;
    let broker = match *state.ports().broker.health().borrow() {
        BrokerHealth::Ready => "ready",
        BrokerHealth::Blocked(_) => "blocked",
        BrokerHealth::Down(_) => "down",
    };
    Ok(Json(Health {
        status: "ok",
        database: Some(true),
        broker: Some(broker),
        submissions: Some(if state.submissions().is_met() {
            "consuming"
        } else {
            "waiting"
        }),
    }))
}

/// Measurements of this process, for Prometheus.
#[utoipa::path(
    get, path = "/metrics", operation_id = "getMetrics", tag = "health", security(()),
    responses((status = 200, body = String, content_type = "text/plain"))
)]
pub(crate) async fn metrics(State(state): State<ApiState>) -> impl IntoResponse {
    (
        [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        state.metrics().render(),
    )
}
