//! The handler `ledger` of the programs beside the tests: it writes down, outside the product, that a run began and how it
//! ended, a line each, with one append, so that lines of any number of processes and lives never mix.

use anyhow::Context;
use isocost_worker::{JobContext, JobError};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    env,
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{self, Write},
    process,
    time::Duration,
};
use tokio::time::Instant;

/// Names the file; with `.ticks` after it, the one of the ticks.
pub const FILE: &str = "ISOCOST_LEDGER_FILE";

/// What a job may ask for.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params {
    /// How long it runs in milliseconds, times `ISOCOST_TEST_SLOWNESS`.
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
    /// When the file is not named or cannot be opened, or the slowness is no number.
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

    /// Runs for as long as the job says. The result says which run it comes from.
    ///
    /// # Errors
    /// A [`JobError`] that is retried, when a file cannot be written or the job asks for a failure.
    pub async fn run(&self, job: &JobContext) -> Result<Value, JobError> {
        let params = job.params::<Option<Params>>()?.unwrap_or_default();
        let mut entry = Entry::begin(self, job).map_err(JobError::retry)?;
        let ms = match params.then_ms {
            Some(ms) if job.attempt() > 1 => ms,
            _ => params.ms.unwrap_or(0),
        };
        let until = Instant::now() + Duration::from_millis(ms) * self.slowness;
        if let Some(tick) = params.tick_ms.map(Duration::from_millis) {
            while Instant::now() < until {
                self.tick(job).map_err(JobError::retry)?;
                tokio::time::sleep(tick).await;
            }
        }
        tokio::time::sleep_until(until).await;
        if params.fails.is_some_and(|attempts| job.attempt() <= attempts) {
            entry.end("failed").map_err(JobError::retry)?;
            return Err(JobError::retry("as its params say"));
        }
        entry.end("ok").map_err(JobError::retry)?;
        Ok(json!({
            "worker": self.worker,
            "attempt": job.attempt(),
            "seq": job.dispatch_seq(),
            "process": process::id()
        }))
    }

    fn tick(&self, job: &JobContext) -> io::Result<()> {
        let (execution, attempt, worker) = (job.execution_id(), job.attempt(), &self.worker);
        let line = format!("{execution} {attempt} {worker} {}\n", now_ms());
        (&self.ticks).write_all(line.as_bytes())
    }

    fn append(&self, line: &str) -> io::Result<()> {
        (&self.runs).write_all(line.as_bytes())
    }
}

/// A run that has begun. Dropped without an end, it was stopped.
struct Entry<'a> {
    ledger: &'a LedgerHandler,
    run: String,
    is_open: bool,
}

impl<'a> Entry<'a> {
    fn begin(ledger: &'a LedgerHandler, job: &JobContext) -> io::Result<Self> {
        let run = format!(
            "{} {} {} {} {}",
            job.execution_id(),
            job.attempt(),
            job.dispatch_seq(),
            ledger.worker,
            process::id()
        );
        ledger.append(&format!("start {run} {}\n", now_ms()))?;
        Ok(Self {
            ledger,
            run,
            is_open: true,
        })
    }

    fn end(&mut self, how: &str) -> io::Result<()> {
        self.is_open = false;
        self.ledger
            .append(&format!("end {} {} {how}\n", self.run, now_ms()))
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // Nobody is left to tell: without the line the run counts as one that its process took along.
            let _ = self.end("stopped");
        }
    }
}

fn now_ms() -> i64 {
    chrono::Utc::now().timestamp_millis()
}
