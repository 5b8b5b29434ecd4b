//! Everything in one process: the API, the dispatcher, the relay and one worker, on an embedded database and in-process
//! ports. The same code as on a cluster; only the ports differ.

mod admin_key;

pub use crate::Error;

use crate::running::Roles;
use isocost_api as api;
use isocost_common::{
    Ports,
    broker::{Broker, memory::MemoryBroker, topology::Names},
    config::{Config, ListenAt},
    connect,
    coordination::memory::MemoryCoordination,
    observe::Observer,
    readiness::Readiness,
    store::{FolderLock, Store, StoreOptions, migrations},
    telemetry,
};
use isocost_dispatcher as dispatcher;
use isocost_worker::{Worker, WorkerBuilder};
use metrics_exporter_prometheus::PrometheusHandle;
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{net::TcpListener, time::timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

/// Name of the one worker.
const WORKER_NAME: &str = "standalone";
/// How long a stop waits for the intake to take in what the worker reported last.
const LAST_REPORTS: Duration = Duration::from_secs(10);

/// One process with everything in it, not started yet.
pub struct Standalone {
    config: Config,
    data: PathBuf,
    listen: SocketAddr,
    worker: Box<dyn FnOnce(WorkerBuilder) -> WorkerBuilder + Send>,
}

/// What a caller may want to know once everything runs.
#[derive(Debug, Clone)]
pub struct Started {
    /// Where the API answers, such as `http://127.0.0.1:8080`.
    pub url: String,
    /// The admin key.
    pub admin_key: String,
    /// The file the admin key is in.
    pub admin_key_file: PathBuf,
    /// True when the key was made by this start.
    pub key_is_new: bool,
    /// What webhooks are signed with, when it was made by this start; it is not shown again.
    pub webhook_secret: Option<String>,
    /// True when others could read the key's file before this start, and cannot any more.
    pub key_file_was_open: bool,
    /// Callbacks may go to loopback addresses.
    pub loopback_callbacks: bool,
}

impl Standalone {
    /// Everything with its data in the folder `data`, which is created, and the API on `listen`.
    #[must_use]
    pub fn new(config: Config, data: &Path, listen: SocketAddr) -> Self {
        Self {
            config,
            data: data.to_owned(),
            listen,
            worker: Box::new(|builder| builder),
        }
    }

    /// Adds handlers to the worker, besides the built-in ones.
    #[must_use]
    pub fn worker(mut self, extend: impl FnOnce(WorkerBuilder) -> WorkerBuilder + Send + 'static) -> Self {
        self.worker = Box::new(extend);
        self
    }

    /// Runs until `shutdown` is cancelled, then stops in order: no new jobs, the worker drained, its last reports taken
    /// in. `started` is called once, when the API answers.
    ///
    /// # Errors
    /// [`Error`] when something cannot start, or a role ends by itself.
    pub async fn run(
        self,
        shutdown: CancellationToken,
        started: impl FnOnce(Started) + Send,
    ) -> Result<(), Error> {
        install_tls_provider();
        let Self {
            mut config,
            data,
            listen,
            worker,
        } = self;
        let data = admin_key::create_folder(&data)?;
        let _lock = FolderLock::take(&data)?;
        let listener = TcpListener::bind(listen).await.map_err(|source| Error::Listen {
            address: listen,
            source,
        })?;
        let address = listener.local_addr().map_err(|source| Error::Listen {
            address: listen,
            source,
        })?;
        settle_config(&mut config, address);
        let metrics = telemetry::start(&config.telemetry)?;

        let store = open_store(&config, &data).await?;
        let key = admin_key::ensure(&store, &data).await?;
        // The folder's lock proves that every earlier process is gone: its work is recovered before anything starts.
        dispatcher::bury_all(&store).await?;
        let ports = Ports {
            store: store.clone(),
            broker: MemoryBroker::new(),
            coordination: MemoryCoordination::new(),
            readiness: Readiness::default(),
        };
        let names = Names::new(&config.broker.namespace);
        let _observer = observe(&config, &ports, metrics.clone()).await?;

        let mut roles = Roles::default();
        roles.spawn("api", {
            let (config, ports) = (config.clone(), ports.clone());
            move |stop| async move { Ok(api::run_on(listener, config, ports, metrics, stop).await?) }
        });
        roles.spawn("dispatcher", {
            let (config, ports) = (config.clone(), ports.clone());
            move |stop| async move { Ok(Box::pin(dispatcher::run(config, ports, stop)).await?) }
        });
        roles.spawn("relay", {
            let (config, ports) = (config.clone(), ports.clone());
            move |stop| async move { Ok(dispatcher::relay::run(config, ports, stop).await?) }
        });
        roles.spawn("worker", {
            let builder = worker(
                Worker::builder(config)
                    .built_in_handlers()
                    .ports(ports.broker.clone(), ports.coordination.clone())
                    .readiness(ports.readiness.clone()),
            );
            move |stop| async move { Ok(builder.run(stop).await?) }
        });
        started(Started {
            url: format!("http://{address}"),
            admin_key: key.text,
            admin_key_file: key.file,
            key_is_new: key.is_new,
            webhook_secret: key.webhook_secret,
            key_file_was_open: key.file_was_open,
            loopback_callbacks: address.ip().is_loopback(),
        });

        let failed = roles.first_to_end(&shutdown).await;
        ports.readiness.stopping();
        roles.stop("api").await;
        roles.stop("worker").await;
        last_reports_taken_in(&*ports.broker, &names).await;
        roles.stop_all().await;
        ports.broker.close().await;
        store.close().await;
        failed.map_or(Ok(()), Err)
    }
}

/// The HTTP clients of the roles need one in place; a program that embeds this may have chosen another.
fn install_tls_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error means that somebody else installed one in this moment, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// What one process with loopback only may do that a cluster may not, and the names it has.
fn settle_config(config: &mut Config, address: SocketAddr) {
    config.api.listen = address.to_string();
    if address.ip().is_loopback() {
        config.api.allow_loopback_callbacks = true;
        config
            .relay
            .allowed_networks
            .extend(["127.0.0.0/8".to_owned(), "::1/128".to_owned()]);
    }
    // Nobody outside this process could hear them.
    config.broker.outcomes = false;
    if config.worker.id.is_empty() {
        config.worker.id = WORKER_NAME.into();
    }
    // Nobody outside this process asks this worker whether it lives.
    config.worker.listen = "127.0.0.1:0".into();
    config.worker.advertise = "127.0.0.1".into();
}

/// The API answers for metrics and health already; a second listener only where one is asked for.
async fn observe(
    config: &Config,
    ports: &Ports,
    metrics: PrometheusHandle,
) -> Result<Option<Observer>, Error> {
    connect::watch_store(&ports.readiness, &ports.store);
    match config.telemetry.listen_at()? {
        ListenAt::ByRole | ListenAt::Nowhere => Ok(None),
        at @ ListenAt::Address(_) => Ok(Some(
            Observer::start(at, 0, metrics, ports.readiness.clone()).await?,
        )),
    }
}

async fn open_store(config: &Config, data: &Path) -> Result<Store, Error> {
    let url = format!("sqlite:{}", data.join("isocost.db").display());
    let options = StoreOptions {
        max_connections: config.store.max_connections.min(8),
        ..StoreOptions::new(&url)
    };
    let store = Store::connect(&options).await.map_err(Error::Open)?;
    migrations::run(&store).await.map_err(Error::Open)?;
    Ok(store)
}

/// The worker is gone and its reports are confirmed; the in-process broker would take them along.
async fn last_reports_taken_in(broker: &dyn Broker, names: &Names) {
    let failure = match timeout(LAST_REPORTS, dispatcher::intake::all_taken_in(broker, names)).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(elapsed) => elapsed.to_string(),
    };
    warn!(
        failure,
        "stopping although reports may be left; the next start recovers their executions"
    );
}
