//! Standalone mode with one more handler, as a program with handlers of its own would embed it: `ledger` writes a line
//! for every run into the file that `ISOCOST_LEDGER_FILE` names, with one append, so that lines of any number of
//! processes and lives never mix.

use anyhow::{Context, bail};
use isocost::standalone::Standalone;
use isocost_common::config;
use isocost_worker::{JobContext, JobError};
use std::{
    env,
    fs::{File, OpenOptions},
    io::Write,
    path::PathBuf,
    sync::Arc,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [command, listen_flag, listen, data_flag, data] = arguments.as_slice() else {
        bail!("usage: standalone-with-ledger standalone --listen ADDRESS --data FOLDER");
    };
    if (command.as_str(), listen_flag.as_str(), data_flag.as_str()) != ("standalone", "--listen", "--data") {
        bail!("usage: standalone-with-ledger standalone --listen ADDRESS --data FOLDER");
    }
    let file = PathBuf::from(env::var_os("ISOCOST_LEDGER_FILE").context("ISOCOST_LEDGER_FILE is not set")?);
    let ledger = Arc::new(OpenOptions::new().create(true).append(true).open(file)?);
    let config = config::load(None, env::vars())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = CancellationToken::new();
    let told = stop.clone();
    let listener = tokio::spawn(async move {
        terminate.recv().await;
        told.cancel();
    });
    let site = Standalone::new(config, data.as_ref(), listen.parse()?).worker(move |worker| {
        worker.handler("ledger", move |job: JobContext| {
            let ledger = Arc::clone(&ledger);
            async move { append(&ledger, &job) }
        })
    });
    let outcome = site.run(stop, |started| println!("{}", started.url)).await;
    listener.abort();
    Ok(outcome?)
}

fn append(mut ledger: &File, job: &JobContext) -> Result<(), JobError> {
    let line = format!("{} {}\n", job.execution_id(), job.attempt());
    ledger.write_all(line.as_bytes()).map_err(JobError::retry)
}
