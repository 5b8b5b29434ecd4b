use super::{
    read::{find, full_view, respond},
    view::JobView,
};
use crate::{
    access::{Authorized, Caller, Manage},
    definition::{Definition, Rules, read_key, read_params, text_of},
    input::{Findings, JsonBody, Object, QueryText, Value, content_hash, merge_patch},
    problem::{FieldError, Kind, Problem},
    schema::{SubmitJob, TriggerRequest},
    state::ApiState,
};
use axum::{
    Json,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use isocost_common::{
    id::{ExecutionId, JobId},
    job::Trigger,
    raw_json::RawJson,
    store::{
        audit::AuditEntry,
        jobs::JobRow,
        steering::{self, Cancelled, Deletion, RunRequest, SteerError},
    },
    time::EpochMillis,
};
use serde::Serialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use tracing::error;
use utoipa::ToSchema;

/// How often a patch is tried again while the leader advances the same job.
const PATCH_TRIES: u32 = 10;
/// Longest key of a run by hand, in bytes: the column holds a prefix besides.
const MAX_RUN_KEY_BYTES: usize = 200;

impl From<SteerError> for Problem {
    fn from(error: SteerError) -> Self {
        match error {
            SteerError::NotFound => Self::not_found("object"),
            SteerError::NotPossible { code, detail } => Self::conflict(code, detail),
            SteerError::Store(cause) => cause.into(),
        }
    }
}

/// The id in a path; what is no id names no job.
fn job_id(text: &str) -> Result<JobId, Problem> {
    text.parse().map_err(|_| Problem::not_found("job"))
}

fn audit(state: &ApiState, caller: &Caller, action: &'static str, id: &str) -> AuditEntry {
    caller.did(action, &id, state.store().now())
}

/// Tells leader and relay what follows from a cancel.
pub(crate) fn follow_up(state: &ApiState, cancelled: Cancelled, now: EpochMillis) {
    state.waker().callbacks(cancelled.applied.callbacks);
    // The leader stops what runs, and scans for that when it is woken.
    let due = cancelled.applied.due.or(cancelled.stopping.then_some(now));
    if let Some(due) = due {
        state.waker().wake(due);
    }
}

async fn shown(state: &ApiState, caller: &Caller, id: &str) -> Result<Response, Problem> {
    let job = find(state, caller.app(), id).await?;
    Ok(respond(full_view(state, job).await?))
}

/// Stops a job from firing. What has fired goes on.
#[utoipa::path(
    post, path = "/openapi/jobs/{id}/pause", operation_id = "pauseJob", tag = "jobs", security(("key" = ["manage"])),
    params(("id" = String, Path, description = "Job id")),
    responses((status = 200, body = JobView), crate::routes::SteerProblems)
)]
pub(crate) async fn pause(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Manage>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let by = audit(&state, &caller, "job.pause", &id);
    steering::pause_job(state.store(), job_id(&id)?, &by).await?;
    shown(&state, &caller, &id).await
}

/// Lets a paused job fire again. Firings that fell into the pause are left out.
#[utoipa::path(
    post, path = "/openapi/jobs/{id}/resume", operation_id = "resumeJob", tag = "jobs", security(("key" = ["manage"])),
    params(("id" = String, Path, description = "Job id")),
    responses((status = 200, body = JobView), crate::routes::SteerProblems)
)]
pub(crate) async fn resume(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Manage>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let by = audit(&state, &caller, "job.resume", &id);
    if let Some(next) = steering::resume_job(state.store(), job_id(&id)?, &by).await? {
        state.waker().wake(next);
    }
    shown(&state, &caller, &id).await
}

