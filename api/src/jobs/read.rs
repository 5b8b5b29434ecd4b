use super::view::{JobView, counts_by_name};
use crate::{
    access::{Authorized, Read},
    handler_directory::not_offered,
    input::{Findings, JsonBody, Object, PageRequest, Paged, QueryText},
    problem::Problem,
    schema::StatusRequest,
    state::ApiState,
};
use axum::{
    Json,
    extract::{Path, State},
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use isocost_common::{
    execution::ExecutionStatus,
    id::{AppId, JobId},
    job::{JobStatus, ParentOutcome, Trigger},
    store::{
        StoreError, deletion,
        jobs::{self, JobRow},
        listing::{self, Activity, JobFilter},
    },
};
use serde::Serialize;
use utoipa::ToSchema;

/// Most ids in one status request.
const MAX_IDS: usize = 1_000;
/// Name of this list in its page tokens.
const LIST: &str = "jobs";

/// The job of the path, if it is one of the caller's app.
pub(super) async fn find(state: &ApiState, app: AppId, id: &str) -> Result<JobRow, Problem> {
    let id: JobId = id.parse().map_err(|_| Problem::not_found("job"))?;
    let mut connection = state.store().reader().await?;
    jobs::get(&mut connection, id)
        .await?
        .filter(|job| job.app == app)
        .ok_or_else(|| Problem::not_found("job"))
}

/// A job, with what it is doing now.
#[utoipa::path(
    get, path = "/openapi/jobs/{id}", operation_id = "getJob", tag = "jobs", security(("key" = ["read"])),
    params(("id" = String, Path, description = "Job id")),
    responses((status = 200, body = JobView, headers(("ETag" = String), ("Retry-After" = i64))), crate::routes::Problems)
)]
pub(crate) async fn get(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Read>,
    Path(id): Path<String>,
    query: QueryText,
) -> Result<Response, Problem> {
    query.close()?;
    let job = find(&state, caller.app(), &id).await?;
    Ok(respond(full_view(&state, job).await?))
}

/// The answer with one whole job: its ETag, and when to look again.
pub(super) fn respond(view: JobView) -> Response {
    let etag = HeaderValue::try_from(format!("\"{}\"", view.version));
    let ended = view.status.is_terminal();
    let mut response = Json(view).into_response();
    if let Ok(etag) = etag {
        response.headers_mut().insert(header::ETAG, etag);
    }
    if !ended {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// Everything about one job.
pub(super) async fn full_view(state: &ApiState, job: JobRow) -> Result<JobView, Problem> {
    let mut connection = state.store().reader().await?;
    let mut activity = listing::activity(&mut connection, job.app, &[job.id], true).await?;
    let counts = listing::counts(&mut connection, job.id).await?;
    let deleting = deletion::is_requested(&mut connection, job.id).await?;
    drop(connection);
    let activity = activity.remove(&job.id).unwrap_or_default();
    let reason = waiting_reason(state, &job, &activity).await;
    let params = job.params.clone();
    let mut view = JobView::of(job, Some(&activity));
    view.params = Some(params);
    view.counts = Some(counts_by_name(&counts));
    view.waiting_reason = reason;
    view.deleting = deleting;
    Ok(view)
}

/// Why nothing of the job runs although something should; none while all goes as planned.
async fn waiting_reason(state: &ApiState, job: &JobRow, activity: &Activity) -> Option<String> {
    let reason = reason_of_the_job(state, job, activity).await?;
    if reason.needs_the_leader {
        let known = state.handlers().known(state.store()).await?;
        if let Some(standstill) = known.standstill(state.store().now()) {
            return Some(standstill);
        }
    }
    Some(reason.text)
}

struct Reason {
    text: String,
    /// It would run, or be looked at, if the leader started anything.
    needs_the_leader: bool,
}

async fn reason_of_the_job(state: &ApiState, job: &JobRow, activity: &Activity) -> Option<Reason> {
    let of = |text: String, needs_the_leader| Reason {
        text,
        needs_the_leader,
    };
    match job.status {
        JobStatus::Paused => {
            return Some(of("the job is paused; resume it to let it fire".into(), false));
        }
        JobStatus::Waiting if activity.running == 0 => {}
        _ => return None,
    }
    let now = state.store().now();
    let open = activity.last.as_ref().filter(|last| !last.status.is_terminal());
    match open.map(|last| (last.status, last)) {
        Some((ExecutionStatus::Scheduled, last)) => Some(of(
            format!("it waits until {} before it starts again", last.not_before),
            last.not_before <= now,
        )),
        Some((ExecutionStatus::Blocked, _)) => Some(of(
            "an earlier execution under the same concurrency rule is still open".into(),
            false,
        )),
        Some((ExecutionStatus::Pending, _)) => Some(of(no_worker(state, job).await, true)),
        Some(_) => None,
        None if job.next_trigger_time.is_some_and(|next| next <= now) => Some(of(
            "it is due, and no dispatcher has taken it up yet".into(),
            true,
        )),
        None => match &job.trigger {
            Trigger::After { job_id, on } => {
                let how = match on {
                    ParentOutcome::Success => "has succeeded",
                    ParentOutcome::Failure => "has ended without success",
                    ParentOutcome::Any => "has ended",
                };
                let text = format!("it fires when an execution of job {job_id} {how}");
                Some(of(text, false))
            }
            Trigger::Manual {} => Some(of("it fires only when it is asked to".into(), false)),
            _ => None,
        },
    }
}

async fn no_worker(state: &ApiState, job: &JobRow) -> String {
    let known = state.handlers().known(state.store()).await;
    let beat = state.config().leases.heartbeat();
    let now = state.store().now();
    known
        .and_then(|known| {
            not_offered(&job.handler, &known).or_else(|| known.unheard(&job.handler, beat, now))
        })
        .unwrap_or_else(|| {
            if job.selector.is_empty() {
                "no worker that offers the handler has room".into()
            } else {
                "no worker that offers the handler and matches the selector has room".into()
            }
        })
}

/// Lists jobs, newest first.
#[utoipa::path(
    get, path = "/openapi/jobs", operation_id = "listJobs", tag = "jobs", security(("key" = ["read"])),
    params(
        ("status" = Option<String>, Query, description = "A job status, such as WAITING"),
        ("handler" = Option<String>, Query, description = "Exact name of the handler"),
        ("name" = Option<String>, Query, description = "Text in the job's name, literally"),
        ("label" = Option<String>, Query, description = "`key:value`"),
        ("pageSize" = Option<i64>, Query, description = "1 to 500; 50 without it"),
        ("pageToken" = Option<String>, Query, description = "`nextPageToken` of the page before")
    ),
    responses((status = 200, body = Paged<JobView>), crate::routes::Problems)
)]
pub(crate) async fn list(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Read>,
    mut query: QueryText,
) -> Result<Json<Paged<JobView>>, Problem> {
    let words = JobStatus::ALL.map(JobStatus::name).join(", ");
    let filter = JobFilter {
        app: caller.app(),
        status: query.parsed("status", &format!("one of {words}"), JobStatus::from_name),
        handler: query.text("handler"),
        name: query.text("name"),
        label: query.parsed("label", "key:value", |text| {
            let (key, value) = text.split_once(':')?;
            Some((key.to_owned(), value.to_owned()))
        }),
    };
    let page = PageRequest::<JobId>::take(&mut query, LIST);
    query.close()?;
    let mut connection = state.store().reader().await?;
    let mut rows = listing::jobs(&mut connection, &filter, page.before, page.limit()).await?;
    let next_page_token = page.next_token(LIST, &mut rows, |job| job.id);
    let items = views(&mut connection, caller.app(), rows).await?;
    Ok(Json(Paged {
        items,
        next_page_token,
    }))
}

