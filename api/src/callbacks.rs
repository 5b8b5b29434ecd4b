//! `/openapi/callbacks`: deliveries of webhooks, with their attempts, and sending them again.

use crate::{
    access::{Authorized, Manage, Read},
    input::{Findings, JsonBody, Object, PageRequest, Paged, QueryText},
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
    id::{DeliveryId, ExecutionId, JobId},
    store::{
        audit::{self, AuditEntry},
        callbacks::{
            DeliveryStatus,
            listing::{self as deliveries, AttemptRow, DeliveryFilter, DeliveryRow, Redelivery},
        },
    },
    time::EpochMillis,
};
use serde::Serialize;
use utoipa::ToSchema;

/// Name of this list in its page tokens.
const LIST: &str = "callbacks";

/// One webhook on its way, or at its end.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Delivery)]
pub(crate) struct DeliveryView {
    /// The `webhook-id` of every attempt.
    #[schema(value_type = String, format = Uuid)]
    delivery_id: DeliveryId,
    /// The job.
    #[schema(value_type = String, format = Uuid)]
    job_id: JobId,
    /// The execution that it reports.
    #[schema(value_type = String, format = Uuid)]
    execution_id: ExecutionId,
    /// Where it goes.
    url: String,
    /// The `type` of its body.
    #[serde(rename = "type")]
    event_type: String,
    /// PENDING, DELIVERING, DELIVERED, EXHAUSTED, EXPIRED or GONE; more may be added.
    #[schema(example = "DELIVERED")]
    status: &'static str,
    /// When the next attempt is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    next_attempt_at: Option<EpochMillis>,
    /// When it was written.
    #[schema(value_type = String, format = DateTime)]
    created_at: EpochMillis,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    finished_at: Option<EpochMillis>,
    /// Oldest first.
    attempts: Vec<AttemptView>,
}

/// One attempt to deliver.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = DeliveryAttempt)]
pub(crate) struct AttemptView {
    /// Which, from 1.
    attempt: u32,
    /// When it began.
    #[schema(value_type = String, format = DateTime)]
    started_at: EpochMillis,
    /// When it was over.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    finished_at: Option<EpochMillis>,
    /// Status of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    status_code: Option<i64>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// The beginning of the answer's body.
    #[serde(skip_serializing_if = "Option::is_none")]
    response_body: Option<String>,
}

impl From<AttemptRow> for AttemptView {
    fn from(row: AttemptRow) -> Self {
        Self {
            attempt: row.attempt,
            started_at: row.started_at,
            finished_at: row.finished_at,
            status_code: row.status_code,
            error: row.error,
            response_body: row.response_body,
        }
    }
}

const STATUSES: [(&str, DeliveryStatus); 6] = [
    ("PENDING", DeliveryStatus::Pending),
    ("DELIVERING", DeliveryStatus::Delivering),
    ("DELIVERED", DeliveryStatus::Delivered),
    ("EXHAUSTED", DeliveryStatus::Exhausted),
    ("EXPIRED", DeliveryStatus::Expired),
    ("GONE", DeliveryStatus::Gone),
];

impl DeliveryView {
    fn of(row: DeliveryRow, attempts: Vec<AttemptRow>) -> Self {
        let word = STATUSES.iter().find(|(_, status)| *status == row.status);
        Self {
            delivery_id: row.id,
            job_id: row.job,
            execution_id: row.execution,
            url: row.url,
            event_type: row.event_type,
            status: word.map_or("UNKNOWN", |(word, _)| word),
            next_attempt_at: (row.status == DeliveryStatus::Pending).then_some(row.next_attempt_at),
            created_at: row.created_at,
            finished_at: row.finished_at,
            attempts: attempts.into_iter().map(AttemptView::from).collect(),
        }
    }
}

