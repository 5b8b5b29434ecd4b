//! Acking deliveries once everything they carried is started or given back.
//!
//! A delivery carries many executions, and each of them holds a share of it; when the last share goes, the delivery is
//! acked. Acks are collected, because the shares go in places that cannot wait for the broker.

use isocost_common::broker::{Acker, DeliveryTag};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Deliveries to ack. Bounded by the consumer's prefetch.
#[derive(Default)]
pub(crate) struct Acks {
    due: Mutex<Vec<(Arc<dyn Acker>, DeliveryTag)>>,
    filled: Notify,
}

/// A share of a delivery: cloned with the `Arc` around it.
pub(crate) struct Delivered {
    acks: Arc<Acks>,
    acker: Arc<dyn Acker>,
    tag: DeliveryTag,
}

impl Delivered {
    /// The first share.
    pub(crate) fn new(acks: &Arc<Acks>, acker: &Arc<dyn Acker>, tag: DeliveryTag) -> Arc<Self> {
        Arc::new(Self {
            acks: Arc::clone(acks),
            acker: Arc::clone(acker),
            tag,
        })
    }
}

impl Drop for Delivered {
    fn drop(&mut self) {
        self.acks.due.lock().push((Arc::clone(&self.acker), self.tag));
        self.acks.filled.notify_one();
    }
}

impl Acks {
    /// Acks what is due, many at a time, until `stop`; what is due then is acked first.
    pub(crate) async fn send(&self, stop: &CancellationToken) {
        loop {
            tokio::select! {
                () = self.filled.notified() => {}
                () = stop.cancelled() => return self.send_due().await,
            }
            self.send_due().await;
        }
    }

    async fn send_due(&self) {
        let due = std::mem::take(&mut *self.due.lock());
        for group in due.chunk_by(|(one, _), (other, _)| Arc::ptr_eq(one, other)) {
            if let Some((acker, _)) = group.first() {
                let tags: Vec<DeliveryTag> = group.iter().map(|(_, tag)| *tag).collect();
                acker.ack(&tags).await;
            }
        }
    }
}
