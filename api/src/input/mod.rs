//! What clients send, read with everything that is wrong with it collected, not only the first thing.

mod body;
mod canonical;
mod members;
mod merge_patch;
mod object;
mod page;
mod query;
mod value;

pub(crate) use body::{JsonBody, Limit};
pub(crate) use canonical::content_hash;
pub(crate) use merge_patch::merge_patch;
pub(crate) use object::Object;
pub(crate) use page::{PageRequest, Paged, read_token};
pub(crate) use query::QueryText;
pub(crate) use value::{MAX_DURATION_MS, MAX_INTEGER, Value};

use crate::problem::{FieldError, Problem};
use std::borrow::Cow;

/// Deepest nesting of JSON accepted. Handlers in most languages give up at about the same depth.
pub(crate) const MAX_DEPTH: usize = 100;

/// Everything found wrong with one request.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    errors: Vec<FieldError>,
}

impl Findings {
    /// Records an error.
    pub(crate) fn push(&mut self, error: FieldError) {
        self.errors.push(error);
    }

    /// Records what is wrong with a header or query parameter.
    pub(crate) fn parameter(&mut self, name: &str, code: &'static str, message: impl Into<String>) {
        self.push(FieldError {
            pointer: None,
            field: name.to_owned(),
            code: Cow::Borrowed(code),
            message: message.into(),
        });
    }

    /// The value, unless something was found: then the problem that names it all. Without findings there is a value.
    ///
    /// # Errors
    /// [`Problem`] with every error.
    pub(crate) fn into_result<T>(self, value: Option<T>) -> Result<T, Problem> {
        match value {
            Some(value) if self.errors.is_empty() => Ok(value),
            _ => Err(Problem::invalid(self.errors)),
        }
    }
}

/// The known name that is nearest to `wrong`, if one is near enough to be meant.
pub(crate) fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let folded = fold(wrong);
    let allowed = (folded.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|name| (edit_distance(&folded, &fold(name)), name))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Case and separators are the commonest slips.
fn fold(name: &str) -> String {
    name.chars()
        .take(64)
        .filter(|c| !matches!(c, '_' | '-' | ' '))
        .flat_map(char::to_lowercase)
        .collect()
}

/// Insertions, removals and replacements between two short texts.
fn edit_distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (done, from_char) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = done + 1;
        for (column, to_char) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(from_char != *to_char);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_the_name_that_was_meant_and_a_stranger_finds_none() {
        let known = ["jobName", "jobHandler", "callbackUrl", "timeoutMs"];
        assert_eq!(nearest("jobname", known), Some("jobName"));
        assert_eq!(nearest("job_handler", known), Some("jobHandler"));
        assert_eq!(nearest("calbackURL", known), Some("callbackUrl"));
        assert_eq!(nearest("colour", known), None);
    }
}
