//! Comparing: the leader's set with the database, every two seconds, and with what workers say they hold, at every
//! heartbeat. Differences are asked about; only the database's word about a handover ever stops one.

use crate::{
    held::{Held, is_over, is_result_overdue, must_be_published},
    leader::Leader,
    placement::{TakenSeat, parcel},
};
use isocost_common::{
    config::millis,
    execution::{Claim, ExecutionEvent, ExecutionStatus},
    id::{ExecutionId, IncarnationId, WorkerId},
    message::{ControlAction, Heartbeat},
    store::{
        StoreError, epoch,
        placement::{self, Handover},
        recovery::{self, Owned},
        settings,
        workers::{self, WorkerStatus},
    },
    time::EpochMillis,
};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};
use tokio::time::Instant;
use tracing::{debug, info, warn};

/// Releases asked for in one round, so that slow reports do not set off a flood of them.
const MOST_MOVES: usize = 64;

/// Handovers that workers hold and the set does not name as theirs.
#[derive(Debug, Default)]
pub(crate) struct Strangers(HashMap<Claim, (WorkerId, IncarnationId)>);

/// Requests by worker.
#[derive(Default)]
struct Requests(BTreeMap<(WorkerId, IncarnationId), Vec<ControlAction>>);

impl Requests {
    fn add(&mut self, worker: &WorkerId, incarnation: IncarnationId, action: ControlAction) {
        self.0
            .entry((worker.clone(), incarnation))
            .or_default()
            .push(action);
    }
}

impl Leader {
    fn request(&mut self, requests: Requests) {
        for ((worker, incarnation), actions) in requests.0 {
            self.publisher.control(&worker, incarnation, &actions);
        }
    }

    /// Takes in a heartbeat: the load, and the comparison of its holdings with the set.
    pub(crate) fn take_heartbeat(&mut self, heartbeat: &Heartbeat, heard_at: Instant) {
        let incarnation = heartbeat.incarnation;
        if self.inquests.is_dead(incarnation) {
            // It cannot know yet: its tombstone may have been lost.
            return self.inquests.entomb_again(incarnation);
        }
        if let Err(unfit) = heartbeat.check() {
            return self.refuse_registration(&heartbeat.worker, incarnation, &unfit);
        }
        if !self.fleet.observe(heartbeat, heard_at, self.store.now()) {
            return;
        }
        let Some(member) = self.fleet.member_mut(incarnation) else {
            return;
        };
        if heartbeat.bye {
            info!(worker.id = %heartbeat.worker, incarnation = %incarnation, "a worker says goodbye");
            // A death is final: what it reports after that may lie behind the marker, so its goodbye proves nothing.
            member.ended.get_or_insert(WorkerStatus::Offline);
        }
        self.registrations |= !(member.registered || member.unfit) || member.status() != member.stored_status;
        self.compare_holdings(heartbeat, heard_at);
    }

    fn compare_holdings(&mut self, heartbeat: &Heartbeat, heard_at: Instant) {
        let named: HashSet<Claim> = heartbeat.holdings.all().collect();
        let mut requests = Requests::default();
        for held in self.fleet.all_held_mut() {
            if held.incarnation != heartbeat.incarnation {
                continue;
            }
            if let Some(query) = held.on_heartbeat(named.contains(&held.claim), heard_at) {
                debug!(execution.id = %held.claim.execution, worker.id = %held.worker, "asking for an execution");
                requests.add(&held.worker, held.incarnation, query);
            }
        }
        self.request(requests);
        let holdings = &heartbeat.holdings;
        for claim in holdings.unstarted.iter().chain(&holdings.running) {
            let is_its_own = self
                .fleet
                .held(*claim)
                .is_some_and(|held| held.incarnation == heartbeat.incarnation);
            if !is_its_own {
                let holder = (heartbeat.worker.clone(), heartbeat.incarnation);
                self.strangers.0.insert(*claim, holder);
            }
        }
    }

    /// Cancels what a worker holds although the database has given it to somebody else, or ended it. The rows are read
    /// after the report, and what they say about an older handover never becomes untrue.
    pub(crate) async fn check_strangers(&mut self) -> Result<(), StoreError> {
        if self.strangers.0.is_empty() {
            return Ok(());
        }
        let strangers = std::mem::take(&mut self.strangers.0);
        let ids: Vec<ExecutionId> = strangers.keys().map(|claim| claim.execution).collect();
        let mut reader = self.store.reader().await?;
        let standings: HashMap<_, _> = recovery::standings(&mut reader, &ids)
            .await?
            .into_iter()
            .map(|standing| (standing.claim.execution, standing))
            .collect();
        drop(reader);
        let mut requests = Requests::default();
        for (claim, (worker, incarnation)) in strangers {
            if is_over(claim, standings.get(&claim.execution)) {
                debug!(execution.id = %claim.execution, worker.id = %worker, "cancelling what is not its own");
                let cancel = ControlAction::Cancel {
                    claim,
                    not_after: None,
                };
                requests.add(&worker, incarnation, cancel);
            }
        }
        self.request(requests);
        Ok(())
    }

