//! The incarnations the leader knows, what each of them offers, and the exact set of what each of them owns.

mod member;
mod shared_names;

pub(crate) use member::Member;

use crate::{balancer::Offer, held::Held};
use isocost_common::{
    execution::Claim,
    id::{AppId, ExecutionId, IncarnationId, WorkerId},
    message::Heartbeat,
    store::{
        placement::Class,
        workers::{WorkerRow, WorkerStatus},
    },
    time::EpochMillis,
};
use member::Seat;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};
use tokio::time::Instant;

/// Everything the leader knows about workers and what they own.
#[derive(Debug)]
pub(crate) struct Fleet {
    /// A worker not heard of for this long is given nothing new, long before anybody calls it dead.
    silence_limit: Duration,
    members: BTreeMap<IncarnationId, Member>,
    held: HashMap<ExecutionId, Held>,
    owned_by_app: HashMap<AppId, u32>,
    /// Worker ids that two processes were last found to use at once.
    shared_names: BTreeSet<WorkerId>,
}

impl Fleet {
    pub(crate) fn new(silence_limit: Duration) -> Self {
        Self {
            silence_limit,
            members: BTreeMap::new(),
            held: HashMap::new(),
            owned_by_app: HashMap::new(),
            shared_names: BTreeSet::new(),
        }
    }

    /// Takes over what the table knows of an incarnation that has not ended; its lease begins anew.
    pub(crate) fn load(&mut self, row: WorkerRow, now: Instant) {
        let member = self
            .members
            .entry(row.incarnation)
            .or_insert_with(|| Member::new(row.worker.clone(), row.incarnation, now));
        if !member.registered {
            (member.host, member.port, member.labels) = (row.host, row.port, row.labels);
            member.cpu_idle_percent = row.cpu_idle_percent;
            member.draining = row.status == WorkerStatus::Draining && !row.drain_requested;
            (member.registered_at, member.last_heartbeat) = (row.registered_at, row.last_heartbeat);
            member.offer_handlers(&row.handlers, now);
            member.registered = true;
        }
        member.stored_status = row.status;
        if member.drain_requested == Some(true) && !row.drain_requested {
            member.undraining = true;
        }
        member.drain_requested = Some(row.drain_requested);
    }

    /// Takes in a heartbeat. False when it is older than one already seen.
    pub(crate) fn observe(&mut self, heartbeat: &Heartbeat, now: Instant, at: EpochMillis) -> bool {
        let member = self
            .members
            .entry(heartbeat.incarnation)
            .or_insert_with(|| Member::new(heartbeat.worker.clone(), heartbeat.incarnation, now));
        if heartbeat.report_number <= member.report_number && member.report_number > 0 {
            return false;
        }
        member.report_number = heartbeat.report_number;
        (member.lease_from, member.heard_at) = (now, Some(now));
        member.last_heartbeat = at;
        if !member.registered {
            member.registered_at = at;
        }
        (member.host, member.port) = (heartbeat.host.clone(), heartbeat.port);
        member.labels.clone_from(&heartbeat.labels);
        member.cpu_idle_percent = heartbeat.cpu_idle_percent;
        member.draining = heartbeat.draining || heartbeat.bye;
        member.undraining &= member.draining;
        member.offer_handlers(&heartbeat.handlers, now);
        member.changed = !member.unfit;
        true
    }

