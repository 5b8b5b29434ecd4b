//! What a job wants to happen when things go wrong, pile up or come late.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How the pause before the next attempt grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Backoff {
    /// Always `initial_ms`.
    Fixed,
    /// Doubles with every attempt.
    Exponential,
}

/// Attempts and the pauses between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RetryPolicy {
    /// Starts allowed in all, 1 to 100.
    pub max_attempts: u32,
    /// How the pause grows.
    pub backoff: Backoff,
    /// First pause, in milliseconds.
    pub initial_ms: i64,
    /// Longest pause, in milliseconds.
    pub max_ms: i64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 1,
            backoff: Backoff::Exponential,
            initial_ms: 1_000,
            max_ms: 60_000,
        }
    }
}

impl RetryPolicy {
    /// The pause before the attempt after `failed_attempts` failures (at least 1), without jitter.
    #[must_use]
    pub fn pause_after(&self, failed_attempts: u32) -> Duration {
        let grown = match self.backoff {
            Backoff::Fixed => self.initial_ms,
            Backoff::Exponential => {
                let doublings = failed_attempts.saturating_sub(1).min(40);
                self.initial_ms.saturating_mul(1_i64 << doublings)
            }
        };
        Duration::from_millis(u64::try_from(grown.min(self.max_ms)).unwrap_or(0))
    }
}

/// What happens to firings that were missed while nothing could fire them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MisfirePolicy {
    /// One firing now stands for all that were missed.
    FireOnce,
    /// Missed firings are left out.
    Skip,
    /// Every missed firing runs, the newest `max_catch_up` of them.
    CatchUp,
}

/// The misfire policy with its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Misfire {
    /// What to do.
    pub policy: MisfirePolicy,
    /// Most firings that `catchUp` makes up for, 1 to 1,000.
    pub max_catch_up: u32,
}

impl Default for Misfire {
    fn default() -> Self {
        Self {
            policy: MisfirePolicy::FireOnce,
            max_catch_up: 10,
        }
    }
}

/// What happens when a job fires while an earlier execution of it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ConcurrencyPolicy {
    /// Both run.
    #[default]
    Parallel,
    /// The later one waits for the earlier one to end.
    Serial,
    /// The later one is skipped, visibly.
    Discard,
}

macro_rules! coded {
    ($name:ident { $($variant:ident = $code:literal),+ $(,)? }) => {
        impl $name {
            /// The number stored in the tables.
            #[must_use]
            pub const fn code(self) -> i64 {
                match self { $(Self::$variant => $code),+ }
            }

            /// The value with this stored number.
            #[must_use]
            pub const fn from_code(code: i64) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

coded!(Backoff { Fixed = 0, Exponential = 1 });
coded!(MisfirePolicy { FireOnce = 0, Skip = 1, CatchUp = 2 });
coded!(ConcurrencyPolicy { Parallel = 0, Serial = 1, Discard = 2 });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exponential_pause_doubles_up_to_its_limit() {
        let policy = RetryPolicy {
            max_attempts: 99,
            ..RetryPolicy::default()
        };
        let pauses: Vec<u128> = [1, 2, 3, 7, 99]
            .map(|n| policy.pause_after(n).as_millis())
            .to_vec();
        assert_eq!(pauses, [1_000, 2_000, 4_000, 60_000, 60_000]);
    }

    #[test]
    fn a_fixed_pause_stays() {
        let policy = RetryPolicy {
            backoff: Backoff::Fixed,
            ..RetryPolicy::default()
        };
        assert_eq!(policy.pause_after(5), Duration::from_secs(1));
    }
}
