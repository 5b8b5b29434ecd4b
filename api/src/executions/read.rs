use super::view::{ExecutionView, LineView, steps};
use crate::{
    access::{Authorized, Read},
    input::{PageRequest, Paged, QueryText},
    problem::Problem,
    state::ApiState,
};
use axum::{
    Json,
    extract::{Path, State},
};
use isocost_common::{
    execution::ExecutionStatus,
    id::{AppId, ExecutionId, JobId, WorkerId},
    store::{
        callbacks::listing::{self as deliveries, DeliveryFilter},
        executions::{self, ExecutionRow},
        handler_logs, job_log, jobs,
        listing::{self, ExecutionFilter},
    },
};
use serde::Serialize;
use utoipa::ToSchema;

/// Name of this list in its page tokens.
const LIST: &str = "executions";
/// Log lines in one answer.
const LINES: u32 = 1_000;
/// Deliveries of one execution looked at for its steps: one, and its redeliveries are the same.
const DELIVERIES: u32 = 10;

async fn find(state: &ApiState, app: AppId, id: &str) -> Result<ExecutionRow, Problem> {
    let id: ExecutionId = id.parse().map_err(|_| Problem::not_found("execution"))?;
    let row = executions::get(&mut *state.store().reader().await?, id).await?;
    row.filter(|row| row.app == app)
        .ok_or_else(|| Problem::not_found("execution"))
}

/// An execution with every step it took.
#[utoipa::path(
    get, path = "/openapi/executions/{id}", operation_id = "getExecution", tag = "executions", security(("key" = ["read"])),
    params(("id" = String, Path, description = "Execution id")),
    responses((status = 200, body = ExecutionView), crate::routes::Problems)
)]
pub(crate) async fn get(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Read>,
    Path(id): Path<String>,
    query: QueryText,
) -> Result<Json<ExecutionView>, Problem> {
    query.close()?;
    let row = find(&state, caller.app(), &id).await?;
    let mut connection = state.store().reader().await?;
    let log = job_log::of_execution(&mut connection, row.id).await?;
    let submitted_at = jobs::get(&mut connection, row.job)
        .await?
        .map(|job| job.created_at);
    let filter = DeliveryFilter {
        app: Some(caller.app()),
        status: None,
        job: None,
        execution: Some(row.id),
        before: None,
    };
    let sent = deliveries::list(&mut connection, &filter, DELIVERIES).await?;
    drop(connection);
    let steps = steps(&row, submitted_at, &log, &sent);
    let mut view = ExecutionView::whole(row);
    view.steps = Some(steps);
    Ok(Json(view))
}

/// Lists executions, newest first.
#[utoipa::path(
    get, path = "/openapi/executions", operation_id = "listExecutions", tag = "executions", security(("key" = ["read"])),
    params(
        ("status" = Option<String>, Query, description = "An execution status, such as RUNNING"),
        ("handler" = Option<String>, Query, description = "Exact name of the handler"),
        ("jobId" = Option<String>, Query, description = "Of this job"),
        ("workerId" = Option<String>, Query, description = "Last given to this worker"),
        ("from" = Option<String>, Query, description = "Made at this instant or later"),
        ("to" = Option<String>, Query, description = "Made before this instant"),
        ("pageSize" = Option<i64>, Query, description = "1 to 500; 50 without it"),
        ("pageToken" = Option<String>, Query, description = "`nextPageToken` of the page before")
    ),
    responses((status = 200, body = Paged<ExecutionView>), crate::routes::Problems)
)]
pub(crate) async fn list(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Read>,
    mut query: QueryText,
) -> Result<Json<Paged<ExecutionView>>, Problem> {
    let job = query.id("jobId");
    page(&state, caller.app(), job, query).await
}

