//! The names of keys. They all begin with the configured prefix as a hash tag, `{isocost}:`, so that a sharded Redis
//! behind a proxy keeps them together: the scripts touch several of them.

use crate::id::IncarnationId;

#[derive(Debug)]
pub(super) struct Keys {
    prefix: String,
    /// Who has sent heartbeats: a sorted set of incarnations, scored by when their last one runs out.
    pub(super) alive: String,
    /// Since when the server remembers: the instant of the first heartbeat after it was empty.
    pub(super) since: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        let prefix = format!("{{{prefix}}}:");
        Self {
            alive: format!("{prefix}alive"),
            since: format!("{prefix}since"),
            prefix,
        }
    }

    /// Holds the token of whoever has the lock.
    pub(super) fn lock(&self, name: &str) -> String {
        format!("{}lock:{name}", self.prefix)
    }

    /// Before the incarnation in the name of each heartbeat's key.
    pub(super) fn heartbeat_prefix(&self) -> String {
        format!("{}heartbeat:", self.prefix)
    }

    pub(super) fn heartbeat(&self, incarnation: IncarnationId) -> String {
        format!("{}{incarnation}", self.heartbeat_prefix())
    }

    pub(super) fn tombstone(&self, incarnation: IncarnationId) -> String {
        format!("{}tombstone:{incarnation}", self.prefix)
    }

    /// A key that a caller claims.
    pub(super) fn key(&self, key: &str) -> String {
        format!("{}key:{key}", self.prefix)
    }
}
