//! What jobs did, written down outside the product: two lines for every run of the handler `ledger`.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::{fs, io, path::Path, path::PathBuf};

/// The file to which every run appends its beginning and its end.
pub struct Ledger {
    file: PathBuf,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Of which execution.
    pub execution: String,
    /// Which start of it, from 1.
    pub attempt: u32,
    /// Of which handover.
    pub seq: i64,
    /// On which worker.
    pub worker: String,
    /// In which process.
    pub process: u32,
    /// When it began, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// When it ended and how; none when its process took it along.
    pub end: Option<End>,
}

/// A sign of life of a run that ticks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tick {
    /// Which attempt.
    pub attempt: u32,
    /// Where.
    pub worker: String,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: i64,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// How.
    pub how: Ending,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// It returned its result.
    Ok,
    /// It returned an error, as its params ask.
    Failed,
    /// Its worker stopped it.
    Stopped,
}

impl Run {
    /// The lines of the ledger that tell of it.
    #[must_use]
    pub fn lines(&self) -> String {
        let run = format!(
            "{} {} {} {} {}",
            self.execution, self.attempt, self.seq, self.worker, self.process
        );
        let end = self.end.as_ref().map(|end| {
            let how = match end.how {
                Ending::Ok => "ok",
                Ending::Failed => "failed",
                Ending::Stopped => "stopped",
            };
            format!("end {run} {} {how}\n", end.at_ms)
        });
        format!("start {run} {}\n{}", self.at_ms, end.unwrap_or_default())
    }
}

impl Ledger {
    /// The ledger in a file, which need not exist yet.
    #[must_use]
    pub const fn at(file: PathBuf) -> Self {
        Self { file }
    }

    /// Where it is.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Every run, in the order in which they were written.
    ///
    /// # Errors
    /// When the file has something else in it.
    pub fn all(&self) -> Result<Vec<Run>> {
        let mut runs: Vec<Run> = Vec::new();
        let mut open: HashMap<String, usize> = HashMap::new();
        for line in self.text()?.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["start", execution, attempt, seq, worker, process, at_ms] => {
                    open.insert(words[1..6].join(" "), runs.len());
                    runs.push(Run {
                        execution: execution.to_owned(),
                        attempt: attempt.parse()?,
                        seq: seq.parse()?,
                        worker: worker.to_owned(),
                        process: process.parse()?,
                        at_ms: at_ms.parse()?,
                        end: None,
                    });
                }
                ["end", _, _, _, _, _, at_ms, how] => {
                    let begun = open.remove(&words[1..6].join(" "));
                    let begun = begun.with_context(|| format!("`{line}` without a beginning"))?;
                    runs[begun].end = Some(End {
                        at_ms: at_ms.parse()?,
                        how: match how {
                            "ok" => Ending::Ok,
                            "failed" => Ending::Failed,
                            "stopped" => Ending::Stopped,
                            _ => bail!("an unknown end in `{line}`"),
                        },
                    });
                }
                _ => bail!("torn line `{line}`"),
            }
        }
        Ok(runs)
    }

    /// The attempts that ran, by execution, in the order in which they were written.
    ///
    /// # Errors
    /// When the file has something else in it.
    pub fn runs(&self) -> Result<HashMap<String, Vec<u32>>> {
        let details = self.details()?.into_iter();
        Ok(details
            .map(|(execution, runs)| (execution, runs.iter().map(|run| run.attempt).collect()))
            .collect())
    }

    /// How many runs each worker of a cluster wrote.
    ///
    /// # Errors
    /// When the file has something else in it.
    pub fn runs_by_worker(&self) -> Result<BTreeMap<String, usize>> {
        let mut runs: BTreeMap<String, usize> = BTreeMap::new();
        for run in self.all()? {
            *runs.entry(run.worker).or_default() += 1;
        }
        Ok(runs)
    }

    /// Every run by execution, in the order in which they began.
    ///
    /// # Errors
    /// When the file has something else in it.
    pub fn details(&self) -> Result<HashMap<String, Vec<Run>>> {
        let mut runs: HashMap<String, Vec<Run>> = HashMap::new();
        for run in self.all()? {
            runs.entry(run.execution.clone()).or_default().push(run);
        }
        Ok(runs)
    }

    /// Every tick by execution, in the order in which they were made, of runs that tick.
    ///
    /// # Errors
    /// When the file has something else in it.
    pub fn ticks(&self) -> Result<HashMap<String, Vec<Tick>>> {
        let mut ticks: HashMap<String, Vec<Tick>> = HashMap::new();
        for line in text_of(&self.file.with_extension("ticks"))?.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [execution, attempt, worker, at_ms] = words[..] else {
                bail!("torn line `{line}`");
            };
            ticks.entry(execution.to_owned()).or_default().push(Tick {
                attempt: attempt.parse()?,
                worker: worker.to_owned(),
                at_ms: at_ms.parse()?,
            });
        }
        Ok(ticks)
    }

    /// How many runs have begun.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn len(&self) -> Result<usize> {
        Ok(self.all()?.len())
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