/// Lists the executions of a job, newest first.
#[utoipa::path(
    get, path = "/openapi/jobs/{id}/executions", operation_id = "listExecutionsOfJob", tag = "jobs", security(("key" = ["read"])),
    params(
        ("id" = String, Path, description = "Job id"),
        ("status" = Option<String>, Query, description = "An execution status, such as RUNNING"),
        ("handler" = Option<String>, Query, description = "Exact name of the handler"),
        ("workerId" = Option<String>, Query, description = "Last given to this worker"),
        ("from" = Option<String>, Query, description = "Made at this instant or later"),
        ("to" = Option<String>, Query, description = "Made before this instant"),
        ("pageSize" = Option<i64>, Query, description = "1 to 500; 50 without it"),
        ("pageToken" = Option<String>, Query, description = "`nextPageToken` of the page before")
    ),
    responses((status = 200, body = Paged<ExecutionView>), crate::routes::Problems)
)]
pub(crate) async fn of_job(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Read>,
    Path(id): Path<String>,
    query: QueryText,
) -> Result<Json<Paged<ExecutionView>>, Problem> {
    let id: JobId = id.parse().map_err(|_| Problem::not_found("job"))?;
    let job = jobs::get(&mut *state.store().reader().await?, id).await?;
    if job.is_none_or(|job| job.app != caller.app()) {
        return Err(Problem::not_found("job"));
    }
    page(&state, caller.app(), Some(id), query).await
}

async fn page(
    state: &ApiState,
    app: AppId,
    job: Option<JobId>,
    mut query: QueryText,
) -> Result<Json<Paged<ExecutionView>>, Problem> {
    let filter = ExecutionFilter {
        app,
        job,
        statuses: query
            .parsed(
                "status",
                &format!("one of {}", status_words().join(", ")),
                with_word,
            )
            .unwrap_or_default(),
        handler: query.text("handler"),
        worker: query.parsed("workerId", "a worker id", |text| WorkerId::parse(text).ok()),
        from: query.instant("from"),
        to: query.instant("to"),
    };
    let page = PageRequest::<ExecutionId>::take(&mut query, LIST);
    query.close()?;
    let mut connection = state.store().reader().await?;
    let mut rows = listing::executions(&mut connection, &filter, page.before, page.limit()).await?;
    let next_page_token = page.next_token(LIST, &mut rows, |row| row.id);
    Ok(Json(Paged {
        items: rows.into_iter().map(ExecutionView::light).collect(),
        next_page_token,
    }))
}

/// The states that a word of the API stands for; the waiting states have names of their own besides.
fn with_word(word: &str) -> Option<Vec<ExecutionStatus>> {
    let matching: Vec<_> = ExecutionStatus::ALL
        .into_iter()
        .filter(|status| status.api_name() == word || status.name() == word)
        .collect();
    (!matching.is_empty()).then_some(matching)
}

fn status_words() -> Vec<&'static str> {
    let mut words: Vec<_> = ExecutionStatus::ALL.map(ExecutionStatus::api_name).to_vec();
    words.dedup();
    words
}

/// Lines of a handler.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Lines {
    /// In order of arrival.
    items: Vec<LineView>,
    /// Give it as `after` for what comes next.
    next_after: i64,
    /// True when nothing more can come.
    ended: bool,
}

/// What the handler logged, also while it runs.
#[utoipa::path(
    get, path = "/openapi/executions/{id}/logs", operation_id = "getExecutionLogs", tag = "executions", security(("key" = ["read"])),
    params(
        ("id" = String, Path, description = "Execution id"),
        ("after" = Option<i64>, Query, description = "Only lines with a greater `seq`")
    ),
    responses((status = 200, body = Lines), crate::routes::Problems)
)]
pub(crate) async fn logs(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Read>,
    Path(id): Path<String>,
    mut query: QueryText,
) -> Result<Json<Lines>, Problem> {
    let after = query.integer("after", 0..=i64::MAX).unwrap_or(0);
    query.close()?;
    let row = find(&state, caller.app(), &id).await?;
    let mut connection = state.store().reader().await?;
    let lines = handler_logs::lines_after(&mut connection, row.id, after, LINES).await?;
    Ok(Json(Lines {
        next_after: lines.last().map_or(after, |line| line.seq),
        ended: row.status.is_terminal() && lines.len() < LINES as usize,
        items: lines.into_iter().map(LineView::from).collect(),
    }))
}
