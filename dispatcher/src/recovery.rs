//! Death and recovery: who has been silent for too long, whether that proves anything, and what happens to the work of
//! the dead.
//!
//! A verdict needs both heartbeat paths expired and a probe that finds nobody, or three leases of silence, or a process
//! that has taken the dead one's place. Then, in this order: marked dead in the database, tombstone, every report the
//! dead one had confirmed is taken in, and only then its executions go elsewhere. The last step is a scan of what ended
//! incarnations own, so every leader finishes what another began.

use crate::{
    death::{Aftermath, Departure, MARKER_PATIENCE, NextStep, Subject, Verdict, left_behind},
    inquest::{Finding, examine},
    leader::Leader,
};
use isocost_common::{
    broker::{Message, Publication},
    crash_point::{CrashPoint, reach},
    execution::ExecutionStatus,
    id::{ExecutionId, IncarnationId, JobId},
    message::{Marker, kind},
    store::{
        CHUNK, Store, StoreError, Tx,
        callbacks::attempts,
        epoch, recovery,
        transitions::{self, Change},
        workers::{self, WorkerStatus},
    },
    time::EpochMillis,
};
use std::{collections::BTreeMap, time::Duration};
use tokio::{
    task::{JoinError, JoinSet},
    time::Instant,
};
use tracing::{info, warn};

/// Inquests at once.
const MOST_INQUESTS: usize = 16;
/// A worker found alive, or not to be judged, is looked at again after this long.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Far longer than a worker could go on believing that it lives.
const TOMBSTONE_TTL: Duration = Duration::from_secs(24 * 3_600);

/// What is being found out about silent and ended incarnations.
pub(crate) struct Inquests {
    probe: reqwest::Client,
    running: JoinSet<Finding>,
    suspects: BTreeMap<IncarnationId, Suspicion>,
    ended: BTreeMap<IncarnationId, Aftermath>,
}

/// How far an inquest has come.
#[derive(Debug)]
enum Suspicion {
    /// Under way.
    Examined,
    /// Found alive, or nothing can be said.
    Released { until: Instant },
    /// Nobody is there. Decided once every heartbeat queued up to now was heard and none was its own.
    Convicted {
        reason: &'static str,
        marker: Marker,
        sent_at: Instant,
        heard: bool,
    },
}

impl Inquests {
    pub(crate) fn new(probe: reqwest::Client) -> Self {
        Self {
            probe,
            running: JoinSet::new(),
            suspects: BTreeMap::new(),
            ended: BTreeMap::new(),
        }
    }

    /// True when this term knows the incarnation as ended.
    pub(crate) fn is_dead(&self, incarnation: IncarnationId) -> bool {
        self.ended.contains_key(&incarnation)
    }

    /// Its tombstone is written again in the next round.
    pub(crate) fn entomb_again(&mut self, incarnation: IncarnationId) {
        self.ended.entry(incarnation).or_default().entombed = false;
    }

    pub(crate) fn heartbeats_drained(&mut self, drained: Marker) {
        for suspicion in self.suspects.values_mut() {
            match suspicion {
                Suspicion::Convicted { marker, heard, .. } if *marker == drained => *heard = true,
                _ => {}
            }
        }
    }

    pub(crate) fn results_taken_in(&mut self, taken_in: Marker) {
        for aftermath in self.ended.values_mut() {
            aftermath.taken_in(taken_in);
        }
    }

    /// Waits for an inquest to end; for ever when there is none. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Finding, JoinError> {
        match self.running.join_next().await {
            Some(ended) => ended,
            None => std::future::pending().await,
        }
    }

    pub(crate) async fn finish(&mut self) {
        while self.running.join_next().await.is_some() {}
    }
}

impl Leader {
    pub(crate) fn take_finding(&mut self, finding: Result<Finding, JoinError>) {
        let now = Instant::now();
        let released = Suspicion::Released {
            until: now + LOOK_AGAIN,
        };
        match finding {
            Ok(Finding { subject, verdict }) => {
                let suspicion = match verdict {
                    Verdict::Dead(reason) => {
                        let marker = Marker::generate();
                        self.publisher.send(vec![Publication {
                            exchange: String::new(),
                            routing_key: self.listeners.heartbeats_queue.clone(),
                            mandatory: true,
                            message: Message::json(kind::MARKER, &marker),
                        }]);
                        Suspicion::Convicted {
                            reason,
                            marker,
                            sent_at: now,
                            heard: false,
                        }
                    }
                    Verdict::Alive | Verdict::Unclear => released,
                };
                self.inquests.suspects.insert(subject, suspicion);
            }
            Err(failure) => {
                warn!(%failure, "an inquest broke");
                self.inquests
                    .suspects
                    .retain(|_, suspicion| !matches!(suspicion, Suspicion::Examined));
            }
        }
    }

