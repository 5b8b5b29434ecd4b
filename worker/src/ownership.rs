//! The table of handovers: what this incarnation was given, by (execution, seq), and what it may still do with it.
//!
//! From dispatch on an execution belongs to one incarnation, and only that incarnation's word or its proven death ends
//! that. This table is where the word is given. It is a pure state machine (no clock, no I/O: instants are arguments),
//! so that it can be explored exhaustively. The stored reports are opaque to it.
//!
//! The guards, each of which the protocol needs:
//! - an entry for a seq, or one for a higher seq of the same execution, makes a message a duplicate;
//! - past its `not_after` a message is not taken, and what it hides is *unknown*;
//! - *refused*, *released* and *unknown* are promises: such a handover never starts;
//! - only a handover that is still held, under a valid lease, may start;
//! - an entry is forgotten only when everything it had to report is confirmed and `not_after` + [`FORGET_AFTER`] is
//!   over, and from then on every `not_after` up to the highest forgotten one counts as past, whatever the clock says.

#[cfg(test)]
mod tests;

use isocost_common::{execution::Claim, message::Holdings, time::EpochMillis};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    time::Duration,
};

/// How long after its `not_after` an entry is kept: longer than any copy of its message is under way.
pub const FORGET_AFTER: Duration = Duration::from_secs(60);

/// A promise never to start a handover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Promise {
    /// Not taken: no free slot, draining, unknown handler, start key taken, or never seen.
    Refused,
    /// Given back on request before it started.
    Released,
    /// Came too late to know what an earlier copy of it did.
    Unknown,
}

impl Promise {
    /// The word for metrics.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Released => "released",
            Self::Unknown => "unknown",
        }
    }
}

/// Where a handover stands here.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Stage<R> {
    /// Taken, not started.
    Held,
    /// Started; the report of it is kept for whoever asks.
    Running(R),
    /// Ended; the report of it is kept for whoever asks.
    Finished(R),
    /// Given away.
    Promised(Promise),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Entry<R> {
    not_after: EpochMillis,
    stage: Stage<R>,
    start_unconfirmed: bool,
    end_unconfirmed: bool,
}

impl<R> Entry<R> {
    fn is_settled(&self) -> bool {
        matches!(self.stage, Stage::Finished(_) | Stage::Promised(_))
            && !self.start_unconfirmed
            && !self.end_unconfirmed
    }
}

/// Something to report about a handover. It counts as unconfirmed until [`Ownership::on_confirmed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Say<R> {
    /// It started: this report.
    Started(R),
    /// It ended: this report.
    Finished(R),
    /// It never will start here.
    Promise(Promise),
}

/// Whether new work is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The handler exists and the worker takes work.
    Open,
    /// Draining, or the handler is not known.
    Closed,
}

/// What to do with one execution of a dispatch message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnDispatch<R> {
    /// It is held now: find a slot and start it.
    Take,
    /// Not taken: report the promise.
    Turned(Promise),
    /// Drop it; a finished run's report goes out again.
    Duplicate(Option<Say<R>>),
}

/// What to do with a cancel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OnCancel<R> {
    /// It runs: tell its handler to stop. The end is reported as any other.
    Stop,
    /// It does not run: report this, if there is anything new to say.
    Answer(Option<Say<R>>),
}

/// What to do at the point of start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnStart {
    /// It is running now: report the start and call the handler.
    Run,
    /// It is no longer held: a release or cancel was first.
    Withdrawn,
    /// The lease has run out: nothing starts any more in this incarnation.
    LeaseOver,
}

/// Which report of a handover was confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Confirmed {
    /// *Started*.
    Start,
    /// *Finished*, *refused*, *released* or *unknown*.
    End,
}

/// The table. `R` is a stored report.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ownership<R> {
    entries: BTreeMap<Claim, Entry<R>>,
    /// The entries that are not settled: what a heartbeat tells of.
    open: BTreeSet<Claim>,
    /// The entries that are settled, in the order in which they may be forgotten.
    settled: BTreeSet<(EpochMillis, Claim)>,
    /// The highest `not_after` forgotten so far.
    forgotten: Option<EpochMillis>,
    /// No `not_after` lies further ahead than this: the bound for a request that does not name one.
    longest_not_after: Duration,
}

impl<R: Clone> Ownership<R> {
    /// An empty table: that of a new incarnation. `longest_not_after` is how far ahead leaders set `not_after`.
    #[must_use]
    pub fn new(longest_not_after: Duration) -> Self {
        Self {
            entries: BTreeMap::new(),
            open: BTreeSet::new(),
            settled: BTreeSet::new(),
            forgotten: None,
            longest_not_after,
        }
    }

