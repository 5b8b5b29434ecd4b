//! Showing answers: as they came for programs, as lines and columns for people.

use crate::{
    exit::Failure,
    out::{self, visible},
};
use anyhow::Context;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::value::RawValue;
use std::fmt;

/// How answers are shown.
#[derive(Clone, Copy)]
pub(super) struct Output {
    /// As the server sent them.
    pub(super) json: bool,
}

impl Output {
    /// One object: a line a field, in the server's order.
    pub(super) fn object(self, text: &str) -> Result<(), Failure> {
        self.object_without(text, &[])
    }

    /// The same without what is too long for people.
    pub(super) fn object_without(self, text: &str, left_out: &[&str]) -> Result<(), Failure> {
        if self.json {
            return out::line(text);
        }
        for line in lines(text, left_out)? {
            out::line(line)?;
        }
        Ok(())
    }

    /// The answer as it is for programs, what it means in words for people.
    pub(super) fn words(self, text: &str, words: &str) -> Result<(), Failure> {
        out::line(if self.json { text } else { words })
    }

    /// A page of jobs, a line each.
    pub(super) fn job_list(self, text: &str) -> Result<(), Failure> {
        if self.json {
            return out::line(text);
        }
        let page: Page = serde_json::from_str(text).context("reading the server's answer")?;
        out::line(format_args!(
            "{:36}  {:9}  {:24}  {:16}  NAME",
            "JOB", "STATUS", "NEXT", "HANDLER"
        ))?;
        for job in page.items {
            let next = job.next_trigger_time.as_deref().unwrap_or("-");
            let name = visible(&job.job_name);
            out::line(format_args!(
                "{:36}  {:9}  {next:24}  {:16}  {name}",
                job.job_id, job.status, job.job_handler
            ))?;
        }
        if let Some(token) = page.next_page_token {
            out::line(format_args!("more: --page-token {token}"))?;
        }
        Ok(())
    }
}

fn lines(text: &str, left_out: &[&str]) -> Result<Vec<String>, Failure> {
    let Fields(fields) = serde_json::from_str(text).context("reading the server's answer")?;
    let width = fields.iter().map(|(name, _)| name.chars().count()).max();
    let width = width.unwrap_or(0);
    let mut lines = Vec::with_capacity(fields.len());
    for (name, value) in fields {
        match Warning::list(&name, &value) {
            Some(warnings) => lines.extend(
                warnings
                    .iter()
                    .map(|warning| format!("{:width$}  {}", "warning", visible(&warning.message))),
            ),
            None if left_out.contains(&name.as_str()) => {}
            None => lines.push(format!("{name:width$}  {}", plain(&value))),
        }
    }
    Ok(lines)
}

/// Text without its quotes; everything else as it was sent.
fn plain(value: &RawValue) -> String {
    let text: Option<String> = serde_json::from_str(value.get()).ok();
    visible(text.as_deref().unwrap_or(value.get()))
}

/// What the server finds worth a word about something that it took.
#[derive(Deserialize)]
struct Warning {
    message: String,
}

impl Warning {
    /// The warnings, if this is the field that has them.
    fn list(name: &str, value: &RawValue) -> Option<Vec<Self>> {
        (name == "warnings").then(|| serde_json::from_str(value.get()).ok())?
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    items: Vec<JobLine>,
    next_page_token: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JobLine {
    job_id: String,
    job_name: String,
    job_handler: String,
    status: String,
    next_trigger_time: Option<String>,
}

/// The fields of an object in their order, values as they were written.
struct Fields(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(InOrder).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_their_order_and_their_digits() {
        let Fields(fields) =
            serde_json::from_str(r#"{"z": "text", "a": 123456789012345678901234567890}"#).expect("an object");
        let shown: Vec<_> = fields
            .iter()
            .map(|(name, value)| format!("{name}={}", plain(value)))
            .collect();
        assert_eq!(shown, ["z=text", "a=123456789012345678901234567890"]);
    }

    #[test]
    fn warnings_are_a_line_each_and_none_without_any() {
        let answer =
            |warnings: &str| format!(r#"{{"jobId": "x", "replayed": false, "warnings": {warnings}}}"#);
        let shown = lines(&answer("[]"), &[]).expect("an object");
        assert_eq!(shown, ["jobId     x", "replayed  false"]);
        let shown = lines(&answer(r#"[{"code": "c", "message": "m"}]"#), &["replayed"]);
        assert_eq!(shown.expect("an object"), ["jobId     x", "warning   m"]);
    }

    #[test]
    fn values_of_every_kind_are_visible() {
        let text = "{\"name\": \"a\u{202e}b\", \"params\": [\"a\u{202e}b\", \"\u{9b}\"]}";
        let shown = lines(text, &[]).expect("an object");
        let expected = ["name    a\\u{202e}b", r#"params  ["a\u{202e}b", "\u{9b}"]"#];
        assert_eq!(shown, expected);
    }
}
