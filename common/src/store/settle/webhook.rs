//! The callback row of an ended execution, and its outcome for the exchange: the body is built here, once, and sent byte
//! for byte.

use super::{Ended, EndedJob};
use crate::{
    crash_point::{CrashPoint, reach},
    execution::ExecutionError,
    id::{DeliveryId, ExecutionId, JobId, WorkerId},
    message::CallbackTicket,
    raw_json::RawJson,
    store::{
        StoreError, Tx,
        callbacks::{self, NewDelivery},
        executions::ExecutionRow,
        outcomes::{self, Outcome},
        transitions::Applied,
    },
    time::EpochMillis,
};
use serde::Serialize;
use std::collections::HashMap;

#[derive(Serialize)]
struct Body<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    timestamp: EpochMillis,
    data: Data<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Data<'a> {
    job_id: JobId,
    execution_id: ExecutionId,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_request_id: Option<&'a str>,
    job_name: &'a str,
    job_handler: &'a str,
    status: &'a str,
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    shard: Option<u32>,
    scheduled_time: EpochMillis,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<EpochMillis>,
    finished_at: EpochMillis,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_id: Option<&'a WorkerId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a ExecutionError>,
}

/// Writes a delivery for every ended execution whose job asks for one, and the outcome of each where outcomes are
/// published.
pub(super) async fn queue(
    tx: &mut Tx,
    ended: &[Ended],
    jobs: &HashMap<JobId, EndedJob>,
    applied: &mut Applied,
) -> Result<(), StoreError> {
    let (mut deliveries, mut reported) = (Vec::new(), Vec::new());
    for Ended { row, .. } in ended {
        let Some(job) = jobs.get(&row.job) else { continue };
        let created_at = row.finished_at.unwrap_or(row.created_at);
        if tx.records_outcomes() {
            reported.push(Outcome {
                execution: row.id,
                app: job.app,
                handler: row.handler.clone(),
                status: row.status,
                body: body(row, job, row.status.outcome_type(), created_at)?,
                traceparent: job.traceparent.clone(),
                created_at,
            });
        }
        let (Some(url), Some(kind)) = (&job.callback_url, row.status.webhook_type()) else {
            continue;
        };
        deliveries.push(NewDelivery {
            id: DeliveryId::generate(),
            app: job.app,
            job: row.job,
            execution: row.id,
            url: url.clone(),
            event_type: kind,
            body: body(row, job, kind, created_at)?.as_str().to_owned(),
            traceparent: job.traceparent.clone(),
            created_at,
        });
    }
    callbacks::insert_many(tx, &deliveries).await?;
    outcomes::insert(tx, &reported).await?;
    reach(CrashPoint::SettleWritten);
    applied
        .callbacks
        .extend(deliveries.iter().map(|delivery| CallbackTicket {
            delivery: delivery.id,
            attempt: 1,
        }));
    Ok(())
}

fn body(
    row: &ExecutionRow,
    job: &EndedJob,
    kind: &str,
    finished_at: EpochMillis,
) -> Result<RawJson, StoreError> {
    let body = Body {
        kind,
        timestamp: finished_at,
        data: Data {
            job_id: row.job,
            execution_id: row.id,
            client_request_id: job.client_request_id.as_deref(),
            job_name: &job.name,
            job_handler: &row.handler,
            status: row.status.api_name(),
            attempt: row.attempt,
            shard: (job.shards > 1).then_some(row.shard),
            scheduled_time: row.scheduled_time,
            started_at: row.started_at,
            finished_at,
            worker_id: row.worker.as_ref(),
            result: row.result.as_ref(),
            error: row.error.as_ref(),
        },
    };
    RawJson::from_value(&body).map_err(|error| StoreError::Corrupt(error.to_string()))
}
