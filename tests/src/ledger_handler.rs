//! The handler `ledger` of the programs beside the tests: it writes down that it ran, outside the product, with one append
//! a line, so that lines of any number of processes and lives never mix.

use anyhow::Context;
use isocost_worker::{JobContext, JobError};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    env,
    ffi::OsString,
    fs::{File, OpenOptions},
    io::Write,
    time::Duration,
};
use tokio::time::Instant;

/// Names the file; with `.ticks` after it, the one of the ticks.
pub const FILE: &str = "ISOCOST_LEDGER_FILE";

/// What a job may ask for.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params {
    /// How long it runs, times `ISOCOST_TEST_SLOWNESS`.
    ms: Option<u64>,
    /// The same for every attempt after the first.
    then_ms: Option<u64>,
    /// It shows that often that it goes on, and takes no notice of being told to stop.
    tick_ms: Option<u64>,
    /// It fails up to this attempt.
    fails: Option<u32>,
}

/// Where a process writes.
pub struct LedgerHandler {
    runs: File,
    ticks: File,
    worker: String,
    slowness: u32,
}

impl LedgerHandler {
    /// As the environment says, for the worker of this name.
    ///
    /// # Errors
    /// When the file is not named, or cannot be opened.
    pub fn from_environment(worker: &str) -> anyhow::Result<Self> {
        let file = env::var_os(FILE).with_context(|| format!("{FILE} is not set"))?;
        let mut ticks = OsString::clone(&file);
        ticks.push(".ticks");
        let open = |path: OsString| OpenOptions::new().create(true).append(true).open(path);
        Ok(Self {
            runs: open(file)?,
            ticks: open(ticks)?,
            worker: worker.to_owned(),
            slowness: match env::var("ISOCOST_TEST_SLOWNESS") {
                Ok(text) => text.parse()?,
                Err(_) => 1,
            },
        })
    }

    /// Writes execution, attempt, worker and instant down, runs for as long as the job says, and returns worker and
    /// attempt.
    ///
    /// # Errors
    /// When the file cannot be written, or the job asks for a failure.
    pub async fn run(&self, job: &JobContext) -> Result<Value, JobError> {
        let params: Option<Params> = job.params()?;
        let params = params.unwrap_or_default();
        self.write(&self.runs, job)?;
        let ms = match params.then_ms {
            Some(ms) if job.attempt() > 1 => ms,
            _ => params.ms.unwrap_or(0),
        };
        let until = Instant::now() + Duration::from_millis(ms) * self.slowness;
        if let Some(tick) = params.tick_ms.map(Duration::from_millis) {
            while Instant::now() < until {
                self.write(&self.ticks, job)?;
                tokio::time::sleep(tick).await;
            }
        }
        tokio::time::sleep_until(until).await;
        if params.fails.is_some_and(|attempts| job.attempt() <= attempts) {
            return Err(JobError::retry("as its params say"));
        }
        Ok(json!({ "worker": self.worker, "attempt": job.attempt() }))
    }

    fn write(&self, mut file: &File, job: &JobContext) -> Result<(), JobError> {
        let now_ms = chrono::Utc::now().timestamp_millis();
        let line = format!(
            "{} {} {} {now_ms}\n",
            job.execution_id(),
            job.attempt(),
            self.worker
        );
        file.write_all(line.as_bytes()).map_err(JobError::retry)
    }
}
