//! What the demo prints.

use super::receiver::Callback;
use crate::client::Client;
use crate::out::visible;
use anyhow::{Context, bail};
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

    /// Leaves out what a job did before.
    pub(super) async fn pass_over(&mut self, client: &Client, job: &str) -> anyhow::Result<()> {
        for execution in newest(client, job).await? {
            if execution["finishedAt"].is_string() {
                let printed = self.printed.entry(id_of(&execution)?).or_default();
                printed.ended = true;
            }
        }
        Ok(())
    }

    /// Prints the steps that are new since the last call.
    pub(super) async fn show_news(&mut self, client: &Client) -> anyhow::Result<()> {
        for (job, name) in &self.jobs {
            for execution in newest(client, job).await?.iter().rev() {
                let id = id_of(execution)?;
                if self.printed.get(&id).is_none_or(|printed| !printed.ended) {
                    let execution = read(client, &format!("/openapi/executions/{id}"), &[]).await?;
                    self.printed.entry(id).or_default().print_new(name, &execution);
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
        visible(text("message"))
    )
    .trim_end()
    .to_owned()
}

/// The newest executions of a job, newest first.
async fn newest(client: &Client, job: &str) -> anyhow::Result<Vec<Value>> {
    let path = format!("/openapi/jobs/{job}/executions");
    let mut page = read(client, &path, &[("pageSize", PAGE.to_owned())]).await?;
    match page["items"].take() {
        Value::Array(items) => Ok(items),
        _ => bail!("the answer has no items"),
    }
}

fn id_of(execution: &Value) -> anyhow::Result<String> {
    let id = execution["executionId"].as_str();
    Ok(id.context("an execution has no id")?.to_owned())
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
