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
pub(crate) use isocost_common::spelling::nearest;
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
