//! The clock that leases go by: it counts suspension and never steps.
//!
//! On Linux it is `CLOCK_BOOTTIME`, so a machine that wakes up from sleep finds its leases over. Elsewhere it is the
//! monotonic clock. A virtual machine restored from a snapshot has no clock that could tell; there the database's
//! guards (`dispatch_seq`) are what keeps a late result out.

use std::{ops::Add, time::Duration};

#[cfg(target_os = "linux")]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

/// An instant of this machine: time since it was started, sleep included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootInstant(Duration);

impl BootInstant {
    /// Now.
    pub(crate) fn now() -> Self {
        let time = rustix::time::clock_gettime(CLOCK);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
        Self(Duration::new(seconds, nanos))
    }

    /// Time from `earlier` to `self`; zero when `self` is not later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Milliseconds since the machine was started.
    pub(crate) fn as_millis(self) -> i64 {
        isocost_common::time::duration_millis(self.0)
    }
}

impl Add<Duration> for BootInstant {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0 + rhs)
    }
}

#[cfg(test)]
impl BootInstant {
    /// The instant this long after the machine was started.
    pub(crate) const fn after_boot(duration: Duration) -> Self {
        Self(duration)
    }
}
