use super::{Findings, nearest};
use crate::problem::Problem;
use axum::{extract::FromRequestParts, http::request::Parts};
use isocost_common::time::EpochMillis;
use std::{convert::Infallible, ops::RangeInclusive, str::FromStr};

/// The query parameters of a request. As with objects, what nobody took is refused by name.
#[derive(Debug, Default)]
pub(crate) struct QueryText {
    pairs: Vec<(String, String)>,
    known: Vec<&'static str>,
    findings: Findings,
}

impl<S: Send + Sync> FromRequestParts<S> for QueryText {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        let query = parts.uri.query().unwrap_or_default();
        Ok(Self {
            pairs: url::form_urlencoded::parse(query.as_bytes())
                .into_owned()
                .collect(),
            ..Self::default()
        })
    }
}

impl QueryText {
    /// The text of a parameter that may be given once.
    pub(crate) fn text(&mut self, name: &'static str) -> Option<String> {
        self.known.push(name);
        let mut texts: Vec<String> = Vec::new();
        self.pairs.retain(|(key, text)| {
            let taken = key == name;
            if taken {
                texts.push(text.clone());
            }
            !taken
        });
        if texts.len() > 1 {
            self.refuse(
                name,
                "parameter.repeated",
                &format!("{name} is given more than once; give it once"),
            );
        }
        texts.pop()
    }

    /// A parameter read by `read`; `needed` says what it must be.
    pub(crate) fn parsed<T>(
        &mut self,
        name: &'static str,
        needed: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.text(name)?;
        let value = read(&text);
        if value.is_none() {
            self.refuse(name, "parameter.invalid", &format!("{name} must be {needed}"));
        }
        value
    }

    /// An id.
    pub(crate) fn id<T: FromStr>(&mut self, name: &'static str) -> Option<T> {
        self.parsed(name, "a UUID", |text| text.parse().ok())
    }

    /// A whole number in a range.
    pub(crate) fn integer(&mut self, name: &'static str, range: RangeInclusive<i64>) -> Option<i64> {
        let needed = format!("a whole number between {} and {}", range.start(), range.end());
        self.parsed(name, &needed, |text| {
            text.parse().ok().filter(|number| range.contains(number))
        })
    }

    /// An instant.
    pub(crate) fn instant(&mut self, name: &'static str) -> Option<EpochMillis> {
        self.parsed(
            name,
            "an RFC 3339 instant, such as 2026-12-01T00:00:00.000Z",
            |text| EpochMillis::parse_rfc3339(text).ok(),
        )
    }

    /// `true` or `false`.
    pub(crate) fn boolean(&mut self, name: &'static str) -> Option<bool> {
        self.parsed(name, "true or false", |text| text.parse().ok())
    }

    /// Records what is wrong with a parameter.
    pub(crate) fn refuse(&mut self, name: &str, code: &'static str, message: &str) {
        self.findings.parameter(name, code, message);
    }

    /// Refuses what nobody took, and everything else that was found.
    ///
    /// # Errors
    /// [`Problem`] 400 that names each parameter.
    pub(crate) fn close(mut self) -> Result<(), Problem> {
        for (name, _) in std::mem::take(&mut self.pairs) {
            let shown: String = name.chars().take(64).collect();
            let hint = match nearest(&name, self.known.iter().copied()) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None if self.known.is_empty() => "none is known here".to_owned(),
                None => format!("known are {}", self.known.join(", ")),
            };
            self.refuse(
                &shown,
                "parameter.unknown",
                &format!("`{shown}` is not a known parameter: {hint}"),
            );
        }
        self.findings.into_result(Some(()))
    }
}
