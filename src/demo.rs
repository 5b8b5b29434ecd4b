//! `--demo`: sample jobs, submitted over the REST API like anybody else's, and what happens to them.

mod receiver;
mod show;

use crate::client::Client;
use crate::exit::Failure;
use anyhow::Context;
use isocost::standalone::Started;
use receiver::Receiver;
use serde::Deserialize;
use serde_json::{Value, json};
use show::Progress;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How often the demo looks at its jobs.
const LOOK: Duration = Duration::from_millis(200);

/// A refusal that is none of a job that was there before ends the search here.
const MOST_NUMBERS: u32 = 100;

/// Submits the samples and prints every step of their executions until `stop`.
///
/// # Errors
/// When a sample is refused or the server does not answer.
pub(crate) async fn run(started: &Started, stop: CancellationToken) -> anyhow::Result<()> {
    let server = started
        .url
        .parse()
        .context("reading the address of this process")?;
    let client = Client::new(server, started.admin_key.clone())?;
    let receiver = Receiver::start()
        .await
        .context("starting the receiver of the demo's callbacks")?;
    println!();
    println!(
        "The demo submits four jobs; a receiver at {} takes their callbacks:",
        receiver.url()
    );
    let mut progress = Progress::default();
    for (name, job) in samples(receiver.url()) {
        let taken = submit(&client, &job).await?;
        let since = if taken.replayed {
            " (of an earlier start)"
        } else {
            ""
        };
        println!("  {name:<18} {}  job {}{since}", what(&job), taken.job_id);
        if taken.replayed {
            progress.pass_over(&client, &taken.job_id).await?;
        }
        progress.watch(taken.job_id, name);
    }
    println!();
    while !stop.is_cancelled() {
        progress.show_news(&client).await?;
        for callback in receiver.news() {
            show::print_callback(&callback);
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = stop.cancelled() => {}
        }
    }
    receiver.stop().await;
    Ok(())
}

/// The answer to a submission, as far as the demo looks at it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Taken {
    job_id: String,
    status: String,
    replayed: bool,
}

/// Submits a sample. One that fires again and again has a key, so that every start shows the same job; in place of one
/// that somebody has ended or deleted comes the next by number.
async fn submit(client: &Client, job: &Value) -> anyhow::Result<Taken> {
    let Some(key) = job["clientRequestId"].as_str() else {
        return Ok(post(client, job).await?);
    };
    let mut job = job.clone();
    let mut number = 1;
    loop {
        job["clientRequestId"] = format!("{key} {number}").into();
        match post(client, &job).await {
            Ok(taken) if !taken.is_over() => return Ok(taken),
            Err(failure) if number == MOST_NUMBERS || !failure.is_refusal() => return Err(failure.into()),
            Ok(_) | Err(_) => number += 1,
        }
    }
}

async fn post(client: &Client, job: &Value) -> Result<Taken, Failure> {
    let answer = client.post("/openapi/jobs", job.to_string()).await?;
    Ok(serde_json::from_str(&answer).context("reading the server's answer")?)
}

impl Taken {
    fn is_over(&self) -> bool {
        matches!(self.status.as_str(), "CANCELLED" | "COMPLETED" | "INVALID")
    }
}

/// One of each kind: a job with a callback, one that fires every five seconds, one that fails before it succeeds, and
/// one that takes a while and reports what it does.
fn samples(callback_url: &str) -> [(&'static str, Value); 4] {
    [
        (
            "hello",
            json!({
                "jobName": "hello", "jobHandler": "echo", "params": {"hello": "world"},
                "callbackUrl": callback_url,
            }),
        ),
        (
            "every-5-seconds",
            json!({
                "clientRequestId": "demo every-5-seconds",
                "jobName": "every-5-seconds", "jobHandler": "noop",
                "trigger": {"type": "cron", "expr": "*/5 * * * * ?", "timeZone": "UTC"},
            }),
        ),
        (
            "third-time-lucky",
            json!({
                "jobName": "third-time-lucky", "jobHandler": "fail", "params": {"times": 2},
                "retry": {"maxAttempts": 3, "backoff": "exponential", "initialMs": 1000, "maxMs": 60000},
                "callbackUrl": callback_url,
            }),
        ),
        (
            "nap",
            json!({"jobName": "nap", "jobHandler": "sleep", "params": {"ms": 3000}, "priority": 9}),
        ),
    ]
}

fn what(job: &Value) -> String {
    let handler = job["jobHandler"].as_str().unwrap_or_default();
    match job["trigger"]["expr"].as_str() {
        Some(expr) => format!("{handler:<6} cron {expr}"),
        None => format!("{handler:<6} now"),
    }
}
