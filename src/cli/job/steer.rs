//! `isocost job pause`, `resume`, `cancel`.

use super::{path, print::Output};
use crate::client::Client;
use crate::exit::Failure;
use anyhow::Context;
use isocost_common::id::JobId;
use serde::Deserialize;

#[derive(Debug, Clone, Copy)]
pub(super) enum Steer {
    Pause,
    Resume,
    Cancel,
}

/// The part of a job that says what has become of it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Job {
    job_id: JobId,
    status: String,
    running_executions: u64,
    next_trigger_time: Option<String>,
    trigger: Trigger,
}

#[derive(Deserialize)]
struct Trigger {
    #[serde(rename = "type")]
    kind: String,
}

pub(super) async fn run(client: &Client, output: Output, id: JobId, steer: Steer) -> Result<(), Failure> {
    let action = match steer {
        Steer::Pause => "/pause",
        Steer::Resume => "/resume",
        Steer::Cancel => "/cancel",
    };
    let text = client.post(&path(id, action), "{}".to_owned()).await?;
    let job: Job = serde_json::from_str(&text).context("reading the server's answer")?;
    output.words(&text, &job.told(steer))
}

impl Job {
    fn told(&self, steer: Steer) -> String {
        let id = self.job_id;
        match steer {
            Steer::Pause => format!(
                "job {id} is paused: it fires no more until `isocost job resume {id}`; what has fired goes on{}",
                self.running()
            ),
            Steer::Resume => format!("job {id} is no longer paused{}", self.next()),
            Steer::Cancel if self.running_executions == 0 => {
                format!(
                    "job {id} is {}: it fires no more, and nothing of it runs",
                    self.word()
                )
            }
            Steer::Cancel if self.status == "CANCELLED" => format!(
                "job {id} is cancelled: it fires no more; what still runs was told to stop{}",
                self.running()
            ),
            Steer::Cancel => format!(
                "job {id} is being cancelled: what runs was told to stop{}; `isocost job wait {id}` waits until it has",
                self.running()
            ),
        }
    }

    fn word(&self) -> String {
        self.status.to_lowercase()
    }

    fn running(&self) -> String {
        match self.running_executions {
            0 => String::new(),
            1 => " (1 execution)".to_owned(),
            many => format!(" ({many} executions)"),
        }
    }

    fn next(&self) -> String {
        match (&self.next_trigger_time, self.trigger.kind.as_str()) {
            (Some(next), _) => format!(": it fires next at {next}"),
            (None, "manual") => ": it fires when it is asked to".to_owned(),
            (None, "after") => ": it fires when the job that it follows has ended".to_owned(),
            (None, _) => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(steer: Steer, status: &str, running: u64, trigger: &str, next: Option<&str>) -> String {
        let job_id = "01939c5e-7e2a-7000-8000-000000000000".parse().expect("an id");
        let job = Job {
            job_id,
            status: status.to_owned(),
            running_executions: running,
            next_trigger_time: next.map(str::to_owned),
            trigger: Trigger {
                kind: trigger.to_owned(),
            },
        };
        job.told(steer).replace(&job_id.to_string(), "X")
    }

    #[test]
    fn steering_says_what_happened() {
        let paused = told(Steer::Pause, "PAUSED", 2, "cron", None);
        assert_eq!(
            paused,
            "job X is paused: it fires no more until `isocost job resume X`; what has fired goes on (2 executions)"
        );
        let resumed = told(Steer::Resume, "WAITING", 0, "cron", Some("T"));
        assert_eq!(resumed, "job X is no longer paused: it fires next at T");
        let resumed = told(Steer::Resume, "WAITING", 0, "manual", None);
        assert_eq!(resumed, "job X is no longer paused: it fires when it is asked to");
        let cancelled = told(Steer::Cancel, "CANCELLED", 0, "once", None);
        assert_eq!(
            cancelled,
            "job X is cancelled: it fires no more, and nothing of it runs"
        );
        let recurring = told(Steer::Cancel, "CANCELLED", 1, "cron", None);
        assert_eq!(
            recurring,
            "job X is cancelled: it fires no more; what still runs was told to stop (1 execution)"
        );
    }

    #[test]
    fn a_cancel_that_a_worker_has_to_follow_is_not_called_done() {
        let stopping = told(Steer::Cancel, "RUNNING", 1, "once", None);
        assert_eq!(
            stopping,
            "job X is being cancelled: what runs was told to stop (1 execution); `isocost job wait X` waits until it has"
        );
    }
}
