//! The in-flight table: what was committed as dispatched and is not confirmed by the broker. Pure: it publishes nothing
//! and reads no clock, but says what is to be published again, and when.
//!
//! Until the broker confirms a message, nobody knows whether its worker will see it. So the *same* message goes out again:
//! the same numbers, the same `not_after`, the same incarnation. A worker drops what it has seen; an execution that was
//! placed anew instead could run twice.

use isocost_common::{broker::PublishOutcome, execution::Claim};
use std::{collections::HashMap, time::Duration};
use tokio::time::Instant;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A message that the broker has not confirmed yet.
#[derive(Debug)]
struct Letter<M> {
    message: M,
    claims: Vec<Claim>,
    tries: u32,
    /// When it is published again; none while a call is under way.
    again_at: Option<Instant>,
}

/// A letter that the broker has taken.
#[derive(Debug, PartialEq, Eq)]
pub struct Delivered<M> {
    /// The handovers it names.
    pub claims: Vec<Claim>,
    /// The message itself.
    pub message: M,
    /// It had nowhere to go: that incarnation has no queue. Its lease decides, and a query when it comes back.
    pub returned: bool,
}

/// The letters under way, by number. `M` is a message.
#[derive(Debug)]
pub struct InFlight<M> {
    letters: HashMap<u64, Letter<M>>,
    next_letter: u64,
}

impl<M> Default for InFlight<M> {
    fn default() -> Self {
        Self {
            letters: HashMap::new(),
            next_letter: 0,
        }
    }
}

impl<M: Clone> InFlight<M> {
    /// Notes a message that is published now; returns its number.
    pub fn add(&mut self, message: M, claims: Vec<Claim>) -> u64 {
        let number = self.next_letter;
        let letter = Letter {
            message,
            claims,
            tries: 1,
            again_at: None,
        };
        self.letters.insert(number, letter);
        self.next_letter += 1;
        number
    }

    /// The broker's word about a letter. Returns it when it is done with; else it is published again after a pause.
    pub fn on_outcome(&mut self, number: u64, outcome: PublishOutcome, now: Instant) -> Option<Delivered<M>> {
        match outcome {
            PublishOutcome::Confirmed | PublishOutcome::Returned => {
                let Letter { message, claims, .. } = self.letters.remove(&number)?;
                Some(Delivered {
                    claims,
                    message,
                    returned: outcome == PublishOutcome::Returned,
                })
            }
            PublishOutcome::Nacked | PublishOutcome::Unknown => {
                if let Some(letter) = self.letters.get_mut(&number) {
                    let pause = FIRST_PAUSE * 2_u32.saturating_pow(letter.tries - 1).min(64);
                    letter.again_at = Some(now + pause.min(LONGEST_PAUSE));
                }
                None
            }
        }
    }

    /// Nobody knows which calls have ended: whatever waits for an answer is published again.
    pub fn in_doubt(&mut self, now: Instant) {
        for letter in self.letters.values_mut() {
            letter.again_at.get_or_insert(now + FIRST_PAUSE);
        }
    }

    /// The letters to publish again, unchanged, whose pause is over; forgets those of which nothing is owned any more.
    pub fn due_again(&mut self, now: Instant, is_owned: impl Fn(Claim) -> bool) -> Vec<(u64, M)> {
        let is_due = |letter: &Letter<M>| letter.again_at.is_some_and(|at| at <= now);
        self.letters
            .retain(|_, letter| !is_due(letter) || letter.claims.iter().any(|claim| is_owned(*claim)));
        let mut again = Vec::new();
        for (number, letter) in self.letters.iter_mut().filter(|(_, letter)| is_due(letter)) {
            letter.tries += 1;
            letter.again_at = None;
            again.push((*number, letter.message.clone()));
        }
        again
    }

    /// Pauses that an outage let grow are over with it: what waits is published again at once.
    pub fn broker_is_back(&mut self, now: Instant) {
        for letter in self.letters.values_mut() {
            if letter.again_at.is_some() {
                letter.again_at = Some(now);
                letter.tries = 1;
            }
        }
    }

    /// The earliest instant at which something is published again.
    #[must_use]
    pub fn next_again(&self) -> Option<Instant> {
        self.letters.values().filter_map(|letter| letter.again_at).min()
    }

    /// Letters the broker has not confirmed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.letters.len()
    }

    /// True when the broker has everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.letters.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isocost_common::id::ExecutionId;

    fn claim() -> Claim {
        Claim {
            execution: ExecutionId::generate(),
            dispatch_seq: 1,
        }
    }

    #[test]
    fn what_is_not_confirmed_goes_out_again_unchanged_after_its_pause() {
        let (now, claim) = (Instant::now(), claim());
        let mut table = InFlight::default();
        let number = table.add("message", vec![claim]);
        assert!(
            table.due_again(now + LONGEST_PAUSE, |_| true).is_empty(),
            "a call is under way"
        );
        assert_eq!(table.on_outcome(number, PublishOutcome::Nacked, now), None);
        assert!(table.due_again(now, |_| true).is_empty(), "its pause is not over");
        assert_eq!(
            table.due_again(now + FIRST_PAUSE, |_| true),
            [(number, "message")]
        );
        let delivered = table.on_outcome(number, PublishOutcome::Confirmed, now);
        assert_eq!(delivered.map(|letter| letter.claims), Some(vec![claim]));
        assert!(table.is_empty());
    }

    #[test]
    fn a_letter_of_which_nothing_is_owned_any_more_is_dropped() {
        let now = Instant::now();
        let mut table = InFlight::default();
        let number = table.add("message", vec![claim()]);
        table.on_outcome(number, PublishOutcome::Unknown, now);
        assert!(table.due_again(now + FIRST_PAUSE, |_| false).is_empty());
        assert!(table.is_empty());
    }

    #[test]
    fn a_returned_letter_is_done_with() {
        let mut table = InFlight::default();
        let number = table.add("message", vec![claim()]);
        let delivered = table.on_outcome(number, PublishOutcome::Returned, Instant::now());
        assert!(delivered.is_some_and(|letter| letter.returned));
    }
}
