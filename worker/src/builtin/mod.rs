//! Handlers that every worker of the `isocost` program offers.

mod command;
mod http;

use crate::{JobContext, JobError, handler::Handler};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Most text kept of what a called service or program answers, in bytes.
const TEXT_LIMIT: usize = 16 * 1024;

/// All of them by name; `command` only when there are programs it may start.
pub(crate) fn all(commands: &[String]) -> Vec<(String, Handler)> {
    let mut handlers = vec![
        ("noop".to_owned(), Handler::new(noop)),
        ("echo".to_owned(), Handler::new(echo)),
        ("sleep".to_owned(), Handler::new(sleep)),
        ("fail".to_owned(), Handler::new(fail)),
        ("http".to_owned(), http::handler()),
    ];
    if !commands.is_empty() {
        handlers.push(("command".to_owned(), command::handler(commands)));
    }
    handlers
}

/// Does nothing; the result is `null`.
async fn noop(_job: JobContext) -> Result<(), JobError> {
    Ok(())
}

/// The result is the params, byte for byte.
async fn echo(job: JobContext) -> Result<isocost_common::raw_json::RawJson, JobError> {
    Ok(job.raw_params().clone())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SleepParams {
    ms: u64,
    /// Whether it ends at once when it is told to stop.
    #[serde(default = "yes")]
    cancellable: bool,
}

const fn yes() -> bool {
    true
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Slept {
    slept_ms: u64,
}

async fn sleep(job: JobContext) -> Result<Slept, JobError> {
    let params: SleepParams = job.params()?;
    let nap = tokio::time::sleep(Duration::from_millis(params.ms));
    if params.cancellable {
        let cancelled = job.cancelled();
        tokio::select! {
            () = nap => {}
            () = cancelled.requested() => return Err(JobError::retry("woken by a cancellation")),
        }
    } else {
        nap.await;
    }
    Ok(Slept { slept_ms: params.ms })
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FailParams {
    /// Attempts that fail; without it every attempt does.
    times: Option<u32>,
    #[serde(default)]
    fatal: bool,
    message: Option<String>,
}

#[derive(Serialize)]
struct Recovered {
    attempt: u32,
}

/// Fails in its first `times` attempts, then succeeds.
async fn fail(job: JobContext) -> Result<Recovered, JobError> {
    // A job without params has `null`.
    let params = job.params::<Option<FailParams>>()?.unwrap_or_default();
    let attempt = job.attempt();
    if params.times.is_some_and(|times| attempt > times) {
        return Ok(Recovered { attempt });
    }
    let message = params
        .message
        .unwrap_or_else(|| format!("attempt {attempt} fails as asked"));
    Err(if params.fatal {
        JobError::fatal(message)
    } else {
        JobError::retry(message)
    })
}
