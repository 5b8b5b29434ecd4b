use super::follow_up;
use crate::{
    access::{Authorized, Caller, Manage},
    input::{Findings, JsonBody, Object, PageRequest, Value, read_token},
    problem::Problem,
    state::ApiState,
};
use axum::{Json, extract::State};
use isocost_common::{
    id::JobId,
    job::JobStatus,
    store::{
        listing::{self, JobFilter},
        steering::{self, SteerError},
    },
};
use serde::Serialize;
use utoipa::ToSchema;

/// Jobs that one call looks at; call again for more.
const AT_ONCE: i64 = 500;
/// Name of this list in its page tokens.
const LIST: &str = "bulk";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Cancel,
    Pause,
    Resume,
    Retry,
}

const ACTIONS: [(&str, Action); 4] = [
    ("cancel", Action::Cancel),
    ("pause", Action::Pause),
    ("resume", Action::Resume),
    ("retry", Action::Retry),
];

/// What to do to many jobs.
#[derive(ToSchema)]
#[allow(dead_code, reason = "the shape of a request that is read field by field")]
#[schema(rename_all = "camelCase", example = json!({"action": "pause", "filter": {"handler": "http"}, "dryRun": true}))]
pub(crate) struct BulkRequest {
    /// `cancel`, `pause`, `resume`, or `retry` (the newest execution of each).
    action: String,
    /// Which jobs; at least one condition.
    filter: BulkFilter,
    /// Only count. Default false.
    dry_run: Option<bool>,
    /// `nextPageToken` of the call before.
    page_token: Option<String>,
}

/// Conditions that all have to hold.
#[derive(ToSchema)]
#[allow(dead_code, reason = "the shape of a request that is read field by field")]
#[schema(rename_all = "camelCase")]
struct BulkFilter {
    /// A job status.
    status: Option<String>,
    /// Exact name of the handler.
    handler: Option<String>,
    /// Text in the job's name, literally.
    name: Option<String>,
    /// `key:value`.
    label: Option<String>,
}

/// What was done to many jobs.
#[derive(Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BulkAnswer {
    /// Jobs that match, at most 500.
    matched: usize,
    /// Jobs that it was done to.
    done: usize,
    /// Jobs in whose state it was not possible.
    not_possible: usize,
    /// More than 500 match: call again with this as `pageToken`.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_page_token: Option<String>,
}

/// Cancels, pauses, resumes or retries the newest 500 jobs that match.
#[utoipa::path(
    post, path = "/openapi/jobs/bulk", operation_id = "steerJobs", tag = "jobs", security(("key" = ["manage"])), request_body = BulkRequest,
    responses((status = 200, body = BulkAnswer), crate::routes::SteerProblems)
)]
pub(crate) async fn bulk(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Manage>,
    body: JsonBody,
) -> Result<Json<BulkAnswer>, Problem> {
    let request = read(&body, &caller)?;
    let mut connection = state.store().reader().await?;
    let page = PageRequest {
        size: AT_ONCE,
        before: request.before,
    };
    let mut matching = listing::jobs(&mut connection, &request.filter, page.before, page.limit()).await?;
    drop(connection);
    let next_page_token = page.next_token(LIST, &mut matching, |job| job.id);
    let mut answer = BulkAnswer {
        matched: matching.len(),
        next_page_token,
        ..BulkAnswer::default()
    };
    if request.dry_run {
        return Ok(Json(answer));
    }
    for job in matching {
        match act(&state, &caller, request.action, job.id).await {
            Ok(()) => answer.done += 1,
            // Deleted meanwhile, or not in a state for it.
            Err(SteerError::NotPossible { .. } | SteerError::NotFound) => answer.not_possible += 1,
            Err(error @ SteerError::Store(_)) => return Err(error.into()),
        }
    }
    Ok(Json(answer))
}

async fn act(state: &ApiState, caller: &Caller, action: Action, id: JobId) -> Result<(), SteerError> {
    let store = state.store();
    let by = |action| caller.did(action, &id, store.now());
    match action {
        Action::Cancel => {
            let by = by("job.cancel");
            let cancelled = steering::cancel_job(store, id, &by).await?;
            follow_up(state, cancelled, by.at);
        }
        Action::Pause => steering::pause_job(store, id, &by("job.pause")).await?,
        Action::Resume => {
            if let Some(next) = steering::resume_job(store, id, &by("job.resume")).await? {
                state.waker().wake(next);
            }
        }
        Action::Retry => {
            let mut connection = store.reader().await?;
            let doing = listing::activity(&mut connection, caller.app(), &[id], false).await?;
            drop(connection);
            let last = doing.get(&id).and_then(|doing| doing.last.as_ref());
            let last = last.ok_or(SteerError::NotFound)?.id;
            let by = by("execution.retry");
            steering::retry_execution(store, last, &by).await?;
            state.waker().wake(by.at);
        }
    }
    Ok(())
}

struct Request {
    action: Action,
    filter: JobFilter,
    dry_run: bool,
    before: Option<JobId>,
}

fn read(body: &JsonBody, caller: &Caller) -> Result<Request, Problem> {
    let mut findings = Findings::default();
    let request = Object::of_body(body.required()?, &mut findings).and_then(|mut object| {
        let action = object
            .require("action", &mut findings)
            .and_then(|value| value.choice(&ACTIONS, &mut findings));
        let filter = object
            .require("filter", &mut findings)
            .and_then(|value| read_filter(&value, caller, &mut findings));
        let dry_run = object
            .take("dryRun")
            .and_then(|value| value.boolean(&mut findings));
        let before = object
            .take("pageToken")
            .and_then(|value| read_before(&value, &mut findings));
        object.close(&mut findings);
        Some(Request {
            action: action?,
            filter: filter?,
            dry_run: dry_run.unwrap_or(false),
            before,
        })
    });
    findings.into_result(request)
}

fn read_before(value: &Value<'_>, findings: &mut Findings) -> Option<JobId> {
    let before = read_token(LIST, &value.string(findings)?);
    if before.is_none() {
        findings.push(value.error(
            "page-token.invalid",
            "must be the nextPageToken of the call before, unchanged",
        ));
    }
    before
}

fn read_filter(value: &Value<'_>, caller: &Caller, findings: &mut Findings) -> Option<JobFilter> {
    let mut object = Object::open(value, findings)?;
    let mut is_empty = true;
    let mut text = |name, findings: &mut Findings| {
        let value = object.take(name)?;
        is_empty = false;
        Some((value.string(findings)?, value))
    };
    let status = text("status", findings);
    let handler = text("handler", findings);
    let name = text("name", findings);
    let label = text("label", findings);
    object.close(findings);
    if is_empty {
        findings.push(value.error(
            "filter.empty",
            "must have a condition, so that not all jobs are meant by accident",
        ));
    }
    let status = status.and_then(|(word, value)| {
        let status = JobStatus::from_name(&word);
        if status.is_none() {
            let words = JobStatus::ALL.map(JobStatus::name).join(", ");
            findings.push(value.error("field.unknown-value", &format!("must be one of {words}")));
        }
        status
    });
    let label = label.and_then(|(text, value)| {
        let pair = text
            .split_once(':')
            .map(|(key, label)| (key.to_owned(), label.to_owned()));
        if pair.is_none() {
            findings.push(value.error("label.invalid", "must be key:value"));
        }
        pair
    });
    Some(JobFilter {
        app: caller.app(),
        status,
        handler: handler.map(|(text, _)| text),
        name: name.map(|(text, _)| text),
        label,
    })
}
