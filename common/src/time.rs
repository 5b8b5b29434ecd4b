//! The one instant type, and the clock that all instants in the tables come from.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{
    fmt,
    ops::{Add, Sub},
    sync::atomic::{AtomicBool, AtomicI64, Ordering},
    time::Duration,
};

/// An instant: milliseconds since the Unix epoch, UTC. In JSON it is RFC 3339 with milliseconds and `Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EpochMillis(pub i64);

/// The latest instant accepted from outside: the end of the year 9999.
const LATEST_MS: i64 = 253_402_300_799_999;

impl EpochMillis {
    /// The instant of this machine's clock. Prefer [`Clock::now`] for anything that is stored.
    #[must_use]
    pub fn system_now() -> Self {
        Self(Utc::now().timestamp_millis())
    }

    /// Milliseconds since the Unix epoch.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// Parses RFC 3339 with any offset; sub-millisecond digits are cut.
    ///
    /// # Errors
    /// [`InvalidInstant`] when the text is not RFC 3339, or lies outside the years 1970 to 9999.
    pub fn parse_rfc3339(text: &str) -> Result<Self, InvalidInstant> {
        let invalid = || InvalidInstant(text.chars().take(64).collect());
        let millis = DateTime::parse_from_rfc3339(text)
            .map_err(|_| invalid())?
            .timestamp_millis();
        if (0..=LATEST_MS).contains(&millis) {
            Ok(Self(millis))
        } else {
            Err(invalid())
        }
    }

    /// Time from `earlier` to `self`; zero when `self` is not later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// RFC 3339, UTC, milliseconds.
    #[must_use]
    pub fn to_rfc3339(self) -> String {
        DateTime::<Utc>::from_timestamp_millis(self.0)
            .unwrap_or(DateTime::<Utc>::MAX_UTC)
            .to_rfc3339_opts(SecondsFormat::Millis, true)
    }
}

/// A text that is not an instant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an RFC 3339 instant between 1970 and 9999, such as 2026-12-01T00:00:00.000Z")]
pub struct InvalidInstant(pub String);

impl fmt::Display for EpochMillis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_rfc3339())
    }
}

impl Add<Duration> for EpochMillis {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(duration_millis(rhs)))
    }
}

impl Sub<Duration> for EpochMillis {
    type Output = Self;

    fn sub(self, rhs: Duration) -> Self {
        Self(self.0.saturating_sub(duration_millis(rhs)))
    }
}

impl Serialize for EpochMillis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_rfc3339())
    }
}

impl<'de> Deserialize<'de> for EpochMillis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        Self::parse_rfc3339(&text).map_err(de::Error::custom)
    }
}

/// Whole milliseconds of a duration, saturating.
#[must_use]
pub fn duration_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// A reading of the database's clock: it showed `database` at some moment from `before` to `after` of this machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReading {
    /// What the database said.
    pub database: EpochMillis,
    /// This machine's clock when it was asked.
    pub before: EpochMillis,
    /// This machine's clock when the answer was here.
    pub after: EpochMillis,
}

/// A round trip beyond this tells little about when in it the database looked at its clock.
const SHARP_READING: Duration = Duration::from_millis(100);

impl ClockReading {
    /// How far the database is ahead, given what was known before. A short round trip gives its middle. A long one (a busy
    /// server, a process that was frozen) only gives limits: what was known stays as far as they allow; when nothing was,
    /// the lower limit counts, for a clock that runs ahead fires jobs before their time.
    #[must_use]
    pub fn offset_ms(self, known: Option<i64>) -> i64 {
        let (least, most) = (self.database.0 - self.after.0, self.database.0 - self.before.0);
        if self.after.since(self.before) <= SHARP_READING {
            return i64::midpoint(least, most);
        }
        // A clock that was set back meanwhile leaves no room between the limits.
        known.map_or(least, |known| known.min(most).max(least))
    }
}

/// The database's clock, as seen from this process: the system clock plus a measured offset, never running backwards.
///
/// With the embedded database the offset is zero. With a server it is measured at connect and regularly after, so that
/// processes with wrong clocks agree on what is due.
#[derive(Debug, Default)]
pub struct Clock {
    offset_ms: AtomicI64,
    latest_ms: AtomicI64,
    is_measured: AtomicBool,
}

impl Clock {
    /// The current instant by the database's clock.
    pub fn now(&self) -> EpochMillis {
        let now = EpochMillis::system_now()
            .0
            .saturating_add(self.offset_ms.load(Ordering::Relaxed));
        let latest = self.latest_ms.fetch_max(now, Ordering::Relaxed);
        EpochMillis(now.max(latest))
    }

    /// Learns from a reading; returns how far the database's clock is ahead of this machine's, in milliseconds.
    pub fn learn(&self, reading: ClockReading) -> i64 {
        let is_known = self.is_measured.swap(true, Ordering::Relaxed);
        let offset_ms = reading.offset_ms(is_known.then(|| self.offset_ms()));
        // A corrected offset may step back: the floor has to follow, or a wrong reading would freeze the clock.
        self.offset_ms.store(offset_ms, Ordering::Relaxed);
        self.latest_ms.store(0, Ordering::Relaxed);
        offset_ms
    }

    /// How far the database's clock is ahead of this machine's, in milliseconds.
    #[must_use]
    pub fn offset_ms(&self) -> i64 {
        self.offset_ms.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: i64 = 24 * 3_600 * 1_000;

    fn reading(database: i64, before: i64, after: i64) -> ClockReading {
        ClockReading {
            database: EpochMillis(DAY_MS + database),
            before: EpochMillis(DAY_MS + before),
            after: EpochMillis(DAY_MS + after),
        }
    }

    #[test]
    fn a_short_round_trip_gives_the_middle_of_its_limits() {
        assert_eq!(reading(3_020, 0, 40).offset_ms(None), 3_000);
        assert_eq!(reading(3_020, 0, 40).offset_ms(Some(17)), 3_000);
    }

    #[test]
    fn a_long_round_trip_does_not_move_a_clock_that_agrees_with_it() {
        // Frozen for ten seconds before the question left, or after the answer had come.
        assert_eq!(reading(10_001, 0, 10_002).offset_ms(Some(0)), 0);
        assert_eq!(reading(1, 0, 10_002).offset_ms(Some(0)), 0);
    }

    #[test]
    fn a_long_round_trip_moves_a_clock_no_further_than_it_proves() {
        assert_eq!(reading(5_000, 0, 1_000).offset_ms(Some(0)), 4_000);
        assert_eq!(reading(-5_000, 0, 1_000).offset_ms(Some(0)), -5_000);
    }

    #[test]
    fn the_first_reading_never_puts_the_clock_ahead_of_the_database() {
        assert_eq!(reading(10_001, 0, 10_002).offset_ms(None), -1);
        assert_eq!(reading(1, 0, 10_002).offset_ms(None), -10_001);
    }
}
