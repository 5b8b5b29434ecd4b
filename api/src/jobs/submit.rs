use crate::{
    access::{Authorized, Submit, busy, over_quota},
    definition::{Definition, Rules, Warning, read_key},
    handler_directory::not_offered,
    input::{Findings, JsonBody, Value, content_hash},
    problem::{FieldError, Kind, Problem},
    schema::SubmitJob,
    state::ApiState,
    submitter::{Arrival, SubmitError},
};
use axum::{
    Json,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use isocost_common::{
    error_chain::chain,
    id::{AppId, JobId},
    job::JobStatus,
    store::{
        StoreError,
        followers::{self, Beginning},
        jobs::JobRow,
        listing,
        submission::{Admission, KeyHolder},
    },
    time::EpochMillis,
    trace_parent::{TRACEPARENT, TraceParent},
};
use serde::Serialize;
use serde_json::value::RawValue;
use std::{borrow::Cow, time::Duration};
use tracing::{debug, error};
use utoipa::ToSchema;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The leader looks by itself at least this often, so only what is due sooner is worth a nudge.
const NUDGE_WITHIN: Duration = Duration::from_millis(1_500);

/// The answer to an accepted submission.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Submitted {
    /// The job.
    #[schema(value_type = String, format = Uuid)]
    pub job_id: JobId,
    /// Where it stands now.
    #[schema(value_type = String, example = "WAITING")]
    pub status: JobStatus,
    /// Its next firing, if one is planned.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_trigger_time: Option<EpochMillis>,
    /// True when it had been accepted before under this key.
    pub replayed: bool,
    /// What may not be meant.
    pub warnings: Vec<Warning>,
}

/// Submits a job. When this answers 202 the job is durable.
#[utoipa::path(
    post, path = "/openapi/jobs", operation_id = "submitJob", tag = "jobs", security(("key" = ["submit"])),
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "Same as `clientRequestId` in the body"),
        ("traceparent" = Option<String>, Header,
         description = "W3C trace context, carried to the worker, the callback and the outcome")
    ),
    request_body = SubmitJob,
    responses(
        (status = 202, body = Submitted, description = "Accepted and durable",
         headers(("Location" = String), ("Retry-After" = i64))),
        (status = 200, body = Submitted, description = "Accepted before under this key"),
        crate::routes::SubmitProblems
    )
)]
pub(crate) async fn submit(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Submit>,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Response, Problem> {
    let arrival = state.submitter().announce();
    let prepared = Prepared::read(&state, caller.app(), body.required()?, key_of_header(&headers)?)
        .await?
        .traced(trace_of(&headers));
    if state.quotas().take(state.store(), caller.app_row(), 1).await? == 0 {
        return Err(over_quota(caller.app_row()));
    }
    let answers = store(&state, vec![prepared], arrival).await?;
    let submitted = answers.into_iter().next().ok_or_else(Problem::internal)??;
    let location = HeaderValue::try_from(format!("/openapi/jobs/{}", submitted.job_id));
    let status = if submitted.replayed {
        StatusCode::OK
    } else {
        StatusCode::ACCEPTED
    };
    let mut response = (status, Json(submitted)).into_response();
    if let Ok(location) = location {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
        .headers_mut()
        .insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    Ok(response)
}

/// The verdict on a job that was only checked.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Validated {
    /// Always true; what is not valid is answered with a problem.
    valid: bool,
    /// Its first firings if it were submitted now, at most five.
    #[schema(value_type = Vec<String>)]
    next: Vec<EpochMillis>,
    /// What may not be meant.
    warnings: Vec<Warning>,
}

/// Checks a job without storing it.
#[utoipa::path(
    post, path = "/openapi/validate", operation_id = "validateJob", tag = "jobs", security(("key" = ["submit"])),
    request_body = SubmitJob,
    responses((status = 200, body = Validated), crate::routes::Problems)
)]
pub(crate) async fn validate(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Submit>,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Json<Validated>, Problem> {
    let (key, now) = (key_of_header(&headers)?, state.store().now());
    let mut prepared = Prepared::read_at(&state, caller.app(), body.required()?, key, now)?;
    let accepted = prepared.row.created_at;
    let mut reader = state.store().reader().await?;
    match followers::beginning(&mut reader, &prepared.row, accepted).await? {
        None | Some(Beginning::Waits) => {}
        Some(Beginning::FiresAt(at)) => prepared.row.next_trigger_time = Some(at),
        Some(Beginning::NoSuchJob) => return Err(no_such_parent()),
        Some(Beginning::Never(reason)) => return Err(never_fires(&reason)),
    }
    drop(reader);
    Ok(Json(Validated {
        valid: true,
        next: first_firings(&prepared.row),
        warnings: prepared.warnings(&state).await,
    }))
}

fn first_firings(job: &JobRow) -> Vec<EpochMillis> {
    let window = isocost_common::job::Window {
        start_at: job.start_at,
        end_at: job.end_at,
    };
    let following = |last: &EpochMillis| job.trigger.next_firing(*last, window).ok().flatten();
    std::iter::successors(job.next_trigger_time, following)
        .take(5)
        .collect()
}

/// A client request id that came beside the body.
#[derive(Clone)]
pub(crate) enum KeyBeside {
    /// None did.
    Nothing,
    /// In the header `Idempotency-Key`: must equal the one in the body, if there are both.
    Header(String),
    /// The `message_id` of an AMQP message: stands in when the body has none. Empty for a message without one, which
    /// is refused then: nothing else would tell a redelivery from a second job.
    MessageId(String),
}

/// The key of the header, if it has one.
fn key_of_header(headers: &HeaderMap) -> Result<KeyBeside, Problem> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else {
        return Ok(KeyBeside::Nothing);
    };
    let key = std::str::from_utf8(value.as_bytes()).unwrap_or_default();
    let mut findings = Findings::default();
    if key.is_empty() || key.len() > crate::definition::MAX_KEY_BYTES {
        let what = "the header Idempotency-Key must have 1 to 255 bytes of UTF-8";
        findings.parameter("Idempotency-Key", "text.length", what);
    }
    findings.into_result(Some(KeyBeside::Header(key.to_owned())))
}

