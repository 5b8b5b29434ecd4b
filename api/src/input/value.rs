use super::{Findings, nearest};
use crate::problem::FieldError;
use isocost_common::time::EpochMillis;
use serde_json::value::RawValue;
use std::{borrow::Cow, ops::RangeInclusive};

/// Integers in JSON are exact only below this, in most languages.
pub(crate) const MAX_INTEGER: i64 = (1 << 53) - 1;
/// The longest duration of a job, in milliseconds: 100 years. What is added to now stays an instant that can be told.
pub(crate) const MAX_DURATION_MS: i64 = 100 * 365 * 24 * 3_600_000;

/// One JSON value of a request, with its place. Each reading method records what is wrong and then answers none.
#[derive(Debug, Clone)]
pub(crate) struct Value<'a> {
    raw: &'a RawValue,
    pointer: String,
    name: &'a str,
}

impl<'a> Value<'a> {
    /// A value at a place.
    #[must_use]
    pub(crate) fn new(raw: &'a RawValue, pointer: String, name: &'a str) -> Self {
        Self { raw, pointer, name }
    }

    /// The whole body.
    #[must_use]
    pub(crate) fn root(raw: &'a RawValue) -> Self {
        Self::new(raw, String::new(), "body")
    }

    /// Its text.
    #[must_use]
    pub(crate) const fn raw(&self) -> &'a RawValue {
        self.raw
    }

    /// Its place.
    #[must_use]
    pub(crate) fn pointer(&self) -> &str {
        &self.pointer
    }

    /// An error here; `what` continues the field's name: "must be …".
    #[must_use]
    pub(crate) fn error(&self, code: &'static str, what: &str) -> FieldError {
        FieldError {
            pointer: Some(self.pointer.clone()),
            field: self.name.to_owned(),
            code: Cow::Borrowed(code),
            message: format!("{} {what}", self.name),
        }
    }

    fn wrong_type(&self, findings: &mut Findings, needed: &str) {
        let hint = if self.raw.get() == "null" {
            "; to leave it out, leave the field out"
        } else {
            ""
        };
        findings.push(self.error("field.wrong-type", &format!("must be {needed}{hint}")));
    }

    /// A string of any length.
    pub(crate) fn string(&self, findings: &mut Findings) -> Option<String> {
        if !self.raw.get().starts_with('"') {
            self.wrong_type(findings, "a string");
            return None;
        }
        match serde_json::from_str(self.raw.get()) {
            Ok(text) => Some(text),
            Err(_) => {
                findings.push(self.error("text.bad-escape", "has an escape that is no character"));
                None
            }
        }
    }

    /// One line of so many characters, without control characters; not blank, unless it may be empty.
    pub(crate) fn line(&self, characters: RangeInclusive<usize>, findings: &mut Findings) -> Option<String> {
        let text = self.string(findings)?;
        let length = text.chars().count();
        if !characters.contains(&length) {
            let (least, most) = (characters.start(), characters.end());
            let what = format!("must have {least} to {most} characters, and has {length}");
            findings.push(self.error("text.length", &what));
            return None;
        }
        if text.chars().any(char::is_control) {
            findings.push(self.error("text.control-character", "must not have control characters"));
            return None;
        }
        if *characters.start() > 0 && text.trim().is_empty() {
            findings.push(self.error("text.blank", "must not be blank"));
            return None;
        }
        Some(text)
    }

    /// A whole number in a range.
    pub(crate) fn integer(&self, range: RangeInclusive<i64>, findings: &mut Findings) -> Option<i64> {
        let text = self.raw.get();
        if !text.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
            self.wrong_type(findings, "a whole number");
            return None;
        }
        let number = text.parse::<i64>().ok().filter(|number| range.contains(number));
        if number.is_none() {
            let what = if text.contains(['.', 'e', 'E']) {
                "must be a whole number, written without point or exponent".to_owned()
            } else {
                format!("must be between {} and {}", range.start(), range.end())
            };
            findings.push(self.error("number.out-of-range", &what));
        }
        number
    }

    /// A number of at least 0.
    pub(crate) fn weight(&self, findings: &mut Findings) -> Option<f64> {
        let number = serde_json::from_str::<f64>(self.raw.get()).ok();
        let number = number.filter(|number| number.is_finite() && (0.0..=1e9).contains(number));
        if number.is_none() {
            self.wrong_type(findings, "a number between 0 and 1000000000");
        }
        number
    }

    /// `true` or `false`.
    pub(crate) fn boolean(&self, findings: &mut Findings) -> Option<bool> {
        match self.raw.get() {
            "true" => Some(true),
            "false" => Some(false),
            _ => {
                self.wrong_type(findings, "true or false");
                None
            }
        }
    }

    /// An RFC 3339 instant.
    pub(crate) fn instant(&self, findings: &mut Findings) -> Option<EpochMillis> {
        let text = self.string(findings)?;
        match EpochMillis::parse_rfc3339(&text) {
            Ok(instant) => Some(instant),
            Err(_) => {
                let what =
                    "must be an RFC 3339 instant between 1970 and 9999, such as 2026-12-01T00:00:00.000Z";
                findings.push(self.error("instant.invalid", what));
                None
            }
        }
    }

    /// One of a few words.
    pub(crate) fn choice<T: Copy>(
        &self,
        choices: &[(&'static str, T)],
        findings: &mut Findings,
    ) -> Option<T> {
        let text = self.string(findings)?;
        let chosen = choices.iter().find(|(word, _)| *word == text);
        if chosen.is_none() {
            let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
            let hint = nearest(&text, words.iter().copied())
                .map(|meant| format!("; did you mean `{meant}`?"))
                .unwrap_or_default();
            let what = format!("must be one of {}{hint}", words.join(", "));
            findings.push(self.error("field.unknown-value", &what));
        }
        chosen.map(|(_, value)| *value)
    }

    /// The items of an array of at most `most`.
    pub(crate) fn items(&self, most: usize, findings: &mut Findings) -> Option<Vec<Value<'a>>> {
        if !self.raw.get().starts_with('[') {
            self.wrong_type(findings, "an array");
            return None;
        }
        let items: Vec<&'a RawValue> = serde_json::from_str(self.raw.get()).ok()?;
        if items.len() > most {
            let what = format!("may have at most {most} items, and has {}", items.len());
            findings.push(self.error("array.too-long", &what));
            return None;
        }
        let place = |(index, raw)| Value::new(raw, format!("{}/{index}", self.pointer), self.name);
        Some(items.into_iter().enumerate().map(place).collect())
    }
}
