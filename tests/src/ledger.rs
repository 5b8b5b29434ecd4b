//! What jobs did, written down outside the product: a line for every run of the handler `ledger`.

use anyhow::{Context, Result};
use std::collections::HashMap;
use std::{fs, io, path::PathBuf};

/// The file to which every run appends the execution's id and the attempt.
pub struct Ledger {
    file: PathBuf,
}

impl Ledger {
    pub(crate) const fn at(file: PathBuf) -> Self {
        Self { file }
    }

    /// The attempts that ran, by execution, in the order in which they were written.
    ///
    /// # Errors
    /// When the file has something else in it.
    pub fn runs(&self) -> Result<HashMap<String, Vec<u32>>> {
        let mut runs: HashMap<String, Vec<u32>> = HashMap::new();
        for line in self.text()?.lines() {
            let (execution, attempt) = line
                .split_once(' ')
                .with_context(|| format!("torn line `{line}`"))?;
            runs.entry(execution.to_owned())
                .or_default()
                .push(attempt.parse()?);
        }
        Ok(runs)
    }

    /// How many lines there are.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn len(&self) -> Result<usize> {
        Ok(self.text()?.lines().count())
    }

    /// Whether nothing has run yet.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    fn text(&self) -> Result<String> {
        match fs::read_to_string(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            outcome => Ok(outcome?),
        }
    }
}
