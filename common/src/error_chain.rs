//! An error with its causes in one line, for the one place where it is logged.

use std::{error::Error, fmt};

/// Shows `error: cause: cause` of the wrapped error.
pub struct Chain<'a>(&'a (dyn Error + 'static));

/// The error and all its sources, joined by `: `. A cause that the error before has said already is left out.
pub fn chain<'a>(error: &'a (dyn Error + 'static)) -> Chain<'a> {
    Chain(error)
}

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.0.to_string();
        f.write_str(&said)?;
        let mut source = self.0.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            if !said.ends_with(&text) {
                write!(f, ": {text}")?;
                said = text;
            }
            source = cause.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Failure {
        #[error("the table is full")]
        Full,
        /// As drivers do it.
        #[error("said by the database: {0}")]
        Said(#[source] Box<Failure>),
        #[error("storing a job")]
        Storing(#[source] Box<Failure>),
    }

    #[test]
    fn a_cause_is_said_once() {
        let said = Failure::Said(Box::new(Failure::Full));
        let storing = Failure::Storing(Box::new(said));
        assert_eq!(
            chain(&storing).to_string(),
            "storing a job: said by the database: the table is full"
        );
    }
}
