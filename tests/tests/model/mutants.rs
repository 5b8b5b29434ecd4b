//! The guards of the protocol, each removed once: the property that then breaks is named. A guard that lies in the
//! product is removed by going round it (a worker that forgets what it wrote down, a report relabelled on its way), never
//! by a switch in the product.

use super::{
    properties::Broken,
    search::{Until, explore},
    steps::{Fault, Setup},
};

/// A guard that can be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// A report counts only for the handover the row is at.
    DispatchSeq,
    /// A worker writes down what it was given, and drops copies.
    Ownership,
    /// *Refused*, *released* and *unknown* are written down.
    Promise,
    /// A message is not taken past its `not_after`.
    NotAfter,
    /// An entry stays until its `not_after` is well over, and what was forgotten counts as past.
    Forgetting,
    /// What heartbeats do not name is asked about.
    HoldingsAndQuery,
    /// What was not confirmed is published again under the same number.
    SameSeq,
    /// ... and with the same `not_after`.
    SameNotAfter,
    /// A leader of before writes nothing.
    Epoch,
    /// Nobody is called dead before its lease is over.
    LeaseBeforeDeath,
    /// A worker that is cut off ends itself before it may be called dead.
    CutOffWorkerStops,
    /// A worker that wakes up past its lease starts nothing more.
    ThawedWorkerStops,
    /// What a dead worker had confirmed is taken in before its work goes to others.
    ResultsBeforeRecovery,
    /// What was never taken by one that said goodbye is given back, and no start is counted.
    GoodbyeIsNoDeath,
    /// Only what is still held starts.
    HeldAtStart,
    /// Terminal is final.
    TerminalIsFinal,
    /// A run whose result is overdue gets no second one beside it.
    OverdueIsFinal,
    /// A handover is cancelled only by what the database says, not by what a leader remembers.
    DatabaseBeforeCancel,
}

/// Removing a guard, what it takes to notice, and what then breaks.
pub(crate) const MUTANTS: [(Guard, &[Fault], Broken); 18] = [
    (Guard::DispatchSeq, &[Fault::EarlyQuery], Broken::Overlap),
    (
        Guard::Ownership,
        &[Fault::Duplicate, Fault::KeysAway],
        Broken::StartedTwice,
    ),
    (Guard::Promise, &[Fault::EarlyQuery], Broken::Overlap),
    (
        Guard::NotAfter,
        &[Fault::EarlyQuery, Fault::Slow],
        Broken::Overlap,
    ),
    (Guard::Forgetting, &[Fault::EarlyQuery], Broken::Overlap),
    (Guard::HoldingsAndQuery, &[Fault::Lost], Broken::Stuck),
    (Guard::SameSeq, &[Fault::NackedButQueued], Broken::Overlap),
    (Guard::SameNotAfter, &[Fault::LeaderPause], Broken::NeedlessRerun),
    (Guard::Epoch, &[Fault::LeaderPause], Broken::Overlap),
    (Guard::LeaseBeforeDeath, &[], Broken::Overlap),
    (Guard::CutOffWorkerStops, &[Fault::Cut], Broken::Overlap),
    (Guard::ThawedWorkerStops, &[Fault::Freeze], Broken::Overlap),
    (
        Guard::ResultsBeforeRecovery,
        &[Fault::Crash],
        Broken::NeedlessRerun,
    ),
    (Guard::GoodbyeIsNoDeath, &[Fault::Drain], Broken::Miscounted),
    (Guard::HeldAtStart, &[Fault::Move], Broken::Overlap),
    (Guard::TerminalIsFinal, &[Fault::AckLost], Broken::TerminalChanged),
    (Guard::OverdueIsFinal, &[Fault::Overdue], Broken::Overlap),
    (
        Guard::DatabaseBeforeCancel,
        &[Fault::LeaderPause],
        Broken::NeedlessRerun,
    ),
];

const MOST_WORLDS: usize = 3_000_000;

#[test]
fn every_guard_is_needed_and_its_absence_is_noticed() {
    let mut unnoticed = Vec::new();
    for (guard, faults, breaks) in MUTANTS {
        let setup = Setup {
            executions: 1,
            faults: u8::try_from(faults.len()).expect("few faults"),
            kinds: faults.to_vec(),
            without: Some(guard),
        };
        let until = match breaks {
            Broken::Stuck => Until::Exhausted,
            broken => Until::Broken(broken),
        };
        let mutant = explore(&setup, until, MOST_WORLDS);
        println!(
            "without {guard:?}: {breaks}, after {} worlds with {faults:?}, {:.1} s",
            mutant.worlds,
            mutant.time.as_secs_f32()
        );
        match mutant.broken.get(&breaks) {
            Some(example) => print!("{}", example.print()),
            None => unnoticed.push((guard, mutant.broken.into_keys().collect::<Vec<_>>())),
        }
        // With the guard in place, the same faults break nothing.
        let whole = explore(
            &Setup {
                without: None,
                ..setup
            },
            Until::Exhausted,
            MOST_WORLDS,
        );
        assert!(whole.broken.is_empty(), "{guard:?}: {:?}", whole.broken.keys());
    }
    assert!(
        unnoticed.is_empty(),
        "not noticed, with what breaks instead: {unnoticed:?}"
    );
}

/// The table of the page says what is found.
#[test]
fn the_page_names_every_guard_and_what_its_absence_breaks() {
    let page = include_str!("../../../docs/reliability.md");
    for (guard, _, breaks) in MUTANTS {
        let row = page
            .lines()
            .find(|line| line.starts_with('|') && line.contains(&format!("`{guard:?}`")));
        let row = row.unwrap_or_else(|| panic!("docs/reliability.md has no row for {guard:?}"));
        assert!(
            row.contains(&format!("`{breaks}`")),
            "{guard:?} breaks {breaks}: {row}"
        );
    }
}
