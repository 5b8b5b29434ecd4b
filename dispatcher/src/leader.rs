//! The leader: one task that owns everything a term needs to know, and does one thing after the other.
//!
//! A pass claims and places what is due; between passes the leader hears what happened and sleeps until the earliest
//! instant at which it has something to do.

use crate::{
    balancer::Balancer,
    fleet::Fleet,
    held::Held,
    in_flight::Delivered,
    leadership::{self, Tenure},
    listen::{Event, Listeners},
    placement::Backlog,
    publish::Publisher,
    reconcile::Strangers,
    recovery::Inquests,
    registration::Refused,
};
use isocost_common::{
    Ports,
    broker::{BrokerHealth, Publication, topology::Names},
    config::{DispatcherConfig, LeaseConfig},
    error_chain::chain,
    execution::ExecutionStatus,
    id::AppId,
    message::{Settled, SettledMessage, Wake},
    store::{Store, StoreError, claim::Agenda, placement::Class},
    time::EpochMillis,
};
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

/// The set is compared with the database this often.
pub(crate) const RELOAD_INTERVAL: Duration = Duration::from_secs(2);
/// The slow rounds: moves, silent workers, recovery.
const ROUND_INTERVAL: Duration = Duration::from_millis(100);
/// Database or broker away for this long: somebody else may do better.
const UNFIT_AFTER: Duration = Duration::from_secs(10);
/// Events taken in before the next pass.
const EVENTS_A_PASS: usize = 4_096;
const FIRST_RETRY: Duration = Duration::from_millis(10);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// What every term of this process shares.
pub(crate) struct Office {
    pub(crate) ports: Ports,
    pub(crate) names: Names,
    pub(crate) config: DispatcherConfig,
    pub(crate) leases: LeaseConfig,
    /// Name of this process in queue names and in the leader row.
    pub(crate) process: String,
    /// Asks workers whether they live.
    pub(crate) probe: reqwest::Client,
}

/// Why a term ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TermEnd {
    /// The process shuts down, or the lock is lost.
    Over,
    /// A newer leader has begun.
    Superseded,
    /// Database or broker are not to be reached from here, or the clocks differ too much.
    Unfit,
}

/// The leader of one term.
pub(crate) struct Leader {
    pub(crate) store: Store,
    pub(crate) ports: Ports,
    pub(crate) names: Names,
    pub(crate) config: DispatcherConfig,
    pub(crate) leases: LeaseConfig,
    pub(crate) tenure: Arc<Tenure>,
    pub(crate) fleet: Fleet,
    pub(crate) balancer: Balancer,
    pub(crate) backlog: Backlog,
    pub(crate) publisher: Publisher,
    pub(crate) strangers: Strangers,
    pub(crate) refused: Refused,
    pub(crate) inquests: Inquests,
    pub(crate) app_limits: HashMap<AppId, u32>,
    /// Nothing is claimed or placed.
    pub(crate) maintenance: bool,
    /// What the tables have to do by time; none when it must be read anew.
    pub(crate) agenda: Option<Agenda>,
    /// The classes of the last claim.
    pub(crate) last_claimed: Vec<Arc<Class>>,
    /// When the last claim was.
    pub(crate) claimed_at: Instant,
    /// Executions placed since then.
    pub(crate) placed: usize,
    /// Jobs are due, and not claimed until then unless somebody gets room.
    pub(crate) holds_back: Option<Instant>,
    /// Rows of members must be written before the next pass.
    pub(crate) registrations: bool,
    /// A cancel may have been requested.
    pub(crate) cancels_due: bool,
    pub(crate) listeners: Listeners,
    /// When the term began: no deadline of a run counts from before.
    pub(crate) began_at: EpochMillis,
    health: watch::Receiver<BrokerHealth>,
    reload_at: Instant,
    round_at: Instant,
    trouble: Trouble,
}

/// Since when something this leader needs does not work.
#[derive(Debug, Default)]
struct Trouble {
    database: Option<Instant>,
    broker: Option<Instant>,
    pauses: u32,
}

