//! An error with its causes in one line, for the one place where it is logged.

use std::{error::Error, fmt};

/// Shows `error: cause: cause` of the wrapped error.
pub struct Chain<'a>(&'a (dyn Error + 'static));

/// The error and all its sources, joined by `: `.
pub fn chain<'a>(error: &'a (dyn Error + 'static)) -> Chain<'a> {
    Chain(error)
}

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}