    /// A dispatch message names `claim`.
    pub fn on_dispatch(
        &mut self,
        claim: Claim,
        not_after: EpochMillis,
        now: EpochMillis,
        admission: Admission,
    ) -> OnDispatch<R> {
        match self.entries.get(&claim).map(|entry| &entry.stage) {
            Some(Stage::Finished(_)) => return OnDispatch::Duplicate(self.say_again(claim)),
            Some(_) => return OnDispatch::Duplicate(None),
            None if self.has_higher_seq(claim) => return OnDispatch::Duplicate(None),
            None => {}
        }
        if self.is_past(not_after, now) {
            self.promise(claim, not_after, Promise::Unknown);
            return OnDispatch::Turned(Promise::Unknown);
        }
        match admission {
            Admission::Closed => {
                self.promise(claim, not_after, Promise::Refused);
                OnDispatch::Turned(Promise::Refused)
            }
            Admission::Open => {
                self.insert(claim, not_after, Stage::Held);
                OnDispatch::Take
            }
        }
    }

    /// A held execution found no slot in time, or its start key was taken. None when it is no longer held.
    pub fn on_refused(&mut self, claim: Claim) -> Option<Promise> {
        self.give_up_held(claim, Promise::Refused)
    }

    /// The leader wants it back unless it has started.
    pub fn on_release(
        &mut self,
        claim: Claim,
        not_after: Option<EpochMillis>,
        now: EpochMillis,
    ) -> Option<Say<R>> {
        match self.entries.get(&claim).map(|entry| &entry.stage) {
            None => Some(self.answer_without_entry(claim, not_after, now)),
            Some(Stage::Held) => self.give_up_held(claim, Promise::Released).map(Say::Promise),
            Some(_) => self.say_again(claim),
        }
    }

    /// The leader wants it stopped, or never started.
    pub fn on_cancel(
        &mut self,
        claim: Claim,
        not_after: Option<EpochMillis>,
        now: EpochMillis,
    ) -> OnCancel<R> {
        match self.entries.get(&claim).map(|entry| &entry.stage) {
            Some(Stage::Running(_)) => OnCancel::Stop,
            _ => OnCancel::Answer(self.on_release(claim, not_after, now)),
        }
    }

    /// The leader asks what became of it. A held one needs no answer: the next heartbeat names it.
    pub fn on_query(
        &mut self,
        claim: Claim,
        not_after: Option<EpochMillis>,
        now: EpochMillis,
    ) -> Option<Say<R>> {
        match self.entries.get(&claim).map(|entry| &entry.stage) {
            None => Some(self.answer_without_entry(claim, not_after, now)),
            Some(_) => self.say_again(claim),
        }
    }

    /// A slot is free and the start key was claimed, or its service is away. In the one step in which this answers
    /// [`OnStart::Run`], the entry becomes running; `started` is then to be reported.
    pub fn on_start_granted(&mut self, claim: Claim, lease_valid: bool, started: R) -> OnStart {
        match self.entries.get_mut(&claim) {
            Some(entry) if matches!(entry.stage, Stage::Held) => {
                if !lease_valid {
                    return OnStart::LeaseOver;
                }
                entry.stage = Stage::Running(started);
                entry.start_unconfirmed = true;
                OnStart::Run
            }
            _ => OnStart::Withdrawn,
        }
    }

    /// Its run ended. True when `report` is to be sent; false when it was not running.
    pub fn on_finished(&mut self, claim: Claim, report: R) -> bool {
        match self.entries.get_mut(&claim) {
            Some(entry) if matches!(entry.stage, Stage::Running(_)) => {
                entry.stage = Stage::Finished(report);
                entry.end_unconfirmed = true;
                true
            }
            _ => false,
        }
    }

    /// The broker has a report of it.
    pub fn on_confirmed(&mut self, claim: Claim, which: Confirmed) {
        let Some(entry) = self.entries.get_mut(&claim) else {
            return;
        };
        match which {
            Confirmed::Start => entry.start_unconfirmed = false,
            Confirmed::End => entry.end_unconfirmed = false,
        }
        if entry.is_settled() {
            let not_after = entry.not_after;
            self.open.remove(&claim);
            self.settled.insert((not_after, claim));
        }
    }

    /// Gives everything back that has not started: the claims that are released now.
    pub fn release_unstarted(&mut self) -> Vec<Claim> {
        let held: Vec<Claim> = self
            .open
            .iter()
            .copied()
            .filter(|claim| self.is_held(*claim))
            .collect();
        for claim in &held {
            self.give_up_held(*claim, Promise::Released);
        }
        held
    }

    /// Forgets what may be forgotten; the number of entries that went.
    pub fn prune(&mut self, now: EpochMillis) -> usize {
        let mut gone = 0;
        while let Some((not_after, claim)) = self.settled.first().copied() {
            if now <= not_after + FORGET_AFTER {
                break;
            }
            self.settled.pop_first();
            self.entries.remove(&claim);
            self.forgotten = self.forgotten.max(Some(not_after));
            gone += 1;
        }
        gone
    }

