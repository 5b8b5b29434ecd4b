//! Connecting a role of a cluster to its services, and saying in its readiness how that stands.
//!
//! The broker and the coordination service connect in the background and come back by themselves, so a role starts
//! without them. The database is waited for, because no role that needs it can do anything before its tables are there.

use crate::{
    broker::{
        Broker, BrokerHealth,
        rabbitmq::{InvalidBrokerUrl, RabbitBroker},
    },
    config::{Config, LeaseConfig},
    coordination::{
        Coordination,
        redis::{InvalidRedisUrl, RedisCoordination},
    },
    error_chain::chain,
    readiness::{Condition, Readiness},
    store::{
        Store, StoreError, StoreOptions,
        migrations::{self, Schema},
    },
};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Between two attempts to reach the database at start.
const STORE_RETRY: Duration = Duration::from_millis(500);
/// Between two log lines about a database that is not there.
const STORE_REMINDER: Duration = Duration::from_secs(10);

/// A URL in the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// `broker.url`.
    #[error(transparent)]
    Broker(#[from] InvalidBrokerUrl),
    /// `coordination.url`.
    #[error(transparent)]
    Coordination(#[from] InvalidRedisUrl),
}

/// The database cannot be worked with.
#[derive(Debug, thiserror::Error)]
pub enum StoreUnusable {
    /// It did not answer for as long as the start waits for it.
    #[error(
        "the database did not answer within {waited:?}; store.url says where it is, `isocost doctor` what is wrong"
    )]
    Away {
        /// How long.
        waited: Duration,
        /// The last error.
        source: StoreError,
    },
    /// The tables are missing, or older than this program.
    #[error(
        "the tables of the database are {state}; run `isocost migrate` once, with this version and configuration"
    )]
    Tables {
        /// What is wrong with them.
        state: Schema,
    },
    /// The tables are newer than this program.
    #[error(
        "the tables of the database are {state}; start a version of Isocost that is as new as the one that made them"
    )]
    TooNew {
        /// What is wrong with them.
        state: Schema,
    },
    /// The URL is none.
    #[error("store.url")]
    Url(#[source] StoreError),
    /// The process was told to stop meanwhile.
    #[error("told to stop before the database answered")]
    Stopped,
}

/// The two services that carry what roles say to each other.
#[derive(Clone)]
pub struct Messaging {
    /// RabbitMQ.
    pub broker: Arc<dyn Broker>,
    /// Redis.
    pub coordination: Arc<dyn Coordination>,
}

/// RabbitMQ and Redis as configured, connecting in the background; both are named in the readiness.
///
/// # Errors
/// [`ConnectError`] naming the key whose URL cannot be read.
pub fn messaging(
    config: &Config,
    connection_name: &str,
    readiness: &Readiness,
) -> Result<Messaging, ConnectError> {
    let broker: Arc<dyn Broker> = RabbitBroker::start(&config.broker, connection_name)?;
    let coordination: Arc<dyn Coordination> = RedisCoordination::start(&config.coordination)?;
    watch_coordination(readiness, &coordination);
    Ok(Messaging { broker, coordination })
}

/// How much a role depends on the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// It does its job without, and says so.
    Helpful,
    /// It needs a connection, and can do without publishing for a while.
    Connected,
    /// It needs to publish.
    Publishing,
}

/// Adds the broker to the readiness.
pub fn watch_broker(readiness: &Readiness, broker: &Arc<dyn Broker>, need: Need) {
    let health = broker.health();
    readiness.check("broker", move || {
        let condition = match &*health.borrow() {
            BrokerHealth::Ready => Condition::Met,
            BrokerHealth::Blocked(why) => {
                let text = format!("the broker takes no messages for now: {why}");
                if need == Need::Publishing {
                    Condition::Missing(text)
                } else {
                    Condition::Noted(text)
                }
            }
            BrokerHealth::Down(why) => {
                let text = format!("not connected: {why}");
                if need == Need::Helpful {
                    Condition::Noted(text)
                } else {
                    Condition::Missing(text)
                }
            }
        };
        async move { condition }
    });
}

