//! What a batch of reports says about each handover: several events of one handover become one change.

use isocost_common::{
    execution::{Claim, Outcome},
    id::IncarnationId,
    message::ReportEvent,
    time::EpochMillis,
};
use std::collections::BTreeMap;

/// One event with the incarnation that reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Index of its message within the batch of deliveries.
    pub delivery: usize,
    /// Who says so.
    pub incarnation: IncarnationId,
    /// Of which handover.
    pub claim: Claim,
    /// What happened.
    pub event: ReportEvent,
}

/// Why a worker will never start a handover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Return {
    /// It did not take it.
    Refused(String),
    /// It gave it back on request.
    Released,
    /// It cannot know what an earlier copy did.
    Unknown,
}

/// How a handover left its worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// Without a start.
    Returned(Return),
    /// After a run.
    Finished {
        /// How it ended.
        outcome: Outcome,
        /// When it had started.
        started_at: EpochMillis,
        /// When it ended.
        at: EpochMillis,
    },
}

/// Everything a batch says about one handover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folded {
    /// Who says so.
    pub incarnation: IncarnationId,
    /// It was started, at this instant.
    pub started_at: Option<EpochMillis>,
    /// It left its worker.
    pub end: Option<End>,
}

/// Folds events in the order they arrived; in ascending order of handovers. What the protocol rules out after an
/// earlier event of the same handover (a start after an end, a second end) is dropped, as the table would.
pub fn fold<'a>(items: impl IntoIterator<Item = &'a Item>) -> BTreeMap<Claim, Folded> {
    let mut folded: BTreeMap<Claim, Folded> = BTreeMap::new();
    for item in items {
        let entry = folded.entry(item.claim).or_insert_with(|| Folded {
            incarnation: item.incarnation,
            started_at: None,
            end: None,
        });
        if entry.incarnation == item.incarnation {
            entry.add(&item.event);
        }
    }
    folded
}

impl Folded {
    fn add(&mut self, event: &ReportEvent) {
        if self.end.is_some() {
            return;
        }
        match event {
            ReportEvent::Started { at, .. } => self.started_at = self.started_at.or(Some(*at)),
            ReportEvent::Finished {
                outcome,
                started_at,
                at,
                ..
            } => {
                self.end = Some(End::Finished {
                    outcome: outcome.clone(),
                    started_at: self.started_at.unwrap_or(*started_at),
                    at: *at,
                });
            }
            // What has started is not given back.
            _ if self.started_at.is_some() => {}
            ReportEvent::Refused { reason } => {
                self.end = Some(End::Returned(Return::Refused(reason.clone())));
            }
            ReportEvent::Released => self.end = Some(End::Returned(Return::Released)),
            ReportEvent::Unknown => self.end = Some(End::Returned(Return::Unknown)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isocost_common::{id::ExecutionId, raw_json::RawJson};

    const START: EpochMillis = EpochMillis(1_000);
    const END: EpochMillis = EpochMillis(2_000);

    fn claim(dispatch_seq: i64) -> Claim {
        Claim {
            execution: ExecutionId::from_uuid(IncarnationId::generate().as_uuid()),
            dispatch_seq,
        }
    }

    fn started() -> ReportEvent {
        ReportEvent::Started {
            at: START,
            attempt: 1,
        }
    }

    fn finished() -> ReportEvent {
        ReportEvent::Finished {
            outcome: Outcome::Succeeded {
                result: RawJson::null(),
            },
            started_at: START,
            at: END,
            attempt: 1,
        }
    }

    fn folded(events: Vec<ReportEvent>) -> Folded {
        let (claim, incarnation) = (claim(1), IncarnationId::generate());
        let items: Vec<_> = events
            .into_iter()
            .map(|event| Item {
                delivery: 0,
                incarnation,
                claim,
                event,
            })
            .collect();
        fold(&items).remove(&claim).expect("one handover")
    }

    #[test]
    fn a_start_and_an_end_of_one_handover_become_one_change() {
        let folded = folded(vec![started(), finished()]);
        assert_eq!(folded.started_at, Some(START));
        assert!(matches!(folded.end, Some(End::Finished { at: END, .. })));
    }

    #[test]
    fn the_first_end_wins() {
        let first = folded(vec![finished(), ReportEvent::Unknown, started()]);
        assert!(matches!(first.end, Some(End::Finished { .. })));
        assert_eq!(first.started_at, None);
        let first = folded(vec![ReportEvent::Released, started(), finished()]);
        assert_eq!(first.end, Some(End::Returned(Return::Released)));
    }

    #[test]
    fn what_has_started_is_not_given_back() {
        let folded = folded(vec![started(), ReportEvent::Unknown]);
        assert_eq!((folded.started_at, folded.end), (Some(START), None));
    }

    #[test]
    fn handovers_of_one_execution_are_told_apart() {
        let (first, incarnation) = (claim(1), IncarnationId::generate());
        let second = Claim {
            dispatch_seq: 2,
            ..first
        };
        let items = [(first, ReportEvent::Released), (second, started())].map(|(claim, event)| Item {
            delivery: 0,
            incarnation,
            claim,
            event,
        });
        let folded = fold(&items);
        assert_eq!(folded[&first].end, Some(End::Returned(Return::Released)));
        assert_eq!(folded[&second].started_at, Some(START));
    }

    #[test]
    fn another_incarnation_says_nothing_about_a_handover() {
        let claim = claim(1);
        let items = [finished(), started()].map(|event| Item {
            delivery: 0,
            incarnation: IncarnationId::generate(),
            claim,
            event,
        });
        assert_eq!(fold(&items)[&claim].started_at, None);
    }
}
