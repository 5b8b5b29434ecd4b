//! A worker of one's own, as the SDK makes it from nothing but its configuration, with the handler `ledger`.

use isocost_common::config;
use isocost_tests::ledger_handler::LedgerHandler;
use isocost_worker::{JobContext, Worker};
use std::{env, sync::Arc};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let config = config::load(None, env::vars())?;
    let ledger = Arc::new(LedgerHandler::from_environment(&config.worker.id)?);
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