/// The trace that a request belongs to. One that is not valid counts as none, as the standard demands.
pub(super) fn trace_of(headers: &HeaderMap) -> Option<TraceParent> {
    headers.get(TRACEPARENT)?.to_str().ok()?.trim().parse().ok()
}

/// A valid job, ready to be stored.
pub(crate) struct Prepared {
    row: JobRow,
    warnings: Vec<Warning>,
}

impl Prepared {
    /// Reads and checks a body as of `now`.
    ///
    /// # Errors
    /// [`Problem`] with everything that is wrong.
    pub(super) fn read_at(
        state: &ApiState,
        app: AppId,
        body: &RawValue,
        beside: KeyBeside,
        now: EpochMillis,
    ) -> Result<Self, Problem> {
        let rules = Rules {
            now,
            revises: false,
            default_time_zone: &state.config().api.default_time_zone,
            max_params_bytes: state.config().api.max_params_bytes,
            egress: state.egress(),
        };
        let mut definition = Definition::read(body, rules)?;
        match (&definition.client_request_id, beside) {
            (Some(in_body), KeyBeside::Header(in_header)) if *in_body != in_header => {
                return Err(two_keys(&in_header));
            }
            (None, KeyBeside::Header(key)) => definition.client_request_id = Some(key),
            (None, KeyBeside::MessageId(id)) => definition.client_request_id = Some(key_of_message_id(&id)?),
            _ => {}
        }
        let content = content_hash(body, &["clientRequestId"]);
        let warnings = std::mem::take(&mut definition.warnings);
        let row = definition.into_row(app, content, now);
        Ok(Self { row, warnings })
    }

    /// The same as part of this trace.
    #[must_use]
    pub(crate) fn traced(mut self, parent: Option<TraceParent>) -> Self {
        self.row.traceparent = parent;
        self
    }

    async fn warnings(self, state: &ApiState) -> Vec<Warning> {
        let mut warnings = self.warnings;
        if let Some(known) = state.handlers().known(state.store()).await
            && let Some(message) = not_offered(&self.row.handler, &known)
        {
            warnings.push(Warning {
                code: "handler.not-offered",
                message,
            });
        }
        warnings
    }
}

/// The message id as a client request id, by the rules of the field.
fn key_of_message_id(id: &str) -> Result<String, Problem> {
    if id.is_empty() {
        return Err(Problem::new(
            Kind::InvalidRequest,
            "key.missing",
            "send a message_id or a clientRequestId: without one, a message that is delivered twice would make two jobs",
        ));
    }
    let mut findings = Findings::default();
    let key = serde_json::value::to_raw_value(id)
        .ok()
        .and_then(|raw| read_key(&Value::new(&raw, String::new(), "message_id"), &mut findings));
    findings.into_result(key)
}

fn two_keys(in_header: &str) -> Problem {
    let mut findings = Findings::default();
    // Checks the header's text by the rules of the field, so that only the difference is left to name.
    if let Ok(raw) = serde_json::value::to_raw_value(in_header) {
        let _ = read_key(
            &Value::new(&raw, "/clientRequestId".into(), "clientRequestId"),
            &mut findings,
        );
    }
    findings.push(FieldError {
        pointer: Some("/clientRequestId".into()),
        field: "clientRequestId".into(),
        code: Cow::Borrowed("key.two-values"),
        message:
            "clientRequestId and the header Idempotency-Key are different; send one of them, or both the same"
                .into(),
    });
    findings
        .into_result::<()>(None)
        .err()
        .unwrap_or_else(Problem::internal)
}

