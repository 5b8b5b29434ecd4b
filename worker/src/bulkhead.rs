//! One handler's share of the worker: its slots, and the short line of work that waits for one.

use crate::{handler::Handler, start::Work};
use parking_lot::Mutex;
use std::{collections::VecDeque, sync::Arc};
use tokio::time::Instant;

/// Slots of one handler. Work of other handlers never waits behind it.
pub(crate) struct Bulkhead {
    /// The handler's name.
    pub(crate) name: String,
    /// The handler.
    pub(crate) handler: Handler,
    /// Runs at once.
    pub(crate) slots: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    busy: u32,
    waiting: VecDeque<Work>,
}

/// A slot in use. Given back when dropped, even by a panic.
pub(crate) struct Slot {
    bulkhead: Arc<Bulkhead>,
    held: bool,
}

impl Bulkhead {
    pub(crate) fn new(name: String, handler: Handler, slots: u32) -> Arc<Self> {
        Arc::new(Self {
            name,
            handler,
            slots,
            state: Mutex::new(State::default()),
        })
    }

    /// Takes a slot for the work; without a free one the work stands in line, and none is returned.
    pub(crate) fn admit(self: &Arc<Self>, work: Work) -> Option<(Slot, Work)> {
        let mut state = self.state.lock();
        if state.busy < self.slots {
            state.busy += 1;
            let slot = Slot {
                bulkhead: Arc::clone(self),
                held: true,
            };
            return Some((slot, work));
        }
        state.waiting.push_back(work);
        None
    }

    /// Slots in use.
    pub(crate) fn busy(&self) -> u32 {
        self.state.lock().busy
    }

    /// When the first in line has waited long enough.
    pub(crate) fn first_deadline(&self) -> Option<Instant> {
        self.state.lock().waiting.front().map(|work| work.slot_deadline)
    }

    /// Takes those out of the line who have waited long enough.
    pub(crate) fn expired(&self, now: Instant) -> Vec<Work> {
        let mut state = self.state.lock();
        // In line by arrival and all with the same patience, so by deadline too.
        let count = state.waiting.partition_point(|work| work.slot_deadline <= now);
        state.waiting.drain(..count).collect()
    }

    /// Empties the line.
    pub(crate) fn clear_line(&self) -> Vec<Work> {
        self.state.lock().waiting.drain(..).collect()
    }
}

impl Slot {
    /// The next in line, for this slot; without one the slot is free.
    pub(crate) fn next_work(&mut self) -> Option<Work> {
        let mut state = self.bulkhead.state.lock();
        let next = state.waiting.pop_front();
        if next.is_none() {
            state.busy -= 1;
            self.held = false;
        }
        next
    }

    /// Whose slot it is.
    pub(crate) fn bulkhead(&self) -> &Bulkhead {
        &self.bulkhead
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.held {
            self.bulkhead.state.lock().busy -= 1;
        }
    }
}
