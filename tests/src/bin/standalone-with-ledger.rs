//! Standalone mode with one more handler, `ledger`, as a program with handlers of its own would embed it.

use anyhow::bail;
use isocost::standalone::Standalone;
use isocost_common::config;
use isocost_tests::ledger_handler::LedgerHandler;
use isocost_worker::JobContext;
use std::{env, sync::Arc};
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
    let ledger = Arc::new(LedgerHandler::from_environment("standalone")?);
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
            async move { ledger.run(&job).await }
        })
    });
    let outcome = site.run(stop, |started| println!("{}", started.url)).await;
    listener.abort();
    Ok(outcome?)
}