    /// Looks into members that have been silent for a lease, and buries those whose death is proven.
    pub(crate) async fn watch_silent(&mut self, now: Instant) -> Result<(), StoreError> {
        if !self.can_judge() {
            self.fleet.restart_leases(now);
        }
        let subjects = self.silent(now);
        self.inquests
            .suspects
            .retain(|incarnation, _| subjects.iter().any(|subject| subject.incarnation == *incarnation));
        let mut proven = Vec::new();
        for subject in subjects {
            match self.inquests.suspects.get(&subject.incarnation) {
                Some(Suspicion::Convicted {
                    reason, heard: true, ..
                }) => proven.push((subject, *reason)),
                Some(Suspicion::Convicted { sent_at, .. }) if now < *sent_at + MARKER_PATIENCE => {}
                Some(Suspicion::Released { until }) if now < *until => {}
                Some(Suspicion::Examined) => {}
                _ if self.inquests.running.len() < MOST_INQUESTS => self.begin_inquest(subject),
                _ => {}
            }
        }
        for (subject, reason) in proven {
            self.bury(&subject, reason, now).await?;
        }
        Ok(())
    }

    fn begin_inquest(&mut self, subject: Subject) {
        self.inquests
            .suspects
            .insert(subject.incarnation, Suspicion::Examined);
        let (ports, names) = (self.ports.clone(), self.names.clone());
        let probe = self.inquests.probe.clone();
        self.inquests
            .running
            .spawn(async move { examine(&ports, &names, &probe, subject).await });
    }

    /// The members that have been silent for a lease, or for two beats while another incarnation of the same worker
    /// answers in their place.
    fn silent(&self, now: Instant) -> Vec<Subject> {
        let lease = isocost_common::config::millis(self.leases.dead_after_ms);
        let two_beats = self.leases.heartbeat() * 2;
        let living = || self.fleet.members().filter(|member| member.ended.is_none());
        let mut subjects = Vec::new();
        for member in living() {
            let silence = now.duration_since(member.lease_from);
            let successor = living()
                .filter(|other| other.worker == member.worker && other.incarnation != member.incarnation)
                .filter(|other| other.port != 0 && (&other.host, other.port) == (&member.host, member.port))
                .filter(|other| other.lease_from > member.lease_from)
                .map(|other| other.incarnation)
                .max();
            if silence >= lease || (successor.is_some() && silence >= two_beats) {
                subjects.push(Subject {
                    worker: member.worker.clone(),
                    incarnation: member.incarnation,
                    host: member.host.clone(),
                    port: member.port,
                    silence,
                    lease,
                    successor,
                });
            }
        }
        subjects
    }

    async fn bury(
        &mut self,
        subject: &Subject,
        reason: &'static str,
        now: Instant,
    ) -> Result<(), StoreError> {
        let Subject {
            worker,
            incarnation,
            silence,
            ..
        } = subject;
        let mut tx = self.store.begin().await?;
        epoch::guard(&mut tx, self.tenure.epoch).await?;
        workers::set_status(&mut tx, &[(*incarnation, WorkerStatus::Dead)], self.store.now()).await?;
        tx.commit().await?;
        reach(CrashPoint::RecoveryBuried);
        warn!(worker.id = %worker, incarnation = %incarnation, silence_ms = silence.as_millis(), reason,
            "a worker is dead");
        metrics::counter!("isocost_workers_dead_total").increment(1);
        self.fleet.end(worker, *incarnation, WorkerStatus::Dead, now);
        self.inquests.suspects.remove(incarnation);
        self.inquests.ended.insert(*incarnation, Aftermath::default());
        Ok(())
    }

    /// Gives the executions of ended incarnations to others, as soon as everything those had reported is taken in.
    pub(crate) async fn recover_ended(&mut self, now: Instant) -> Result<(), StoreError> {
        let ended: Vec<(IncarnationId, Departure, u32)> = self
            .fleet
            .members()
            .filter_map(|member| {
                let departure = match member.ended? {
                    WorkerStatus::Offline => Departure::Goodbye,
                    _ => Departure::Death,
                };
                Some((member.incarnation, departure, member.active))
            })
            .collect();
        for (incarnation, departure, _) in &ended {
            self.inquests
                .ended
                .entry(*incarnation)
                .or_insert_with(|| match departure {
                    Departure::Goodbye => Aftermath::of_goodbye(),
                    Departure::Death => Aftermath::default(),
                });
        }
        self.entomb_dead().await;
        for (incarnation, departure, active) in ended {
            let Some(aftermath) = self.inquests.ended.get_mut(&incarnation) else {
                continue;
            };
            if active == 0 {
                continue;
            }
            match aftermath.next_step(now) {
                // Its tombstone could not be written: the next round tries again.
                NextStep::Entomb | NextStep::Wait => {}
                NextStep::Recover => self.recover(incarnation, departure).await?,
                NextStep::SendMarker => {
                    let marker = Marker::generate();
                    aftermath.marker_sent(marker, now);
                    self.publisher.send(vec![Publication {
                        exchange: self.names.results_exchange(),
                        routing_key: self.names.results_queue(),
                        mandatory: true,
                        message: Message::json(kind::MARKER, &marker),
                    }]);
                }
            }
        }
        Ok(())
    }

