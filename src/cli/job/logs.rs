//! `isocost job logs`.

use super::path;
use super::print::{Output, visible};
use crate::exit::{Failure, Reason};
use crate::{client::Client, out};
use anyhow::{Context, anyhow};
use clap::Args;
use isocost_common::id::{ExecutionId, JobId};
use serde::Deserialize;
use std::time::Duration;
use tokio::time::sleep;

/// How often new lines are asked for.
const FOLLOW_PAUSE: Duration = Duration::from_millis(500);

/// Of which execution, and for how long.
#[derive(Debug, Args)]
pub(super) struct LogsArgs {
    /// The job
    job: JobId,
    /// One of its executions, instead of the newest
    #[arg(long, value_name = "ID")]
    execution: Option<ExecutionId>,
    /// Go on until the execution has ended
    #[arg(long, short)]
    follow: bool,
}

#[derive(Deserialize)]
struct Page<T> {
    items: Vec<T>,
}

#[derive(Deserialize)]
struct Line {
    seq: i64,
    attempt: u32,
    at: String,
    level: String,
    message: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Execution {
    execution_id: ExecutionId,
    finished_at: Option<String>,
}

pub(super) async fn run(client: &Client, output: Output, args: &LogsArgs) -> Result<(), Failure> {
    let execution = match args.execution {
        Some(execution) => execution,
        None => newest(client, args.job).await?,
    };
    let mut after = 0;
    loop {
        // Asked before the lines: what an ended execution has logged is all there is.
        let has_ended = !args.follow || has_ended(client, execution).await?;
        after = print_new(client, output, execution, after).await?;
        if has_ended {
            return Ok(());
        }
        sleep(FOLLOW_PAUSE).await;
    }
}

async fn newest(client: &Client, job: JobId) -> Result<ExecutionId, Failure> {
    let query = [("pageSize", "1".to_owned())];
    let text = client.get(&path(job, "/executions"), &query).await?;
    let page: Page<Execution> = read(&text)?;
    let newest = page.items.first().map(|execution| execution.execution_id);
    newest.ok_or_else(|| Failure::new(Reason::Failed, anyhow!("job {job} has not run yet")))
}

async fn has_ended(client: &Client, execution: ExecutionId) -> Result<bool, Failure> {
    let text = client
        .get(&format!("openapi/executions/{execution}"), &[])
        .await?;
    let execution: Execution = read(&text)?;
    Ok(execution.finished_at.is_some())
}

/// Prints the lines after this one, page by page, and returns the last.
async fn print_new(
    client: &Client,
    output: Output,
    execution: ExecutionId,
    mut after: i64,
) -> Result<i64, Failure> {
    let path = format!("openapi/executions/{execution}/logs");
    loop {
        let text = client.get(&path, &[("after", after.to_string())]).await?;
        let Page { items: lines } = read::<Page<Line>>(&text)?;
        let Some(last) = lines.last() else {
            return Ok(after);
        };
        after = last.seq;
        if output.json {
            out::line(text)?;
            continue;
        }
        for line in &lines {
            let message = visible(&line.message);
            out::line(format_args!(
                "{} {:5} [{}] {message}",
                line.at, line.level, line.attempt
            ))?;
        }
    }
}

fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Failure> {
    Ok(serde_json::from_str(text).context("reading the server's answer")?)
}
