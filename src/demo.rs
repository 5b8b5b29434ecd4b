//! `--demo`: sample jobs, submitted over the REST API like anybody else's, and what happens to them.

mod receiver;
mod show;

use crate::client::Client;
use anyhow::Context;
use isocost::standalone::Started;
use receiver::Receiver;
use serde_json::{Value, json};
use show::Progress;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How often the demo looks at its jobs.
const LOOK: Duration = Duration::from_millis(200);

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
        let accepted = client.post("/openapi/jobs", job.to_string()).await?;
        let accepted: Value = serde_json::from_str(&accepted).context("the answer is not JSON")?;
        let id = accepted["jobId"]
            .as_str()
            .context("the answer has no jobId")?
            .to_owned();
        println!("  {name:<18} {}  job {id}", what(&job));
        progress.watch(id, name);
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
