//! `isocost job wait`.

use super::{path, print::Output};
use crate::client::Client;
use crate::exit::{Failure, Reason};
use anyhow::{Context, anyhow};
use clap::Args;
use isocost_common::id::JobId;
use serde::Deserialize;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A job that ends soon is seen soon; one that takes long is asked about once a second.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Which job, and how long.
#[derive(Debug, Args)]
pub(super) struct WaitArgs {
    /// The job
    job: JobId,
    /// How long at most, such as 90s, 10m or 500ms [default: as long as it takes]
    #[arg(long, value_parser = parse_duration)]
    timeout: Option<Duration>,
}

/// The part of a job that says whether it has ended.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Job {
    status: String,
    last_execution: Option<LastExecution>,
    invalid_reason: Option<String>,
}

#[derive(Deserialize)]
struct LastExecution {
    error: Option<ExecutionError>,
}

#[derive(Deserialize)]
struct ExecutionError {
    message: String,
}

/// How a job stands, for somebody who waits for its end.
#[derive(Debug, PartialEq, Eq)]
enum Standing {
    Open,
    Succeeded,
    Unsuccessful,
}

pub(super) async fn run(client: &Client, output: Output, args: &WaitArgs) -> Result<(), Failure> {
    let path = path(args.job, "");
    let deadline = args.timeout.map(|timeout| Instant::now() + timeout);
    let mut pause = FIRST_PAUSE;
    loop {
        let text = client.get(&path, &[]).await?;
        let job: Job = serde_json::from_str(&text).context("reading the server's answer")?;
        match standing(&job.status) {
            Standing::Open if deadline.is_some_and(|deadline| Instant::now() + pause > deadline) => {
                let error = anyhow!("job {} is still {}: the time ran out", args.job, job.status);
                return Err(Failure::new(Reason::TimedOut, error));
            }
            Standing::Open => {
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Standing::Succeeded => return output.object(&text),
            Standing::Unsuccessful => {
                output.object(&text)?;
                return Err(unsuccessful(args.job, job));
            }
        }
    }
}

/// A status of the future counts as open: a wait goes on rather than end with a wrong answer.
fn standing(status: &str) -> Standing {
    match status {
        "SUCCESS" | "COMPLETED" => Standing::Succeeded,
        "FAILED" | "CANCELLED" | "INVALID" => Standing::Unsuccessful,
        _ => Standing::Open,
    }
}

fn unsuccessful(id: JobId, job: Job) -> Failure {
    let execution_error = job.last_execution.and_then(|execution| execution.error);
    let reason = job.invalid_reason.or(execution_error.map(|error| error.message));
    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    Failure::new(
        Reason::Failed,
        anyhow!("job {id} ended as {}{reason}", job.status),
    )
}

/// A whole number and one of the units ms, s, m, h.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_ms = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err("give a number and a unit: 500ms, 90s, 10m, 2h".to_owned()),
    };
    let count: u64 = digits
        .parse()
        .map_err(|_| format!("`{digits}` is not a whole number"))?;
    count
        .checked_mul(unit_ms)
        .map(Duration::from_millis)
        .ok_or_else(|| format!("{text} is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("2h"), Ok(Duration::from_secs(7_200)));
        for bad in ["", "90", "s", "-1s", "1.5s", "99999999999999999h", "5 s", "5é"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_wait_ends_only_with_the_job() {
        assert_eq!(standing("SUCCESS"), Standing::Succeeded);
        assert_eq!(standing("CANCELLED"), Standing::Unsuccessful);
        for open in ["WAITING", "RUNNING", "PAUSED", "A_STATUS_OF_THE_FUTURE"] {
            assert_eq!(standing(open), Standing::Open, "{open}");
        }
    }
}
