//! One attempt of a handler: contained, limited in time and in the size of its result, and stoppable.

use crate::{
    context::JobContext,
    handler::{Handler, HandlerResult},
    run_control::{RunControl, STOP_GRACE, StopReason},
};
use futures_util::FutureExt;
use isocost_common::execution::{ExecutionError, Outcome};
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};
use tracing::{Instrument, error, info_span};

type Panic = Box<dyn Any + Send>;

/// Runs the handler to its end. At its deadline, or when `control` is told so, it is asked to stop; a grace later its
/// future is dropped. A result that comes within the grace counts: the work was done.
pub(crate) async fn attempt(
    handler: &Handler,
    context: JobContext,
    control: &RunControl,
    max_result_bytes: usize,
) -> Outcome {
    let execution = context.execution_id();
    let span = info_span!(
        "run",
        execution.id = %execution,
        job.id = %context.job_id(),
        traceparent = context.traceparent()
    );
    let call = async { handler.call(context).await }.instrument(span);
    let mut run = Box::pin(AssertUnwindSafe(call).catch_unwind());
    let mut ended = tokio::select! {
        biased;
        ended = &mut run => Some(ended),
        () = control.stop_requested() => None,
        () = tokio::time::sleep_until(control.deadline) => {
            control.stop(StopReason::TimedOut, STOP_GRACE);
            None
        }
    };
    if let (None, Some(stop)) = (&ended, control.stop_asked()) {
        ended = tokio::time::timeout_at(stop.drop_at, &mut run).await.ok();
    }
    if catch_unwind(AssertUnwindSafe(|| drop(run))).is_err() {
        error!(execution.id = %execution, "a handler panicked while it was dropped");
    }
    outcome(ended, control, max_result_bytes)
}

fn outcome(
    ended: Option<Result<HandlerResult, Panic>>,
    control: &RunControl,
    max_result_bytes: usize,
) -> Outcome {
    let stopped = control.stop_asked().map(|stop| stop.reason.outcome());
    match ended {
        Some(Ok(Ok(result))) if result.as_str().len() > max_result_bytes => failed(
            "result.too-large",
            &format!(
                "the result has {} bytes; worker.max_result_bytes is {max_result_bytes}",
                result.as_str().len()
            ),
            false,
        ),
        Some(Ok(Ok(result))) => Outcome::Succeeded { result },
        Some(Ok(Err(error))) => stopped.unwrap_or_else(|| error.into_outcome()),
        Some(Err(panic)) => {
            stopped.unwrap_or_else(|| failed("handler.panicked", &panic_message(panic.as_ref()), true))
        }
        None => stopped.unwrap_or(Outcome::TimedOut),
    }
}

fn failed(code: &str, message: &str, retryable: bool) -> Outcome {
    Outcome::Failed {
        error: ExecutionError::new(code, message),
        retryable,
        retry_after_ms: None,
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&'static str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    match text {
        Some(text) => format!("the handler panicked: {text}"),
        None => "the handler panicked".to_owned(),
    }
}