/// Lists deliveries with their attempts, newest first.
#[utoipa::path(
    get, path = "/openapi/callbacks", operation_id = "listCallbacks", tag = "callbacks", security(("key" = ["read"])),
    params(
        ("status" = Option<String>, Query, description = "A delivery status, such as EXHAUSTED"),
        ("jobId" = Option<String>, Query, description = "About executions of this job"),
        ("executionId" = Option<String>, Query, description = "About this execution"),
        ("pageSize" = Option<i64>, Query, description = "1 to 500; 50 without it"),
        ("pageToken" = Option<String>, Query, description = "`nextPageToken` of the page before")
    ),
    responses((status = 200, body = Paged<DeliveryView>), crate::routes::Problems)
)]
pub(crate) async fn list(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Read>,
    mut query: QueryText,
) -> Result<Json<Paged<DeliveryView>>, Problem> {
    let words: Vec<_> = STATUSES.iter().map(|(word, _)| *word).collect();
    let status = query.parsed("status", &format!("one of {}", words.join(", ")), |text| {
        STATUSES
            .iter()
            .find(|(word, _)| *word == text)
            .map(|(_, status)| *status)
    });
    let (job, execution) = (query.id("jobId"), query.id("executionId"));
    let page = PageRequest::<DeliveryId>::take(&mut query, LIST);
    query.close()?;
    let filter = DeliveryFilter {
        app: Some(caller.app()),
        status,
        job,
        execution,
        before: page.before,
    };
    let mut connection = state.store().reader().await?;
    let limit = u32::try_from(page.limit()).unwrap_or(u32::MAX);
    let mut rows = deliveries::list(&mut connection, &filter, limit).await?;
    let next_page_token = page.next_token(LIST, &mut rows, |row| row.id);
    let ids: Vec<DeliveryId> = rows.iter().map(|row| row.id).collect();
    let mut attempts = deliveries::attempts_of(&mut connection, &ids).await?;
    let items = rows
        .into_iter()
        .map(|row| {
            let of_row = attempts.remove(&row.id).unwrap_or_default();
            DeliveryView::of(row, of_row)
        })
        .collect();
    Ok(Json(Paged {
        items,
        next_page_token,
    }))
}

/// How many deliveries start anew.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Redelivered {
    /// At most 1,000 in one call; call again for more.
    redelivered: usize,
}

/// Sends one ended delivery again.
#[utoipa::path(
    post, path = "/openapi/callbacks/{id}/redeliver", operation_id = "redeliverCallback", tag = "callbacks", security(("key" = ["manage"])),
    params(("id" = String, Path, description = "Delivery id")),
    responses((status = 202, body = Redelivered), crate::routes::SteerProblems)
)]
pub(crate) async fn redeliver_one(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Manage>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let delivery: DeliveryId = id.parse().map_err(|_| Problem::not_found("delivery"))?;
    let by = caller.did("callback.redeliver", &delivery, state.store().now());
    let redelivered = redeliver(&state, &Redelivery::One(delivery), &by).await?;
    if redelivered == 0 {
        return Err(Problem::conflict(
            "callback.not-ended",
            "there is no such delivery in this app, or it has not ended yet",
        ));
    }
    Ok((StatusCode::ACCEPTED, Json(Redelivered { redelivered })).into_response())
}

/// A time range of deliveries.
#[derive(ToSchema)]
#[allow(dead_code, reason = "the shape of a request that is read field by field")]
#[schema(example = json!({"from": "2026-11-30T00:00:00.000Z", "to": "2026-12-01T00:00:00.000Z"}))]
pub(crate) struct RedeliverRequest {
    /// Written at this instant or later.
    #[schema(format = DateTime)]
    from: String,
    /// Written before this instant.
    #[schema(format = DateTime)]
    to: String,
}

/// Sends the deliveries of a time range that ended without success again.
#[utoipa::path(
    post, path = "/openapi/callbacks/redeliver", operation_id = "redeliverCallbacks", tag = "callbacks", security(("key" = ["manage"])),
    request_body = RedeliverRequest,
    responses((status = 202, body = Redelivered), crate::routes::SteerProblems)
)]
pub(crate) async fn redeliver_range(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Manage>,
    body: JsonBody,
) -> Result<Response, Problem> {
    let mut findings = Findings::default();
    let range = Object::of_body(body.required()?, &mut findings).and_then(|mut object| {
        let from = object
            .require("from", &mut findings)
            .and_then(|value| value.instant(&mut findings));
        let to = object
            .require("to", &mut findings)
            .and_then(|value| value.instant(&mut findings));
        object.close(&mut findings);
        Some(Redelivery::Range { from: from?, to: to? })
    });
    let range = findings.into_result(range)?;
    let by = caller.did("callback.redeliver", &"range", state.store().now());
    let redelivered = redeliver(&state, &range, &by).await?;
    Ok((StatusCode::ACCEPTED, Json(Redelivered { redelivered })).into_response())
}

async fn redeliver(state: &ApiState, which: &Redelivery, by: &AuditEntry) -> Result<usize, Problem> {
    let tickets = state
        .store()
        .transact(|| async {
            let mut tx = state.store().begin().await?;
            let tickets = deliveries::redeliver(&mut tx, Some(by.app), which, by.at).await?;
            audit::append(&mut tx, by).await?;
            tx.commit().await?;
            Ok(tickets)
        })
        .await?;
    let count = tickets.len();
    state.waker().callbacks(tickets);
    Ok(count)
}