impl Leader {
    /// Begins a term: reads what the tables say about workers and what they own, and publishes again what the leader
    /// before may not have. Every lease and deadline counts from now.
    pub(crate) async fn take_over(
        office: &Office,
        tenure: Arc<Tenure>,
        term: &CancellationToken,
    ) -> Result<Self, StoreError> {
        let ports = office.ports.clone();
        let now = Instant::now();
        let mut leader = Self {
            store: ports.store.clone(),
            names: office.names.clone(),
            config: office.config.clone(),
            leases: office.leases.clone(),
            tenure,
            // Three beats and a half: two may be lost.
            fleet: Fleet::new(office.leases.heartbeat() * 7 / 2),
            balancer: Balancer::new(office.config.strategy, office.config.weights),
            backlog: Backlog::default(),
            publisher: Publisher::new(Arc::clone(&ports.broker), office.names.clone()),
            strangers: Strangers::default(),
            refused: Refused::default(),
            inquests: Inquests::new(office.probe.clone()),
            app_limits: HashMap::new(),
            maintenance: false,
            agenda: None,
            last_claimed: Vec::new(),
            claimed_at: now,
            placed: 0,
            holds_back: None,
            registrations: false,
            cancels_due: true,
            listeners: Listeners::start(
                &ports.broker,
                &office.names,
                &office.process,
                office.leases.heartbeat(),
                term,
            ),
            began_at: ports.store.now(),
            health: ports.broker.health(),
            reload_at: now,
            round_at: now,
            trouble: Trouble::default(),
            ports,
        };
        if let Err(failure) = leader.reload().await {
            term.cancel();
            leader.listeners.finish().await;
            return Err(failure);
        }
        leader.reload_at = now + RELOAD_INTERVAL;
        leader.meet_workers().await;
        Ok(leader)
    }

    /// Takes in the last heartbeats that the coordination service keeps, so that workers which started before this leader
    /// are known at once and not a beat later.
    async fn meet_workers(&mut self) {
        match self.ports.coordination.heartbeats().await {
            Ok(heartbeats) => {
                for beat in heartbeats.stored {
                    match serde_json::from_str(&beat.payload) {
                        Ok(heartbeat) => self.take_heartbeat(&heartbeat, Instant::now()),
                        Err(error) => {
                            debug!(incarnation = %beat.incarnation, %error, "an unreadable heartbeat");
                        }
                    }
                }
            }
            Err(error) => warn!(%error, "reading the last heartbeats"),
        }
    }

    /// Leads until `term` ends; the pass in hand is completed. After it, [`Leader::retire`].
    pub(crate) async fn lead(&mut self, term: &CancellationToken) -> TermEnd {
        loop {
            if term.is_cancelled() {
                break TermEnd::Over;
            }
            self.hear();
            let wake_at = match self.pass().await {
                Ok(wake_at) => {
                    self.trouble.database = None;
                    self.trouble.pauses = 0;
                    self.tenure.made_progress();
                    wake_at
                }
                Err(StoreError::StaleEpoch { mine, current }) => {
                    warn!(epoch = mine, current, "a newer leader has begun");
                    break TermEnd::Superseded;
                }
                Err(failure) => self.stumble(&failure),
            };
            if self.is_unfit() {
                break TermEnd::Unfit;
            }
            self.wait(wake_at, term).await;
        }
    }

    /// Completes what is under way. Nothing of it needs the lock: whoever leads next publishes the same again, and the
    /// workers drop what they have.
    pub(crate) async fn retire(mut self) {
        self.publisher.finish().await;
        self.inquests.finish().await;
        self.report_nothing();
        self.listeners.finish().await;
    }

    /// Does what is to be done now. Returns when to come back: at once when more is due.
    async fn pass(&mut self) -> Result<Instant, StoreError> {
        let now = Instant::now();
        let delivered = self.publisher.outcomes(now);
        self.note_delivered(delivered);
        self.publish_again(now);
        // In doubt about the lock nothing new is begun; the epoch would refuse it anyway once somebody else leads.
        if !self.tenure.is_valid() {
            return Ok(now + ROUND_INTERVAL);
        }
        if now >= self.reload_at {
            self.reload().await?;
            self.reload_at = now + RELOAD_INTERVAL;
        }
        if self.registrations {
            self.save_members(now).await?;
        }
        if now >= self.round_at {
            self.round(now).await?;
            self.round_at = Instant::now() + ROUND_INTERVAL;
        }
        let more = self.is_ready() && self.work().await?;
        Ok(if more { now } else { self.next_wake() })
    }