    /// Looks for cancels requested since the last reload.
    pub(crate) async fn find_cancels(&mut self) -> Result<(), StoreError> {
        let mut reader = self.store.reader().await?;
        for claim in recovery::cancel_requested(&mut reader).await? {
            if let Some(held) = self.fleet.held_mut(claim) {
                held.cancel_requested = true;
            }
        }
        Ok(())
    }

    /// Asks workers to give back, or stop, what is to be cancelled: again and again until it is gone.
    pub(crate) fn request_cancels(&mut self, now: Instant) {
        let mut requests = Requests::default();
        for held in self.fleet.all_held_mut() {
            if let Some(action) = held.stop_request(now) {
                requests.add(&held.worker, held.incarnation, action);
            }
        }
        self.request(requests);
    }

    /// Asks for what has not started for a while, where another worker could start it at once.
    pub(crate) fn move_unstarted(&mut self, now: Instant) {
        let patience = millis(self.leases.move_after_ms);
        let overdue: Vec<Claim> = self
            .fleet
            .all_held()
            .filter(|held| held.waits_too_long(patience, now))
            .take(MOST_MOVES)
            .map(|held| held.claim)
            .collect();
        let mut free: HashMap<String, BTreeMap<IncarnationId, u32>> = HashMap::new();
        let mut requests = Requests::default();
        for claim in overdue {
            let Some(held) = self.fleet.held(claim) else {
                continue;
            };
            let (class, owner) = (Arc::clone(&held.class), held.incarnation);
            let free = free.entry(class.key.clone()).or_insert_with(|| {
                let offers = self.fleet.offers(&class, now).into_iter();
                offers
                    .map(|(incarnation, offer)| (incarnation, offer.free))
                    .collect()
            });
            let elsewhere = free
                .iter_mut()
                .find(|(incarnation, free)| **incarnation != owner && **free > 0);
            let Some((_, free)) = elsewhere else { continue };
            *free -= 1;
            if let Some(held) = self.fleet.held_mut(claim) {
                let release = held.release_request(now);
                requests.add(&held.worker, held.incarnation, release);
            }
        }
        self.request(requests);
    }

    /// Ends runs whose result is overdue. Terminal: a run that was not proven stopped must not get a second one beside it.
    pub(crate) async fn end_overdue(&mut self, now: EpochMillis) -> Result<(), StoreError> {
        let (began, grace) = (self.began_at, millis(self.config.result_grace_ms));
        let is_overdue = move |started_at: Option<EpochMillis>, timeout_ms: i64| {
            let allowed = millis(u64::try_from(timeout_ms).unwrap_or(0)) + grace;
            is_result_overdue(started_at, allowed, began, now)
        };
        let overdue: Vec<ExecutionId> = self
            .fleet
            .all_held()
            .filter(|held| held.status == ExecutionStatus::Running)
            .filter(|held| is_overdue(held.started_at, held.timeout_ms))
            .map(|held| held.claim.execution)
            .collect();
        if overdue.is_empty() {
            return Ok(());
        }
        warn!(
            executions = overdue.len(),
            "ending runs whose results are overdue"
        );
        self.change(&overdue, now, &ExecutionEvent::ResultOverdue, |row| {
            is_overdue(row.started_at, row.timeout_ms)
        })
        .await?;
        Ok(())
    }

    fn warn_of_shared_names(&mut self) {
        for worker in self.fleet.newly_shared_names(self.leases.heartbeat() * 2) {
            warn!(worker.id = %worker,
                "two processes work under one worker id: give each its own (worker.id, --id)");
        }
    }

    /// Reads everything again that others may have changed, and makes the set equal to the database. What the database
    /// says is owned and the set does not know was placed by a leader before, or by a commit whose answer was lost: it
    /// is published again, under the same number and the same `not_after`.
    pub(crate) async fn reload(&mut self) -> Result<(), StoreError> {
        let now = Instant::now();
        epoch::note_presence(&self.store).await?;
        self.warn_of_shared_names();
        if self.fleet.members().any(|member| member.changed) {
            self.save_members(now).await?;
        }
        let mut reader = self.store.reader().await?;
        let settings = settings::all(&mut reader).await?;
        self.app_limits = settings::running_limits(&mut reader).await?;
        let workers = workers::current(&mut reader).await?;
        let owned = recovery::owned(&mut reader).await?;
        let unknown: BTreeMap<&str, ExecutionId> = owned
            .iter()
            .filter(|owned| self.backlog.class(&owned.class_key).is_none())
            .map(|owned| (owned.class_key.as_str(), owned.claim.execution))
            .collect();
        let unknown: Vec<_> = unknown.into_values().collect();
        for class in placement::classes_of(&mut reader, &unknown).await? {
            let key = class.key.clone();
            self.backlog.class_or(&key, || class);
        }
        let current: HashSet<IncarnationId> = workers.iter().map(|row| row.incarnation).collect();
        let gone: Vec<IncarnationId> = self
            .fleet
            .members()
            .filter(|member| member.registered && member.ended.is_none())
            .map(|member| member.incarnation)
            .filter(|incarnation| !current.contains(incarnation))
            .collect();
        let gone = workers::statuses(&mut reader, &gone).await?;
        let ids = self.follow(&owned, now);
        let orders = placement::orders(&mut reader, &ids).await?;
        drop(reader);

        self.apply_settings(&settings);
        for row in workers {
            self.fleet.load(row, now);
        }
        for (incarnation, status) in gone.into_iter().filter(|(_, status)| status.has_ended()) {
            if let Some(member) = self.fleet.member_mut(incarnation) {
                (member.ended, member.stored_status) = (Some(status), status);
            }
        }
        self.publish_orders_again(orders);
        self.request_drains();
        self.backlog.is_stale = true;
        self.agenda = None;
        self.report();
        Ok(())
    }