    /// What a heartbeat says: every entry that is not settled.
    #[must_use]
    pub fn holdings(&self) -> Holdings {
        let mut holdings = Holdings::default();
        for claim in &self.open {
            let list = match self.entries.get(claim).map(|entry| &entry.stage) {
                Some(Stage::Held) => &mut holdings.unstarted,
                Some(Stage::Running(_)) => &mut holdings.running,
                Some(Stage::Finished(_)) => &mut holdings.finished,
                Some(Stage::Promised(_)) => &mut holdings.refused,
                None => continue,
            };
            list.push(*claim);
        }
        holdings
    }

    /// True while it is taken and not started.
    #[must_use]
    pub fn is_held(&self, claim: Claim) -> bool {
        self.entries
            .get(&claim)
            .is_some_and(|entry| matches!(entry.stage, Stage::Held))
    }

    /// True when the broker has every report there is so far: what is left is held or runs.
    #[must_use]
    pub fn is_reported(&self) -> bool {
        self.open
            .iter()
            .filter_map(|claim| self.entries.get(claim))
            .all(|entry| !entry.start_unconfirmed && !entry.end_unconfirmed)
    }

    /// What was not confirmed, each with its newest report: for whoever sends it after the incarnation has ended.
    #[must_use]
    pub fn unreported(&self) -> Vec<(Claim, Say<R>)> {
        let open = self
            .open
            .iter()
            .filter_map(|claim| Some((*claim, self.entries.get(claim)?)));
        open.filter(|(_, entry)| entry.start_unconfirmed || entry.end_unconfirmed)
            .filter_map(|(claim, entry)| match &entry.stage {
                Stage::Held => None,
                Stage::Running(report) => Some((claim, Say::Started(report.clone()))),
                Stage::Finished(report) => Some((claim, Say::Finished(report.clone()))),
                Stage::Promised(promise) => Some((claim, Say::Promise(*promise))),
            })
            .collect()
    }

    /// Entries kept, settled ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True without any entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn has_higher_seq(&self, claim: Claim) -> bool {
        let last = Claim {
            dispatch_seq: i64::MAX,
            ..claim
        };
        claim < last
            && self
                .entries
                .range((Bound::Excluded(claim), Bound::Included(last)))
                .next()
                .is_some()
    }

    fn is_past(&self, not_after: EpochMillis, now: EpochMillis) -> bool {
        now > not_after || self.forgotten.is_some_and(|forgotten| not_after <= forgotten)
    }

    /// An entry for it may have been forgotten only past its `not_after`; before, it was never here.
    fn answer_without_entry(
        &mut self,
        claim: Claim,
        not_after: Option<EpochMillis>,
        now: EpochMillis,
    ) -> Say<R> {
        let promise = match not_after {
            Some(not_after) if !self.is_past(not_after, now) => Promise::Refused,
            _ => Promise::Unknown,
        };
        self.promise(claim, not_after.unwrap_or(now + self.longest_not_after), promise);
        Say::Promise(promise)
    }

    fn give_up_held(&mut self, claim: Claim, promise: Promise) -> Option<Promise> {
        let entry = self
            .entries
            .get_mut(&claim)
            .filter(|entry| matches!(entry.stage, Stage::Held))?;
        entry.stage = Stage::Promised(promise);
        entry.end_unconfirmed = true;
        Some(promise)
    }

    fn promise(&mut self, claim: Claim, not_after: EpochMillis, promise: Promise) {
        self.insert(claim, not_after, Stage::Promised(promise));
        if let Some(entry) = self.entries.get_mut(&claim) {
            entry.end_unconfirmed = true;
        }
    }

    fn insert(&mut self, claim: Claim, not_after: EpochMillis, stage: Stage<R>) {
        let entry = Entry {
            not_after,
            stage,
            start_unconfirmed: false,
            end_unconfirmed: false,
        };
        self.entries.insert(claim, entry);
        self.open.insert(claim);
    }

    /// The newest report again, unless it is still on its way.
    fn say_again(&mut self, claim: Claim) -> Option<Say<R>> {
        let entry = self.entries.get_mut(&claim)?;
        let (say, unconfirmed) = match &entry.stage {
            Stage::Held => return None,
            Stage::Running(report) => (Say::Started(report.clone()), &mut entry.start_unconfirmed),
            Stage::Finished(report) => (Say::Finished(report.clone()), &mut entry.end_unconfirmed),
            Stage::Promised(promise) => (Say::Promise(*promise), &mut entry.end_unconfirmed),
        };
        if std::mem::replace(unconfirmed, true) {
            return None;
        }
        let not_after = entry.not_after;
        self.settled.remove(&(not_after, claim));
        self.open.insert(claim);
        Some(say)
    }
}