/// Without the coordination service nobody new takes the lead, and everything else goes on: never a reason not to be
/// ready.
fn watch_coordination(readiness: &Readiness, coordination: &Arc<dyn Coordination>) {
    let coordination = Arc::clone(coordination);
    readiness.check("coordination", move || {
        let coordination = Arc::clone(&coordination);
        async move {
            match coordination.ping().await {
                Ok(()) => Condition::Met,
                Err(error) => Condition::Noted(error.to_string()),
            }
        }
    });
}

/// Adds the database to the readiness.
pub fn watch_store(readiness: &Readiness, store: &Store) {
    let store = store.clone();
    readiness.check("database", move || {
        let store = store.clone();
        async move {
            match store.takes_writes().await {
                Ok(()) => Condition::Met,
                Err(error) => Condition::Missing(chain(&error).to_string()),
            }
        }
    });
}

/// Before a successor of a frozen leader can have its lock, what that leader has locked must be free.
fn idle_transaction_timeout(leases: &LeaseConfig) -> Duration {
    let seconds = (leases.lock_ttl_ms * 4 / 5 / 1_000).clamp(1, 8);
    Duration::from_secs(seconds)
}

/// The database, once it answers and its tables are those of this program; waits for both for `store.start_wait_ms`.
///
/// # Errors
/// [`StoreUnusable`], with the remedy.
pub async fn store(
    config: &Config,
    readiness: &Readiness,
    shutdown: &CancellationToken,
) -> Result<Store, StoreUnusable> {
    let options = StoreOptions {
        max_connections: config.store.max_connections,
        statement_timeout: Duration::from_millis(config.store.statement_timeout_ms),
        idle_transaction_timeout: idle_transaction_timeout(&config.leases),
        ..StoreOptions::new(config.store.url.reveal())
    };
    let waiting = readiness.flag("database", "not connected yet");
    let from = Instant::now();
    let deadline = from + Duration::from_millis(config.store.start_wait_ms);
    let mut remind_at = from;
    loop {
        let failure = match open(&options).await {
            Ok(store) => {
                watch_store(readiness, &store);
                return Ok(store);
            }
            Err(failure @ (StoreUnusable::TooNew { .. } | StoreUnusable::Url(_))) => return Err(failure),
            Err(failure) => failure,
        };
        waiting.missing(&chain(&failure).to_string());
        let now = Instant::now();
        if now >= deadline {
            return Err(match failure {
                StoreUnusable::Away { source, .. } => StoreUnusable::Away {
                    waited: now - from,
                    source,
                },
                other => other,
            });
        }
        if now >= remind_at {
            remind_at = now + STORE_REMINDER;
            warn!(error = %chain(&failure), "waiting for the database");
        }
        tokio::select! {
            () = shutdown.cancelled() => return Err(StoreUnusable::Stopped),
            () = tokio::time::sleep(STORE_RETRY) => {}
        }
    }
}

async fn open(options: &StoreOptions) -> Result<Store, StoreUnusable> {
    let away = |source| StoreUnusable::Away {
        waited: Duration::ZERO,
        source,
    };
    let store = Store::connect(options).await.map_err(|error| match error {
        StoreError::BadUrl => StoreUnusable::Url(error),
        error => away(error),
    })?;
    let state = migrations::state(&store).await.map_err(away);
    let unusable = match state {
        Ok(Schema::Current) => {
            info!("the database answers, and its tables are up to date");
            return Ok(store);
        }
        Ok(state @ Schema::Newer { .. }) => StoreUnusable::TooNew { state },
        Ok(state) => StoreUnusable::Tables { state },
        Err(failure) => failure,
    };
    store.close().await;
    Err(unusable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_of_a_frozen_leader_ends_before_its_lock_does() {
        for lock_ttl_ms in [1_000, 1_250, 2_000, 10_000, 60_000] {
            let leases = LeaseConfig {
                lock_ttl_ms,
                ..LeaseConfig::default()
            };
            let timeout = idle_transaction_timeout(&leases);
            // The database counts whole seconds, so the shortest lock leaves no time over.
            assert!(timeout <= leases.lock_ttl(), "{timeout:?} of {lock_ttl_ms} ms");
            assert!(timeout < leases.lock_ttl() || lock_ttl_ms == 1_000, "{timeout:?}");
        }
    }
}
