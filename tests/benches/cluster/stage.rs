//! The cluster that is measured.

use anyhow::{Result, ensure};
use isocost_tests::{
    api::Api,
    cluster::{Cluster, Process, Role},
};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// The tests' own servers are kept small; a database that is measured has room for what it works on. Every commit is
/// still flushed to the disk.
const DATABASE_OPTIONS: [&str; 2] = ["--innodb-buffer-pool-size=1G", "--innodb-log-file-size=512M"];
/// Longest wait for results.
const PATIENCE: Duration = Duration::from_secs(180);
/// Looking costs what is measured: the machine's time.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// One API, one relay, and some dispatchers and workers.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) api: Api,
    pub(crate) processes: Vec<Process>,
    dispatchers: usize,
}

impl Stage {
    pub(crate) async fn with(dispatchers: usize, workers: usize) -> Result<Self> {
        let cluster = Cluster::on_database(&DATABASE_OPTIONS).await?;
        cluster.migrate().await?;
        let mut processes = Vec::new();
        for number in 1..=dispatchers {
            let name = format!("dispatcher{number}");
            processes.push(cluster.start(Role::Dispatcher, &name).await?);
        }
        for number in 1..=workers {
            processes.push(cluster.start(Role::Worker, &format!("worker{number}")).await?);
        }
        processes.push(cluster.start(Role::Relay, "relay").await?);
        let api_process = cluster.start(Role::Api, "api").await?;
        let api = cluster.api(&api_process)?;
        processes.push(api_process);
        Ok(Self {
            cluster,
            api,
            processes,
            dispatchers,
        })
    }

    /// Executions that have ended since the start: the results that are committed.
    pub(crate) async fn finished(&self) -> Result<f64> {
        let mut finished = 0.0;
        for dispatcher in &self.processes[..self.dispatchers] {
            finished += dispatcher.metric("isocost_executions_finished_total").await?;
        }
        Ok(finished)
    }

    /// Waits until so many have.
    pub(crate) async fn wait_until_finished(&self, count: f64) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.finished().await? < count {
            ensure!(
                Instant::now() < deadline,
                "not all results are committed within {PATIENCE:?}"
            );
            sleep(BETWEEN_LOOKS).await;
        }
        Ok(())
    }

    /// The sum of a metric over all processes.
    pub(crate) async fn metric(&self, name: &str) -> Result<f64> {
        let mut sum = 0.0;
        for process in &self.processes {
            sum += process.metric(name).await?;
        }
        Ok(sum)
    }

    /// Stops the processes in good order, the API first.
    pub(crate) async fn stop(mut self) -> Result<()> {
        while let Some(mut process) = self.processes.pop() {
            process.stop().await?;
        }
        Ok(())
    }
}
