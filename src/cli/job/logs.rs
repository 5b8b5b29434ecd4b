//! `isocost job logs`.

use super::print::Output;
use super::{goes_on, path};
use crate::client::Client;
use crate::exit::{Failure, Reason};
use crate::out::{self, visible};
use crate::signals::unless_interrupted;
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
struct Executions {
    items: Vec<Execution>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Execution {
    execution_id: ExecutionId,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Lines {
    items: Vec<Line>,
    next_after: i64,
    ended: bool,
}

#[derive(Deserialize)]
struct Line {
    attempt: u32,
    at: String,
    level: String,
    message: String,
}

pub(super) async fn run(client: &Client, output: Output, args: &LogsArgs) -> Result<(), Failure> {
    let execution = match args.execution {
        Some(execution) => execution,
        None => newest(client, args.job).await?,
    };
    if args.follow {
        unless_interrupted(read_on(client, output, execution, true), || goes_on(args.job)).await
    } else {
        read_on(client, output, execution, false).await
    }
}

async fn read_on(
    client: &Client,
    output: Output,
    execution: ExecutionId,
    follow: bool,
) -> Result<(), Failure> {
    let path = format!("openapi/executions/{execution}/logs");
    let mut after = 0;
    loop {
        let text = client.get(&path, &[("after", after.to_string())]).await?;
        let lines: Lines = read(&text)?;
        if output.json && !lines.items.is_empty() {
            out::line(&text)?;
        } else {
            print(&lines.items)?;
        }
        after = lines.next_after;
        if lines.ended || (lines.items.is_empty() && !follow) {
            return Ok(());
        }
        if lines.items.is_empty() {
            sleep(FOLLOW_PAUSE).await;
        }
    }
}

async fn newest(client: &Client, job: JobId) -> Result<ExecutionId, Failure> {
    let query = [("pageSize", "1".to_owned())];
    let executions: Executions = read(&client.get(&path(job, "/executions"), &query).await?)?;
    let newest = executions.items.first().map(|execution| execution.execution_id);
    newest.ok_or_else(|| Failure::new(Reason::Failed, anyhow!("job {job} has not run yet")))
}

fn print(lines: &[Line]) -> Result<(), Failure> {
    for line in lines {
        let message = visible(&line.message);
        out::line(format_args!(
            "{} {:5} [{}] {message}",
            line.at, line.level, line.attempt
        ))?;
    }
    Ok(())
}

fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Failure> {
    Ok(serde_json::from_str(text).context("reading the server's answer")?)
}
