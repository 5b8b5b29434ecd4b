//! What was written down about a run of the product: by whoever loaded it, by its handlers, by the receiver of its
//! callbacks, by whoever broke things, and by the product itself in its tables.
//!
//! A record is a folder with a file each, JSON a line; the ledger has its own form.

use super::tables::Tables;
use crate::ledger::{Ledger, Run};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, BufWriter, Write},
    path::Path,
};

/// Everything about one run. Instants are milliseconds since the Unix epoch, by the clock of the one machine.
#[derive(Debug, Clone)]
pub struct Record {
    /// What it was run with.
    pub terms: Terms,
    /// What was submitted.
    pub submissions: Vec<Submission>,
    /// What was cancelled.
    pub cancels: Vec<Cancel>,
    /// What the handlers wrote.
    pub runs: Vec<Run>,
    /// What the receiver of callbacks saw.
    pub calls: Vec<Call>,
    /// What was done to whom.
    pub faults: Vec<Fault>,
    /// The processes there were.
    pub lives: Vec<Life>,
    /// The leaders there were.
    pub terms_of_office: Vec<TermOfOffice>,
    /// The tables at the end.
    pub tables: Tables,
}

/// What a run was run with, and how exactly it is judged. Durations in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// From when on everything was in order again.
    pub healed_at: i64,
    /// Everything that is due must have ended so long after that.
    pub bound_ms: i64,
    /// When the tables were read.
    pub looked_at: i64,
    /// Distance of heartbeats.
    pub heartbeat_ms: i64,
    /// A worker whose heartbeats nobody acknowledged for so long stops its handlers.
    pub lease_ms: i64,
    /// How far two clocks, or two readings of one, may be apart.
    pub clock_ms: i64,
    /// How much longer than promised something may take because the machine is busy.
    pub slack_ms: i64,
}

/// One submission, however often it was asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Submission {
    /// Its client request id.
    pub request: String,
    /// The JSON that was sent.
    pub body: Value,
    /// When it was sent first.
    pub asked_at: i64,
    /// When it was acknowledged first.
    pub acked_at: i64,
    /// The job of each acknowledgement.
    pub jobs: Vec<String>,
}

/// A cancel that was acknowledged.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Cancel {
    /// Of which job.
    pub job: String,
    /// When it was asked for first.
    pub asked_at: i64,
    /// When it was acknowledged.
    pub acked_at: i64,
}

/// A callback as it arrived.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Call {
    /// `webhook-id`.
    pub delivery: String,
    /// When.
    pub at: i64,
    /// What it was answered with.
    pub answered: u16,
    /// Which execution it is about.
    pub execution: String,
    /// What it says of it.
    pub status: String,
}

/// Something that was done on purpose.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Fault {
    /// What.
    pub kind: String,
    /// To whom: a process or a service, by name.
    pub target: String,
    /// To which process, when it was one.
    pub process: Option<u32>,
    /// Just before it was done.
    pub from: i64,
    /// Just after it was undone.
    pub to: i64,
    /// It stood still, and went on at `to`.
    pub froze: bool,
}

/// One life of a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Life {
    /// Its name; a worker's is its worker id.
    pub name: String,
    /// The system's number.
    pub process: u32,
    /// When it was started.
    pub from: i64,
    /// When it was known to be gone; none when it was running at the end.
    pub to: Option<i64>,
}

/// What the row of the leader showed from an instant on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TermOfOffice {
    /// The number of the term.
    pub epoch: i64,
    /// Who.
    pub holder: String,
    /// Since when, as the row says.
    pub taken_at: i64,
}

impl Record {
    /// Writes it into a folder.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        write(folder, "terms", std::slice::from_ref(&self.terms))?;
        write(folder, "submissions", &self.submissions)?;
        write(folder, "cancels", &self.cancels)?;
        write(folder, "calls", &self.calls)?;
        write(folder, "faults", &self.faults)?;
        write(folder, "lives", &self.lives)?;
        write(folder, "terms-of-office", &self.terms_of_office)?;
        let mut ledger = BufWriter::new(fs::File::create(folder.join("ledger"))?);
        for run in &self.runs {
            ledger.write_all(run.lines().as_bytes())?;
        }
        ledger.flush()?;
        self.tables.save(folder)
    }

    /// Reads it from a folder.
    ///
    /// # Errors
    /// When a file is missing or has something else in it.
    pub fn load(folder: &Path) -> Result<Self> {
        let terms: Vec<Terms> = read(folder, "terms")?;
        Ok(Self {
            terms: *terms.first().context("no terms")?,
            submissions: read(folder, "submissions")?,
            cancels: read(folder, "cancels")?,
            runs: Ledger::at(folder.join("ledger")).all()?,
            calls: read(folder, "calls")?,
            faults: read(folder, "faults")?,
            lives: read(folder, "lives")?,
            terms_of_office: read(folder, "terms-of-office")?,
            tables: Tables::load(folder)?,
        })
    }
}

/// Writes values into `<folder>/<name>.jsonl`, one a line.
pub(super) fn write<T: Serialize>(folder: &Path, name: &str, values: &[T]) -> Result<()> {
    let path = folder.join(format!("{name}.jsonl"));
    let mut file = BufWriter::new(fs::File::create(&path).with_context(|| format!("{}", path.display()))?);
    for value in values {
        serde_json::to_writer(&mut file, value)?;
        file.write_all(b"\n")?;
    }
    Ok(file.flush()?)
}

/// Reads what [`write`] wrote.
pub(super) fn read<T: DeserializeOwned>(folder: &Path, name: &str) -> Result<Vec<T>> {
    let path = folder.join(format!("{name}.jsonl"));
    let file = fs::File::open(&path).with_context(|| format!("{}", path.display()))?;
    BufReader::new(file)
        .lines()
        .map(|line| {
            let line = line?;
            serde_json::from_str(&line).with_context(|| format!("{}: `{line}`", path.display()))
        })
        .collect()
}
