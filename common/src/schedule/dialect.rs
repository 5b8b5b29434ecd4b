use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::error::ScheduleError;

/// Which reading of a cron expression applies. They number the weekdays differently, so it is never guessed
/// from the content, only from the number of fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CronDialect {
    /// second minute hour dayOfMonth month dayOfWeek [year]; weekdays 1 = SUN to 7 = SAT; `?`, `L`, `W`, `#`.
    Quartz,
    /// minute hour dayOfMonth month dayOfWeek; weekdays 0 or 7 = SUN; also the `@daily` family.
    Unix,
}

impl CronDialect {
    /// The name used in JSON and on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Quartz => "quartz",
            Self::Unix => "unix",
        }
    }

    /// Quartz for 6 or 7 fields, unix for 5 and for the `@` macros.
    ///
    /// # Errors
    /// [`ScheduleError::WrongFieldCount`] for any other number of fields, none included.
    pub fn detect(expr: &str) -> Result<Self, ScheduleError> {
        let found = expr.split_whitespace().count();
        match found {
            1 if expr.trim_start().starts_with('@') => Ok(Self::Unix),
            5 => Ok(Self::Unix),
            6 | 7 => Ok(Self::Quartz),
            _ => Err(ScheduleError::WrongFieldCount { found, dialect: None }),
        }
    }
}

impl fmt::Display for CronDialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for CronDialect {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "quartz" => Ok(Self::Quartz),
            "unix" => Ok(Self::Unix),
            _ => Err(ScheduleError::UnknownDialect {
                name: text.chars().take(64).collect(),
            }),
        }
    }
}
