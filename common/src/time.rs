//! The one instant type, and the clock that all instants in the tables come from.

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{
    fmt,
    ops::{Add, Sub},
    sync::atomic::{AtomicI64, Ordering},
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

/// The database's clock, as seen from this process: the system clock plus a measured offset, never running backwards.
///
/// With the embedded database the offset is zero. With a server it is measured at connect and regularly after, so that
/// processes with wrong clocks agree on what is due.
#[derive(Debug, Default)]
pub struct Clock {
    offset_ms: AtomicI64,
    latest_ms: AtomicI64,
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

    /// Records how far the database's clock is ahead of this machine's, in milliseconds.
    pub fn set_offset_ms(&self, offset_ms: i64) {
        // A corrected offset may step back: the floor has to follow, or a wrong reading would freeze the clock.
        self.offset_ms.store(offset_ms, Ordering::Relaxed);
        self.latest_ms.store(0, Ordering::Relaxed);
    }

    /// How far the database's clock is ahead of this machine's, in milliseconds.
    #[must_use]
    pub fn offset_ms(&self) -> i64 {
        self.offset_ms.load(Ordering::Relaxed)
    }
}
