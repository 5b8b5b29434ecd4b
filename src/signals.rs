//! Stop signals.

use crate::exit::{Failure, Reason};
use anyhow::{Context, anyhow};
use std::process;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit code of a process that was told twice to stop: that of a shell for a program ended by SIGINT.
const IMPATIENT: i32 = 130;

/// Runs `work` with a token that SIGTERM or SIGINT cancels: the work then finishes what it has in hand. A second
/// signal ends the process at once.
///
/// # Errors
/// Whatever `work` returns, or that signals cannot be received.
pub(crate) async fn until_told_to_stop<W>(work: W) -> anyhow::Result<()>
where
    W: AsyncFnOnce(CancellationToken) -> anyhow::Result<()>,
{
    let stop = CancellationToken::new();
    let terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
    // A task of its own: a second signal has to work also while `work` is stuck.
    let listener = tokio::spawn(listen(terminate, interrupt, stop.clone()));
    let outcome = work(stop).await;
    listener.abort();
    outcome
}

/// Waits with `work`, which only looks on, until SIGINT; `goes_on` then says what the signal has not stopped.
///
/// # Errors
/// Whatever `work` returns, or [`Reason::Interrupted`].
pub(crate) async fn unless_interrupted(
    work: impl Future<Output = Result<(), Failure>>,
    goes_on: impl FnOnce() -> String,
) -> Result<(), Failure> {
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
    tokio::select! {
        outcome = work => outcome,
        _ = interrupt.recv() => Err(Failure::new(Reason::Interrupted, anyhow!(goes_on()))),
    }
}

async fn listen(mut terminate: Signal, mut interrupt: Signal, stop: CancellationToken) {
    loop {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if stop.is_cancelled() {
            eprintln!("stopping at once: told twice");
            process::exit(IMPATIENT);
        }
        eprintln!("stopping: finishing what is in hand; a second signal stops at once");
        stop.cancel();
    }
}
