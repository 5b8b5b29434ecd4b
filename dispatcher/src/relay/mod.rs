//! The relay: takes tickets from the broker, claims their rows, posts, and records what came of it. It also publishes the
//! outcomes of executions to their exchange ([`outcomes`]).
//!
//! A ticket is a hint, the row is the truth: a delivery is posted only under a claimed row, never before its
//! `next_attempt_at`, and a sweep of the table finds what has lost its ticket. Tickets are acked as soon as their row is
//! claimed, or known to wait for its turn; from then on the lease on the row protects the delivery. What an endpoint
//! has no room for stays in the table.

mod endpoints;
mod engine;
mod outcomes;
mod recording;
mod request;
mod retry;
mod signature;
mod sweeper;
mod vetting;

use crate::subscription::{Subscription, declare};
use endpoints::Lane;
use engine::{Engine, Tickets};
use isocost_common::{
    Ports,
    broker::{BrokerError, topology::Names},
    config::{Config, InvalidNetwork},
};
use request::Poster;
use rustls::crypto::{CryptoProvider, ring};
use std::{sync::Arc, time::Duration};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::error;
use vetting::AddressPolicy;

/// Tickets taken from a lane at once, and how long the first waits for more.
const TICKETS: usize = 256;
const LINGER: Duration = Duration::from_millis(2);

/// Why the relay could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A queue or exchange exists and is different.
    #[error("declaring the queues of the relay")]
    Declare(#[source] BrokerError),
    /// `relay.allowed_networks` cannot be read.
    #[error("reading relay.allowed_networks")]
    Networks(#[source] InvalidNetwork),
    /// The HTTP client cannot be built: no usable TLS roots, for instance.
    #[error("building the HTTP client")]
    Client(#[source] reqwest::Error),
}

/// Delivers callbacks until `shutdown`; requests under way are completed and recorded first, which takes at most
/// `relay.timeout_ms`.
///
/// # Errors
/// [`Error`] at start. Later failures are logged and tried again.
pub async fn run(config: Config, ports: Ports, shutdown: CancellationToken) -> Result<(), Error> {
    if CryptoProvider::get_default().is_none() {
        // An error means that somebody else installed one in this moment, which serves as well.
        let _ = ring::default_provider().install_default();
    }
    let policy = AddressPolicy::new(config.relay.networks().map_err(Error::Networks)?);
    let timeout = Duration::from_millis(config.relay.timeout_ms);
    let poster = Poster::new(policy, timeout).map_err(Error::Client)?;
    let names = Names::new(&config.broker.namespace);
    let topology = names.shared_topology(&config.relay.delay_tiers());
    if !declare(ports.broker.as_ref(), &topology, &shutdown)
        .await
        .map_err(Error::Declare)?
    {
        return Ok(());
    }
    let (first_sender, first) = mpsc::channel(1);
    let (retry_sender, retry) = mpsc::channel(1);
    let lane = |queue, name| {
        Subscription::new(
            ports.broker.clone(),
            topology.clone(),
            queue,
            2 * TICKETS as u16,
            shutdown.clone(),
        )
        .needed(&ports.readiness, name)
    };
    let first_lane = feed(
        lane(names.first_callbacks_queue(), "first callbacks queue"),
        first_sender,
    );
    let retry_lane = feed(
        lane(names.retry_callbacks_queue(), "repeated callbacks queue"),
        retry_sender,
    );
    let engine = Engine::new(
        &config.relay,
        ports.clone(),
        names.clone(),
        poster,
        shutdown.clone(),
    );
    let outcomes = async {
        if config.broker.outcomes {
            outcomes::run(ports.clone(), names.clone(), shutdown.clone()).await;
        }
    };
    tokio::join!(first_lane, retry_lane, engine.run(first, retry), outcomes);
    Ok(())
}

/// Reads tickets of one lane and hands them over; waits while the engine has no room.
async fn feed(mut subscription: Subscription, sender: mpsc::Sender<Tickets>) {
    while let Some((deliveries, acker)) = subscription.next(TICKETS, LINGER).await {
        let mut tickets = Vec::with_capacity(deliveries.len());
        let mut tags = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            match delivery.message.parse() {
                Ok(ticket) => {
                    tickets.push(ticket);
                    tags.push(delivery.tag);
                }
                Err(cause) => {
                    error!(message.id = delivery.message.message_id, error = %cause, "a callback ticket cannot be read");
                    acker.dead_letter(delivery.tag).await;
                }
            }
        }
        let tickets = Tickets {
            tickets,
            tags,
            acker: Arc::clone(&acker),
        };
        if sender.send(tickets).await.is_err() {
            return;
        }
    }
}
