use super::submit::{KeyBeside, Prepared, Submitted, store, trace_of};
use crate::{
    access::{Authorized, Submit, busy, over_quota},
    input::{Findings, JsonBody, Limit, Object, Value},
    problem::{Problem, ProblemBody},
    schema::SubmitBatch,
    state::ApiState,
};
use axum::{
    Json,
    extract::{Request, State},
};
use isocost_common::store::apps::App;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// Most jobs in one batch.
const MAX_ITEMS: usize = 1_000;

/// What became of each job of a batch.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BatchAnswer {
    /// In the order of the request.
    results: Vec<BatchResult>,
    /// How many jobs are durable now, replays included.
    accepted: usize,
    /// How many were refused.
    rejected: usize,
}

/// What became of one job of a batch: `job` or `problem`.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BatchResult {
    /// Its place in the request, from 0.
    index: usize,
    /// The status that it would have been answered alone.
    status: u16,
    /// The answer to an accepted one.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<Submitted>,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<ProblemBody>,
}

/// Submits up to 1,000 jobs, each judged alone; equal keys inside make one job.
#[utoipa::path(
    post, path = "/openapi/jobs/batch", operation_id = "submitJobs", tag = "jobs", security(("key" = ["submit"])),
    request_body = SubmitBatch,
    responses((status = 200, body = BatchAnswer), crate::routes::SubmitProblems)
)]
pub(crate) async fn submit_batch(
    State(state): State<ApiState>,
    Authorized { caller, .. }: Authorized<Submit>,
    request: Request,
) -> Result<Json<BatchAnswer>, Problem> {
    let (parts, body) = request.into_parts();
    let body = JsonBody::read(&parts.headers, body, Limit::Batch, &state).await?;
    let turn = state.admission().turn().await?;
    if !state.submitter().has_room() {
        return Err(busy("submissions"));
    }
    let items = items(body.required()?)?;
    let trace = trace_of(&parts.headers);
    let arrival = state.submitter().announce();
    let mut verdicts = Vec::with_capacity(items.len());
    let mut valid = Vec::new();
    for item in items {
        match Prepared::read(&state, caller.app(), item, KeyBeside::Nothing).await {
            Ok(prepared) => {
                valid.push(prepared.traced(trace.clone()));
                verdicts.push(None);
            }
            Err(problem) => verdicts.push(Some(problem)),
        }
    }
    drop(turn);
    let granted = state
        .quotas()
        .take(state.store(), caller.app_row(), valid.len())
        .await?;
    refuse_surplus(&mut verdicts, granted, caller.app_row());
    valid.truncate(granted);
    let stored = if valid.is_empty() {
        Vec::new()
    } else {
        store(&state, valid, arrival).await?
    };
    Ok(Json(answer(verdicts, stored)))
}

/// Refuses the valid jobs behind the first `granted`, which the quota has no room for.
fn refuse_surplus(verdicts: &mut [Option<Problem>], granted: usize, app: &App) {
    for verdict in verdicts
        .iter_mut()
        .filter(|verdict| verdict.is_none())
        .skip(granted)
    {
        *verdict = Some(over_quota(app));
    }
}

/// The jobs of the body, in either form.
fn items(body: &RawValue) -> Result<Vec<&RawValue>, Problem> {
    let mut findings = Findings::default();
    let list = if body.get().starts_with('[') {
        Some(Value::root(body))
    } else {
        Object::of_body(body, &mut findings).and_then(|mut object| {
            let jobs = object.require("jobs", &mut findings);
            object.close(&mut findings);
            jobs
        })
    };
    let items = list.and_then(|list| {
        let items = list.items(MAX_ITEMS, &mut findings)?;
        if items.is_empty() {
            findings.push(list.error("array.empty", "must have at least one item"));
        }
        Some(items)
    });
    let items = findings.into_result(items)?;
    Ok(items.into_iter().map(|item| item.raw()).collect())
}

/// Puts the jobs that were stored back between those that were refused.
fn answer(verdicts: Vec<Option<Problem>>, stored: Vec<Result<Submitted, Problem>>) -> BatchAnswer {
    let mut stored = stored.into_iter();
    let results: Vec<BatchResult> = verdicts
        .into_iter()
        .enumerate()
        .map(|(index, refused)| {
            let outcome = match refused {
                Some(problem) => Err(problem),
                None => stored.next().unwrap_or_else(|| Err(Problem::internal())),
            };
            match outcome {
                Ok(job) => BatchResult {
                    index,
                    status: if job.replayed { 200 } else { 202 },
                    job: Some(job),
                    problem: None,
                },
                Err(problem) => BatchResult {
                    index,
                    status: problem.status().as_u16(),
                    job: None,
                    problem: Some(problem.body("", "")),
                },
            }
        })
        .collect();
    let accepted = results.iter().filter(|result| result.job.is_some()).count();
    BatchAnswer {
        accepted,
        rejected: results.len() - accepted,
        results,
    }
}
