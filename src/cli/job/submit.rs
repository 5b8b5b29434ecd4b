//! `isocost job submit`.

use crate::exit::Failure;
use anyhow::{Context, anyhow};
use clap::Args;
use isocost_common::schedule::CronDialect;
use isocost_common::time::EpochMillis;
use serde::Serialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Read};
use std::{fs, path::PathBuf};

/// A job by flags, or the whole of it as JSON from a file or standard input.
#[derive(Debug, Args)]
pub(super) struct SubmitArgs {
    /// The job as JSON, in the form of `POST /openapi/jobs`; `-` is standard input [default without flags: -]
    #[arg(long, value_name = "FILE", conflicts_with = "name")]
    file: Option<PathBuf>,
    /// A name for people
    #[arg(long, requires = "handler")]
    name: Option<String>,
    /// Which handler runs it, such as echo
    #[arg(long, requires = "name")]
    handler: Option<String>,
    /// What the handler gets, as JSON
    #[arg(long, value_name = "JSON", requires = "name", value_parser = parse_json)]
    params: Option<Box<RawValue>>,
    /// Fire by a cron expression
    #[arg(long, value_name = "EXPR", requires = "name", conflicts_with_all = ["at", "delay_ms", "every_ms"])]
    cron: Option<String>,
    /// The time zone of the cron expression [default: the server's setting]
    #[arg(long, value_name = "TZ", requires = "cron")]
    time_zone: Option<String>,
    /// quartz or unix [default: by the number of fields]
    #[arg(long, requires = "cron")]
    dialect: Option<CronDialect>,
    /// Fire once, at this instant, such as 2026-12-01T02:00:00Z
    #[arg(long, value_name = "INSTANT", requires = "name", conflicts_with_all = ["delay_ms", "every_ms"],
          value_parser = EpochMillis::parse_rfc3339)]
    at: Option<EpochMillis>,
    /// Fire once, so many milliseconds from now
    #[arg(long, value_name = "MS", requires = "name", conflicts_with = "every_ms")]
    delay_ms: Option<u64>,
    /// Fire at even distances of so many milliseconds
    #[arg(long, value_name = "MS", requires = "name")]
    every_ms: Option<u64>,
    /// The same id with the same content makes no second job
    #[arg(long, value_name = "ID", requires = "name")]
    client_request_id: Option<String>,
    /// Where the outcome is posted
    #[arg(long, value_name = "URL", requires = "name")]
    callback_url: Option<String>,
    /// 0 to 9, higher first [default: 5]
    #[arg(long, requires = "name", value_parser = clap::value_parser!(u8).range(0..=9))]
    priority: Option<u8>,
    /// Longest run of one attempt, in milliseconds
    #[arg(long, value_name = "MS", requires = "name")]
    timeout_ms: Option<u64>,
    /// Starts allowed in all [default: 1]
    #[arg(long, value_name = "N", requires = "name")]
    max_attempts: Option<u32>,
    /// A label to find it by; may be given several times
    #[arg(long = "label", value_name = "KEY=VALUE", requires = "name", value_parser = parse_label)]
    labels: Vec<(String, String)>,
}

/// The body of `POST /openapi/jobs`, as far as flags reach.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Submission {
    #[serde(skip_serializing_if = "Option::is_none")]
    client_request_id: Option<String>,
    job_name: String,
    job_handler: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trigger: Option<Trigger>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<Retry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    callback_url: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
