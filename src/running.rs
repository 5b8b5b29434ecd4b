//! The roles that run in a process.

use crate::Error;
use isocost_common::error_chain::chain;
use std::collections::HashMap;
use tokio::task::{self, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// The roles that run, by name.
#[derive(Default)]
pub(crate) struct Roles {
    tasks: JoinSet<Result<(), Error>>,
    names: HashMap<task::Id, &'static str>,
    stops: HashMap<&'static str, CancellationToken>,
}

impl Roles {
    /// Starts one, and hands it the token that stops it.
    pub(crate) fn spawn<F, W>(&mut self, name: &'static str, work: W)
    where
        W: FnOnce(CancellationToken) -> F,
        F: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let stop = CancellationToken::new();
        let task = self.tasks.spawn(work(stop.clone()));
        self.names.insert(task.id(), name);
        self.stops.insert(name, stop);
    }

    /// Waits for the shutdown, or for the first role that ends although nobody told it to.
    pub(crate) async fn first_to_end(&mut self, shutdown: &CancellationToken) -> Option<Error> {
        tokio::select! {
            () = shutdown.cancelled() => None,
            Some((role, outcome)) = self.next() => Some(outcome.err().unwrap_or(Error::Ended { role })),
        }
    }

    /// Stops a role and waits for its end; nothing when it does not run. Its error, if it has one.
    pub(crate) async fn stop(&mut self, name: &'static str) -> Option<Error> {
        self.tell_to_stop(name);
        let mut failed = None;
        while self.names.values().any(|running| *running == name) {
            let ended = self.one_ended().await;
            failed = failed.or(ended);
        }
        failed
    }

    /// Stops every role that still runs and waits for all of them. The first error.
    pub(crate) async fn stop_all(&mut self) -> Option<Error> {
        let names: Vec<_> = self.names.values().copied().collect();
        for name in names {
            self.tell_to_stop(name);
        }
        let mut failed = None;
        while !self.names.is_empty() {
            let ended = self.one_ended().await;
            failed = failed.or(ended);
        }
        failed
    }

    fn tell_to_stop(&self, name: &str) {
        if let Some(stop) = self.stops.get(name) {
            stop.cancel();
        }
    }

    async fn one_ended(&mut self) -> Option<Error> {
        let (role, outcome) = self.next().await?;
        let error = outcome.err()?;
        warn!(role, error = %chain(&error), "a role stopped with an error");
        Some(error)
    }

    /// The next role that ends, also by a panic; none when no role is left. Cancel-safe.
    async fn next(&mut self) -> Option<(&'static str, Result<(), Error>)> {
        let (task, outcome) = match self.tasks.join_next_with_id().await? {
            Ok(ended) => ended,
            Err(error) => (error.id(), Err(Error::Panicked(error))),
        };
        let role = self.names.remove(&task)?;
        Some((role, outcome))
    }
}
