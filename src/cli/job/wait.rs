//! `isocost job wait`.

use super::print::Output;
use super::{goes_on, path};
use crate::client::Client;
use crate::exit::{Failure, Reason};
use crate::signals::unless_interrupted;
use anyhow::{Context, anyhow};
use clap::Args;
use isocost_common::id::{ExecutionId, JobId};
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
    /// One of its executions, such as `job trigger` made
    #[arg(long, value_name = "ID")]
    execution: Option<ExecutionId>,
    /// How long at most, such as 90s, 10m or 500ms [default: as long as it takes]
    #[arg(long, value_parser = parse_duration)]
    timeout: Option<Duration>,
}

/// The part of a job that says whether it has ended.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Job {
    status: String,
    trigger: Trigger,
    next_trigger_time: Option<String>,
    last_execution: Option<Execution>,
    invalid_reason: Option<String>,
}

#[derive(Deserialize)]
struct Trigger {
    #[serde(rename = "type")]
    kind: String,
}

/// The same part of an execution.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Execution {
    execution_id: ExecutionId,
    status: String,
    error: Option<ExecutionError>,
}

#[derive(Deserialize)]
struct ExecutionError {
    message: String,
}

/// How something stands, for somebody who waits for its end.
#[derive(Debug, PartialEq, Eq)]
enum Standing {
    Open,
    Succeeded,
    Unsuccessful,
}

pub(super) async fn run(client: &Client, output: Output, args: &WaitArgs) -> Result<(), Failure> {
    let pace = Pace {
        pause: FIRST_PAUSE,
        deadline: args.timeout.map(|timeout| Instant::now() + timeout),
    };
    let waiting = async {
        match args.execution {
            Some(execution) => execution_ends(client, output, execution, pace).await,
            None => job_ends(client, output, args.job, pace).await,
        }
    };
    unless_interrupted(waiting, || goes_on(args.job)).await
}

/// Waits for a one-shot; of a job that fires more than once for one execution, since it may never end.
async fn job_ends(client: &Client, output: Output, id: JobId, mut pace: Pace) -> Result<(), Failure> {
    let mut round = None;
    loop {
        let text = client.get(&path(id, ""), &[]).await?;
        let job: Job = serde_json::from_str(&text).context("reading the server's answer")?;
        if job.repeats() {
            let round = round.get_or_insert_with(|| Round::begun(id, &job));
            if let Some(execution) = round.execution(&job) {
                return execution_ends(client, output, execution, pace).await;
            }
        }
        match standing(&job.status) {
            Standing::Open => pace.rest(|| format!("job {id} is still {}", job.status)).await?,
            Standing::Succeeded => return output.object(&text),
            Standing::Unsuccessful => {
                output.object(&text)?;
                return Err(job.unsuccessful(id));
            }
        }
    }
}

async fn execution_ends(
    client: &Client,
    output: Output,
    id: ExecutionId,
    mut pace: Pace,
) -> Result<(), Failure> {
    let path = format!("openapi/executions/{id}");
    loop {
        let text = client.get(&path, &[]).await?;
        let execution: Execution = serde_json::from_str(&text).context("reading the server's answer")?;
        match standing(&execution.status) {
            Standing::Open => {
                pace.rest(|| format!("execution {id} is still {}", execution.status))
                    .await?;
            }
            Standing::Succeeded => return output.object_without(&text, &["steps"]),
            Standing::Unsuccessful => {
                output.object_without(&text, &["steps"])?;
                return Err(execution.unsuccessful());
            }
        }
    }
}

/// When to look again.
struct Pace {
    pause: Duration,
    deadline: Option<Instant>,
}

