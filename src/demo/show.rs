//! What the demo prints.

use super::receiver::Callback;
use crate::client::Client;
use anyhow::Context;
use serde_json::Value;
use std::collections::HashMap;

/// The newest executions of each job that are looked at.
const PAGE: &str = "20";

/// The jobs watched, and how many steps of each execution were printed.
#[derive(Default)]
pub(super) struct Progress {
    jobs: Vec<(String, &'static str)>,
    printed: HashMap<String, Printed>,
}

#[derive(Default)]
struct Printed {
    steps: usize,
    ended: bool,
}

impl Progress {
    pub(super) fn watch(&mut self, job: String, name: &'static str) {
        self.jobs.push((job, name));
    }

    /// Prints the steps that are new since the last call.
    pub(super) async fn show_news(&mut self, client: &Client) -> anyhow::Result<()> {
        for (job, name) in &self.jobs {
            let path = format!("/openapi/jobs/{job}/executions");
            let page = read(client, &path, &[("pageSize", PAGE.to_owned())]).await?;
            let executions = page["items"].as_array().context("the answer has no items")?;
            for execution in executions.iter().rev() {
                let id = execution["executionId"]
                    .as_str()
                    .context("an execution has no id")?;
                if self.printed.get(id).is_none_or(|printed| !printed.ended) {
                    let execution = read(client, &format!("/openapi/executions/{id}"), &[]).await?;
                    self.printed
                        .entry(id.to_owned())
                        .or_default()
                        .print_new(name, &execution);
                }
            }
        }
        Ok(())
    }
}

impl Printed {
    fn print_new(&mut self, name: &str, execution: &Value) {
        let steps = execution["steps"].as_array().map_or(&[][..], Vec::as_slice);
        for step in steps
            .iter()
            .skip(self.steps)
            .filter(|step| step["step"] != "SUBMITTED")
        {
            println!("{}", line(name, step));
        }
        self.steps = steps.len();
        // A callback is delivered after the end: an execution that has one is finished with when that step shows.
        let called_back = steps.iter().any(|step| step["step"] == "CALLBACK_DELIVERED");
        let terminal = execution["finishedAt"].is_string();
        self.ended = terminal && (called_back || execution["callbackUrl"].is_null());
    }
}

/// `12:00:05.003  hello  RUNNING  on standalone  message`
fn line(name: &str, step: &Value) -> String {
    let text = |key: &str| step[key].as_str().unwrap_or_default();
    let at = text("at").get(11..23).unwrap_or_default();
    let worker = match text("workerId") {
        "" => String::new(),
        worker => format!("on {worker}"),
    };
    format!(
        "{at}  {name:<17} {:<19} {worker:<14} {}",
        text("step"),
        text("message")
    )
    .trim_end()
    .to_owned()
}

pub(super) fn print_callback(callback: &Callback) {
    let Callback {
        at,
        kind,
        job,
        attempt,
        ..
    } = callback;
    let at = at.get(11..23).unwrap_or_default();
    println!(
        "{at}  {job:<17} callback received: {kind} after attempt {attempt}, webhook-id {}",
        callback.id
    );
}

async fn read(client: &Client, path: &str, query: &[(&str, String)]) -> anyhow::Result<Value> {
    let text = client.get(path, query).await?;
    serde_json::from_str(&text).context("the answer is not JSON")
}
