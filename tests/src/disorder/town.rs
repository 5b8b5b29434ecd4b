//! The cluster that is broken: two APIs, two dispatchers, three workers and a relay on private servers, each process with
//! proxies of its own between it and the services, and somebody who starts again what ends.

use super::{DEAD_MS, EXIT_MS, HEARTBEAT_MS, LEASE_MS, LOCK_MS, MISFIRE_AFTER_MS, member::Member};
use crate::{
    api::Api,
    checker::Life,
    cluster::{Cluster, Role},
    ledger::Ledger,
};
use anyhow::{Context, Result};
use std::{fs, path::Path, sync::Arc, time::Duration};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

const MEMBERS: [(Role, &str); 8] = [
    (Role::Dispatcher, "dispatcher1"),
    (Role::Dispatcher, "dispatcher2"),
    (Role::LedgerWorker, "worker1"),
    (Role::LedgerWorker, "worker2"),
    (Role::LedgerWorker, "worker3"),
    (Role::Relay, "relay"),
    (Role::Api, "api1"),
    (Role::Api, "api2"),
];
/// How fast whatever has ended is started again, as a service manager does.
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub(super) struct Town {
    pub(super) cluster: Cluster,
    pub(super) members: Vec<Member>,
}

impl Town {
    pub(super) async fn build() -> Result<Self> {
        let ms = |ms: i64| ms.to_string();
        let cluster = Cluster::new()
            .await?
            .with("ISOCOST__LEASES__HEARTBEAT_MS", &ms(HEARTBEAT_MS))
            .with("ISOCOST__LEASES__WORKER_CANCEL_MS", &ms(LEASE_MS))
            .with("ISOCOST__LEASES__WORKER_EXIT_MS", &ms(EXIT_MS))
            .with("ISOCOST__LEASES__DEAD_AFTER_MS", &ms(DEAD_MS))
            .with("ISOCOST__LEASES__LOCK_TTL_MS", &ms(LOCK_MS))
            .with("ISOCOST__COORDINATION__COMMAND_TIMEOUT_MS", "500")
            .with("ISOCOST__DISPATCHER__MISFIRE_AFTER_MS", &ms(MISFIRE_AFTER_MS))
            .with("ISOCOST__RELAY__TIMEOUT_MS", "3000")
            .with(
                "ISOCOST__RELAY__RETRY_DELAYS_MS",
                "[200, 500, 1000, 2000, 3000, 3000, 3000, 3000, 3000, 3000, 3000, 3000]",
            );
        let mut members = Vec::with_capacity(MEMBERS.len());
        for (role, name) in MEMBERS {
            members.push(Member::start(&cluster, role, name).await?);
        }
        Ok(Self { cluster, members })
    }

    /// Clients of both APIs.
    pub(super) fn apis(&self) -> Result<Vec<Api>> {
        let apis = self.members.iter().filter(|member| member.role == Role::Api);
        apis.map(|member| {
            let process = member.try_process().context("the API is busy")?;
            self.cluster.api(&process)
        })
        .collect()
    }

    pub(super) fn database_url(&self) -> String {
        self.cluster.servers().mariadb.options().url
    }

    pub(super) fn ledger(&self) -> Ledger {
        self.cluster.ledger()
    }

    pub(super) fn lives(&self) -> Vec<Life> {
        self.members.iter().flat_map(Member::lives).collect()
    }

    /// Starts again whatever has ended, until told to stop.
    pub(super) async fn keep_running(self: Arc<Self>, stop: CancellationToken) -> Result<()> {
        while !stop.is_cancelled() {
            for member in &self.members {
                member.revive()?;
            }
            sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Puts everything in order that may not be.
    pub(super) async fn heal(&self) -> Result<()> {
        for way in self.members.iter().flat_map(Member::ways) {
            way.heal().await?;
        }
        Ok(())
    }

    /// What the processes said, beside the record.
    pub(super) fn copy_logs(&self, folder: &Path) -> Result<()> {
        for member in &self.members {
            let name = format!("{}.log", member.name);
            fs::copy(self.cluster.folder().join(&name), folder.join(&name))?;
        }
        Ok(())
    }
}