    /// What need not happen in every pass.
    async fn round(&mut self, now: Instant) -> Result<(), StoreError> {
        self.check_strangers().await?;
        if std::mem::take(&mut self.cancels_due) {
            self.find_cancels().await?;
        }
        self.request_cancels(now);
        self.fleet.age_runs(self.store.now());
        self.move_unstarted(now);
        self.watch_silent(now).await?;
        self.recover_ended(now).await?;
        self.end_overdue(self.store.now()).await?;
        self.fleet.forget_ended();
        Ok(())
    }

    /// Claims and places. True when more is due at once.
    async fn work(&mut self) -> Result<bool, StoreError> {
        let mut more = self.place().await?;
        let agenda = match self.agenda {
            Some(agenda) => agenda,
            None => self.read_agenda().await?,
        };
        let now = self.store.now();
        let is_due = |at: Option<EpochMillis>| at.is_some_and(|at| at <= now);
        if is_due(agenda.next_deadline) {
            more |= self.expire(now).await?;
        }
        if is_due(agenda.next_not_before) {
            more |= self.promote(now).await?;
        }
        if is_due(agenda.next_trigger) {
            more |= self.claim().await?;
        }
        Ok(more)
    }

    /// True while the broker takes messages and no user has asked for quiet.
    fn is_ready(&mut self) -> bool {
        let ready = *self.health.borrow() == BrokerHealth::Ready;
        if ready && self.trouble.broker.is_some() {
            self.publisher.broker_is_back(Instant::now());
        }
        self.trouble.broker = match self.trouble.broker {
            _ if ready => None,
            None => Some(Instant::now()),
            since => since,
        };
        ready && !self.maintenance && !self.publisher.is_congested()
    }

    /// True while leases may be judged: heartbeats could have arrived.
    pub(crate) fn can_judge(&self) -> bool {
        self.trouble.broker.is_none() && self.trouble.database.is_none()
    }

    /// When to look again if nobody calls.
    fn next_wake(&self) -> Instant {
        let now = Instant::now();
        let longest = now + Duration::from_millis(self.config.max_sleep_ms);
        let due = self.agenda.and_then(|agenda| agenda.earliest()).map(|due| {
            // Overdue although nothing more was to be done: its row is locked by somebody, or nothing may be claimed.
            let pause = due.since(self.store.now());
            let pause = pause.max(Duration::from_millis(if self.maintenance { 500 } else { 1 }));
            self.holds_back
                .map_or(now + pause, |until| until.max(now + pause))
        });
        let retry = (!self.backlog.is_empty())
            .then(|| self.fleet.next_retry(now))
            .flatten();
        [
            Some(longest),
            due,
            retry,
            self.publisher.next_again(),
            Some(self.round_at),
        ]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(longest)
    }

    /// Logs a failed pass and returns when to try again.
    fn stumble(&mut self, failure: &StoreError) -> Instant {
        let now = Instant::now();
        // What was committed, or not, is read again before anything else happens.
        self.agenda = None;
        self.backlog.is_stale = true;
        self.reload_at = now;
        if failure.is_transient() {
            warn!(error = %chain(failure), "a pass of the leader failed");
        } else {
            error!(error = %chain(failure), "a pass of the leader failed");
        }
        if matches!(failure, StoreError::Unavailable(_) | StoreError::UnknownCommit(_)) {
            self.trouble.database.get_or_insert(now);
        }
        self.trouble.pauses = (self.trouble.pauses + 1).min(8);
        now + (FIRST_RETRY * 2_u32.pow(self.trouble.pauses - 1)).min(LONGEST_RETRY)
    }

    fn is_unfit(&self) -> bool {
        let long_ago = |since: Option<Instant>| since.is_some_and(|since| since.elapsed() >= UNFIT_AFTER);
        let skewed = !leadership::is_small(self.store.clock_offset_ms());
        if skewed {
            error!(
                offset_ms = self.store.clock_offset_ms(),
                "the clocks of the database and of this machine have drifted too far apart to lead"
            );
        }
        skewed || long_ago(self.trouble.database) || long_ago(self.trouble.broker)
    }

