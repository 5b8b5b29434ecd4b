//! What the answer to an attempt means for the delivery: pure.

use super::request::Answer;
use chrono::DateTime;
use isocost_common::{config::RelayConfig, time::EpochMillis};
use std::time::Duration;

/// Where a delivery goes from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The receiver has it.
    Delivered,
    /// The receiver wants no more of it.
    Gone,
    /// Another attempt at this instant.
    Retry {
        /// When.
        at: EpochMillis,
        /// The delay tier whose queue brings the ticket back at about that instant.
        tier: Option<Duration>,
    },
    /// No attempt is left.
    Exhausted,
    /// The next attempt would come after the delivery's last day.
    Expired,
}

/// When attempts are repeated.
#[derive(Debug, Clone)]
pub(super) struct RetryPlan {
    delays: Vec<Duration>,
    max_retry_after: Duration,
}

impl RetryPlan {
    pub(super) fn new(config: &RelayConfig) -> Self {
        Self {
            delays: config
                .retry_delays_ms
                .iter()
                .map(|ms| Duration::from_millis(*ms))
                .collect(),
            max_retry_after: Duration::from_millis(config.max_retry_after_ms),
        }
    }

    /// The pause the receiver asks for, up to the limit; none when it asks for none, or for nonsense.
    pub(super) fn asked_pause(&self, answer: &Answer, now: EpochMillis) -> Option<Duration> {
        let text = answer.retry_after.as_deref()?.trim();
        let pause = match text.parse::<u64>() {
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => {
                let date = DateTime::parse_from_rfc2822(text).ok()?;
                EpochMillis(date.timestamp_millis()).since(now)
            }
        };
        Some(pause.min(self.max_retry_after))
    }

    /// Decides after the attempt numbered `attempt` of the present series, from 1. `jitter`, 0 to 1, spreads the next
    /// ones over up to 10 % more.
    pub(super) fn verdict(
        &self,
        answer: &Answer,
        attempt: u32,
        now: EpochMillis,
        expires_at: EpochMillis,
        jitter: f64,
    ) -> Verdict {
        match answer.status {
            Some(200..=299) => return Verdict::Delivered,
            Some(410) => return Verdict::Gone,
            _ => {}
        }
        let index = usize::try_from(attempt.saturating_sub(1)).unwrap_or(usize::MAX);
        let Some(delay) = self.delays.get(index).copied() else {
            return Verdict::Exhausted;
        };
        let own = delay.mul_f64(1.0 + jitter / 10.0);
        let asked = self.asked_pause(answer, now).unwrap_or_default();
        let at = now + own.max(asked);
        if at > expires_at {
            return Verdict::Expired;
        }
        Verdict::Retry {
            at,
            tier: (asked <= own).then_some(delay),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-30T12:00:00Z.
    const NOW: EpochMillis = EpochMillis(1_796_040_000_000);
    const NEVER: EpochMillis = EpochMillis(i64::MAX);

    fn plan() -> RetryPlan {
        RetryPlan::new(&RelayConfig::default())
    }

    fn answer(status: u16, retry_after: Option<&str>) -> Answer {
        Answer {
            status: Some(status),
            retry_after: retry_after.map(str::to_owned),
            ..Answer::default()
        }
    }

    fn seconds_until_next(answer: &Answer, attempt: u32) -> Option<u64> {
        match plan().verdict(answer, attempt, NOW, NEVER, 0.0) {
            Verdict::Retry { at, .. } => Some(at.since(NOW).as_secs()),
            _ => None,
        }
    }

    #[test]
    fn attempts_follow_the_schedule_and_end_with_it() {
        let failed = answer(500, None);
        let pauses: Vec<_> = (1..=9).map(|n| seconds_until_next(&failed, n)).collect();
        let expected = [5, 30, 300, 1_800, 7_200, 18_000, 36_000, 36_000].map(Some);
        assert_eq!(pauses[..8], expected);
        assert_eq!(plan().verdict(&failed, 9, NOW, NEVER, 0.0), Verdict::Exhausted);
    }

    #[test]
    fn wh07_the_pause_the_receiver_asks_for_is_kept() {
        assert_eq!(seconds_until_next(&answer(429, Some("120")), 1), Some(120));
        let date = answer(503, Some("Mon, 30 Nov 2026 12:01:00 GMT"));
        assert_eq!(seconds_until_next(&date, 1), Some(60));
        assert_eq!(seconds_until_next(&answer(429, Some("86400")), 1), Some(86_400));
        assert_eq!(
            seconds_until_next(&answer(429, Some("99999999")), 1),
            Some(86_400),
            "limited to a day"
        );
        assert_eq!(
            seconds_until_next(&answer(429, Some("1")), 2),
            Some(30),
            "never sooner than planned"
        );
    }

    #[test]
    fn wh07_nonsense_is_ignored() {
        for nonsense in ["banana", "", "-5", "1.5", "Mon, 99 Nov 2026 12:01:00 GMT"] {
            assert_eq!(seconds_until_next(&answer(503, Some(nonsense)), 1), Some(5));
        }
        let past = answer(503, Some("Sun, 06 Nov 1994 08:49:37 GMT"));
        assert_eq!(seconds_until_next(&past, 1), Some(5));
    }

    #[test]
    fn success_and_gone_end_it_and_redirects_do_not() {
        let verdict = |status| plan().verdict(&answer(status, None), 1, NOW, NEVER, 0.0);
        assert_eq!(verdict(200), Verdict::Delivered);
        assert_eq!(verdict(204), Verdict::Delivered);
        assert_eq!(verdict(410), Verdict::Gone);
        assert!(matches!(verdict(302), Verdict::Retry { .. }));
        assert!(matches!(verdict(400), Verdict::Retry { .. }));
    }

    #[test]
    fn no_attempt_is_planned_after_the_last_day() {
        let failed = answer(500, None);
        let verdict = |expires_at| plan().verdict(&failed, 1, NOW, expires_at, 0.0);
        assert_eq!(verdict(NOW + Duration::from_millis(4_999)), Verdict::Expired);
        assert!(matches!(
            verdict(NOW + Duration::from_secs(5)),
            Verdict::Retry { .. }
        ));
    }

    #[test]
    fn jitter_only_lengthens_and_a_tier_is_used_only_when_it_fits() {
        let failed = answer(500, None);
        let Verdict::Retry { at, tier } = plan().verdict(&failed, 1, NOW, NEVER, 1.0) else {
            panic!("no retry");
        };
        assert_eq!(at, NOW + Duration::from_millis(5_500));
        assert_eq!(tier, Some(Duration::from_secs(5)));
        let asked = answer(429, Some("120"));
        let verdict = plan().verdict(&asked, 1, NOW, NEVER, 0.0);
        assert!(matches!(verdict, Verdict::Retry { tier: None, .. }));
    }
}
