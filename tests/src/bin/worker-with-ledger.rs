//! A worker of one's own, as the SDK makes it from nothing but its configuration: the handler `ledger` writes a
//! line (execution, attempt, worker, instant) into the file that `ISOCOST_LEDGER_FILE` names, with one append, so that
//! lines of any number of processes never mix; then it runs for the `ms` of its params, times `ISOCOST_TEST_SLOWNESS`.

use anyhow::Context;
use isocost_common::config;
use isocost_worker::{JobContext, JobError, Worker};
use serde::Deserialize;
use std::{
    env,
    fs::{File, OpenOptions},
    io::Write,
    sync::Arc,
    time::Duration,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

#[derive(Default, Deserialize)]
struct Params {
    ms: Option<u64>,
}

struct Ledger {
    file: File,
    worker: String,
    slowness: u32,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let file = env::var_os("ISOCOST_LEDGER_FILE").context("ISOCOST_LEDGER_FILE is not set")?;
    let config = config::load(None, env::vars())?;
    let ledger = Arc::new(Ledger {
        file: OpenOptions::new().create(true).append(true).open(file)?,
        worker: config.worker.id.clone(),
        slowness: match env::var("ISOCOST_TEST_SLOWNESS") {
            Ok(text) => text.parse()?,
            Err(_) => 1,
        },
    });
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = CancellationToken::new();
    let told = stop.clone();
    let listener = tokio::spawn(async move {
        terminate.recv().await;
        told.cancel();
    });
    let outcome = Worker::builder(config)
        .handler("ledger", move |job: JobContext| {
            let ledger = Arc::clone(&ledger);
            async move { ledger.run(&job).await }
        })
        .run(stop)
        .await;
    listener.abort();
    Ok(outcome?)
}

impl Ledger {
    async fn run(&self, job: &JobContext) -> Result<(), JobError> {
        let params: Option<Params> = job.params()?;
        let ms = params.unwrap_or_default().ms.unwrap_or(0);
        let now_ms = chrono::Utc::now().timestamp_millis();
        let line = format!(
            "{} {} {} {now_ms}\n",
            job.execution_id(),
            job.attempt(),
            self.worker
        );
        let mut file = &self.file;
        file.write_all(line.as_bytes()).map_err(JobError::retry)?;
        tokio::time::sleep(Duration::from_millis(ms) * self.slowness).await;
        Ok(())
    }
}
