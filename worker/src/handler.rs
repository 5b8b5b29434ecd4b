//! Handlers by name: what a worker offers.

use crate::{JobContext, JobError};
use futures_util::{FutureExt, future::BoxFuture};
use isocost_common::raw_json::RawJson;
use serde::Serialize;
use std::{future::Future, sync::Arc};

/// What a handler returned: its result as JSON text, or its error.
pub(crate) type HandlerResult = Result<RawJson, JobError>;

/// A handler with its types erased.
#[derive(Clone)]
pub(crate) struct Handler(Arc<dyn Fn(JobContext) -> BoxFuture<'static, HandlerResult> + Send + Sync>);

impl Handler {
    /// Wraps an async function.
    pub(crate) fn new<F, Fut, T>(function: F) -> Self
    where
        F: Fn(JobContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, JobError>> + Send + 'static,
        T: Serialize,
    {
        Self(Arc::new(move |context| {
            let run = function(context);
            async move {
                let value = run.await?;
                RawJson::from_value(&value).map_err(|error| {
                    JobError::fatal(format!("the result is not JSON: {error}")).with_code("result.invalid")
                })
            }
            .boxed()
        }))
    }

    /// Begins a run. The function's own synchronous part runs here, so a caller that contains panics calls it inside.
    pub(crate) fn call(&self, context: JobContext) -> BoxFuture<'static, HandlerResult> {
        (self.0)(context)
    }
}

/// The rule that handler names of jobs follow.
pub(crate) fn is_valid_name(name: &str) -> bool {
    (1..=255).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}
