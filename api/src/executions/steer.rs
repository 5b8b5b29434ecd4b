use super::view::ExecutionView;
use crate::{
    access::{Authorized, Manage},
    jobs::{Triggered, follow_up},
    problem::Problem,
    state::ApiState,
};
use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use isocost_common::{
    id::ExecutionId,
    store::{executions, steering},
};

fn execution_id(text: &str) -> Result<ExecutionId, Problem> {
    text.parse().map_err(|_| Problem::not_found("execution"))
}

/// Cancels an execution: at once, or as soon as its worker has stopped it.
#[utoipa::path(
    post, path = "/openapi/executions/{id}/cancel", operation_id = "cancelExecution", tag = "executions", security(("key" = ["manage"])),
    params(("id" = String, Path, description = "Execution id")),
    responses(
        (status = 200, body = ExecutionView, description = "It is cancelled"),
        (status = 202, body = ExecutionView, description = "Its worker was asked to stop it"),
        crate::routes::SteerProblems
    )
)]
pub(crate) async fn cancel(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Manage>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let execution = execution_id(&id)?;
    let by = caller.did("execution.cancel", &execution, state.store().now());
    let cancelled = steering::cancel_execution(state.store(), execution, &by).await?;
    let status = if cancelled.stopping {
        StatusCode::ACCEPTED
    } else {
        StatusCode::OK
    };
    follow_up(&state, cancelled, by.at);
    let row = executions::get(&mut *state.store().reader().await?, execution).await?;
    let row = row.ok_or_else(|| Problem::not_found("execution"))?;
    Ok((status, Json(ExecutionView::whole(row))).into_response())
}

/// Runs an execution that has ended again, as a new one.
#[utoipa::path(
    post, path = "/openapi/executions/{id}/retry", operation_id = "retryExecution", tag = "executions", security(("key" = ["manage"])),
    params(("id" = String, Path, description = "Execution id")),
    responses((status = 202, body = Triggered), crate::routes::SteerProblems)
)]
pub(crate) async fn retry(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Manage>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let execution = execution_id(&id)?;
    let by = caller.did("execution.retry", &execution, state.store().now());
    let run = steering::retry_execution(state.store(), execution, &by).await?;
    state.waker().wake(by.at);
    Ok((StatusCode::ACCEPTED, Json(Triggered::of(run)?)).into_response())
}
