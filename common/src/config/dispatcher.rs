//! `[dispatcher]`.

use super::ConfigError;
use serde::{Deserialize, Serialize};

/// How a worker is chosen among those that can take an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BalancerStrategy {
    /// The one with the smallest load score.
    #[default]
    EqualCost,
    /// Each in turn.
    RoundRobin,
    /// By chance.
    Random,
    /// The one with the fewest executions.
    LeastActive,
    /// The home of the job, as long as it has room: executions of one job meet the same worker again. When a worker joins
    /// `n` others, it becomes the home of `1/(n + 1)` of the jobs and no other job moves; when it leaves, only its own do.
    ConsistentHash,
}

/// Weights of the load score: `active × active + mean cost in seconds × cost + (100 − CPU idle) × cpu`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BalancerWeights {
    /// Points of one active execution. Default 10.
    pub active: f64,
    /// Points of one second of mean run time. Default 1.
    pub cost: f64,
    /// Points of one percent of CPU in use. Default 0.1.
    pub cpu: f64,
}

impl Default for BalancerWeights {
    fn default() -> Self {
        Self {
            active: 10.0,
            cost: 1.0,
            cpu: 0.1,
        }
    }
}

/// `[dispatcher]`: trigger, placement, recovery and intake.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DispatcherConfig {
    /// Name of this process in the leader row and in queue names. Default: host name and process id.
    pub name: String,
    /// Jobs claimed in one transaction, 1 to 500. Default 500.
    pub claim_batch: u32,
    /// Longest sleep of the leader when nothing is due, in milliseconds. Default 1,000.
    pub max_sleep_ms: u64,
    /// Reports taken in by one transaction. Default 1,000.
    pub intake_batch: u32,
    /// How a worker is chosen. Default `equal_cost`.
    pub strategy: BalancerStrategy,
    /// Weights of the load score.
    pub weights: BalancerWeights,
    /// Firings later than this count as missed and go by the misfire policy, in milliseconds. Default 60,000.
    pub misfire_after_ms: u64,
    /// How much longer than its time limit a run may go unreported before a dispatcher ends it, in milliseconds.
    /// Default 30,000.
    pub result_grace_ms: u64,
    /// Days that finished executions, their steps and logs are kept. Default 30.
    pub history_days: u32,
}

impl Default for DispatcherConfig {
    fn default() -> Self {
        Self {
            name: String::new(),
            claim_batch: 500,
            max_sleep_ms: 1_000,
            intake_batch: 1_000,
            strategy: BalancerStrategy::default(),
            weights: BalancerWeights::default(),
            misfire_after_ms: 60_000,
            result_grace_ms: 30_000,
            history_days: 30,
        }
    }
}

impl DispatcherConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let weights = self.weights;
        let usable = |weight: f64| weight.is_finite() && weight >= 0.0;
        super::load::check(&[
            (
                (1..=500).contains(&self.claim_batch),
                "dispatcher.claim_batch",
                "must be between 1 and 500",
            ),
            (
                (10..=60_000).contains(&self.max_sleep_ms),
                "dispatcher.max_sleep_ms",
                "must be between 10 and 60000",
            ),
            (
                (1..=5_000).contains(&self.intake_batch),
                "dispatcher.intake_batch",
                "must be between 1 and 5000",
            ),
            (
                usable(weights.active) && usable(weights.cost) && usable(weights.cpu),
                "dispatcher.weights",
                "must be numbers of at least 0",
            ),
            (
                self.history_days >= 1,
                "dispatcher.history_days",
                "must be at least 1",
            ),
        ])
    }
}
