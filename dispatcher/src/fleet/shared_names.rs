//! Worker ids that two processes use at once. Nothing is lost by it, but their load, their drains and the homes of jobs get
//! mixed up, and nobody would see why.

use super::{Fleet, Member};
use isocost_common::id::WorkerId;
use std::{collections::BTreeSet, time::Duration};

impl Fleet {
    /// The ids under which an incarnation is still heard of `grace` after a later one appeared. Each is named once for as
    /// long as both live.
    pub(crate) fn newly_shared_names(&mut self, grace: Duration) -> BTreeSet<WorkerId> {
        let at_work = |member: &&Member| member.ended.is_none() && !member.draining;
        let is_shared = |member: &Member| {
            let mut others = self.members.values().filter(at_work);
            others.any(|other| {
                other.worker == member.worker
                    && other.incarnation != member.incarnation
                    && other.first_known <= member.first_known
                    && other
                        .heard_at
                        .is_some_and(|heard| heard > member.first_known + grace)
            })
        };
        let found: BTreeSet<WorkerId> = self
            .members
            .values()
            .filter(at_work)
            .filter(|member| member.heard_at.is_some() && is_shared(member))
            .map(|member| member.worker.clone())
            .collect();
        let new = found.difference(&self.shared_names).cloned().collect();
        self.shared_names = found;
        new
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{BEAT, fleet_of, heartbeat};
    use isocost_common::{id::IncarnationId, message::Heartbeat, time::EpochMillis};
    use tokio::time::Instant;

    fn another_of(first: &Heartbeat) -> Heartbeat {
        Heartbeat {
            incarnation: IncarnationId::generate(),
            ..first.clone()
        }
    }

    #[test]
    fn two_processes_under_one_id_are_named_once() {
        let now = Instant::now();
        let mut first = heartbeat("worker-a", 1);
        let mut fleet = fleet_of(&first, now);
        let mut second = another_of(&first);
        for beat in 1..4 {
            let at = now + BEAT * beat;
            for report in [&mut first, &mut second] {
                report.report_number += 1;
                fleet.observe(report, at, EpochMillis(0));
            }
            let found = fleet.newly_shared_names(BEAT);
            assert_eq!(found.len(), usize::from(beat == 3), "beat {beat}");
        }
        first.bye = true;
        first.report_number += 1;
        fleet.observe(&first, now + BEAT * 4, EpochMillis(0));
        assert!(fleet.newly_shared_names(BEAT).is_empty());
    }

    #[test]
    fn a_process_that_was_started_again_shares_its_id_with_nobody() {
        let now = Instant::now();
        let first = heartbeat("worker-a", 1);
        let mut fleet = fleet_of(&first, now);
        let mut second = another_of(&first);
        for beat in 1..9 {
            second.report_number += 1;
            fleet.observe(&second, now + BEAT * beat, EpochMillis(0));
            assert!(fleet.newly_shared_names(BEAT).is_empty());
        }
    }
}
