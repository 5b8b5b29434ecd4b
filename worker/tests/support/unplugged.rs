//! The in-process coordination service behind a plug that a test can pull.

use async_trait::async_trait;
use isocost_common::{
    coordination::{
        Coordination, CoordinationError, HeartbeatAnswer, Heartbeats, memory::MemoryCoordination,
    },
    id::IncarnationId,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// Answers like the service behind it, or not at all.
pub(crate) struct Pluggable {
    service: Arc<MemoryCoordination>,
    unplugged: AtomicBool,
}

impl Pluggable {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            service: MemoryCoordination::new(),
            unplugged: AtomicBool::new(false),
        })
    }

    pub(crate) fn unplug(&self) {
        self.unplugged.store(true, Ordering::SeqCst);
    }

    pub(crate) fn plug_in(&self) {
        self.unplugged.store(false, Ordering::SeqCst);
    }

    fn service(&self) -> Result<&MemoryCoordination, CoordinationError> {
        if self.unplugged.load(Ordering::SeqCst) {
            return Err(CoordinationError("unplugged".into()));
        }
        Ok(&self.service)
    }
}

type Answer<T> = Result<T, CoordinationError>;

#[async_trait]
impl Coordination for Pluggable {
    async fn try_lock(&self, name: &str, token: &str, ttl: Duration) -> Answer<bool> {
        self.service()?.try_lock(name, token, ttl).await
    }

    async fn renew_lock(&self, name: &str, token: &str, ttl: Duration) -> Answer<bool> {
        self.service()?.renew_lock(name, token, ttl).await
    }

    async fn release_lock(&self, name: &str, token: &str) -> Answer<bool> {
        self.service()?.release_lock(name, token).await
    }

    async fn heartbeat(
        &self,
        incarnation: IncarnationId,
        payload: &str,
        ttl: Duration,
    ) -> Answer<HeartbeatAnswer> {
        self.service()?.heartbeat(incarnation, payload, ttl).await
    }

    async fn heartbeats(&self) -> Answer<Heartbeats> {
        self.service()?.heartbeats().await
    }

    async fn entomb(&self, incarnation: IncarnationId, ttl: Duration) -> Answer<()> {
        self.service()?.entomb(incarnation, ttl).await
    }

    async fn claim_key(&self, key: &str, ttl: Duration) -> Answer<bool> {
        self.service()?.claim_key(key, ttl).await
    }

    async fn free_key(&self, key: &str) -> Answer<()> {
        self.service()?.free_key(key).await
    }

    async fn ping(&self) -> Answer<()> {
        self.service()?.ping().await
    }
}