enum Trigger {
    Cron {
        expr: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        time_zone: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        dialect: Option<CronDialect>,
    },
    Once {
        #[serde(skip_serializing_if = "Option::is_none")]
        at: Option<EpochMillis>,
        #[serde(skip_serializing_if = "Option::is_none")]
        delay_ms: Option<u64>,
    },
    FixedRate {
        every_ms: u64,
    },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Retry {
    max_attempts: u32,
}

impl SubmitArgs {
    /// The request body; JSON that was given goes on byte for byte.
    ///
    /// # Errors
    /// [`Failure`] for wrong usage when no job is given, or its JSON cannot be read.
    pub(super) fn into_body(self) -> Result<String, Failure> {
        match (self.name, self.handler) {
            (Some(job_name), Some(job_handler)) => {
                let trigger = match (self.cron, self.every_ms) {
                    (Some(expr), _) => Some(Trigger::Cron {
                        expr,
                        time_zone: self.time_zone,
                        dialect: self.dialect,
                    }),
                    (None, Some(every_ms)) => Some(Trigger::FixedRate { every_ms }),
                    (None, None) if self.at.is_some() || self.delay_ms.is_some() => Some(Trigger::Once {
                        at: self.at,
                        delay_ms: self.delay_ms,
                    }),
                    (None, None) => None,
                };
                let submission = Submission {
                    client_request_id: self.client_request_id,
                    job_name,
                    job_handler,
                    params: self.params,
                    trigger,
                    priority: self.priority,
                    timeout_ms: self.timeout_ms,
                    retry: self.max_attempts.map(|max_attempts| Retry { max_attempts }),
                    callback_url: self.callback_url,
                    labels: self.labels.into_iter().collect(),
                };
                Ok(serde_json::to_string(&submission).context("writing JSON")?)
            }
            _ => read_body(self.file).map_err(Failure::usage),
        }
    }
}

fn read_body(file: Option<PathBuf>) -> anyhow::Result<String> {
    let text = match file {
        Some(path) if path.as_os_str() != "-" => {
            fs::read_to_string(&path).with_context(|| format!("reading the job in {}", path.display()))?
        }
        None if io::stdin().is_terminal() => {
            return Err(anyhow!(
                "no job given: use --name and --handler, or --file, or put JSON on standard input"
            ));
        }
        _ => {
            let mut text = String::new();
            io::stdin()
                .read_to_string(&mut text)
                .context("reading the job from standard input")?;
            text
        }
    };
    parse_json(&text).context("the job is not JSON")?;
    Ok(text)
}

/// Any JSON value, kept as it was written: a long number keeps all its digits.
pub(super) fn parse_json(text: &str) -> Result<Box<RawValue>, serde_json::Error> {
    serde_json::from_str(text)
}

fn parse_label(text: &str) -> Result<(String, String), &'static str> {
    let (key, value) = text.split_once('=').ok_or("a label looks like team=billing")?;
    Ok((key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: SubmitArgs,
    }

    fn body(flags: &[&str]) -> String {
        let line = Line::try_parse_from(std::iter::once(&"submit").chain(flags)).expect("valid flags");
        line.args.into_body().expect("a body")
    }

    #[test]
    fn params_keep_every_digit() {
        let body = body(&[
            "--name",
            "n",
            "--handler",
            "echo",
            "--params",
            "{\"n\": 123456789012345678901234567890}",
        ]);
        assert_eq!(
            body,
            r#"{"jobName":"n","jobHandler":"echo","params":{"n": 123456789012345678901234567890}}"#
        );
    }

    #[test]
    fn a_cron_job_carries_its_zone() {
        let body = body(&[
            "--name",
            "n",
            "--handler",
            "noop",
            "--cron",
            "0 0 2 * * ?",
            "--time-zone",
            "Asia/Shanghai",
        ]);
        assert_eq!(
            body,
            r#"{"jobName":"n","jobHandler":"noop","trigger":{"type":"cron","expr":"0 0 2 * * ?","timeZone":"Asia/Shanghai"}}"#
        );
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused() {
        for flags in [
            &[
                "--name",
                "n",
                "--handler",
                "noop",
                "--cron",
                "@daily",
                "--delay-ms",
                "5",
            ][..],
            &["--name", "n"],
            &["--file", "job.json", "--name", "n", "--handler", "noop"],
            &["--file", "job.json", "--priority", "3"],
            &["--name", "n", "--handler", "noop", "--params", "{"],
        ] {
            assert!(
                Line::try_parse_from(std::iter::once(&"submit").chain(flags)).is_err(),
                "{flags:?}"
            );
        }
    }
}
