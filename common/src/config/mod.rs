//! Configuration: defaults < TOML file < `ISOCOST__SECTION__KEY` environment < flags. An unknown key or a bad value
//! stops the start, named. Everything is checked before anything connects.

mod api;
mod dispatcher;
mod leases;
mod load;
mod relay;
mod telemetry;
mod worker;

pub use api::ApiConfig;
pub use dispatcher::{BalancerStrategy, BalancerWeights, DispatcherConfig};
pub use leases::LeaseConfig;
pub use load::{ConfigError, load};
pub use relay::{InvalidNetwork, Network, RelayConfig};
pub use telemetry::{ListenAt, TelemetryConfig};
pub use worker::WorkerConfig;

use serde::{Deserialize, Serialize};
use std::{fmt, time::Duration};

/// Everything, by section.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `[store]`: the database.
    pub store: StoreConfig,
    /// `[broker]`: RabbitMQ.
    pub broker: BrokerConfig,
    /// `[coordination]`: Redis.
    pub coordination: CoordinationConfig,
    /// `[leases]`: who may call whom dead, and when. Must be the same everywhere.
    pub leases: LeaseConfig,
    /// `[api]`: the REST API and the console.
    pub api: ApiConfig,
    /// `[dispatcher]`: trigger, placement, recovery, intake.
    pub dispatcher: DispatcherConfig,
    /// `[relay]`: callbacks.
    pub relay: RelayConfig,
    /// `[worker]`: the worker process.
    pub worker: WorkerConfig,
    /// `[telemetry]`: logs and metrics.
    pub telemetry: TelemetryConfig,
}

impl Config {
    /// Checks every section, and the sections against each other.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] naming the first key whose value cannot work, and what would.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.store.validate()?;
        self.broker.validate()?;
        self.leases.validate()?;
        self.coordination.validate(&self.leases)?;
        self.api.validate()?;
        self.dispatcher.validate()?;
        self.relay.validate()?;
        self.worker.validate()?;
        self.telemetry.validate()
    }

    /// Checks what a role of a cluster needs besides: a database that several processes can share.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`].
    pub fn validate_for_cluster(&self) -> Result<(), ConfigError> {
        self.validate()?;
        load::check(&[
            (
                !self.store.url.reveal().starts_with("sqlite:"),
                "store.url",
                "must be mysql://…: the embedded database serves only `isocost standalone`",
            ),
            (
                self.coordination.url.reveal().starts_with("redis://")
                    || self.coordination.url.reveal().starts_with("rediss://"),
                "coordination.url",
                "must start with redis:// or rediss://",
            ),
        ])
    }
}

/// `[store]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// `mysql://user:password@host:port/database`; standalone mode sets its own.
    pub url: Secret,
    /// Connections of this process. Default 16.
    pub max_connections: u32,
    /// How long a role that starts waits for the database and its tables before it gives up, in milliseconds.
    /// Default 60,000.
    pub start_wait_ms: u64,
    /// Longest silence of the database in the middle of a statement, in milliseconds: then the statement fails, and its
    /// connection is replaced. Default 8,000.
    pub statement_timeout_ms: u64,
}

impl StoreConfig {
    fn validate(&self) -> Result<(), ConfigError> {
        let url = self.url.reveal();
        load::check(&[
            (
                ["mysql://", "mariadb://", "sqlite:"]
                    .iter()
                    .any(|scheme| url.starts_with(scheme)),
                "store.url",
                "must look like mysql://user:password@host:3306/database",
            ),
            (
                (4..=1_000).contains(&self.max_connections),
                "store.max_connections",
                "must be between 4 and 1000",
            ),
            (
                (6_000..=600_000).contains(&self.statement_timeout_ms),
                "store.statement_timeout_ms",
                "must be between 6000 and 600000: a statement may wait 5 s for a lock",
            ),
        ])
    }
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            url: Secret::new("mysql://isocost@127.0.0.1:3306/isocost"),
            max_connections: 16,
            start_wait_ms: 60_000,
            statement_timeout_ms: 8_000,
        }
    }
}

/// `[broker]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BrokerConfig {
    /// `amqp://user:password@host:port/vhost`.
    pub url: Secret,
    /// First word of every exchange and queue name. Default `isocost`.
    pub namespace: String,
    /// Publish the outcome of every execution to the exchange `<namespace>.outcomes`. The same in every role. Default
    /// true; standalone mode has no outside broker and switches it off.
    pub outcomes: bool,
}

impl BrokerConfig {
    fn validate(&self) -> Result<(), ConfigError> {
        let url = self.url.reveal();
        load::check(&[
            (
                url.starts_with("amqp://") || url.starts_with("amqps://"),
                "broker.url",
                "must look like amqp://user:password@host:5672/vhost",
            ),
            (
                (1..=64).contains(&self.namespace.len())
                    && self
                        .namespace
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)),
                "broker.namespace",
                "must be 1 to 64 characters of A-Z a-z 0-9 . _ -",
            ),
        ])
    }
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            url: Secret::new("amqp://127.0.0.1:5672/%2f"),
            namespace: "isocost".into(),
            outcomes: true,
        }
    }
}

/// `[coordination]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CoordinationConfig {
    /// `redis://user:password@host:port/database`.
    pub url: Secret,
    /// First word of every key. Default `isocost`.
    pub prefix: String,
    /// Longest wait for an answer, in milliseconds. Default 1,000.
    pub command_timeout_ms: u64,
}

impl CoordinationConfig {
    /// As [`CoordinationConfig::command_timeout_ms`].
    #[must_use]
    pub const fn command_timeout(&self) -> Duration {
        millis(self.command_timeout_ms)
    }

    fn validate(&self, leases: &LeaseConfig) -> Result<(), ConfigError> {
        let rules = [
            (
                !self.prefix.is_empty() && !self.prefix.contains(['{', '}']),
                "coordination.prefix",
                "must not be empty, nor contain { or }",
            ),
            (
                (10..=leases.heartbeat_ms).contains(&self.command_timeout_ms),
                "coordination.command_timeout_ms",
                "must be at least 10 and at most leases.heartbeat_ms, or a worker misses heartbeats while it waits",
            ),
            (
                self.command_timeout_ms <= leases.lock_ttl_ms / 2,
                "coordination.command_timeout_ms",
                "must be at most half of leases.lock_ttl_ms, or one slow answer of Redis ends the term of a leader",
            ),
        ];
        load::check(&rules)
    }
}

impl Default for CoordinationConfig {
    fn default() -> Self {
        Self {
            url: Secret::new("redis://127.0.0.1:6379/0"),
            prefix: "isocost".into(),
            command_timeout_ms: 1_000,
        }
    }
}

/// Text that must not be seen: shown as `***` wherever it is printed.
#[derive(Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps it.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The text itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The text with a password in a URL replaced.
    fn shown(&self) -> String {
        match self
            .0
            .split_once("://")
            .map(|(scheme, rest)| (scheme, rest.rsplit_once('@')))
        {
            Some((scheme, Some((_, host)))) => format!("{scheme}://***@{host}"),
            Some((_, None)) => self.0.clone(),
            None if self.0.is_empty() => String::new(),
            None => "***".into(),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.shown())
    }
}

/// A duration of so many milliseconds, for the `…_ms` keys.
#[must_use]
pub const fn millis(value: u64) -> Duration {
    Duration::from_millis(value)
}
