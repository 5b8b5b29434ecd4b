//! Showing answers: as they came for programs, as lines and columns for people.

use crate::{exit::Failure, out};
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
        if self.json {
            return out::line(text);
        }
        let Fields(fields) = serde_json::from_str(text).context("reading the server's answer")?;
        let width = fields
            .iter()
            .map(|(name, _)| name.chars().count())
            .max()
            .unwrap_or(0);
        for (name, value) in fields {
            out::line(format_args!("{name:width$}  {}", plain(&value)))?;
        }
        Ok(())
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

/// Text without its quotes; everything else as it was sent.
fn plain(value: &RawValue) -> String {
    serde_json::from_str::<String>(value.get()).map_or_else(|_| value.get().to_owned(), |text| visible(&text))
}

/// Control characters as escapes: text of others must not steer the terminal.
pub(super) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() && character != '\n' && character != '\t' {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
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
    fn text_of_others_cannot_steer_the_terminal() {
        assert_eq!(visible("日报😀\n\u{1b}[2J"), "日报😀\n\\u{1b}[2J");
    }
}
