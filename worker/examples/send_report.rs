//! A handler of one's own: typed params, log lines, progress, a result.
//!
//! `cargo run -p isocost-worker --example send_report`

mod in_process;

use isocost_common::id::ExecutionId;
use isocost_worker::{Cancellation, JobContext, JobError};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Deserialize)]
struct Report {
    title: String,
    recipients: Vec<String>,
}

async fn send_report(job: JobContext) -> Result<Value, JobError> {
    let report: Report = job.params()?; // typed; a bad shape fails the job without a retry
    job.log(format!("sending {:?}", report.title)).await;
    job.progress(40, "rendered").await;
    let sent = send(&report, job.execution_id(), job.cancelled()).await?;
    Ok(json!({"sent": sent}))
}

/// Stands for a mail service. The execution's id is the same in every attempt, so the service can tell a repetition.
async fn send(report: &Report, _key: ExecutionId, stop: Cancellation) -> Result<usize, std::io::Error> {
    for _recipient in &report.recipients {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
            () = stop.requested() => return Err(std::io::ErrorKind::Interrupted.into()),
        }
    }
    Ok(report.recipients.len())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let params = json!({"title": "November", "recipients": ["a@example.com", "b@example.com"]});
    in_process::run(
        |worker| {
            worker
                .handler("send-report", send_report)
                .concurrency("send-report", 8)
        },
        "send-report",
        params,
        1,
    )
    .await
}