/// Stores jobs and turns each admission into its answer.
pub(crate) async fn store(
    state: &ApiState,
    prepared: Vec<Prepared>,
    arrival: Arrival,
) -> Result<Vec<Result<Submitted, Problem>>, Problem> {
    let rows = prepared.iter().map(|prepared| prepared.row.clone()).collect();
    let admissions = state
        .submitter()
        .submit(rows, arrival)
        .await
        .map_err(not_durable)?;
    nudge(state, &admissions);
    let mut answers = Vec::with_capacity(prepared.len());
    for (prepared, admission) in prepared.into_iter().zip(admissions) {
        answers.push(answer(state, prepared, admission).await);
    }
    Ok(answers)
}

fn nudge(state: &ApiState, admissions: &[Admission]) {
    let due = admissions.iter().filter_map(|admission| match admission {
        Admission::Accepted { next_trigger_time } => *next_trigger_time,
        _ => None,
    });
    if let Some(due) = due.min()
        && due <= state.store().now() + NUDGE_WITHIN
    {
        state.waker().wake(due);
    }
}

async fn answer(state: &ApiState, prepared: Prepared, admission: Admission) -> Result<Submitted, Problem> {
    match admission {
        Admission::Accepted { next_trigger_time } => {
            let traceparent = prepared.row.traceparent.as_ref().map(TraceParent::as_str);
            debug!(job.id = %prepared.row.id, traceparent, "a job was accepted");
            Ok(Submitted {
                job_id: prepared.row.id,
                status: JobStatus::Waiting,
                next_trigger_time,
                replayed: false,
                warnings: prepared.warnings(state).await,
            })
        }
        Admission::Replayed(holder) => Ok(Submitted {
            job_id: holder.id,
            status: current_status(state, prepared.row.app, &holder).await?,
            next_trigger_time: holder.next_trigger_time,
            replayed: true,
            warnings: prepared.warnings(state).await,
        }),
        Admission::KeyReused(holder) => Err(Problem::new(
            Kind::KeyReused,
            "key.reused",
            format!(
                "this clientRequestId belongs to job {} with other content; use a new key for a new job",
                holder.id
            ),
        )),
        Admission::JobDeleted(holder) => Err(Problem::conflict(
            "job.deleted",
            format!(
                "this clientRequestId belongs to job {}, which was deleted; use a new key for a new job",
                holder.id
            ),
        )),
        Admission::NoSuchParent => Err(no_such_parent()),
        Admission::NeverFires(reason) => Err(never_fires(&reason)),
        Admission::Failed(cause) => {
            error!(job.id = %prepared.row.id, error = %chain(&*cause), "a job could not be stored");
            Err(Problem::internal())
        }
    }
}

/// A job of the status waiting is shown as running while a worker owns one of its executions.
async fn current_status(state: &ApiState, app: AppId, holder: &KeyHolder) -> Result<JobStatus, StoreError> {
    if holder.status != JobStatus::Waiting {
        return Ok(holder.status);
    }
    let mut connection = state.store().reader().await?;
    let activity = listing::activity(&mut connection, app, &[holder.id], false).await?;
    let runs = activity
        .get(&holder.id)
        .is_some_and(|activity| activity.running > 0);
    Ok(if runs {
        JobStatus::Running
    } else {
        JobStatus::Waiting
    })
}

fn no_such_parent() -> Problem {
    Problem::invalid(vec![FieldError {
        pointer: Some("/trigger/jobId".into()),
        field: "jobId".into(),
        code: Cow::Borrowed("trigger.no-such-job"),
        message: "jobId must be the id of a job of this app".into(),
    }])
}

fn never_fires(reason: &str) -> Problem {
    Problem::invalid(vec![FieldError {
        pointer: Some("/trigger/jobId".into()),
        field: "jobId".into(),
        code: Cow::Borrowed("trigger.never-fires"),
        message: format!("the job would never fire: {reason}"),
    }])
}

fn not_durable(error: SubmitError) -> Problem {
    match error {
        SubmitError::Busy => busy("submissions"),
        SubmitError::Store(cause) if cause.is_transient() => Problem::new(
            Kind::Unavailable,
            "database.unavailable",
            "the job could not be made durable just now; send it again with the same key",
        )
        .retry_after(1),
        SubmitError::Store(cause) => {
            error!(error = %chain(&*cause), "submissions could not be stored");
            Problem::internal()
        }
    }
}
