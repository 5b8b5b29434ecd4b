//! What a handler's failure means for the next attempt.

use isocost_common::execution::{ExecutionError, Outcome};
use isocost_common::time::duration_millis;
use std::{borrow::Cow, error::Error as StdError, fmt, time::Duration};

/// Code of a failure whose handler named none.
const FAILED: &str = "handler.failed";

/// A handler's failure. Any other error turns into one with `?` and is retried by the job's policy.
///
/// Like `anyhow::Error` it is no [`std::error::Error`] itself, which is what lets `?` take every error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobError {
    code: Cow<'static, str>,
    message: String,
    retryable: bool,
    retry_after: Option<Duration>,
}

impl JobError {
    /// A failure that another attempt may cure; the job's policy decides when.
    #[must_use]
    pub fn retry(message: impl fmt::Display) -> Self {
        Self {
            code: Cow::Borrowed(FAILED),
            message: message.to_string(),
            retryable: true,
            retry_after: None,
        }
    }

    /// As [`JobError::retry`], but not before `pause` is over.
    #[must_use]
    pub fn retry_after(pause: Duration, message: impl fmt::Display) -> Self {
        Self {
            retry_after: Some(pause),
            ..Self::retry(message)
        }
    }

    /// A failure that no further attempt can cure: the execution ends here.
    #[must_use]
    pub fn fatal(message: impl fmt::Display) -> Self {
        Self {
            retryable: false,
            ..Self::retry(message)
        }
    }

    /// Names the failure for programs, such as `payment.declined`. Default `handler.failed`.
    #[must_use]
    pub fn with_code(mut self, code: impl Into<Cow<'static, str>>) -> Self {
        self.code = code.into();
        self
    }

    /// The word for programs.
    #[must_use]
    pub fn code(&self) -> &str {
        &self.code
    }

    /// False when no further attempt can cure it.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        self.retryable
    }

    /// The outcome of the attempt, its texts cut to what the tables hold.
    pub(crate) fn into_outcome(self) -> Outcome {
        Outcome::Failed {
            error: ExecutionError::new(&self.code, &self.message),
            retryable: self.retryable,
            retry_after_ms: self
                .retry_after
                .map(|pause| u64::try_from(duration_millis(pause)).unwrap_or(0)),
        }
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Every standard error, `anyhow::Error`, text: the message is the error with all its causes.
impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for JobError {
    fn from(error: E) -> Self {
        let error: Box<dyn StdError + Send + Sync> = error.into();
        let message = isocost_common::error_chain::chain(error.as_ref()).to_string();
        Self::retry(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads() -> Result<String, JobError> {
        Ok(std::fs::read_to_string("/nowhere/at/all")?)
    }

    fn complains() -> Result<(), JobError> {
        Err("plain text")?;
        Ok(())
    }

    fn wraps() -> Result<(), JobError> {
        Err(anyhow::anyhow!("the cause").context("what was tried"))?;
        Ok(())
    }

    #[test]
    fn any_error_is_retried_and_says_its_causes() {
        assert!(reads().expect_err("no such file").is_retryable());
        assert_eq!(complains().expect_err("text").to_string(), "plain text");
        assert_eq!(
            wraps().expect_err("anyhow").to_string(),
            "what was tried: the cause"
        );
    }

    #[test]
    fn a_fatal_error_is_not_retried_and_keeps_its_code() {
        let outcome = JobError::fatal("no").with_code("payment.declined").into_outcome();
        let expected = Outcome::Failed {
            error: ExecutionError::new("payment.declined", "no"),
            retryable: false,
            retry_after_ms: None,
        };
        assert_eq!(outcome, expected);
    }

    #[test]
    fn a_pause_asked_for_travels_in_milliseconds() {
        let error = JobError::retry_after(Duration::from_secs(90), "busy");
        assert!(matches!(
            error.into_outcome(),
            Outcome::Failed {
                retryable: true,
                retry_after_ms: Some(90_000),
                ..
            }
        ));
    }
}
