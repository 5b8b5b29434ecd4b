//! Messages in hand, and how they are acked.

use isocost_common::broker::{Acker, Delivery, DeliveryTag, Publication};
use std::sync::Arc;

/// A message as it came.
#[derive(Clone)]
pub(super) struct Arrived {
    pub(super) delivery: Delivery,
    pub(super) acker: Arc<dyn Acker>,
    /// That it failed for a reason inside.
    pub(super) failed: Option<Failed>,
}

/// Failures of one message that are not its app's fault, nor a known outage.
#[derive(Clone, Copy)]
pub(super) struct Failed {
    times: u32,
    /// How many submissions had been accepted at the first failure.
    accepted_before: u64,
}

/// How often such a message is tried at least.
const LEAST_TRIES: u32 = 5;

impl Arrived {
    /// Counts a failure for a reason inside, when `accepted` submissions have been accepted so far. True once the
    /// message itself must be the reason: it failed several times, and others were accepted meanwhile. Without that,
    /// the database takes nothing at all, and no message is to blame.
    pub(super) fn is_to_blame(&mut self, accepted: u64) -> bool {
        let failed = self.failed.get_or_insert(Failed {
            times: 0,
            accepted_before: accepted,
        });
        failed.times += 1;
        failed.times >= LEAST_TRIES && accepted > failed.accepted_before
    }
}

/// What has to leave before a message is acked.
pub(super) struct Letters {
    pub(super) unsent: Vec<Publication>,
    pub(super) tag: DeliveryTag,
    pub(super) acker: Arc<dyn Acker>,
}

/// A message that cannot be finished yet.
pub(super) enum Held {
    /// Its job is not durable.
    Submission(Box<Arrived>),
    /// It is decided, and what was to be sent is not confirmed.
    Letters(Letters),
}

/// Acks messages, those of one consumer together.
pub(super) async fn ack(done: &[Letters]) {
    for run in done.chunk_by(|left, right| Arc::ptr_eq(&left.acker, &right.acker)) {
        let tags: Vec<_> = run.iter().map(|letters| letters.tag).collect();
        run[0].acker.ack(&tags).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isocost_common::broker::{
        Broker, ConsumeOptions, Message, Queue, QueueKind, Topology, memory::MemoryBroker,
    };

    #[tokio::test]
    async fn a_message_is_to_blame_only_when_others_were_accepted_meanwhile() {
        let broker = MemoryBroker::new();
        let topology = Topology {
            queues: vec![Queue::new("q".into(), QueueKind::Classic)],
            ..Topology::default()
        };
        broker.declare(&topology).await.expect("declared");
        let options = ConsumeOptions {
            prefetch: 1,
            exclusive: false,
        };
        let consumer = broker.consume("q", options).await.expect("consuming");
        let mut arrived = Arrived {
            delivery: Delivery {
                tag: DeliveryTag(1),
                redelivered: false,
                routing_key: String::new(),
                message: Message::json("job", &()),
            },
            acker: consumer.acker(),
            failed: None,
        };
        for _ in 0..100 {
            assert!(!arrived.is_to_blame(7), "nothing was accepted since");
        }
        assert!(arrived.is_to_blame(8));
        arrived.failed = None;
        let verdicts: Vec<bool> = (7..12).map(|accepted| arrived.is_to_blame(accepted)).collect();
        assert_eq!(verdicts, [false, false, false, false, true]);
    }
}