    /// Sleeps until `wake_at`, or until something is heard. Waits only: nothing is lost when it ends.
    async fn wait(&mut self, wake_at: Instant, term: &CancellationToken) {
        if wake_at <= Instant::now() {
            // Others on this thread get their turn even when passes follow each other without a pause.
            return tokio::task::yield_now().await;
        }
        tokio::select! {
            () = term.cancelled() => {}
            () = sleep_until(wake_at) => {}
            event = self.listeners.events.recv() => {
                if let Some(event) = event {
                    self.take_in(event);
                }
            }
            delivered = self.publisher.next_outcome(Instant::now) => self.note_delivered(delivered),
            finding = self.inquests.next() => self.take_finding(finding),
            _ = self.health.changed() => {}
        }
    }

    /// Takes in what was heard since the last pass.
    fn hear(&mut self) {
        for _ in 0..EVENTS_A_PASS {
            let Ok(event) = self.listeners.events.try_recv() else {
                return;
            };
            self.take_in(event);
        }
    }

    fn take_in(&mut self, event: Event) {
        match event {
            Event::Heartbeat(heartbeat, heard_at) => self.take_heartbeat(&heartbeat, heard_at),
            Event::HeartbeatsInterrupted => self.fleet.restart_leases(Instant::now()),
            Event::HeartbeatsMarker(marker) => self.inquests.heartbeats_drained(marker),
            Event::ResultsMarker(marker) => self.inquests.results_taken_in(marker),
            Event::Settled(SettledMessage { settled }) => {
                let now = Instant::now();
                for settled in &settled {
                    self.take_settled(settled, now);
                }
            }
            Event::Wake(wake) => self.take_wake(wake),
        }
    }

    fn take_wake(&mut self, Wake { due, orders }: Wake) {
        if orders {
            self.reload_soon();
        }
        self.backlog.is_stale = true;
        self.cancels_due = true;
        match &mut self.agenda {
            // Not due yet, and the rest of the agenda stands: no need to read it again.
            Some(agenda) if due > self.store.now() => {
                let next = agenda.next_trigger.map_or(due, |next| next.min(due));
                agenda.next_trigger = Some(next);
            }
            agenda => *agenda = None,
        }
    }

    fn take_settled(&mut self, settled: &Settled, now: Instant) {
        if settled.status == ExecutionStatus::Running {
            self.fleet.accepted(settled.incarnation, &settled.handler);
            if let Some(held) = self.fleet.held_mut(settled.claim) {
                held.status = ExecutionStatus::Running;
                held.started_at.get_or_insert(self.store.now());
            }
            return;
        }
        self.fleet.let_go(settled.claim);
        if let Some(cost_ms) = settled.cost_ms {
            self.fleet.accepted(settled.incarnation, &settled.handler);
            self.fleet
                .record_cost(settled.incarnation, &settled.handler, cost_ms, now);
        }
        if settled.refused {
            self.fleet.refused(settled.incarnation, &settled.handler, now);
        }
        match settled.status {
            ExecutionStatus::Pending => self.backlog.is_stale = true,
            ExecutionStatus::Scheduled => self.agenda = None,
            _ => {}
        }
    }

    fn note_delivered(&mut self, delivered: Vec<Delivered<Publication>>) {
        for claim in delivered.into_iter().flat_map(|delivered| delivered.claims) {
            if let Some(held) = self.fleet.held_mut(claim) {
                held.published = true;
            }
        }
    }

    fn publish_again(&mut self, now: Instant) {
        let fleet = &self.fleet;
        self.publisher.publish_again(now, |claim| {
            fleet.held(claim).is_some_and(Held::wants_its_message)
        });
    }

    /// The set is compared with the database before the next pass.
    pub(crate) fn reload_soon(&mut self) {
        self.reload_at = Instant::now();
    }

    async fn read_agenda(&mut self) -> Result<Agenda, StoreError> {
        let mut reader = self.store.reader().await?;
        let agenda = isocost_common::store::claim::agenda(&mut reader).await?;
        self.agenda = Some(agenda);
        Ok(agenda)
    }
}
