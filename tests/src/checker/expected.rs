//! Which firings a submission asks for: worked out from what was sent, for the triggers that runs here use, and by
//! nothing of the product.

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The firings of a job, in milliseconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Expected {
    /// One, at an instant within these limits, which are part of it.
    One {
        /// Not before.
        earliest: i64,
        /// Not after.
        latest: i64,
    },
    /// At exactly these instants.
    Times(Vec<Due>),
    /// The first within these limits, and each further one so long after the end of the one before; none after `end`.
    Chain {
        /// Not before.
        earliest: i64,
        /// Not after.
        latest: i64,
        /// Pause after the end of a run.
        every_ms: i64,
        /// The end of the job's window.
        end: i64,
    },
}

/// One instant of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) at: i64,
    /// False when the job may have been accepted before it or after.
    pub(super) is_certain: bool,
}

/// What a job that was asked for at `asked` and acknowledged at `acked` fires.
///
/// # Errors
/// When it has a trigger that this does not know.
pub(super) fn firings(body: &Value, asked: i64, acked: i64) -> Result<Expected> {
    let trigger = &body["trigger"];
    let start = instant(&body["startAt"])?.unwrap_or(i64::MIN);
    let end = instant(&body["endAt"])?.unwrap_or(i64::MAX);
    let number = |field: &str| {
        trigger[field]
            .as_i64()
            .with_context(|| format!("{field} in {trigger}"))
    };
    match trigger["type"].as_str() {
        None => Ok(Expected::One {
            earliest: asked,
            latest: acked,
        }),
        Some("once") => {
            if let Some(at) = instant(&trigger["at"])? {
                return Ok(Expected::One {
                    earliest: at,
                    latest: at,
                });
            }
            let delay = trigger["delayMs"].as_i64().unwrap_or(0);
            Ok(Expected::One {
                earliest: asked + delay,
                latest: acked + delay,
            })
        }
        Some("fixedRate") => {
            let every = number("everyMs")?;
            // Without a start it would count from an instant that only the product knows.
            let anchor = instant(&body["startAt"])?.context("a fixed rate without startAt")?;
            Ok(between(anchor, every, asked, acked, end))
        }
        Some("fixedDelay") => Ok(Expected::Chain {
            earliest: asked.max(start),
            latest: acked.max(start),
            every_ms: number("everyMs")?,
            end,
        }),
        Some("cron") => {
            let expr = trigger["expr"].as_str().context("a cron without expr")?;
            let seconds = seconds(expr)?;
            let from = asked.max(start);
            let times = (from.div_euclid(1_000)..=end.div_euclid(1_000))
                .filter(|second| seconds.contains(&second.rem_euclid(60)))
                .map(|second| second * 1_000)
                .filter(|at| (from..=end).contains(at));
            Ok(Expected::Times(times.map(|at| due(at, acked)).collect()))
        }
        Some(other) => bail!("trigger {other}"),
    }
}

fn between(anchor: i64, every: i64, asked: i64, acked: i64, end: i64) -> Expected {
    let first = ((asked - anchor).max(0) + every - 1) / every;
    let times = (first..).map(|n| anchor + n * every).take_while(|at| *at <= end);
    Expected::Times(times.map(|at| due(at, acked)).collect())
}

fn due(at: i64, acked: i64) -> Due {
    Due {
        at,
        is_certain: at > acked,
    }
}

/// The seconds of a minute at which `<seconds> * * * * ?` fires; the seconds are `*`, `*/n`, `a/n` or a list.
fn seconds(expr: &str) -> Result<Vec<i64>> {
    let Some(field) = expr.strip_suffix(" * * * * ?") else {
        bail!("cron {expr}");
    };
    if field == "*" {
        return Ok((0..60).collect());
    }
    if let Some((from, step)) = field.split_once('/') {
        let from = if from == "*" { 0 } else { from.parse()? };
        return Ok((from..60).step_by(step.parse()?).collect());
    }
    Ok(field.split(',').map(str::parse).collect::<Result<_, _>>()?)
}

/// RFC 3339.
pub(super) fn instant(value: &Value) -> Result<Option<i64>> {
    let Some(text) = value.as_str() else {
        return Ok(None);
    };
    let instant = chrono::DateTime::parse_from_rfc3339(text).with_context(|| text.to_owned())?;
    Ok(Some(instant.timestamp_millis()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn times(body: &Value, asked: i64, acked: i64) -> Vec<i64> {
        match firings(body, asked, acked) {
            Ok(Expected::Times(times)) => times.iter().map(|due| due.at).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_cron_fires_at_its_seconds_within_its_window() {
        let body = |expr: &str| {
            json!({ "trigger": { "type": "cron", "expr": expr },
                "startAt": "1970-01-01T00:00:58.500Z", "endAt": "1970-01-01T00:01:10.000Z" })
        };
        let every_five = [60_000, 65_000, 70_000];
        assert_eq!(times(&body("*/5 * * * * ?"), 0, 0), every_five);
        assert_eq!(times(&body("0,5,10,30 * * * * ?"), 0, 0), every_five);
        assert_eq!(times(&body("3/5 * * * * ?"), 0, 0), [63_000, 68_000]);
        assert_eq!(times(&body("* * * * * ?"), 68_001, 68_001), [69_000, 70_000]);
    }

    #[test]
    fn a_fixed_rate_counts_from_its_start() {
        let body = json!({ "trigger": { "type": "fixedRate", "everyMs": 700 },
            "startAt": "1970-01-01T00:00:01.000Z", "endAt": "1970-01-01T00:00:03.100Z" });
        assert_eq!(times(&body, 0, 0), [1_000, 1_700, 2_400, 3_100]);
        assert_eq!(times(&body, 1_701, 1_800), [2_400, 3_100]);
    }

    #[test]
    fn what_fell_between_question_and_answer_is_not_certain() {
        let body = json!({ "trigger": { "type": "fixedRate", "everyMs": 100 },
            "startAt": "1970-01-01T00:00:00.000Z", "endAt": "1970-01-01T00:00:00.300Z" });
        let expected = firings(&body, 50, 200);
        let certain = |at, is_certain| Due { at, is_certain };
        let times = vec![certain(100, false), certain(200, false), certain(300, true)];
        assert_eq!(expected.ok(), Some(Expected::Times(times)));
    }
}