    async fn entomb_dead(&mut self) {
        for (incarnation, aftermath) in &mut self.inquests.ended {
            if aftermath.entombed {
                continue;
            }
            match self.ports.coordination.entomb(*incarnation, TOMBSTONE_TTL).await {
                Ok(()) => aftermath.entombed = true,
                // The next round tries again; until then nothing of it is given to others.
                Err(error) => return warn!(%error, incarnation = %incarnation, "writing a tombstone"),
            }
        }
    }

    async fn recover(&mut self, incarnation: IncarnationId, departure: Departure) -> Result<(), StoreError> {
        let ids: Vec<ExecutionId> = self
            .fleet
            .all_held()
            .filter(|held| held.incarnation == incarnation)
            .map(|held| held.claim.execution)
            .take(CHUNK)
            .collect();
        let now = self.store.now();
        let mut tx = self.store.begin().await?;
        epoch::guard(&mut tx, self.tenure.epoch).await?;
        let changes = lock_and_judge(&mut tx, &ids, now, Some(incarnation), departure).await?;
        let applied = transitions::apply(&mut tx, &changes).await?;
        reach(CrashPoint::RecoveryUncommitted);
        tx.commit().await?;
        reach(CrashPoint::RecoveryCommitted);
        info!(incarnation = %incarnation, executions = changes.len(), "took back what an ended worker held");
        self.note_changed(&changes, &applied);
        // What was no longer its own is none of ours: the set follows the database at the next reload.
        if changes.len() < ids.len() {
            self.reload_soon();
        }
        Ok(())
    }
}

/// What the departure of `incarnation`, or of everybody, means for these executions, as far as they still belong to it
/// under their locks.
async fn lock_and_judge(
    tx: &mut Tx,
    ids: &[ExecutionId],
    now: EpochMillis,
    incarnation: Option<IncarnationId>,
    departure: Departure,
) -> Result<Vec<Change>, StoreError> {
    let rows = transitions::lock(tx, ids).await?;
    let running = rows.iter().filter(|row| row.status == ExecutionStatus::Running);
    let jobs: Vec<JobId> = running.map(|row| row.job).collect();
    let policies = transitions::retry_policies(tx, &jobs).await?;
    Ok(left_behind(rows, incarnation, departure, now, &policies))
}

/// Declares every incarnation of before dead, and gives back what they and the relays held: for a start that has proof
/// that nothing of before is alive, such as the exclusive lock on the data folder of `isocost standalone`. Returns how many executions
/// were given back.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn bury_all(store: &Store) -> Result<usize, StoreError> {
    let now = store.now();
    store
        .transact(|| async {
            let mut tx = store.begin().await?;
            workers::mark_all_dead(&mut tx, now).await?;
            attempts::end_all_leases(&mut tx).await?;
            tx.commit().await
        })
        .await?;
    reach(CrashPoint::RecoveryBuried);
    let mut reader = store.reader().await?;
    let owned = recovery::owned(&mut reader).await?;
    drop(reader);
    let ids: Vec<ExecutionId> = owned.iter().map(|owned| owned.claim.execution).collect();
    let mut given_back = 0;
    for chunk in ids.chunks(CHUNK) {
        given_back += store
            .transact(|| async {
                let mut tx = store.begin().await?;
                let changes = lock_and_judge(&mut tx, chunk, now, None, Departure::Death).await?;
                // The callbacks' tickets are left to the sweeper: there is no broker yet.
                transitions::apply(&mut tx, &changes).await?;
                reach(CrashPoint::RecoveryUncommitted);
                tx.commit().await?;
                reach(CrashPoint::RecoveryCommitted);
                Ok(changes.len())
            })
            .await?;
    }
    if given_back > 0 {
        info!(
            executions = given_back,
            "took back what was held before the restart"
        );
    }
    Ok(given_back)
}