async fn views(
    connection: &mut isocost_common::store::Connection,
    app: AppId,
    rows: Vec<JobRow>,
) -> Result<Vec<JobView>, StoreError> {
    let ids: Vec<JobId> = rows.iter().map(|job| job.id).collect();
    let activity = listing::activity(connection, app, &ids, false).await?;
    Ok(rows
        .into_iter()
        .map(|job| {
            let doing = activity.get(&job.id);
            JobView::of(job, doing).without_result()
        })
        .collect())
}

/// Where many jobs stand.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Statuses {
    /// The jobs that exist in this app, in the order asked for.
    items: Vec<JobView>,
    /// The ids without a job.
    #[schema(value_type = Vec<String>)]
    not_found: Vec<JobId>,
}

/// Looks at up to 1,000 jobs at once.
#[utoipa::path(
    post, path = "/openapi/jobs/status", operation_id = "getJobStatuses", tag = "jobs", security(("key" = ["read"])),
    request_body = StatusRequest,
    responses((status = 200, body = Statuses), crate::routes::Problems)
)]
pub(crate) async fn statuses(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Read>,
    body: JsonBody,
) -> Result<Json<Statuses>, Problem> {
    let mut findings = Findings::default();
    let ids = Object::of_body(body.required()?, &mut findings).and_then(|mut object| {
        let ids = object.require("jobIds", &mut findings);
        object.close(&mut findings);
        read_ids(&ids?, &mut findings)
    });
    let ids = findings.into_result(ids)?;
    let mut connection = state.store().reader().await?;
    let mut rows = jobs::get_many(&mut connection, &ids).await?;
    rows.retain(|job| job.app == caller.app());
    let mut found = views(&mut connection, caller.app(), rows).await?;
    let place = |id: &JobId| ids.iter().position(|asked| asked == id);
    found.sort_by_cached_key(|view| place(&view.job_id));
    let not_found = ids
        .iter()
        .filter(|id| !found.iter().any(|view| view.job_id == **id))
        .copied()
        .collect();
    Ok(Json(Statuses {
        items: found,
        not_found,
    }))
}

fn read_ids(value: &crate::input::Value<'_>, findings: &mut Findings) -> Option<Vec<JobId>> {
    let items = value.items(MAX_IDS, findings)?;
    if items.is_empty() {
        findings.push(value.error("array.empty", "must have at least one id"));
    }
    let mut ids: Vec<JobId> = Vec::with_capacity(items.len());
    for item in items {
        match item.string(findings).map(|text| text.parse()) {
            Some(Ok(id)) if !ids.contains(&id) => ids.push(id),
            Some(Err(_)) => findings.push(item.error("id.invalid", "must hold UUIDs")),
            Some(Ok(_)) | None => {}
        }
    }
    Some(ids)
}
