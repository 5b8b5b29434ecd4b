//! What happens to a broker from outside, at a caller's word: lost connections and outages. Tests of reconnecting and of
//! outages use it; nothing else does.

use super::MemoryBroker;

const LOST: &str = "the connection was lost";

impl MemoryBroker {
    /// Loses this connection and restores it at once: its consumers end, what they held is delivered again, its
    /// exclusive queues are declared again and empty.
    pub fn disconnect(&self) {
        self.server
            .change(|state, now| state.interrupt(self.connection, LOST, now));
    }

    /// [`MemoryBroker::disconnect`] for every connection, as when the broker restarts.
    pub fn disconnect_all(&self) {
        self.server.change(|state, now| state.interrupt_all(LOST, now));
    }

    /// Stops the broker for every connection until [`MemoryBroker::end_outage`]: consumers end, publications are
    /// answered [`Unknown`](crate::broker::PublishOutcome::Unknown) without arriving, everything else is refused as
    /// unavailable. Queues keep what is in them, but for exclusive ones.
    pub fn begin_outage(&self) {
        self.server.change(|state, now| {
            state.interrupt_all(LOST, now);
            state.set_outage(true);
        });
    }

    /// Starts the broker again.
    pub fn end_outage(&self) {
        self.server.change(|state, _| state.set_outage(false));
    }
}
