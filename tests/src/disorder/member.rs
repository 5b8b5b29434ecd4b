//! One process of the cluster and its ways to the services, each of which can be broken.

use super::now_ms;
use crate::{
    checker::Life,
    cluster::{Cluster, Process, Role},
    port::free_port,
};
use anyhow::{Context, Result};
use isocost_common::test_support::proxy::{Proxy, Traffic};
use parking_lot::Mutex;
use std::{net::SocketAddr, time::Duration};
use tokio::{sync::MutexGuard, time::timeout};

/// Whoever is frozen answers nothing.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// Workers that answer on a port of their own: who answers there next proves that they are gone. Of the others only their
/// silence tells.
const FIXED_PORTS: [&str; 1] = ["worker1"];

/// A process that is started again whenever it has ended.
pub(super) struct Member {
    pub(super) name: String,
    pub(super) role: Role,
    process: tokio::sync::Mutex<Process>,
    ways: Vec<Way>,
    lives: Mutex<Vec<Life>>,
}

/// The way to one service.
pub(super) struct Way {
    pub(super) service: &'static str,
    proxy: Proxy,
}

impl Way {
    /// Everything on it is lost, and later on every connection that had lost something is reset.
    pub(super) async fn black_hole(&self) -> Result<()> {
        Ok(self.proxy.set(Traffic::BlackHole).await?)
    }

    /// Connections are reset and new ones refused.
    pub(super) async fn cut(&self) -> Result<()> {
        self.proxy.set(Traffic::Refuse).await?;
        self.proxy.reset_all();
        Ok(())
    }

    pub(super) async fn heal(&self) -> Result<()> {
        self.proxy.set(Traffic::Pass).await?;
        self.proxy.reset_all();
        Ok(())
    }
}

impl Member {
    /// Starts it behind a proxy for each service, and waits until it is ready.
    pub(super) async fn start(cluster: &Cluster, role: Role, name: &str) -> Result<Self> {
        let services = cluster.servers().environment();
        let (mut ways, mut environment) = (Vec::new(), Vec::new());
        for (variable, url) in &services {
            let (before, address, after) = around_address(url)?;
            let proxy = Proxy::start(address).await?;
            environment.push((*variable, format!("{before}{}{after}", proxy.address())));
            ways.push(Way {
                service: service(variable),
                proxy,
            });
        }
        if FIXED_PORTS.contains(&name) {
            environment.push(("ISOCOST__WORKER__LISTEN", format!("127.0.0.1:{}", free_port())));
        }
        let environment: Vec<_> = environment
            .iter()
            .map(|(name, url)| (*name, url.as_str()))
            .collect();
        let process = cluster.start_with(role, name, &environment).await?;
        let this = Self {
            name: name.to_owned(),
            role,
            process: tokio::sync::Mutex::new(process),
            ways,
            lives: Mutex::default(),
        };
        this.has_begun(&*this.process.lock().await);
        Ok(this)
    }

    /// Its process, for one fault at a time.
    pub(super) async fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().await
    }

    /// Its process, when nobody does anything to it.
    pub(super) fn try_process(&self) -> Option<MutexGuard<'_, Process>> {
        self.process.try_lock().ok()
    }

    /// Whether it is a dispatcher that leads; false when it does not say.
    pub(super) async fn leads(&self) -> bool {
        let Some(process) = self.try_process() else {
            return false;
        };
        let asked = timeout(ANSWERS_WITHIN, process.is_leader()).await;
        matches!(asked, Ok(Ok(true)))
    }

    pub(super) fn ways(&self) -> &[Way] {
        &self.ways
    }

    pub(super) fn lives(&self) -> Vec<Life> {
        self.lives.lock().clone()
    }

    /// Starts it again when it has ended by itself. Leaves it alone while somebody does something to it.
    pub(super) fn revive(&self) -> Result<()> {
        let Ok(mut process) = self.process.try_lock() else {
            return Ok(());
        };
        if process.has_ended()? {
            self.has_ended();
            self.start_again(&mut process)?;
        }
        Ok(())
    }

    /// Starts it again and does not wait.
    pub(super) fn start_again(&self, process: &mut Process) -> Result<()> {
        process.spawn_again(&[])?;
        self.has_begun(process);
        Ok(())
    }

    fn has_begun(&self, process: &Process) {
        self.lives.lock().push(Life {
            name: self.name.clone(),
            process: process.id().unwrap_or_default(),
            from: now_ms(),
            to: None,
        });
    }

    /// Notes that its process is gone.
    pub(super) fn has_ended(&self) {
        if let Some(life) = self.lives.lock().last_mut() {
            life.to.get_or_insert(now_ms());
        }
    }
}

fn service(variable: &str) -> &'static str {
    match variable {
        "ISOCOST__STORE__URL" => "MariaDB",
        "ISOCOST__BROKER__URL" => "RabbitMQ",
        _ => "Redis",
    }
}

/// The address in a URL `scheme://user:password@address/path`, and what stands before and after it.
fn around_address(url: &str) -> Result<(&str, SocketAddr, &str)> {
    let start = url.find('@').context("no user in the URL of a service")? + 1;
    let length = url[start..]
        .find('/')
        .context("no path in the URL of a service")?;
    let (before, rest) = url.split_at(start);
    let (address, after) = rest.split_at(length);
    Ok((before, address.parse()?, after))
}
