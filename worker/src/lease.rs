//! An incarnation's right to go on running what it holds.
//!
//! It counts from the *send* of the last heartbeat that anybody acknowledged: the leader counts from the arrival, which
//! is later, so a worker always gives up before it is called dead. Once it has run out, no acknowledgement renews it.

use crate::boot_clock::BootInstant;
use isocost_common::config::LeaseConfig;
use parking_lot::Mutex;
use std::time::Duration;

/// Where a lease stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No heartbeat was acknowledged yet: nothing is taken.
    Unregistered,
    /// Work is taken and runs.
    Valid,
    /// It ran out: handlers are to be stopped.
    Lost,
    /// It ran out so long ago that the process may not go on with anything of this incarnation.
    Over,
}

#[derive(Debug)]
struct State {
    renewed: Option<BootInstant>,
    lost: bool,
}

/// The lease of one incarnation.
#[derive(Debug)]
pub(crate) struct Lease {
    cancel_after: Duration,
    exit_after: Duration,
    state: Mutex<State>,
}

impl Lease {
    /// A lease that waits for its first acknowledgement.
    pub(crate) fn new(config: &LeaseConfig) -> Self {
        Self {
            cancel_after: Duration::from_millis(config.worker_cancel_ms),
            exit_after: Duration::from_millis(config.worker_exit_ms),
            state: Mutex::new(State {
                renewed: None,
                lost: false,
            }),
        }
    }

    /// A heartbeat sent at `sent` was acknowledged. False when the lease had run out before.
    pub(crate) fn renew(&self, sent: BootInstant, now: BootInstant) -> bool {
        let phase = self.phase(now);
        let mut state = self.state.lock();
        if state.lost || matches!(phase, Phase::Lost | Phase::Over) {
            return false;
        }
        state.renewed = state.renewed.max(Some(sent));
        true
    }

    /// Gives it up at once: the incarnation was fenced.
    pub(crate) fn revoke(&self) {
        self.state.lock().lost = true;
    }

    /// Where it stands. A lease once found lost stays so.
    pub(crate) fn phase(&self, now: BootInstant) -> Phase {
        let mut state = self.state.lock();
        let age = state.renewed.map(|renewed| now.since(renewed));
        state.lost |= age.is_some_and(|age| age >= self.cancel_after);
        match age {
            Some(age) if age >= self.exit_after => Phase::Over,
            _ if state.lost => Phase::Lost,
            Some(_) => Phase::Valid,
            None => Phase::Unregistered,
        }
    }

    /// True while work may start.
    pub(crate) fn is_valid(&self) -> bool {
        self.phase(BootInstant::now()) == Phase::Valid
    }

    /// When everything of this incarnation must have ended.
    pub(crate) fn exit_at(&self) -> Option<BootInstant> {
        self.state.lock().renewed.map(|renewed| renewed + self.exit_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> BootInstant {
        BootInstant::after_boot(Duration::from_millis(ms))
    }

    fn lease() -> Lease {
        Lease::new(&LeaseConfig::default())
    }

    #[test]
    fn a_lease_counts_from_the_send_not_from_the_acknowledgement() {
        let lease = lease();
        assert_eq!(lease.phase(at(0)), Phase::Unregistered);
        assert!(lease.renew(at(1_000), at(5_000)));
        assert_eq!(lease.phase(at(10_999)), Phase::Valid);
        assert_eq!(lease.phase(at(11_000)), Phase::Lost);
        assert_eq!(lease.phase(at(16_000)), Phase::Over);
    }

    #[test]
    fn a_late_acknowledgement_of_an_older_heartbeat_takes_nothing_back() {
        let lease = lease();
        lease.renew(at(3_000), at(3_001));
        lease.renew(at(0), at(3_002));
        assert_eq!(lease.phase(at(12_999)), Phase::Valid);
    }

    #[test]
    fn a_lease_that_ran_out_is_never_renewed() {
        let lease = lease();
        lease.renew(at(0), at(1));
        assert!(!lease.renew(at(9_000), at(10_000)), "the answer came too late");
        assert_eq!(lease.phase(at(10_001)), Phase::Lost);
    }

    #[test]
    fn a_process_that_slept_past_its_lease_finds_it_lost_before_it_can_renew_it() {
        let lease = lease();
        lease.renew(at(0), at(1));
        assert!(!lease.renew(at(60_000), at(60_001)), "sent after the thaw");
        assert_eq!(lease.phase(at(60_002)), Phase::Over);
    }

    #[test]
    fn a_revoked_lease_is_lost_at_once_and_for_good() {
        let lease = lease();
        lease.renew(at(0), at(1));
        lease.revoke();
        assert_eq!(lease.phase(at(2)), Phase::Lost);
        assert!(!lease.renew(at(3), at(4)));
    }
}
