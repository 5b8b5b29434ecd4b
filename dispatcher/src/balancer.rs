//! Which of the workers that could take an execution gets it. Pure: the leader says what each of them offers.

use isocost_common::config::{BalancerStrategy, BalancerWeights};
use rand::seq::IteratorRandom;
use serde::Deserialize;

/// What one worker offers to one handler at the moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Offer {
    /// [`home_key`] of the worker's name.
    pub(crate) home: u64,
    /// Executions it owns, of all handlers: exact, from the leader's own set.
    pub(crate) active: u32,
    /// Mean run time of the last minutes, in milliseconds.
    pub(crate) mean_cost_ms: f64,
    /// CPU idle, 0 to 100.
    pub(crate) cpu_idle_percent: u8,
    /// Slots of the handler that are free now.
    pub(crate) free: u32,
    /// Executions it may hold beyond its slots, so that short runs follow each other without a pause.
    pub(crate) extra: u32,
}

impl Offer {
    /// The offer after one more execution was placed on it.
    pub(crate) fn taken(self) -> Self {
        let (free, extra) = match self.free.checked_sub(1) {
            Some(free) => (free, self.extra),
            None => (0, self.extra.saturating_sub(1)),
        };
        Self {
            active: self.active + 1,
            free,
            extra,
            ..self
        }
    }
}

/// The `balancer` row of the `setting` table: overrides the configuration at run time.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(crate) struct BalancerSetting {
    #[serde(default)]
    strategy: Option<BalancerStrategy>,
    #[serde(default)]
    weights: Option<BalancerWeights>,
}

/// Chooses among offers, by a strategy that can be switched at any time.
#[derive(Debug)]
pub(crate) struct Balancer {
    default: (BalancerStrategy, BalancerWeights),
    strategy: BalancerStrategy,
    weights: BalancerWeights,
    turn: usize,
}

impl Balancer {
    pub(crate) fn new(strategy: BalancerStrategy, weights: BalancerWeights) -> Self {
        Self {
            default: (strategy, weights),
            strategy,
            weights,
            turn: 0,
        }
    }

    /// Takes over the setting; what it leaves out, or its absence, means the configuration.
    pub(crate) fn set(&mut self, setting: Option<BalancerSetting>) {
        let (strategy, weights) = self.default;
        self.strategy = setting.and_then(|it| it.strategy).unwrap_or(strategy);
        self.weights = setting.and_then(|it| it.weights).unwrap_or(weights);
    }

    /// True when it matters which execution gets which of the seats taken.
    pub(crate) fn prefers_homes(&self) -> bool {
        self.strategy == BalancerStrategy::ConsistentHash
    }

    /// The load score: smaller is better.
    pub(crate) fn score(&self, offer: &Offer) -> f64 {
        f64::from(offer.active) * self.weights.active
            + offer.mean_cost_ms / 1_000.0 * self.weights.cost
            + (100.0 - f64::from(offer.cpu_idle_percent.min(100))) * self.weights.cpu
    }

    /// The index of the offer to take; none when nobody has room.
    ///
    /// A free slot comes before any score: nothing queues behind a run while it could start elsewhere. Equal scores
    /// take turns.
    ///
    /// `job` is the [`home_key`] of the job, when it is known whose turn it is; without it a consistent hash takes turns,
    /// and [`Balancer::prefers_homes`] says that the seats are to be handed out by [`affinity`].
    pub(crate) fn choose(&mut self, offers: &[Offer], job: Option<u64>) -> Option<usize> {
        let anybody_free = offers.iter().any(|offer| offer.free > 0);
        let has_room = |offer: &Offer| {
            if anybody_free {
                offer.free > 0
            } else {
                offer.extra > 0
            }
        };
        let count = offers.len();
        let start = self.turn;
        let mut candidates = (0..count)
            .map(|step| (start + step) % count)
            .filter(|index| has_room(&offers[*index]));
        let by_affinity = |job: u64| move |index: &usize| affinity(job, offers[*index].home);
        let chosen = match (self.strategy, job) {
            (BalancerStrategy::EqualCost, _) => candidates.reduce(|best, other| {
                if self.score(&offers[other]) < self.score(&offers[best]) {
                    other
                } else {
                    best
                }
            }),
            (BalancerStrategy::LeastActive, _) => candidates.min_by_key(|index| offers[*index].active),
            (BalancerStrategy::ConsistentHash, Some(job)) => candidates.max_by_key(by_affinity(job)),
            (BalancerStrategy::RoundRobin | BalancerStrategy::ConsistentHash, _) => candidates.next(),
            (BalancerStrategy::Random, _) => candidates.choose(&mut rand::rng()),
        }?;
        self.turn = chosen + 1;
        Some(chosen)
    }
}

/// What jobs and workers are matched by: stable over processes, versions and restarts. FNV-1a.
pub(crate) fn home_key(name: &[u8]) -> u64 {
    name.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// How strongly a job is drawn to a worker: the strongest is its home. (Rendezvous hashing: each pair has a figure of its
/// own, so a worker that joins or leaves changes nothing between the others.) The finish of SplitMix64.
pub(crate) fn affinity(job: u64, worker: u64) -> u64 {
    let mut mixed = job ^ worker.rotate_left(32).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests;
