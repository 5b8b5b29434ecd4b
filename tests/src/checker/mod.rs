//! Decides from what was written down about a run whether the product kept its invariants, I1 to I10.
//!
//! It shares nothing with the product: which firings a job is due, which steps are legal and what a callback must look
//! like are written here a second time. Whatever it finds is named by the invariant that is broken; a record of a good run
//! that was spoilt in one place is refused for the invariant of that place (`tests/tests/e2e/checker`).

mod callbacks;
mod duplicates;
mod expected;
mod figures;
mod firings;
mod index;
mod leaders;
mod record;
mod runs;
mod steps;
pub mod tables;

pub use duplicates::{Cause, Duplicate};
pub use figures::Figures;
pub use record::{Call, Cancel, Fault, Life, Record, Submission, TermOfOffice, Terms};

use index::Index;
use std::fmt;

/// What must hold for every run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Invariant {
    /// Every acknowledged job has every firing it was due, or a recorded reason why not.
    I1,
    /// No firing before its time, nor at any other than its time.
    I2,
    /// At most one applied result an execution; terminal is final.
    I3,
    /// Two runs of one execution overlap only if the first process was frozen past its lease, and then only shortly.
    I4,
    /// No write by a leader of an older epoch after a newer one's first.
    I5,
    /// Only legal transitions; attempts minus interruptions within the limit, and not given up before it.
    I6,
    /// A terminal execution with a callback URL has a 2xx, a delivery still to come, or one that ended with its reason.
    I7,
    /// After the last fault all due work is terminal within the stated bound.
    I8,
    /// One client request id, one job.
    I9,
    /// A run without faults has no duplicate run at all.
    I10,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// An invariant that did not hold, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breach {
    /// Which.
    pub invariant: Invariant,
    /// Where and how.
    pub what: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

/// What the checks have found so far.
#[derive(Debug, Default)]
pub(crate) struct Breaches(Vec<Breach>);

impl Breaches {
    fn add(&mut self, invariant: Invariant, what: impl Into<String>) {
        self.0.push(Breach {
            invariant,
            what: what.into(),
        });
    }

    fn require(&mut self, holds: bool, invariant: Invariant, what: impl FnOnce() -> String) {
        if !holds {
            self.add(invariant, what());
        }
    }
}

/// What came out.
#[derive(Debug)]
pub struct Verdict {
    /// Nothing, when every invariant held.
    pub breaches: Vec<Breach>,
    /// Runs beyond the first of an execution that no failed attempt explains.
    pub duplicates: Vec<Duplicate>,
    /// For the report.
    pub figures: Figures,
}

impl Verdict {
    /// The first breaches of each invariant, one a line.
    #[must_use]
    pub fn summary(&self) -> String {
        const SHOWN: usize = 5;
        let mut lines = Vec::new();
        let mut sorted: Vec<&Breach> = self.breaches.iter().collect();
        sorted.sort_by_key(|breach| breach.invariant);
        for of_one in sorted.chunk_by(|left, right| left.invariant == right.invariant) {
            lines.extend(of_one.iter().take(SHOWN).map(ToString::to_string));
            if of_one.len() > SHOWN {
                lines.push(format!(
                    "{}: and {} more",
                    of_one[0].invariant,
                    of_one.len() - SHOWN
                ));
            }
        }
        lines.join("\n")
    }
}

/// Judges a run.
///
/// # Errors
/// When the record cannot be judged: a trigger that the checker does not know.
pub fn check(record: &Record) -> anyhow::Result<Verdict> {
    let index = Index::of(record);
    let mut breaches = Breaches::default();
    firings::check(&index, &mut breaches)?;
    steps::check(&index, &mut breaches);
    runs::check(&index, &mut breaches);
    leaders::check(&index, &mut breaches);
    callbacks::check(&index, &mut breaches);
    let duplicates = duplicates::find(&index);
    duplicates::check(&index, &duplicates, &mut breaches);
    Ok(Verdict {
        figures: Figures::of(&index),
        breaches: breaches.0,
        duplicates,
    })
}
