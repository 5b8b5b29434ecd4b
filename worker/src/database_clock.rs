//! The database's clock as a worker sees it, which has no database connection.
//!
//! Every dispatch names the instant it was placed, by the database's clock. The smallest distance between that and its
//! arrival here is the difference of the clocks plus the shortest way of a message, so the estimate is late by that
//! way: a millisecond or a few. It is taken against the boot clock, so that a step of this machine's wall clock changes
//! nothing. The minimum is renewed every few minutes, so that drift shows.

use crate::boot_clock::BootInstant;
use isocost_common::time::EpochMillis;
use parking_lot::Mutex;

/// A minimum older than two of these is given up.
const WINDOW_MS: i64 = 5 * 60 * 1_000;

/// The estimate.
#[derive(Debug)]
pub(crate) struct DatabaseClock(Mutex<Distance>);

/// Boot clock minus database clock, in milliseconds: the smallest seen in this window and in the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Distance {
    window_start: i64,
    current: Option<i64>,
    previous: Option<i64>,
    /// Until the first dispatch arrives: by this machine's wall clock.
    assumed: i64,
}

impl DatabaseClock {
    /// A clock without any observation: this machine's.
    pub(crate) fn new() -> Self {
        let boot = BootInstant::now().as_millis();
        Self(Mutex::new(Distance {
            window_start: boot,
            current: None,
            previous: None,
            assumed: boot - EpochMillis::system_now().as_millis(),
        }))
    }

    /// A dispatch placed at `placed_at` has just arrived.
    pub(crate) fn observe(&self, placed_at: EpochMillis) {
        self.0.lock().observe(BootInstant::now().as_millis(), placed_at);
    }

    /// The current instant by the database's clock.
    pub(crate) fn now(&self) -> EpochMillis {
        let boot = BootInstant::now().as_millis();
        EpochMillis(boot - self.0.lock().get())
    }
}

impl Distance {
    fn observe(&mut self, boot_ms: i64, placed_at: EpochMillis) {
        if boot_ms - self.window_start >= WINDOW_MS {
            self.window_start = boot_ms;
            self.previous = self.current.take().or(self.previous);
        }
        let distance = boot_ms - placed_at.as_millis();
        self.current = Some(self.current.map_or(distance, |current| current.min(distance)));
    }

    fn get(&self) -> i64 {
        [self.current, self.previous]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(self.assumed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unobserved() -> Distance {
        Distance {
            window_start: 0,
            current: None,
            previous: None,
            assumed: -1_000,
        }
    }

    #[test]
    fn db05_a_worker_whose_clock_is_wrong_goes_by_the_database() {
        let mut distance = unobserved();
        assert_eq!(distance.get(), -1_000);
        distance.observe(500, EpochMillis(90_400));
        assert_eq!(distance.get(), -89_900);
    }

    #[test]
    fn a_message_that_was_long_under_way_does_not_move_the_clock() {
        let mut distance = unobserved();
        distance.observe(100, EpochMillis(10_099));
        distance.observe(5_000, EpochMillis(10_100));
        assert_eq!(distance.get(), -9_999);
    }

    #[test]
    fn drift_shows_after_two_windows() {
        let mut distance = unobserved();
        distance.observe(0, EpochMillis(10_000));
        distance.observe(WINDOW_MS, EpochMillis(10_000 + WINDOW_MS - 300));
        assert_eq!(distance.get(), -10_000);
        distance.observe(2 * WINDOW_MS, EpochMillis(10_000 + 2 * WINDOW_MS - 300));
        assert_eq!(distance.get(), -9_700);
    }
}
