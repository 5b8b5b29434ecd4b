//! Which publication a returned message belongs to.
//!
//! RabbitMQ sends a return before the confirm of the same publication. lapin (4.12, `returned_messages.rs` and
//! `acknowledgement.rs`) puts returns into one queue a channel, and hands the oldest to *whichever* confirm it resolves
//! next: an acknowledgement of several publications resolves them in the order of a hash map. So a confirm may carry the
//! return of another publication, and its own may be carried by one before it or, as long as the queue is not empty,
//! by one after it. Message ids cannot tell: the same message may be in flight twice.
//!
//! Hence mandatory publications are stamped with a number, in a header, and a confirm is judged by all that is known:
//! - Its stamp was carried by any confirm: returned.
//! - It carried nothing: the queue was empty then, so its own return, if there was one, was carried by a confirm that was
//!   resolved *earlier*. All of those must be known, which is what [`Returns::judge`] asks of its caller.
//! - It carried another's return: in doubt until a confirm resolved later carries nothing, or nothing is in flight.
//!   (Every return is followed by its own confirm, which takes one from the queue: at the end the queue is empty.)

use crate::broker::PublishOutcome;
use std::collections::HashSet;

/// What lapin said about one publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    /// The publication.
    pub(super) stamp: u64,
    /// Only these can be returned.
    pub(super) mandatory: bool,
    pub(super) confirm: Confirm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Confirm {
    /// With the stamp of the return it carried.
    Acked { carried: Option<u64> },
    /// With the stamp of the return it carried.
    Nacked { carried: Option<u64> },
    /// The channel ended first.
    Lost,
}

/// The returns of one channel.
#[derive(Debug, Default)]
pub(super) struct Returns {
    /// Carried by some confirm; their own is still to come, or in doubt.
    returned: HashSet<u64>,
    /// Acked while carrying another's return.
    in_doubt: Vec<u64>,
}

impl Returns {
    /// Settles what can be settled. `answers` must be complete: whatever was resolved before one of them is among them,
    /// or was in an earlier call. `idle` says that nothing else is in flight.
    pub(super) fn judge(&mut self, answers: &[Answer], idle: bool) -> Vec<(u64, PublishOutcome)> {
        let mut was_empty = idle;
        for answer in answers {
            match answer.confirm {
                Confirm::Acked { carried } | Confirm::Nacked { carried } => match carried {
                    Some(stamp) => {
                        self.returned.insert(stamp);
                    }
                    None => was_empty = true,
                },
                Confirm::Lost => {}
            }
        }
        let mut outcomes = Vec::with_capacity(answers.len() + self.in_doubt.len());
        for stamp in std::mem::take(&mut self.in_doubt) {
            if self.returned.remove(&stamp) {
                outcomes.push((stamp, PublishOutcome::Returned));
            } else if was_empty {
                outcomes.push((stamp, PublishOutcome::Confirmed));
            } else {
                self.in_doubt.push(stamp);
            }
        }
        for answer in answers {
            let returned = answer.mandatory && self.returned.remove(&answer.stamp);
            let outcome = match answer.confirm {
                Confirm::Lost => PublishOutcome::Unknown,
                Confirm::Nacked { .. } => PublishOutcome::Nacked,
                Confirm::Acked { .. } if returned => PublishOutcome::Returned,
                Confirm::Acked { carried: Some(_) } if answer.mandatory && !idle => {
                    self.in_doubt.push(answer.stamp);
                    continue;
                }
                Confirm::Acked { .. } => PublishOutcome::Confirmed,
            };
            outcomes.push((answer.stamp, outcome));
        }
        if idle {
            self.returned.clear();
        }
        outcomes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
    use std::collections::{BTreeMap, VecDeque};

    fn acked(stamp: u64, carried: Option<u64>) -> Answer {
        Answer {
            stamp,
            mandatory: true,
            confirm: Confirm::Acked { carried },
        }
    }

    #[test]
    fn a_return_carried_by_a_neighbour_is_given_back() {
        let mut returns = Returns::default();
        // 1 is routable and carries the return of 2.
        let outcomes = returns.judge(&[acked(1, Some(2)), acked(2, None)], true);
        assert_eq!(
            outcomes,
            [(1, PublishOutcome::Confirmed), (2, PublishOutcome::Returned)]
        );
    }

    #[test]
    fn a_confirm_that_carries_anothers_return_waits_until_its_own_cannot_come() {
        let mut returns = Returns::default();
        assert_eq!(returns.judge(&[acked(1, Some(2))], false), []);
        assert_eq!(returns.judge(&[acked(2, Some(1))], false).len(), 2);
        assert_eq!(returns.judge(&[acked(3, Some(4))], false), []);
        let outcomes = returns.judge(&[acked(4, None)], false);
        assert_eq!(
            outcomes,
            [(3, PublishOutcome::Confirmed), (4, PublishOutcome::Returned)]
        );
    }

    /// lapin and RabbitMQ as described above, driven at random; every outcome must be the true one.
    #[test]
    fn every_return_finds_its_publication_in_whatever_order_confirms_are_resolved() {
        for seed in 0..2_000 {
            let mut random = StdRng::seed_from_u64(seed);
            let unroutable =
                |stamp: u64| (stamp.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed).is_multiple_of(3);
            let (mut returns, mut outcomes) = (Returns::default(), BTreeMap::new());
            let mut waiting: VecDeque<u64> = VecDeque::new();
            let (mut sent, mut unconfirmed) = (0_u64, Vec::new());
            let mut resolved = Vec::new();
            while outcomes.len() < 60 {
                if sent < 60 && random.random_bool(0.6) {
                    sent += 1;
                    unconfirmed.push(sent);
                    if unroutable(sent) {
                        waiting.push_back(sent);
                    }
                }
                if random.random_bool(0.4) || sent == 60 {
                    unconfirmed.shuffle(&mut random);
                    let some = random.random_range(0..=unconfirmed.len());
                    for stamp in unconfirmed.split_off(unconfirmed.len() - some) {
                        resolved.push(acked(stamp, waiting.pop_front()));
                    }
                }
                if random.random_bool(0.5) || sent == 60 {
                    // A prefix of what was resolved, seen in any order.
                    let seen = random.random_range(0..=resolved.len());
                    let mut seen: Vec<_> = resolved.drain(..seen).collect();
                    seen.shuffle(&mut random);
                    let idle = resolved.is_empty() && unconfirmed.is_empty();
                    outcomes.extend(returns.judge(&seen, idle));
                }
            }
            for (stamp, outcome) in outcomes {
                let expected = if unroutable(stamp) {
                    PublishOutcome::Returned
                } else {
                    PublishOutcome::Confirmed
                };
                assert_eq!(outcome, expected, "publication {stamp}, seed {seed}");
            }
        }
    }
}
