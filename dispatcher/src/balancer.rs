//! Which of the workers that could take an execution gets it. Pure: the leader says what each of them offers.

use isocost_common::config::{BalancerStrategy, BalancerWeights};
use rand::seq::IteratorRandom;
use serde::Deserialize;

/// What one worker offers to one handler at the moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Offer {
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
    pub(crate) fn choose(&mut self, offers: &[Offer]) -> Option<usize> {
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
        let chosen = match self.strategy {
            BalancerStrategy::EqualCost => candidates.reduce(|best, other| {
                if self.score(&offers[other]) < self.score(&offers[best]) {
                    other
                } else {
                    best
                }
            }),
            BalancerStrategy::RoundRobin => candidates.next(),
            BalancerStrategy::Random => candidates.choose(&mut rand::rng()),
        }?;
        self.turn = chosen + 1;
        Some(chosen)
    }
}

#[cfg(test)]
mod tests;