/// Cancels a job: it fires no more, and what of it runs is stopped.
#[utoipa::path(
    post, path = "/openapi/jobs/{id}/cancel", operation_id = "cancelJob", tag = "jobs", security(("key" = ["manage"])),
    params(("id" = String, Path, description = "Job id")),
    responses(
        (status = 200, body = JobView, description = "Nothing of it runs any more"),
        (status = 202, body = JobView, description = "Workers were asked to stop what runs"),
        crate::routes::SteerProblems
    )
)]
pub(crate) async fn cancel(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Manage>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let by = audit(&state, &caller, "job.cancel", &id);
    let cancelled = steering::cancel_job(state.store(), job_id(&id)?, &by).await?;
    let stopping = cancelled.stopping;
    follow_up(&state, cancelled, by.at);
    let mut response = shown(&state, &caller, &id).await?;
    if stopping {
        *response.status_mut() = StatusCode::ACCEPTED;
    }
    Ok(response)
}

/// The executions that a run by hand made.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Triggered {
    /// The execution; the first one of a sharded job.
    #[schema(value_type = String, format = Uuid)]
    pub execution_id: ExecutionId,
    /// All of them.
    #[schema(value_type = Vec<String>)]
    pub execution_ids: Vec<ExecutionId>,
    /// True when the same request had made them before.
    pub replayed: bool,
    /// Why it does not run at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_reason: Option<String>,
}

impl Triggered {
    /// What a run came to.
    pub(crate) fn of(run: steering::Run) -> Result<Self, Problem> {
        Ok(Self {
            execution_id: *run.executions.first().ok_or_else(Problem::internal)?,
            execution_ids: run.executions,
            replayed: run.replayed,
            waiting_reason: run
                .blocked
                .then(|| "an earlier execution under the same concurrency rule is still open".to_owned()),
        })
    }
}

/// Makes a job run now; its schedule is untouched.
#[utoipa::path(
    post, path = "/openapi/jobs/{id}/trigger", operation_id = "triggerJob", tag = "jobs", security(("key" = ["manage"])),
    params(("id" = String, Path, description = "Job id")),
    request_body(content = Option<TriggerRequest>),
    responses(
        (status = 202, body = Triggered),
        (status = 422, description = "The clientRequestId was used for a run of this job with other params",
         body = crate::problem::ProblemBody, content_type = "application/problem+json"),
        crate::routes::SteerProblems
    )
)]
pub(crate) async fn trigger(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Manage>,
    Path(id): Path<String>,
    body: JsonBody,
) -> Result<Response, Problem> {
    let request = read_run(&body, state.config().api.max_params_bytes)?;
    let by = audit(&state, &caller, "job.trigger", &id);
    let run = steering::run_job(state.store(), job_id(&id)?, &request, &by).await?;
    if run.replayed && !same_params(request.params.as_ref(), run.params.as_ref()) {
        return Err(Problem::new(
            Kind::KeyReused,
            "key.reused",
            "this clientRequestId belongs to a run of the job with other params; use a new key for a new run",
        ));
    }
    state.waker().wake(by.at);
    Ok((StatusCode::ACCEPTED, Json(Triggered::of(run)?)).into_response())
}

fn same_params(asked: Option<&RawJson>, made: Option<&RawJson>) -> bool {
    let content = |params: &RawJson| {
        let parsed: Option<&RawValue> = serde_json::from_str(params.as_str()).ok();
        parsed.map(|params| content_hash(params, &[]))
    };
    asked.map(content) == made.map(content)
}

fn read_run(body: &JsonBody, max_params_bytes: usize) -> Result<RunRequest, Problem> {
    let Some(raw) = body.value() else {
        return Ok(RunRequest::default());
    };
    let mut findings = Findings::default();
    let request = Object::of_body(raw, &mut findings).map(|mut object| {
        let params = object.take("params");
        let key = object.take("clientRequestId");
        let request = RunRequest {
            params: params.and_then(|value| read_params(&value, max_params_bytes, &mut findings)),
            client_request_id: key.and_then(|value| read_run_key(&value, &mut findings)),
        };
        object.close(&mut findings);
        request
    });
    findings.into_result(request)
}

fn read_run_key(value: &Value<'_>, findings: &mut Findings) -> Option<String> {
    let key = read_key(value, findings)?;
    if key.len() > MAX_RUN_KEY_BYTES {
        findings.push(value.error(
            "text.length",
            &format!("must have at most {MAX_RUN_KEY_BYTES} bytes here"),
        ));
        return None;
    }
    Some(key)
}

