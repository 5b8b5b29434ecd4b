//! The in-process coordination service of standalone mode. Entries run out by the monotonic clock of this process; those
//! that ran out are removed as others are written, so that memory follows what is alive.

use super::{Coordination, CoordinationError, HeartbeatAnswer, Heartbeats, StoredHeartbeat};
use crate::id::IncarnationId;
use async_trait::async_trait;
use parking_lot::Mutex;
use std::{borrow::Borrow, collections::HashMap, hash::Hash, sync::Arc, time::Duration};
use tokio::time::Instant;

/// Entries that may pile up before those that ran out are swept; it doubles with what is alive, so that a sweep costs a
/// constant share of the writes.
const FIRST_SWEEP: usize = 1024;

/// Stands in for a TTL that no instant can express.
const FAR_OFF: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Locks, heartbeats, tombstones and start keys of the roles in this process.
#[derive(Debug, Default)]
pub struct MemoryCoordination {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When it was empty.
    since: Instant,
    /// Lock name to the token of its holder.
    locks: Expiring<String, String>,
    heartbeats: Expiring<IncarnationId, Heartbeat>,
    tombstones: Expiring<IncarnationId, ()>,
    keys: Expiring<String, ()>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            locks: Expiring::default(),
            heartbeats: Expiring::default(),
            tombstones: Expiring::default(),
            keys: Expiring::default(),
        }
    }
}

#[derive(Debug)]
struct Heartbeat {
    arrived_at: Instant,
    payload: String,
}

impl MemoryCoordination {
    /// An empty service.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Forgets everything, as a cache does that was flushed or restarted without its data. For tests of what may rest
    /// on it.
    pub fn flush(&self) {
        *self.state.lock() = State::default();
    }
}

#[async_trait]
impl Coordination for MemoryCoordination {
    async fn try_lock(&self, name: &str, token: &str, ttl: Duration) -> Result<bool, CoordinationError> {
        let now = Instant::now();
        let locks = &mut self.state.lock().locks;
        Ok(locks.insert_new(name.to_owned(), token.to_owned(), ttl, now))
    }

    async fn renew_lock(&self, name: &str, token: &str, ttl: Duration) -> Result<bool, CoordinationError> {
        let now = Instant::now();
        let locks = &mut self.state.lock().locks;
        let is_mine = locks.get(name, now).is_some_and(|holder| holder == token);
        if is_mine {
            locks.insert(name.to_owned(), token.to_owned(), ttl, now);
        }
        Ok(is_mine)
    }

    async fn release_lock(&self, name: &str, token: &str) -> Result<bool, CoordinationError> {
        let locks = &mut self.state.lock().locks;
        let is_mine = locks
            .get(name, Instant::now())
            .is_some_and(|holder| holder == token);
        if is_mine {
            locks.remove(name);
        }
        Ok(is_mine)
    }

    async fn heartbeat(
        &self,
        incarnation: IncarnationId,
        payload: &str,
        ttl: Duration,
    ) -> Result<HeartbeatAnswer, CoordinationError> {
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.tombstones.get(&incarnation, now).is_some() {
            return Ok(HeartbeatAnswer::Fenced);
        }
        let heartbeat = Heartbeat {
            arrived_at: now,
            payload: payload.to_owned(),
        };
        state.heartbeats.insert(incarnation, heartbeat, ttl, now);
        Ok(HeartbeatAnswer::Accepted)
    }

    async fn heartbeats(&self) -> Result<Heartbeats, CoordinationError> {
        let now = Instant::now();
        let state = self.state.lock();
        let alive = state.heartbeats.alive(now);
        let stored = alive.map(|(incarnation, heartbeat)| StoredHeartbeat {
            incarnation: *incarnation,
            age: now - heartbeat.arrived_at,
            payload: heartbeat.payload.clone(),
        });
        Ok(Heartbeats {
            known_for: now - state.since,
            stored: stored.collect(),
        })
    }

    async fn entomb(&self, incarnation: IncarnationId, ttl: Duration) -> Result<(), CoordinationError> {
        let mut state = self.state.lock();
        state.heartbeats.remove(&incarnation);
        state.tombstones.insert(incarnation, (), ttl, Instant::now());
        Ok(())
    }

    async fn claim_key(&self, key: &str, ttl: Duration) -> Result<bool, CoordinationError> {
        let keys = &mut self.state.lock().keys;
        Ok(keys.insert_new(key.to_owned(), (), ttl, Instant::now()))
    }

    async fn free_key(&self, key: &str) -> Result<(), CoordinationError> {
        self.state.lock().keys.remove(key);
        Ok(())
    }

    async fn ping(&self) -> Result<(), CoordinationError> {
        Ok(())
    }
}

/// A map whose entries run out.
#[derive(Debug)]
struct Expiring<K, V> {
    entries: HashMap<K, (Instant, V)>,
    sweep_above: usize,
}

impl<K, V> Default for Expiring<K, V> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            sweep_above: FIRST_SWEEP,
        }
    }
}

impl<K: Eq + Hash, V> Expiring<K, V> {
    fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q, now: Instant) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let (runs_out, value) = self.entries.get(key)?;
        (*runs_out > now).then_some(value)
    }

    fn insert(&mut self, key: K, value: V, ttl: Duration, now: Instant) {
        self.sweep(now);
        let runs_out = now.checked_add(ttl).unwrap_or(now + FAR_OFF);
        self.entries.insert(key, (runs_out, value));
    }

    /// Inserts unless the key stands; true when it did.
    fn insert_new(&mut self, key: K, value: V, ttl: Duration, now: Instant) -> bool {
        let is_free = self.get(&key, now).is_none();
        if is_free {
            self.insert(key, value, ttl, now);
        }
        is_free
    }

    fn remove<Q: Eq + Hash + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        self.entries.remove(key);
    }

    fn alive(&self, now: Instant) -> impl Iterator<Item = (&K, &V)> {
        self.entries
            .iter()
            .filter(move |(_, (runs_out, _))| *runs_out > now)
            .map(|(key, (_, value))| (key, value))
    }

    fn sweep(&mut self, now: Instant) {
        if self.entries.len() < self.sweep_above {
            return;
        }
        self.entries.retain(|_, (runs_out, _)| *runs_out > now);
        self.sweep_above = (2 * self.entries.len()).max(FIRST_SWEEP);
        self.entries.shrink_to(self.sweep_above);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn memory_follows_what_is_alive() -> Result<(), CoordinationError> {
        let coordination = MemoryCoordination::new();
        for number in 0..20_000 {
            coordination
                .claim_key(&format!("key {number}"), Duration::from_secs(1))
                .await?;
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let kept = coordination.state.lock().keys.entries.len();
        assert!(
            kept <= 2 * FIRST_SWEEP,
            "{kept} entries are kept for about 1000 that are alive"
        );
        Ok(())
    }
}
