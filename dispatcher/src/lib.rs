//! The dispatcher: one of its processes leads. The leader finds due jobs, places their executions on workers at equal
//! cost, publishes them, and takes work back from workers that are proven dead. Every dispatcher process takes in what
//! workers report.
//!
//! It never runs a handler, and it never answers a request of a user: those belong to `worker` and `api`.

mod balancer;
mod claim;
mod cost;
pub mod death;
mod error;
mod fleet;
pub mod held;
mod housekeeping;
pub mod in_flight;
mod inquest;
pub mod intake;
mod leader;
mod leadership;
mod listen;
mod misfire;
mod placement;
mod publish;
mod reconcile;
mod recovery;
mod registration;
pub mod relay;

pub use error::Error;
pub use recovery::bury_all;

use isocost_common::{
    Ports,
    broker::{subscription, topology::Names},
    config::Config,
    id::MessageId,
};
use leader::Office;
use std::time::Duration;
use subscription::declare;
use tokio_util::sync::CancellationToken;

/// How long a worker has to answer when it is asked whether it lives.
const PROBE_DEADLINE: Duration = Duration::from_secs(1);

/// Runs a dispatcher until `shutdown` is cancelled; the work in hand is completed first.
///
/// # Errors
/// [`Error`] at start. Later failures are logged, and what failed is tried again.
pub async fn run(config: Config, ports: Ports, shutdown: CancellationToken) -> Result<(), Error> {
    let ports = ports.recording_outcomes(config.broker.outcomes);
    let intake = intake::run(config.clone(), ports.clone(), shutdown.clone());
    let kept_days = config.dispatcher.history_days;
    let names = Names::new(&config.broker.namespace);
    let topology = names.shared_topology(&config.relay.delay_tiers());
    let office = Office {
        ports,
        names,
        process: process_name(&config.dispatcher.name),
        config: config.dispatcher,
        leases: config.leases,
        probe: reqwest::Client::builder()
            .timeout(PROBE_DEADLINE)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(Error::Probe)?,
    };
    if !declare(office.ports.broker.as_ref(), &topology, &shutdown)
        .await
        .map_err(Error::Topology)?
    {
        return Ok(());
    }
    let store = office.ports.store.clone();
    let (intake, (), ()) = tokio::join!(
        intake,
        leadership::campaign(&office, &shutdown),
        housekeeping::run(&store, kept_days, &shutdown)
    );
    intake.map_err(Error::Intake)
}

/// The configured name, or host and process id; with a part of its own, because two dispatchers may run in one process.
fn process_name(configured: &str) -> String {
    let own = MessageId::generate().as_uuid().simple().to_string();
    let own = &own[own.len() - 8..];
    if configured.is_empty() {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        format!("{}-{}-{own}", host.trim(), std::process::id())
    } else {
        format!("{configured}-{own}")
    }
}