    /// Makes the set equal to what the database says; returns what must be published again.
    fn follow(&mut self, owned: &[Owned], now: Instant) -> Vec<ExecutionId> {
        let standing: HashSet<Claim> = owned.iter().map(|owned| owned.claim).collect();
        let left: Vec<Claim> = self
            .fleet
            .all_held()
            .map(|held| held.claim)
            .filter(|claim| !standing.contains(claim))
            .collect();
        for claim in left {
            self.fleet.let_go(claim);
        }
        let mut again = Vec::new();
        for owned in owned {
            if let Some(status) = owned.owner.filter(|status| status.has_ended()) {
                self.fleet.end(&owned.worker, owned.incarnation, status, now);
            }
            if let Some(held) = self.fleet.held_mut(owned.claim) {
                held.follow(owned);
                continue;
            }
            let Some(class) = self.backlog.class(&owned.class_key) else {
                continue;
            };
            if must_be_published(owned) {
                again.push(owned.claim.execution);
            }
            self.fleet.hold(Held::found(owned, class, now), now);
        }
        again
    }

    fn publish_orders_again(&mut self, orders: Vec<placement::Order>) {
        let mut parcels = Vec::with_capacity(orders.len());
        for order in orders {
            let Some(held) = self.fleet.held(order.claim) else {
                continue;
            };
            let handover = Handover {
                epoch: held.epoch,
                placed_at: held.placed_at,
                not_after: held.not_after,
            };
            let seat = TakenSeat {
                worker: held.worker.clone(),
                incarnation: held.incarnation,
                is_free: true,
            };
            parcels.push(parcel(order, &seat, handover));
        }
        if !parcels.is_empty() {
            info!(
                executions = parcels.len(),
                "publishing again what may not have been published"
            );
            self.publisher.dispatch(parcels);
        }
    }

    /// Tells workers what users asked for, until they do it.
    fn request_drains(&mut self) {
        let mut requests = Requests::default();
        for member in self.fleet.members().filter(|member| member.ended.is_none()) {
            let action = match member.drain_requested {
                Some(true) if !member.draining => ControlAction::Drain,
                Some(false) if member.undraining => ControlAction::Undrain,
                _ => continue,
            };
            requests.add(&member.worker, member.incarnation, action);
        }
        self.request(requests);
    }

    fn apply_settings(&mut self, settings: &HashMap<String, String>) {
        let balancer = settings.get(settings::BALANCER).and_then(|text| {
            serde_json::from_str(text)
                .inspect_err(|error| warn!(%error, "the setting `{}` cannot be read", settings::BALANCER))
                .ok()
        });
        self.balancer.set(balancer);
        let maintenance = settings::is_maintenance(settings);
        if maintenance != self.maintenance {
            info!(maintenance, "maintenance mode was switched");
        }
        self.maintenance = maintenance;
    }

    /// What a look at the metrics should show.
    fn report(&mut self) {
        let now = Instant::now();
        metrics::gauge!("isocost_executions_owned").set(self.fleet.all_held().count() as f64);
        metrics::gauge!("isocost_dispatches_unconfirmed").set(self.publisher.unconfirmed() as f64);
        // The ended ones first: a worker that was started again has the same name.
        for member in self.fleet.members().filter(|member| member.ended.is_some()) {
            report_worker(&member.worker, 0, 0.0);
        }
        for member in self.fleet.members_mut().filter(|member| member.ended.is_none()) {
            let mean_cost_ms = member.costs(now).mean_ms;
            report_worker(&member.worker, member.active, mean_cost_ms);
        }
    }

    /// Whoever does not lead knows nothing of the fleet: what the last term showed would be taken for the present.
    pub(crate) fn report_nothing(&self) {
        metrics::gauge!("isocost_executions_owned").set(0.0);
        metrics::gauge!("isocost_dispatches_unconfirmed").set(0.0);
        for member in self.fleet.members() {
            report_worker(&member.worker, 0, 0.0);
        }
    }
}

fn report_worker(worker: &WorkerId, active: u32, mean_cost_ms: f64) {
    let worker = worker.to_string();
    metrics::gauge!("isocost_worker_active", "worker" => worker.clone()).set(f64::from(active));
    metrics::gauge!("isocost_worker_mean_cost_seconds", "worker" => worker).set(mean_cost_ms / 1_000.0);
}