impl Pace {
    /// # Errors
    /// [`Reason::TimedOut`] with what `still` says.
    async fn rest(&mut self, still: impl FnOnce() -> String) -> Result<(), Failure> {
        if self
            .deadline
            .is_some_and(|deadline| Instant::now() + self.pause > deadline)
        {
            let error = anyhow!("{}: the time ran out", still());
            return Err(Failure::new(Reason::TimedOut, error));
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}

/// Which execution of a job that repeats is waited for: the one that was open at first, or the first one seen after.
struct Round {
    /// The newest one at the beginning, which had ended.
    passed: Option<ExecutionId>,
}

impl Round {
    fn begun(id: JobId, job: &Job) -> Self {
        let passed = job.last_execution.as_ref().filter(|last| !last.is_open());
        let open = job.last_execution.as_ref().is_some_and(Execution::is_open);
        if standing(&job.status) == Standing::Open && !open {
            let when = job.next_trigger_time.as_deref();
            let when = when.map_or_else(String::new, |when| format!(", planned for {when}"));
            eprintln!("job {id} fires more than once: waiting for its next execution{when}");
        }
        Self {
            passed: passed.map(|last| last.execution_id),
        }
    }

    fn execution(&self, job: &Job) -> Option<ExecutionId> {
        let newest = job.last_execution.as_ref()?.execution_id;
        (Some(newest) != self.passed).then_some(newest)
    }
}

/// A status of the future counts as open: a wait goes on rather than end with a wrong answer.
fn standing(status: &str) -> Standing {
    match status {
        "SUCCESS" | "COMPLETED" | "SUCCEEDED" => Standing::Succeeded,
        "FAILED" | "CANCELLED" | "INVALID" | "TIMED_OUT" | "LOST" | "EXPIRED" | "SKIPPED" => {
            Standing::Unsuccessful
        }
        _ => Standing::Open,
    }
}

impl Job {
    fn repeats(&self) -> bool {
        self.trigger.kind != "once"
    }

    fn unsuccessful(self, id: JobId) -> Failure {
        let execution_error = self.last_execution.and_then(|execution| execution.error);
        let reason = self.invalid_reason.or(execution_error.map(|error| error.message));
        ended(&format!("job {id}"), &self.status, reason)
    }
}

impl Execution {
    fn is_open(&self) -> bool {
        standing(&self.status) == Standing::Open
    }

    fn unsuccessful(self) -> Failure {
        let what = format!("execution {}", self.execution_id);
        ended(&what, &self.status, self.error.map(|error| error.message))
    }
}

fn ended(what: &str, status: &str, reason: Option<String>) -> Failure {
    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    Failure::new(Reason::Failed, anyhow!("{what} ended as {status}{reason}"))
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
        assert_eq!(standing("LOST"), Standing::Unsuccessful);
        for open in [
            "WAITING",
            "RUNNING",
            "PAUSED",
            "PENDING",
            "A_STATUS_OF_THE_FUTURE",
        ] {
            assert_eq!(standing(open), Standing::Open, "{open}");
        }
    }

    const EARLIER: &str = "01939c5e-7e2a-7000-8000-000000000001";
    const LATER: &str = "01939c5e-7e2a-7000-8000-000000000002";

    fn cron_job(last: &str, status: &str) -> Job {
        let last = format!(r#"{{"executionId": "{last}", "status": "{status}"}}"#);
        let text =
            format!(r#"{{"status": "WAITING", "trigger": {{"type": "cron"}}, "lastExecution": {last}}}"#);
        serde_json::from_str(&text).expect("a job")
    }

    fn waited_for(first: &Job, now: &Job) -> Option<String> {
        let id = "01939c5e-7e2a-7000-8000-000000000000".parse().expect("an id");
        let execution = Round::begun(id, first).execution(now);
        execution.map(|execution| execution.to_string())
    }

    #[test]
    fn of_a_job_that_repeats_the_open_execution_is_waited_for() {
        let first = cron_job(EARLIER, "RUNNING");
        assert_eq!(waited_for(&first, &first).as_deref(), Some(EARLIER));
    }

    #[test]
    fn of_a_job_that_repeats_an_execution_that_had_ended_is_not_waited_for() {
        let first = cron_job(EARLIER, "SUCCEEDED");
        assert_eq!(waited_for(&first, &first), None);
        let later = cron_job(LATER, "SUCCEEDED");
        assert_eq!(waited_for(&first, &later).as_deref(), Some(LATER));
    }
}
