//! How a command that did not succeed ends: its text and its exit code.

use crate::out::visible;
use std::{fmt, process::ExitCode};

/// What every `--help` says about exit codes.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed; `job wait`: the job ended without success
  2  wrong arguments, input or configuration
  3  the server cannot be reached, or does not answer
  4  the server refused the request
  5  `job wait`: the time ran out first
  130  interrupted: by Ctrl-C while `job wait` or `job logs --follow` waited, or told to stop twice";

/// Why the process ends with a code other than 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The command could not do its work.
    Failed,
    /// What was given to the command cannot be used.
    Usage,
    /// There is no answer from the server.
    Unreachable,
    /// The server said no.
    Refused,
    /// The time of a wait ran out.
    TimedOut,
    /// Somebody had enough of waiting.
    Interrupted,
}

/// An error together with the exit code that a script can act on.
#[derive(Debug)]
pub(crate) struct Failure {
    reason: Reason,
    error: anyhow::Error,
}

impl Failure {
    pub(crate) fn new(reason: Reason, error: impl Into<anyhow::Error>) -> Self {
        Self {
            reason,
            error: error.into(),
        }
    }

    /// Wrong arguments, input or configuration.
    pub(crate) fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self::new(Reason::Usage, error)
    }

    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(match self.reason {
            Reason::Failed => 1,
            Reason::Usage => 2,
            Reason::Unreachable => 3,
            Reason::Refused => 4,
            Reason::TimedOut => 5,
            // That of a shell for a program ended by SIGINT.
            Reason::Interrupted => 130,
        })
    }

    /// True when the server said no: the same request would be refused again.
    pub(crate) fn is_refusal(&self) -> bool {
        self.reason == Reason::Refused
    }

    /// What standard error says about it. Part of it may be text of others.
    pub(crate) fn told(&self) -> String {
        let text = visible(&self.to_string());
        match self.reason {
            Reason::Interrupted => text,
            _ => format!("error: {text}"),
        }
    }
}

/// The error and its causes, in one line.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.error)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::new(Reason::Failed, error)
    }
}

impl From<Failure> for anyhow::Error {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}
