//! Roles of a cluster: each a process of its own, or several in one.

use crate::{Error, running::Roles};
use isocost_api as api;
use isocost_common::{
    Ports,
    broker::Broker,
    config::Config,
    connect::{self, Messaging, Need},
    coordination::{self, Coordination},
    doctor::Verdict,
    observe::Observer,
    readiness::Readiness,
    store::{self, Store},
    telemetry,
};
use isocost_dispatcher as dispatcher;
use isocost_worker::{self as worker, Worker};
use metrics_exporter_prometheus::PrometheusHandle;
use std::{collections::BTreeSet, sync::Arc};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// What a process of a cluster does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The REST API.
    Api,
    /// Trigger, placement, recovery, intake of results.
    Dispatcher,
    /// Callbacks.
    Relay,
    /// Runs jobs with the built-in handlers.
    Worker,
}

impl Role {
    /// Its name, as on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Dispatcher => "dispatcher",
            Self::Relay => "relay",
            Self::Worker => "worker",
        }
    }

    /// First of the ten ports for metrics and health when none is configured.
    #[must_use]
    pub const fn first_port(self) -> u16 {
        match self {
            Self::Api => 9110,
            Self::Dispatcher => 9120,
            Self::Relay => 9130,
            Self::Worker => worker::DEFAULT_PORT,
        }
    }

    const fn needs_store(self) -> bool {
        !matches!(self, Self::Worker)
    }

    /// What it shows in the readiness once it works.
    const fn checks(self) -> &'static [&'static str] {
        match self {
            Self::Api => &["api"],
            Self::Dispatcher => &["leader", "results queue"],
            Self::Relay => &["first callbacks queue", "repeated callbacks queue"],
            Self::Worker => &["worker"],
        }
    }

    const fn need_of_broker(self) -> Need {
        match self {
            Self::Api => Need::Helpful,
            Self::Dispatcher => Need::Publishing,
            Self::Relay | Self::Worker => Need::Connected,
        }
    }
}

/// Runs these roles in this process until `shutdown` is cancelled, then stops them in order: no new jobs, the worker
/// drained, everybody else with what is in hand completed.
///
/// # Errors
/// [`Error`] when the configuration cannot be used, the database or its tables are not there in time, or a role ends by
/// itself.
pub async fn run(roles: &BTreeSet<Role>, config: Config, shutdown: CancellationToken) -> Result<(), Error> {
    config.validate_for_cluster()?;
    let Some(first) = roles.first() else {
        return Err(Error::NoRole);
    };
    let metrics = telemetry::start(&config.telemetry)?;
    let readiness = Readiness::default();
    for role in roles {
        readiness.awaits(role.checks());
    }
    let _observer = Observer::start(
        config.telemetry.listen_at()?,
        first.first_port(),
        metrics.clone(),
        readiness.clone(),
    )
    .await?;
    let names: Vec<_> = roles.iter().map(|role| role.name()).collect();
    let names = names.join("+");
    info!(roles = names, "starting");
    let connection_name = format!("isocost {names} {}", std::process::id());
    let Messaging { broker, coordination } = connect::messaging(&config, &connection_name, &readiness)?;
    let need = roles.iter().map(|role| role.need_of_broker()).max();
    connect::watch_broker(&readiness, &broker, need.unwrap_or(Need::Helpful));
    let store = if roles.iter().any(|role| role.needs_store()) {
        Some(connect::store(&config, &readiness, &shutdown).await?)
    } else {
        None
    };
    let running = Running {
        config,
        readiness,
        metrics,
        broker,
        coordination,
        store,
    };
    let outcome = running.run(roles, &shutdown).await;
    if outcome.is_ok() {
        running.broker.close().await;
        if let Some(store) = &running.store {
            store.close().await;
        }
    }
    outcome
}

struct Running {
    config: Config,
    readiness: Readiness,
    metrics: PrometheusHandle,
    broker: Arc<dyn Broker>,
    coordination: Arc<dyn Coordination>,
    store: Option<Store>,
}

impl Running {
    async fn run(&self, roles: &BTreeSet<Role>, shutdown: &CancellationToken) -> Result<(), Error> {
        let mut running = Roles::default();
        for role in roles {
            self.start(*role, &mut running);
        }
        let checking = tokio::spawn(warn_of_broken_promises(self.store.clone(), self.config.clone()));
        let failed = running.first_to_end(shutdown).await;
        self.readiness.stopping();
        checking.abort();
        let mut failures = vec![failed];
        failures.push(running.stop(Role::Api.name()).await);
        failures.push(running.stop(Role::Worker.name()).await);
        failures.push(running.stop_all().await);
        failures.into_iter().flatten().next().map_or(Ok(()), Err)
    }

    fn start(&self, role: Role, running: &mut Roles) {
        let config = self.config.clone();
        if role == Role::Worker {
            let worker = Worker::builder(config)
                .built_in_handlers()
                .ports(Arc::clone(&self.broker), Arc::clone(&self.coordination))
                .readiness(self.readiness.clone());
            return running.spawn(role.name(), |stop| async move { Ok(worker.run(stop).await?) });
        }
        // Every role but the worker has a store: see `needs_store`.
        let Some(ports) = self.ports() else { return };
        let metrics = self.metrics.clone();
        match role {
            Role::Api => running.spawn(role.name(), |stop| async move {
                Ok(api::run(config, ports, metrics, stop).await?)
            }),
            Role::Dispatcher => running.spawn(role.name(), |stop| async move {
                Ok(Box::pin(dispatcher::run(config, ports, stop)).await?)
            }),
            Role::Relay => running.spawn(role.name(), |stop| async move {
                Ok(dispatcher::relay::run(config, ports, stop).await?)
            }),
            Role::Worker => {}
        }
    }

    fn ports(&self) -> Option<Ports> {
        Some(Ports {
            store: self.store.clone()?,
            broker: Arc::clone(&self.broker),
            coordination: Arc::clone(&self.coordination),
            readiness: self.readiness.clone(),
        })
    }
}

/// Looks once for settings of the services with which a promise does not hold. The process goes on: it may be a test
/// site, and stopping would not bring anything back.
async fn warn_of_broken_promises(store: Option<Store>, config: Config) {
    let mut findings = match &store {
        Some(store) => store::doctor::promises(store).await,
        None => Vec::new(),
    };
    findings.extend(coordination::doctor::promises(&config.coordination).await);
    for finding in findings {
        if finding.verdict != Verdict::Ok {
            warn!(
                what = finding.what,
                remedy = finding.remedy,
                "{}: {}",
                finding.service,
                finding.says
            );
        }
    }
}
