//! Putting a worker together: its handlers, its ports, and the loop over its incarnations.

use crate::{
    Error, JobContext, JobError, builtin,
    handler::{Handler, is_valid_name},
    life::{After, live},
    pool::HandlerPool,
    probe,
    runtime::{Identity, Offer, Runtime},
};
use isocost_common::{
    broker::Broker,
    config::Config,
    connect::{self, Messaging, Need},
    coordination::Coordination,
    id::WorkerId,
    observe::Observer,
    readiness::{Condition, Readiness},
    telemetry,
};
use rustls::crypto::{CryptoProvider, ring};
use serde::Serialize;
use std::{collections::BTreeMap, future::Future, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{net::TcpListener, time::timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Probes in progress may take this long when the worker stops.
const PROBE_END: Duration = Duration::from_secs(2);
/// First of the ports for metrics and health when none is configured.
pub const DEFAULT_PORT: u16 = 9140;

/// The outside of a worker. It has no database connection.
#[derive(Clone)]
pub struct WorkerPorts {
    /// Carries messages.
    pub broker: Arc<dyn Broker>,
    /// Heartbeats and start keys.
    pub coordination: Arc<dyn Coordination>,
}

/// A worker: takes executions of the handlers it offers, runs them and reports.
#[derive(Debug, Clone, Copy)]
pub struct Worker;

impl Worker {
    /// Begins to put a worker together.
    #[must_use]
    pub fn builder(config: Config) -> WorkerBuilder {
        WorkerBuilder {
            config,
            handlers: BTreeMap::new(),
            slots: BTreeMap::new(),
            ports: None,
            readiness: Readiness::default(),
        }
    }
}

/// A worker that is being put together.
pub struct WorkerBuilder {
    config: Config,
    handlers: BTreeMap<String, Handler>,
    slots: BTreeMap<String, u32>,
    ports: Option<WorkerPorts>,
    readiness: Readiness,
}

impl WorkerBuilder {
    /// Offers a handler. Its return value, any [`Serialize`], is the execution's result.
    ///
    /// A handler is a plain async function: it is stopped by dropping it at an `.await`. One that must tidy up, or that
    /// computes for long, watches [`JobContext::cancelled`]. Work that blocks belongs into `tokio::task::spawn_blocking`.
    /// Handlers run on threads of their own, so one that blocks nevertheless harms other handlers at most.
    #[must_use]
    pub fn handler<F, Fut, T>(mut self, name: &str, function: F) -> Self
    where
        F: Fn(JobContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, JobError>> + Send + 'static,
        T: Serialize,
    {
        self.handlers.insert(name.to_owned(), Handler::new(function));
        self
    }

    /// Offers the built-in handlers: `noop`, `echo`, `sleep`, `fail`, `http`, and `command` when the configuration
    /// lists programs for it.
    #[must_use]
    pub fn built_in_handlers(mut self) -> Self {
        self.handlers.extend(builtin::all(&self.config.worker.commands));
        self
    }

    /// How many runs of a handler there may be at once. The configuration's `worker.handler_slots` goes over it; without
    /// either, `worker.slots` counts.
    #[must_use]
    pub fn concurrency(mut self, name: &str, runs: u32) -> Self {
        self.slots.insert(name.to_owned(), runs);
        self
    }

    /// The broker and the coordination service to use, instead of connecting to those of the configuration. Logs, metrics
    /// and their listener are then the caller's as well.
    #[must_use]
    pub fn ports(mut self, broker: Arc<dyn Broker>, coordination: Arc<dyn Coordination>) -> Self {
        self.ports = Some(WorkerPorts { broker, coordination });
        self
    }

    /// Where the worker says whether it can do its job.
    #[must_use]
    pub fn readiness(mut self, readiness: Readiness) -> Self {
        self.readiness = readiness;
        self
    }

    /// Works until `shutdown` is cancelled; without [`WorkerBuilder::ports`] it connects to RabbitMQ and Redis as
    /// configured, starts logging and recording metrics unless the program has done so, and serves metrics and health
    /// where `telemetry.listen` says. At the shutdown it
    /// takes nothing new, gives back what has not started, lets running handlers finish within `worker.grace_ms` and
    /// reports everything. After a fencing or the loss of its lease it goes on as a new incarnation.
    ///
    /// # Errors
    /// At start: everything but [`Error::HandlersStillRunning`] and [`Error::Task`]. Later: these two; after the first
    /// of them the process must exit, because its handlers could go on beside their own retries.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let offers = self.offers()?;
        let worker = name(&self.config)?;
        let Some(ports) = self.ports.clone() else {
            return Box::pin(self.run_connected(&worker, shutdown)).await;
        };
        let (listener, address) = listen(&self.config.worker.listen).await?;
        let host = match self.config.worker.advertise.as_str() {
            "" => host_name(),
            host => host.to_owned(),
        };
        let identity = Identity {
            worker,
            host,
            port: address.port(),
        };
        let runtime = Runtime::new(self.config, identity, ports, offers, HandlerPool::start()?);
        runtime.check_registration().map_err(Error::Unfit)?;

        self.readiness.check("worker", {
            let runtime = Arc::clone(&runtime);
            move || {
                let missing = runtime.missing();
                async move { missing.map_or(Condition::Met, |why| Condition::Missing(why.into())) }
            }
        });
        let stop_probe = CancellationToken::new();
        let mut probing = tokio::spawn(probe::serve(listener, Arc::clone(&runtime), stop_probe.clone()));
        let result = loop {
            match live(&runtime, &shutdown).await {
                Ok(After::Again) if !shutdown.is_cancelled() => {}
                Ok(After::Again | After::Stop) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        stop_probe.cancel();
        if result.is_err() {
            probing.abort(); // The process is to exit at once.
        } else if timeout(PROBE_END, &mut probing).await.is_err() {
            warn!("the probe listener has open connections; closing it");
            probing.abort();
        }
        result
    }

    /// The whole of a process: everything that the caller of [`WorkerBuilder::ports`] has done by itself.
    async fn run_connected(mut self, worker: &WorkerId, shutdown: CancellationToken) -> Result<(), Error> {
        self.config.validate_for_cluster()?;
        if CryptoProvider::get_default().is_none() {
            // An error means that somebody else installed one in this moment, which serves as well.
            let _ = ring::default_provider().install_default();
        }
        let metrics = telemetry::start(&self.config.telemetry)?;
        self.readiness.awaits(&["worker"]);
        let listen = self.config.telemetry.listen_at()?;
        let _observer = Observer::start(listen, DEFAULT_PORT, metrics, self.readiness.clone()).await?;
        let name = format!("isocost worker {worker}");
        let Messaging { broker, coordination } = connect::messaging(&self.config, &name, &self.readiness)?;
        connect::watch_broker(&self.readiness, &broker, Need::Connected);
        self.ports = Some(WorkerPorts {
            broker: Arc::clone(&broker),
            coordination,
        });
        let readiness = self.readiness.clone();
        let stopping = shutdown.clone();
        let watch = tokio::spawn(async move {
            stopping.cancelled().await;
            readiness.stopping();
        });
        let result = self.run(shutdown).await;
        watch.abort();
        // After an error the process is to exit at once.
        if result.is_ok() {
            broker.close().await;
        }
        result
    }

    fn offers(&self) -> Result<BTreeMap<String, Offer>, Error> {
        let problem = |name: &str, problem| Error::Handler {
            name: name.to_owned(),
            problem,
        };
        if self.handlers.is_empty() {
            return Err(Error::NoHandlers);
        }
        if let Some(name) = self.slots.keys().find(|name| !self.handlers.contains_key(*name)) {
            return Err(problem(name, "has a concurrency and no function"));
        }
        let configured = &self.config.worker.handler_slots;
        let mut offers = BTreeMap::new();
        for (name, handler) in &self.handlers {
            if !is_valid_name(name) {
                return Err(problem(name, "must be 1 to 255 characters of A-Z a-z 0-9 . _ -"));
            }
            let slots = configured
                .get(name)
                .or_else(|| self.slots.get(name))
                .copied()
                .unwrap_or(self.config.worker.slots);
            if slots == 0 {
                return Err(problem(name, "must be allowed at least one run"));
            }
            let offer = Offer {
                handler: handler.clone(),
                slots,
            };
            offers.insert(name.clone(), offer);
        }
        Ok(offers)
    }
}

/// Runs a worker that offers the built-in handlers.
///
/// # Errors
/// As [`WorkerBuilder::run`].
pub async fn run(config: Config, ports: WorkerPorts, shutdown: CancellationToken) -> Result<(), Error> {
    Worker::builder(config)
        .built_in_handlers()
        .ports(ports.broker, ports.coordination)
        .run(shutdown)
        .await
}

async fn listen(address: &str) -> Result<(TcpListener, SocketAddr), Error> {
    let failed = |source| Error::Listen {
        address: address.to_owned(),
        source,
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

fn name(config: &Config) -> Result<WorkerId, Error> {
    let name = match config.worker.id.as_str() {
        "" => host_name(),
        id => id.to_owned(),
    };
    WorkerId::parse(&name).map_err(Error::Name)
}

fn host_name() -> String {
    sysinfo::System::host_name().unwrap_or_else(|| "localhost".into())
}