    /// Every lease begins anew: something kept heartbeats from arriving here.
    pub(crate) fn restart_leases(&mut self, now: Instant) {
        for member in self.members.values_mut() {
            member.lease_from = now;
        }
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    pub(crate) fn members_mut(&mut self) -> impl Iterator<Item = &mut Member> {
        self.members.values_mut()
    }

    pub(crate) fn member_mut(&mut self, incarnation: IncarnationId) -> Option<&mut Member> {
        self.members.get_mut(&incarnation)
    }

    /// Notes how an incarnation ended, known here or not.
    pub(crate) fn end(
        &mut self,
        worker: &WorkerId,
        incarnation: IncarnationId,
        status: WorkerStatus,
        now: Instant,
    ) {
        let member = self
            .members
            .entry(incarnation)
            .or_insert_with(|| Member::new(worker.clone(), incarnation, now));
        member.ended = Some(status);
        member.stored_status = status;
        member.registered = true;
    }

    /// Forgets incarnations that have ended and own nothing.
    pub(crate) fn forget_ended(&mut self) {
        self.members
            .retain(|_, member| member.ended.is_none() || member.active > 0);
    }

    /// Who could take executions of a class, with what each offers.
    pub(crate) fn offers(&mut self, class: &Class, now: Instant) -> Vec<(IncarnationId, Offer)> {
        let mut offers = Vec::new();
        for member in self.members.values_mut() {
            if !member.takes_work(now, self.silence_limit) || !member.carries(&class.selector) {
                continue;
            }
            let Some(seat) = member.seats.get_mut(&class.handler) else {
                continue;
            };
            let (free, extra) = seat.room(now);
            if free + extra > 0 {
                let offer = Offer {
                    home: member.home,
                    active: member.active,
                    mean_cost_ms: member.costs.summary(now).mean_ms,
                    cpu_idle_percent: member.cpu_idle_percent,
                    free,
                    extra,
                };
                offers.push((member.incarnation, offer));
            }
        }
        offers
    }

    /// Counts an execution of the class against an incarnation before the database knows of it.
    pub(crate) fn reserve(&mut self, incarnation: IncarnationId, class: &Class) {
        if let Some(member) = self.members.get_mut(&incarnation) {
            let seat = member
                .seats
                .entry(class.handler.clone())
                .or_insert_with(|| Seat::new(Instant::now()));
            seat.active += 1;
            member.active += 1;
        }
        *self.owned_by_app.entry(class.app).or_default() += 1;
    }

    /// Takes a reservation back.
    pub(crate) fn unreserve(&mut self, incarnation: IncarnationId, class: &Class) {
        if let Some(member) = self.members.get_mut(&incarnation) {
            member.active = member.active.saturating_sub(1);
            if let Some(seat) = member.seats.get_mut(&class.handler) {
                seat.active = seat.active.saturating_sub(1);
            }
        }
        if let Some(owned) = self.owned_by_app.get_mut(&class.app) {
            *owned = owned.saturating_sub(1);
        }
    }

    /// Executions of an app that are owned by workers.
    pub(crate) fn owned_by(&self, app: AppId) -> u32 {
        self.owned_by_app.get(&app).copied().unwrap_or_default()
    }

    /// Adds an execution whose place was reserved.
    pub(crate) fn adopt(&mut self, held: Held) {
        self.held.insert(held.claim.execution, held);
    }

    /// Adds an execution that the database assigns to an incarnation, known here or not.
    pub(crate) fn hold(&mut self, held: Held, now: Instant) {
        self.members
            .entry(held.incarnation)
            .or_insert_with(|| Member::new(held.worker.clone(), held.incarnation, now));
        self.reserve(held.incarnation, &held.class);
        self.adopt(held);
    }

    /// Removes exactly this handover; none when the set holds another one or none.
    pub(crate) fn let_go(&mut self, claim: Claim) -> Option<Held> {
        self.held(claim)?;
        let held = self.held.remove(&claim.execution)?;
        self.unreserve(held.incarnation, &held.class);
        Some(held)
    }

    /// This handover, if the set holds it.
    pub(crate) fn held(&self, claim: Claim) -> Option<&Held> {
        self.held.get(&claim.execution).filter(|held| held.claim == claim)
    }

    pub(crate) fn held_mut(&mut self, claim: Claim) -> Option<&mut Held> {
        self.held
            .get_mut(&claim.execution)
            .filter(|held| held.claim == claim)
    }

    pub(crate) fn all_held(&self) -> impl Iterator<Item = &Held> {
        self.held.values()
    }

    pub(crate) fn all_held_mut(&mut self) -> impl Iterator<Item = &mut Held> {
        self.held.values_mut()
    }

    /// Its handler started something there: it is not refusing any more.
    pub(crate) fn accepted(&mut self, incarnation: IncarnationId, handler: &str) {
        if let Some(seat) = self.seat_mut(incarnation, handler) {
            seat.refusal = None;
        }
    }

    /// It refused something: left out for 100 ms, doubling to 5 s with every further refusal.
    pub(crate) fn refused(&mut self, incarnation: IncarnationId, handler: &str, now: Instant) {
        if let Some(seat) = self.seat_mut(incarnation, handler) {
            seat.refuse(now);
        }
    }

    /// A run ended there.
    pub(crate) fn record_cost(
        &mut self,
        incarnation: IncarnationId,
        handler: &str,
        cost_ms: i64,
        now: Instant,
    ) {
        if let Some(seat) = self.seat_mut(incarnation, handler) {
            seat.costs.record(now, cost_ms);
        }
        if let Some(member) = self.members.get_mut(&incarnation) {
            member.costs.record(now, cost_ms);
        }
    }

    fn seat_mut(&mut self, incarnation: IncarnationId, handler: &str) -> Option<&mut Seat> {
        self.members.get_mut(&incarnation)?.seats.get_mut(handler)
    }

    /// Notes how long everything has been running.
    pub(crate) fn age_runs(&mut self, now: EpochMillis) {
        let seats = self
            .members
            .values_mut()
            .flat_map(|member| member.seats.values_mut());
        for seat in seats {
            seat.oldest_run_ms = 0.0;
        }
        for held in self.held.values() {
            let Some(started_at) = held.started_at else {
                continue;
            };
            let member = self.members.get_mut(&held.incarnation);
            if let Some(seat) = member.and_then(|member| member.seats.get_mut(&held.class.handler)) {
                let age_ms = now.since(started_at).as_millis() as f64;
                seat.oldest_run_ms = seat.oldest_run_ms.max(age_ms);
            }
        }
    }

    /// The earliest instant at which somebody who refused is asked again.
    pub(crate) fn next_retry(&self, now: Instant) -> Option<Instant> {
        let seats = self.members.values().flat_map(|member| member.seats.values());
        seats
            .filter_map(|seat| seat.refusal.map(|refusal| refusal.until))
            .filter(|until| *until > now)
            .min()
    }
}

#[cfg(test)]
mod tests;
