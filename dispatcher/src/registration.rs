//! The rows of workers: written from their heartbeats, all together. One that the database refuses is left out and
//! named, so that it stands in nobody's way.

use crate::leader::Leader;
use isocost_common::{
    error_chain::chain,
    id::{IncarnationId, WorkerId},
    store::{
        StoreError, epoch,
        workers::{self, WorkerRow, WorkerStatus},
    },
};
use std::collections::HashSet;
use tokio::time::Instant;
use tracing::{error, info};

/// Incarnations remembered for having been named: forged ones come without end.
const MOST_NAMED: usize = 1_000;

/// Incarnations that cannot be registered, each named once.
#[derive(Debug, Default)]
pub(crate) struct Refused(HashSet<IncarnationId>);

impl Leader {
    /// Writes the rows of members that are new or changed; afterwards new ones may be given work.
    pub(crate) async fn save_members(&mut self, now: Instant) -> Result<(), StoreError> {
        let rows: Vec<WorkerRow> = self
            .fleet
            .members_mut()
            .filter(|member| member.changed)
            .map(|member| member.row(now))
            .collect();
        match self.save_together(&rows).await {
            Err(failure) if failure.is_fault_of_the_rows() => self.leave_out(rows, failure).await,
            saved => saved,
        }
    }

    async fn save_together(&mut self, rows: &[WorkerRow]) -> Result<(), StoreError> {
        let statuses: Vec<(IncarnationId, WorkerStatus)> = self
            .fleet
            .members()
            .filter(|member| member.status() != member.stored_status)
            .map(|member| (member.incarnation, member.status()))
            .collect();
        let fresh: Vec<IncarnationId> = self
            .fleet
            .members()
            .filter(|member| member.changed && !member.registered)
            .map(|member| member.incarnation)
            .collect();
        let mut tx = self.store.begin().await?;
        epoch::guard(&mut tx, self.tenure.epoch).await?;
        workers::save(&mut tx, rows).await?;
        workers::set_status(&mut tx, &statuses, self.store.now()).await?;
        let known = workers::statuses(&mut tx, &fresh).await?;
        tx.commit().await?;
        for member in self.fleet.members_mut() {
            if std::mem::take(&mut member.changed) {
                member.registered = true;
            }
            member.stored_status = member.status();
        }
        for (incarnation, status) in known.into_iter().filter(|(_, status)| status.has_ended()) {
            if let Some(member) = self.fleet.member_mut(incarnation) {
                member.ended = Some(status);
                member.stored_status = status;
            }
            self.inquests.entomb_again(incarnation);
        }
        for row in rows.iter().filter(|row| fresh.contains(&row.incarnation)) {
            info!(worker.id = %row.worker, incarnation = %row.incarnation, "a worker has registered");
        }
        self.registrations = false;
        self.backlog.is_stale = true;
        Ok(())
    }

    /// Looks for the rows that are to blame, one by one; their members are not written from here on. The others are
    /// written in the next pass.
    async fn leave_out(&mut self, rows: Vec<WorkerRow>, together: StoreError) -> Result<(), StoreError> {
        let mut found = false;
        for row in rows {
            let saved = self.save_alone(&row).await;
            match saved {
                Err(failure) if failure.is_fault_of_the_rows() => {
                    found = true;
                    if let Some(member) = self.fleet.member_mut(row.incarnation) {
                        (member.unfit, member.changed) = (true, false);
                    }
                    self.refuse_registration(&row.worker, row.incarnation, &chain(&failure));
                }
                saved => saved?,
            }
        }
        if found { Ok(()) } else { Err(together) }
    }

    async fn save_alone(&self, row: &WorkerRow) -> Result<(), StoreError> {
        let mut tx = self.store.begin().await?;
        epoch::guard(&mut tx, self.tenure.epoch).await?;
        workers::save(&mut tx, std::slice::from_ref(row)).await?;
        tx.commit().await
    }

    /// Says once that a worker is given nothing, and why.
    pub(crate) fn refuse_registration(
        &mut self,
        worker: &WorkerId,
        incarnation: IncarnationId,
        why: &impl std::fmt::Display,
    ) {
        if self.refused.0.len() >= MOST_NAMED {
            self.refused.0.clear();
        }
        if self.refused.0.insert(incarnation) {
            error!(worker.id = %worker, %incarnation, %why, "a worker cannot be registered and is given no work");
        }
    }
}
