//! What `isocost doctor` finds: the words its checks share. Each port has its checks beside it:
//! [`crate::store::doctor`], [`crate::broker::doctor`], [`crate::coordination::doctor`].

use serde::Serialize;

/// How good or bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// It works, but a promise may not hold, or something will be slow.
    Warning,
    /// Isocost cannot work like this.
    Problem,
}

impl Verdict {
    /// As it is printed.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

/// The outcome of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// `database`, `broker`, `coordination`, `configuration` or `program`.
    pub service: &'static str,
    /// What was checked.
    pub what: &'static str,
    /// How it is.
    pub verdict: Verdict,
    /// What was found.
    pub says: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// The findings of one service, as they are made.
#[derive(Debug)]
pub struct Findings {
    service: &'static str,
    found: Vec<Finding>,
}

impl Findings {
    /// None yet.
    #[must_use]
    pub const fn of(service: &'static str) -> Self {
        Self {
            service,
            found: Vec::new(),
        }
    }

    /// As it should be.
    pub fn ok(&mut self, what: &'static str, says: impl Into<String>) {
        self.add(what, Verdict::Ok, says.into(), None);
    }

    /// Not as it should be.
    pub fn warning(&mut self, what: &'static str, says: impl Into<String>, remedy: &str) {
        self.add(what, Verdict::Warning, says.into(), Some(remedy.to_owned()));
    }

    /// Not usable.
    pub fn problem(&mut self, what: &'static str, says: impl Into<String>, remedy: &str) {
        self.add(what, Verdict::Problem, says.into(), Some(remedy.to_owned()));
    }

    /// All of them.
    #[must_use]
    pub fn finish(self) -> Vec<Finding> {
        self.found
    }

    fn add(&mut self, what: &'static str, verdict: Verdict, says: String, remedy: Option<String>) {
        self.found.push(Finding {
            service: self.service,
            what,
            verdict,
            says,
            remedy,
        });
    }
}

/// The numbers at the start of a version, such as 8, 0 and 37 of `8.0.37-debian`; what is missing is 0.
#[must_use]
pub fn version_numbers(text: &str) -> (u32, u32, u32) {
    let mut numbers = text
        .split(|character: char| !character.is_ascii_digit())
        .map(|part| part.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_its_first_three_numbers() {
        assert_eq!(version_numbers("8.0.37-debian"), (8, 0, 37));
        assert_eq!(version_numbers("10.11.6-MariaDB-0+deb12u1"), (10, 11, 6));
        assert_eq!(version_numbers("4.1"), (4, 1, 0));
        assert_eq!(version_numbers(""), (0, 0, 0));
    }
}