/// Changes a job by merge patch (RFC 7396); `trigger` is replaced whole. Executions that exist stay as they are.
#[utoipa::path(
    patch, path = "/openapi/jobs/{id}", operation_id = "patchJob", tag = "jobs", security(("key" = ["manage"])),
    params(
        ("id" = String, Path, description = "Job id"),
        ("If-Match" = String, Header, description = "The ETag that the change was made from, or `*`")
    ),
    request_body(content = SubmitJob, content_type = "application/merge-patch+json",
                 description = "Fields to change; null takes a field out"),
    responses(
        (status = 200, body = JobView, headers(("ETag" = String))),
        (status = 412, description = "It was changed meanwhile", body = crate::problem::ProblemBody,
         content_type = "application/problem+json"),
        (status = 428, description = "If-Match is missing", body = crate::problem::ProblemBody,
         content_type = "application/problem+json"),
        crate::routes::SteerProblems
    )
)]
pub(crate) async fn patch(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Manage>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Response, Problem> {
    let patch = body.required()?;
    let expected = expected_version(&headers)?;
    for _ in 0..PATCH_TRIES {
        let job = find(&state, caller.app(), &id).await?;
        if expected.is_some_and(|expected| expected != job.definition_version) {
            return Err(Problem::new(
                Kind::PreconditionFailed,
                "job.changed",
                format!(
                    "the job is at version {} now; read it again and repeat the change",
                    job.definition_version
                ),
            ));
        }
        let revised = revise(&state, &job, patch)?;
        let by = audit(&state, &caller, "job.patch", &id);
        if let Some(row) = steering::replace_definition(state.store(), &revised, job.version, &by).await? {
            if let Some(next) = row.next_trigger_time {
                state.waker().wake(next);
            }
            return shown(&state, &caller, &id).await;
        }
    }
    Err(Problem::new(
        Kind::Unavailable,
        "job.busy",
        "the job fires too often to be changed just now; pause it first, or try again",
    )
    .retry_after(1))
}

/// None for `*`: any version.
fn expected_version(headers: &HeaderMap) -> Result<Option<i64>, Problem> {
    let Some(given) = headers.get(header::IF_MATCH) else {
        return Err(Problem::new(
            Kind::PreconditionRequired,
            "if-match.missing",
            "send the ETag of the job in If-Match, so that no other change is lost",
        ));
    };
    let given = given.to_str().unwrap_or_default().trim();
    if given == "*" {
        return Ok(None);
    }
    let version = given.trim_start_matches("W/").trim_matches('"').parse().ok();
    // A text that never was an ETag of ours matches no version.
    Ok(Some(version.unwrap_or(-1)))
}

fn revise(state: &ApiState, job: &JobRow, patch: &RawValue) -> Result<JobRow, Problem> {
    if job.status.is_terminal() {
        let detail = format!(
            "a job that is {} cannot be changed; submit a new one",
            job.status.name()
        );
        return Err(Problem::conflict("job.wrong-status", detail));
    }
    let now = state.store().now();
    let rules = Rules {
        now,
        revises: true,
        default_time_zone: &state.config().api.default_time_zone,
        max_params_bytes: state.config().api.max_params_bytes,
        egress: state.egress(),
    };
    let mut findings = Findings::default();
    let definition = match merged(job, patch, &mut findings)? {
        Some(merged) => Definition::read_with(&merged, rules, &mut findings),
        None => None,
    };
    let revised = findings.into_result(definition)?.revise(job, now);
    let fired_once = matches!(job.trigger, Trigger::Once { .. }) && job.next_trigger_time.is_none();
    if fired_once && revised.next_trigger_time.is_some() {
        let detail = "the job has fired already, so its trigger cannot be changed any more; submit a new one";
        return Err(Problem::conflict("job.already-fired", detail));
    }
    Ok(revised)
}

/// What a patch must not touch: it would otherwise pass as part of a submission.
const FIXED: [&str; 4] = ["clientRequestId", "cronExpr", "timeZone", "dialect"];

/// The job as a submission, with the patch applied but for the fields that it must not touch; they are recorded. None for
/// a patch that cannot be applied.
fn merged(job: &JobRow, patch: &RawValue, findings: &mut Findings) -> Result<Option<Box<RawValue>>, Problem> {
    if !refuse_fixed_fields(patch, findings) {
        return Ok(None);
    }
    let unwritable = |cause: serde_json::Error| {
        error!(job.id = %job.id, %cause, "a stored job cannot be written as JSON");
        Problem::internal()
    };
    let text = text_of(job).map_err(unwritable)?;
    let merged = match merge_patch(&text, patch, &["trigger"]) {
        Ok(merged) => merged,
        Err(cause) => {
            // The job's own text is valid, so it is the patch.
            let what = format!("has a name that is not valid: {cause}");
            findings.push(Value::root(patch).error("json.malformed", &what));
            return Ok(None);
        }
    };
    let without_fixed: Vec<String> = FIXED.iter().map(|name| format!("\"{name}\":null")).collect();
    let without_fixed =
        RawValue::from_string(format!("{{{}}}", without_fixed.join(","))).map_err(unwritable)?;
    merge_patch(&merged, &without_fixed, &[])
        .map(Some)
        .map_err(unwritable)
}

/// False when the patch is no object.
fn refuse_fixed_fields(patch: &RawValue, findings: &mut Findings) -> bool {
    let Some(mut object) = Object::of_body(patch, findings) else {
        return false;
    };
    // Without a trigger a submission fires at once: nobody means that by taking the schedule out.
    if object
        .take("trigger")
        .is_some_and(|value| value.raw().get() == "null")
    {
        findings.push(FieldError {
            pointer: Some("/trigger".into()),
            field: "trigger".into(),
            code: Cow::Borrowed("field.required"),
            message: "trigger cannot be taken out; give another one, such as {\"type\": \"manual\"}, or pause the job"
                .into(),
        });
    }
    for name in FIXED {
        if object.take(name).is_some() {
            findings.push(FieldError {
                pointer: Some(format!("/{name}")),
                field: name.to_owned(),
                code: Cow::Borrowed("field.fixed"),
                message: format!("{name} cannot be patched; a schedule is changed by `trigger`"),
            });
        }
    }
    true
}

/// Deletes a job. Its executions stay readable until history is pruned; its clientRequestId stays taken for 24 hours.
/// Jobs that follow it, and can now never fire, are cancelled.
#[utoipa::path(
    delete, path = "/openapi/jobs/{id}", operation_id = "deleteJob", tag = "jobs", security(("key" = ["manage"])),
    params(
        ("id" = String, Path, description = "Job id"),
        ("cancel" = Option<bool>, Query, description = "Cancel what is open first; without it that is a 409")
    ),
    responses(
        (status = 204, description = "Deleted"),
        (status = 202, body = JobView,
         description = "Cancelled; workers were asked to stop what runs. It shows `deleting` and is gone once that has \
                        ended"),
        crate::routes::SteerProblems
    )
)]
pub(crate) async fn delete(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Manage>,
    Path(id): Path<String>,
    mut query: QueryText,
) -> Result<Response, Problem> {
    let cancel = query.boolean("cancel").unwrap_or(false);
    query.close()?;
    let by = audit(&state, &caller, "job.delete", &id);
    match steering::delete_job(state.store(), job_id(&id)?, cancel, &by).await? {
        Deletion::Done(applied) => {
            let cancelled = Cancelled {
                applied,
                stopping: false,
            };
            follow_up(&state, cancelled, by.at);
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        Deletion::Stopping(cancelled) => {
            follow_up(&state, cancelled, by.at);
            let mut response = shown(&state, &caller, &id).await?;
            *response.status_mut() = StatusCode::ACCEPTED;
            Ok(response)
        }
    }
}
