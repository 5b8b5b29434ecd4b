//! What all requests share, and the tasks that work behind them.

use crate::{
    access::{Admission, AppNames, KeyCache, PendingQuotas, RateLimits},
    handler_directory::HandlerDirectory,
    submitter::Submitter,
    waker::Waker,
};
use isocost_common::{Ports, broker::topology::Names, config::Config, egress::EgressPolicy, readiness::Flag};
use metrics_exporter_prometheus::PrometheusHandle;
use std::sync::Arc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Shared by all requests. Cheap to clone.
#[derive(Clone)]
pub struct ApiState(Arc<Shared>);

struct Shared {
    config: Config,
    ports: Ports,
    egress: EgressPolicy,
    metrics: PrometheusHandle,
    admission: Admission,
    keys: KeyCache,
    app_names: AppNames,
    rates: RateLimits,
    quotas: PendingQuotas,
    handlers: HandlerDirectory,
    submitter: Submitter,
    waker: Waker,
    submissions: Flag,
    closing: CancellationToken,
}

/// The tasks behind an [`ApiState`].
#[must_use = "the tasks have to be waited for"]
pub struct Background {
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Background {
    /// Lets the tasks finish what they have in hand, and waits for that.
    pub async fn finish(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl ApiState {
    /// Starts the tasks. `closing` tells streams that the server is about to end.
    ///
    /// # Errors
    /// [`crate::Error::Networks`] when `relay.allowed_networks` cannot be read.
    pub fn start(
        config: Config,
        ports: Ports,
        metrics: PrometheusHandle,
        closing: CancellationToken,
    ) -> Result<(Self, Background), crate::Error> {
        let egress = EgressPolicy::new(
            &config.relay.allowed_networks,
            config.api.allow_loopback_callbacks,
        )
        .map_err(crate::Error::Networks)?;
        let names = Names::new(&config.broker.namespace);
        let ports = ports.recording_outcomes(config.broker.outcomes);
        // Only a note: jobs are accepted over REST all the same.
        let submissions = ports.readiness.note("submissions", "not consumed yet");
        let background = Background {
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        };
        let (submitter, committing) = Submitter::new(ports.store.clone());
        let (waker, nudging) = Waker::new(Arc::clone(&ports.broker), names);
        background.tasks.spawn(committing.run(background.stop.clone()));
        background.tasks.spawn(nudging.run(background.stop.clone()));
        let state = Self(Arc::new(Shared {
            admission: Admission::new(&config.api),
            config,
            ports,
            egress,
            metrics,
            keys: KeyCache::default(),
            app_names: AppNames::default(),
            rates: RateLimits::default(),
            quotas: PendingQuotas::default(),
            handlers: HandlerDirectory::default(),
            submitter,
            waker,
            submissions,
            closing,
        }));
        Ok((state, background))
    }

    pub(crate) fn config(&self) -> &Config {
        &self.0.config
    }

    pub(crate) fn ports(&self) -> &Ports {
        &self.0.ports
    }

    pub(crate) fn store(&self) -> &isocost_common::store::Store {
        &self.0.ports.store
    }

    pub(crate) fn egress(&self) -> &EgressPolicy {
        &self.0.egress
    }

    pub(crate) fn metrics(&self) -> &PrometheusHandle {
        &self.0.metrics
    }

    pub(crate) fn admission(&self) -> &Admission {
        &self.0.admission
    }

    pub(crate) fn keys(&self) -> &KeyCache {
        &self.0.keys
    }

    pub(crate) fn app_names(&self) -> &AppNames {
        &self.0.app_names
    }

    pub(crate) fn rates(&self) -> &RateLimits {
        &self.0.rates
    }

    pub(crate) fn quotas(&self) -> &PendingQuotas {
        &self.0.quotas
    }

    pub(crate) fn handlers(&self) -> &HandlerDirectory {
        &self.0.handlers
    }

    pub(crate) fn submitter(&self) -> &Submitter {
        &self.0.submitter
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.0.waker
    }

    /// Whether submissions over AMQP are being taken in.
    pub(crate) fn submissions(&self) -> &Flag {
        &self.0.submissions
    }

    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.0.closing
    }
}
