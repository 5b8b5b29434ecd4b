use crate::{amqp, routes, state::ApiState};
use isocost_common::{
    Ports,
    broker::{BrokerError, topology::Names},
    config::Config,
    egress::InvalidNetwork,
    error_chain::chain,
    http_server,
};
use metrics_exporter_prometheus::PrometheusHandle;
use std::{io, time::Duration};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

/// How long open requests may take to end once the server is told to.
const LAST_REQUESTS: Duration = Duration::from_secs(10);

/// Why the API could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened on.
    #[error("listening on {address}: choose another api.listen if something else uses it")]
    Listen {
        /// The address.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// A network that callbacks may reach cannot be read.
    #[error("relay.allowed_networks")]
    Networks(#[source] InvalidNetwork),
}

/// Listens on `api.listen` and serves until `shutdown`.
///
/// # Errors
/// [`Error`] when it cannot start.
pub async fn run(
    config: Config,
    ports: Ports,
    metrics: PrometheusHandle,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let address = config.api.listen.clone();
    let listener = TcpListener::bind(&address)
        .await
        .map_err(|source| Error::Listen { address, source })?;
    run_on(listener, config, ports, metrics, shutdown).await
}

/// Serves on a listener that is bound already, so that the caller knows the port. On `shutdown` no new connection is
/// taken, open requests are answered, and what was handed in is stored before this returns.
///
/// # Errors
/// [`Error`] when it cannot start.
pub async fn run_on(
    listener: TcpListener,
    config: Config,
    ports: Ports,
    metrics: PrometheusHandle,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let header_timeout = Duration::from_millis(config.api.header_timeout_ms);
    ports.readiness.flag("api", "not listening yet").met();
    let declaring = declare_topology(config.clone(), ports.clone());
    let (state, background) = ApiState::start(config, ports, metrics, shutdown.clone())?;
    // Not waited for: jobs are accepted without a broker.
    let declaring = tokio::spawn(declaring);
    if let Ok(address) = listener.local_addr() {
        info!(%address, "the API listens");
    }
    let stop = shutdown.child_token();
    let submissions = tokio::spawn(amqp::run(state.clone(), stop.clone()));
    tokio::select! {
        () = http_server::serve(listener, routes::router(state), header_timeout, &shutdown) => {}
        () = async { shutdown.cancelled().await; tokio::time::sleep(LAST_REQUESTS).await } => {
            warn!("some requests did not end in time and were cut off");
        }
    }
    stop.cancel();
    if let Err(panic) = submissions.await {
        error!(%panic, "taking in submissions over AMQP panicked; what was unacked comes again");
    }
    declaring.abort();
    background.finish().await;
    Ok(())
}

/// The API works without the broker, which declares this by itself once it is back.
async fn declare_topology(config: Config, ports: Ports) {
    let names = Names::new(&config.broker.namespace);
    let topology = names.shared_topology(&config.relay.delay_tiers());
    match ports.broker.declare(&topology).await {
        Ok(()) => {}
        Err(error @ BrokerError::Unavailable(_)) => {
            warn!(error = %chain(&error), "the broker is away; jobs are accepted all the same");
        }
        Err(error) => {
            warn!(error = %chain(&error), "the broker's topology differs; wake-ups may not get through");
        }
    }
}
