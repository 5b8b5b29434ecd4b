//! What jobs did, written down outside the product: a line for every run of the handler `ledger`.

use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, HashMap};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The file to which every run appends the execution's id, the attempt, the worker and the instant.
pub struct Ledger {
    file: PathBuf,
}

/// One run, or a sign of life of one that ticks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Which attempt.
    pub attempt: u32,
    /// Where.
    pub worker: String,
    /// When it began, or ticked, in milliseconds since the Unix epoch.
    pub at_ms: i64,
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
            let mut words = line.split(' ');
            let (Some(execution), Some(attempt)) = (words.next(), words.next()) else {
                bail!("torn line `{line}`");
            };
            runs.entry(execution.to_owned())
                .or_default()
                .push(attempt.parse()?);
        }
        Ok(runs)
    }

    /// How many runs each worker of a cluster wrote.
    ///
    /// # Errors
    /// When the file has something else in it.
    pub fn runs_by_worker(&self) -> Result<BTreeMap<String, usize>> {
        let mut runs: BTreeMap<String, usize> = BTreeMap::new();
        for line in self.text()?.lines() {
            let worker = line
                .split(' ')
                .nth(2)
                .with_context(|| format!("no worker in `{line}`"))?;
            *runs.entry(worker.to_owned()).or_default() += 1;
        }
        Ok(runs)
    }

    /// Every run by execution, in the order in which they began.
    ///
    /// # Errors
    /// When the file has something else in it.
    pub fn details(&self) -> Result<HashMap<String, Vec<Run>>> {
        Self::read(&self.text()?)
    }

    /// Every tick by execution, in the order in which they were made, of runs that tick.
    ///
    /// # Errors
    /// When the file has something else in it.
    pub fn ticks(&self) -> Result<HashMap<String, Vec<Run>>> {
        Self::read(&text_of(&self.file.with_extension("ticks"))?)
    }

    fn read(text: &str) -> Result<HashMap<String, Vec<Run>>> {
        let mut runs: HashMap<String, Vec<Run>> = HashMap::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [execution, attempt, worker, at_ms] = words[..] else {
                bail!("torn line `{line}`");
            };
            runs.entry(execution.to_owned()).or_default().push(Run {
                attempt: attempt.parse()?,
                worker: worker.to_owned(),
                at_ms: at_ms.parse()?,
            });
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
        text_of(&self.file)
    }
}

fn text_of(file: &Path) -> Result<String> {
    match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        outcome => Ok(outcome?),
    }
}
