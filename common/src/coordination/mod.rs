//! The coordination port: locks, heartbeats, tombstones and start keys. Redis stands behind it in a cluster, `memory` in
//! standalone mode; one contract suite runs against both. It is never the truth: whatever it says, the database's
//! guards decide, and everything keeps its promises while it is away or flushed.

pub mod doctor;
pub mod memory;
pub mod redis;

use crate::id::IncarnationId;
use async_trait::async_trait;
use std::time::Duration;

/// The coordination service did not answer, or answered with an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the coordination service is not available: {0}")]
pub struct CoordinationError(pub String);

/// The answer to a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeartbeatAnswer {
    /// Stored: the lease is renewed from the moment the heartbeat was sent.
    Accepted,
    /// This incarnation was declared dead: stop at once and come back as a new one.
    Fenced,
}

/// A heartbeat as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredHeartbeat {
    /// Who sent it.
    pub incarnation: IncarnationId,
    /// How long ago it arrived, by the service's clock.
    pub age: Duration,
    /// What it said, JSON.
    pub payload: String,
}

/// The heartbeats a service knows of.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Heartbeats {
    /// How far back its knowledge goes, by its own clock: not beyond its start, or the moment at which it was flushed. That
    /// somebody is missing proves nothing about the time before.
    pub known_for: Duration,
    /// Those that have not run out.
    pub stored: Vec<StoredHeartbeat>,
}

/// Locks, heartbeats, tombstones and start keys.
///
/// Every call ends soon, with an answer or an error, also when the service is away. A call without an answer may have
/// had its effect. The service may forget everything at any moment; it never makes anything up.
#[async_trait]
pub trait Coordination: Send + Sync + 'static {
    /// Takes the lock if it is free, for `ttl`. `token` must be random: it proves ownership later.
    /// Count the validity from before the call.
    async fn try_lock(&self, name: &str, token: &str, ttl: Duration) -> Result<bool, CoordinationError>;

    /// Extends the lock to `ttl` from now if `token` still holds it; else false.
    async fn renew_lock(&self, name: &str, token: &str, ttl: Duration) -> Result<bool, CoordinationError>;

    /// Frees the lock if `token` holds it; true when it did.
    async fn release_lock(&self, name: &str, token: &str) -> Result<bool, CoordinationError>;

    /// Stores a heartbeat for `ttl`, unless the incarnation has a tombstone.
    async fn heartbeat(
        &self,
        incarnation: IncarnationId,
        payload: &str,
        ttl: Duration,
    ) -> Result<HeartbeatAnswer, CoordinationError>;

    /// Every heartbeat that has not run out, and how far back that can be trusted.
    async fn heartbeats(&self) -> Result<Heartbeats, CoordinationError>;

    /// Marks an incarnation dead for `ttl`: its heartbeats are answered [`HeartbeatAnswer::Fenced`] from now on, and
    /// its stored heartbeat is gone.
    async fn entomb(&self, incarnation: IncarnationId, ttl: Duration) -> Result<(), CoordinationError>;

    /// Claims a key for `ttl`: true for the first caller, false while it stands.
    async fn claim_key(&self, key: &str, ttl: Duration) -> Result<bool, CoordinationError>;

    /// Frees a key.
    async fn free_key(&self, key: &str) -> Result<(), CoordinationError>;

    /// Answers if the service is there.
    async fn ping(&self) -> Result<(), CoordinationError>;
}
