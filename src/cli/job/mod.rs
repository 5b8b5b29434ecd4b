//! `isocost job …`: a client of the REST API.

mod key;
mod logs;
mod print;
mod steer;
mod submit;
mod wait;

use crate::client::Client;
use crate::exit::{EXIT_CODES, Failure};
use anyhow::Context;
use clap::{Args, Subcommand};
use isocost_common::id::JobId;
use print::Output;
use reqwest::Url;
use serde::Serialize;
use serde_json::value::RawValue;
use steer::Steer;

/// Which server, and what to do there.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct JobArgs {
    /// The server's address
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "ISOCOST_SERVER",
        default_value = "http://127.0.0.1:8080"
    )]
    server: Url,
    /// The API key [default for a server on this machine: what is in ./isocost-data/admin.key]
    #[arg(long, global = true, env = "ISOCOST_KEY", hide_env_values = true)]
    key: Option<String>,
    /// Print the server's answer as it is
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Submit a job, given by flags or as JSON
    Submit(submit::SubmitArgs),
    /// Show a job
    Get {
        /// The job
        job: JobId,
    },
    /// List jobs, newest first
    List(ListArgs),
    /// Cancel a job; what runs is told to stop
    Cancel {
        /// The job
        job: JobId,
    },
    /// Let a job fire no more until it is resumed; what has fired goes on
    Pause {
        /// The job
        job: JobId,
    },
    /// Let a paused job fire again
    Resume {
        /// The job
        job: JobId,
    },
    /// Run a job now, besides its schedule
    Trigger(TriggerArgs),
    /// Print what the handler logged in the newest execution of a job
    Logs(logs::LogsArgs),
    /// Wait until a job has ended, and tell by the exit code how
    ///
    /// A one-shot has ended when it has its final status. Of a job that fires more than once (cron, fixedRate, fixedDelay,
    /// manual, after), this waits for the execution that is open now, or else for the next one; or until the job itself is
    /// over. To wait for a run by hand, give --execution the id that `job trigger` printed.
    Wait(wait::WaitArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Only jobs in this status, such as WAITING or FAILED
    #[arg(long)]
    status: Option<String>,
    /// Only jobs of this handler
    #[arg(long)]
    handler: Option<String>,
    /// Only jobs whose name contains this
    #[arg(long)]
    name: Option<String>,
    /// Only jobs with this label
    #[arg(long, value_name = "KEY:VALUE")]
    label: Option<String>,
    /// How many at most, 1 to 500
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
    page_size: u16,
    /// Where the page before this one ended: its `nextPageToken`
    #[arg(long, value_name = "TOKEN")]
    page_token: Option<String>,
}

#[derive(Debug, Args)]
struct TriggerArgs {
    /// The job
    job: JobId,
    /// Params of this run instead of the job's, as JSON
    #[arg(long, value_name = "JSON", value_parser = submit::parse_json)]
    params: Option<Box<RawValue>>,
    /// The same id makes no second run
    #[arg(long, value_name = "ID")]
    client_request_id: Option<String>,
}

pub(super) async fn run(args: JobArgs) -> Result<(), Failure> {
    let key = key::find(args.key, &args.server)?;
    let client = Client::new(args.server, key)?;
    let output = Output { json: args.json };
    match args.action {
        Action::Submit(args) => output.object(&client.post("openapi/jobs", args.into_body()?).await?),
        Action::Get { job } => output.object(&client.get(&path(job, ""), &[]).await?),
        Action::List(args) => output.job_list(&client.get("openapi/jobs", &args.into_query()).await?),
        Action::Cancel { job } => steer::run(&client, output, job, Steer::Cancel).await,
        Action::Pause { job } => steer::run(&client, output, job, Steer::Pause).await,
        Action::Resume { job } => steer::run(&client, output, job, Steer::Resume).await,
        Action::Trigger(args) => {
            let path = path(args.job, "/trigger");
            output.object(&client.post(&path, args.into_body()?).await?)
        }
        Action::Logs(args) => logs::run(&client, output, &args).await,
        Action::Wait(args) => wait::run(&client, output, &args).await,
    }
}

fn path(job: JobId, rest: &str) -> String {
    format!("openapi/jobs/{job}{rest}")
}

/// For somebody who waits no longer.
fn goes_on(job: JobId) -> String {
    format!(
        "interrupted; job {job} goes on: `isocost job get {job}` shows where it stands, `isocost job cancel {job}` stops it"
    )
}

impl ListArgs {
    fn into_query(self) -> Vec<(&'static str, String)> {
        let filters = [
            ("status", self.status),
            ("handler", self.handler),
            ("name", self.name),
            ("label", self.label),
            ("pageSize", Some(self.page_size.to_string())),
            ("pageToken", self.page_token),
        ];
        filters
            .into_iter()
            .filter_map(|(name, value)| value.map(|value| (name, value)))
            .collect()
    }
}

impl TriggerArgs {
    fn into_body(self) -> Result<String, Failure> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Body {
            #[serde(skip_serializing_if = "Option::is_none")]
            params: Option<Box<RawValue>>,
            #[serde(skip_serializing_if = "Option::is_none")]
            client_request_id: Option<String>,
        }
        let body = Body {
            params: self.params,
            client_request_id: self.client_request_id,
        };
        Ok(serde_json::to_string(&body).context("writing JSON")?)
    }
}
