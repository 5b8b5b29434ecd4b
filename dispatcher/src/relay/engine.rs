//! The loop of the relay: it alone owns what is under way. Requests run in tasks; claiming and recording happen here,
//! many rows at a time.

use super::{
    Lane,
    endpoints::{Claimed, Endpoints},
    recording::Finished,
    request::{Answer, Poster, Request},
    retry::RetryPlan,
};
use crate::subscription::{patient, pause};
use isocost_common::{
    Ports,
    broker::{Acker, DeliveryTag, topology::Names},
    config::RelayConfig,
    crash_point::{CrashPoint, reach},
    error_chain::chain,
    id::DeliveryId,
    message::CallbackTicket,
    store::{
        StoreError,
        callbacks::attempts::{self, Series, Waiting},
    },
    time::EpochMillis,
};
use metrics::gauge;
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::mpsc,
    task::{Id, JoinError, JoinSet},
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

/// What a lease is longer than the deadline of a request: the time a claimed delivery may wait for its turn, and the
/// time recording it may take.
const LEASE_MARGIN: Duration = Duration::from_secs(30);
/// Of that, the time for waiting.
const LONGEST_WAIT: Duration = Duration::from_secs(15);
/// Attempts recorded in one transaction, and how long the first waits for more.
const RECORDS: usize = 256;
const RECORD_LINGER: Duration = Duration::from_millis(4);
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Endpoints refilled between two looks at everything else.
const REFILLS: usize = 16;

/// Tickets of one lane with what acks them.
pub(super) struct Tickets {
    pub(super) tickets: Vec<CallbackTicket>,
    pub(super) tags: Vec<DeliveryTag>,
    pub(super) acker: Arc<dyn Acker>,
}

/// A request that is over.
pub(super) struct Done {
    pub(super) claimed: Claimed,
    pub(super) started_at: EpochMillis,
    pub(super) took: Duration,
    pub(super) answer: Answer,
}

/// The state of the relay.
pub(super) struct Engine {
    pub(super) ports: Ports,
    pub(super) names: Names,
    poster: Poster,
    pub(super) plan: RetryPlan,
    expires_after: Duration,
    lease: Duration,
    pub(super) shutdown: CancellationToken,
    pub(super) endpoints: Endpoints,
    requests: JoinSet<Done>,
    /// Which request a task serves, should it panic.
    tasks: HashMap<Id, (String, Lane)>,
    /// Attempts to be recorded.
    pub(super) finished: Vec<Finished>,
    /// Claimed deliveries to be given back.
    pub(super) unbegun: Vec<Waiting>,
    pub(super) record_at: Instant,
    /// When deliveries that became too old are looked for.
    pub(super) expire_at: Instant,
    /// When which endpoint will have something due.
    pub(super) upcoming: BTreeSet<(EpochMillis, Lane, String)>,
}

impl Engine {
    pub(super) fn new(
        config: &RelayConfig,
        ports: Ports,
        names: Names,
        poster: Poster,
        shutdown: CancellationToken,
    ) -> Self {
        let size = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        Self {
            ports,
            names,
            poster,
            plan: RetryPlan::new(config),
            expires_after: Duration::from_millis(config.expires_after_ms),
            lease: Duration::from_millis(config.timeout_ms) + LEASE_MARGIN,
            shutdown,
            endpoints: Endpoints::new(size(config.per_endpoint), size(config.in_flight)),
            requests: JoinSet::new(),
            tasks: HashMap::new(),
            finished: Vec::new(),
            unbegun: Vec::new(),
            record_at: Instant::now(),
            expire_at: Instant::now(),
            upcoming: BTreeSet::new(),
        }
    }

    pub(super) async fn run(
        mut self,
        mut first: mpsc::Receiver<Tickets>,
        mut retry: mpsc::Receiver<Tickets>,
    ) {
        let shutdown = self.shutdown.clone();
        let mut sweep = interval(SWEEP_EVERY);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.start_ready();
            if self.refill().await {
                continue;
            }
            gauge!("isocost_callbacks_in_flight").set(self.endpoints.running() as f64);
            let wake_at = self.wake_at();
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(tickets) = first.recv(), if self.endpoints.lane_room(Lane::First) > 0 => {
                    self.take(tickets).await;
                }
                Some(tickets) = retry.recv(), if self.endpoints.lane_room(Lane::Retry) > 0 => {
                    self.take(tickets).await;
                }
                Some(done) = self.requests.join_next_with_id() => self.done(done),
                () = sleep_until(wake_at) => {}
                _ = sweep.tick() => self.sweep().await,
            }
            self.gather();
            self.wake_due();
            let full = self.finished.len() >= RECORDS;
            let some = !self.finished.is_empty() || !self.unbegun.is_empty();
            if full || (some && Instant::now() >= self.record_at) {
                self.record().await;
            }
        }
        self.wind_down().await;
    }

    /// Starts requests as far as there is room.
    fn start_ready(&mut self) {
        while let Some(claimed) = self.endpoints.start_next() {
            let (endpoint, lane) = (claimed.delivery.endpoint.clone(), claimed.lane);
            if Instant::now() > claimed.begin_before {
                // Its lease could run out in the middle.
                self.endpoints
                    .finished(&endpoint, lane, LONGEST_WAIT, false, None, Instant::now());
                self.unbegun.push(claimed.delivery);
                continue;
            }
            let poster = self.poster.clone();
            let started_at = self.ports.store.now();
            let task = self.requests.spawn(async move {
                let begun = Instant::now();
                let request = Request {
                    id: claimed.delivery.id.to_string(),
                    url: claimed.delivery.url.clone(),
                    body: claimed.delivery.body.clone(),
                    traceparent: claimed.delivery.traceparent.clone(),
                    secrets: claimed.secrets.clone(),
                    now: started_at,
                };
                let answer = poster.post(request).await;
                Done {
                    claimed,
                    started_at,
                    took: begun.elapsed(),
                    answer,
                }
            });
            self.tasks.insert(task.id(), (endpoint, lane));
        }
    }

    /// Claims the rows of tickets as far as there is room, and acks the tickets: from here on the table knows.
    async fn take(&mut self, batch: Tickets) {
        let mut pauses = patient();
        loop {
            match self.claim_tickets(&batch.tickets).await {
                Ok(()) => {
                    reach(CrashPoint::RelayClaimed);
                    return batch.acker.ack(&batch.tags).await;
                }
                Err(failure) => warn!(error = %chain(&failure), "claiming callbacks again"),
            }
            if !pause(&self.shutdown, pauses.next().unwrap_or_default()).await {
                return;
            }
        }
    }

    async fn claim_tickets(&mut self, tickets: &[CallbackTicket]) -> Result<(), StoreError> {
        let mut reader = self.ports.store.reader().await?;
        let waiting = attempts::of_tickets(&mut reader, tickets).await?;
        drop(reader);
        self.claim(waiting).await?;
        Ok(())
    }

    /// Claims what is due and has room; parks the endpoints of the rest. Returns how many were claimed.
    async fn claim(&mut self, waiting: Vec<Waiting>) -> Result<usize, StoreError> {
        let now = self.ports.store.now();
        let mut planned: HashMap<String, usize> = HashMap::new();
        let mut lanes: HashMap<Lane, usize> = HashMap::new();
        let mut chosen = Vec::with_capacity(waiting.len());
        for mut delivery in waiting {
            if delivery.next_attempt_at > now {
                self.remember(delivery.next_attempt_at, Lane::of(&delivery), delivery.endpoint);
                continue;
            }
            let lane = Lane::of(&delivery);
            let of_endpoint = planned.entry(delivery.endpoint.clone()).or_default();
            let of_lane = lanes.entry(lane).or_default();
            let has_room = *of_endpoint < self.endpoints.room(&delivery.endpoint, Instant::now())
                && *of_lane < self.endpoints.lane_room(lane);
            if !has_room {
                self.endpoints.park(&delivery.endpoint, lane);
                continue;
            }
            (*of_endpoint, *of_lane) = (*of_endpoint + 1, *of_lane + 1);
            if lane == Lane::First {
                // The age of a delivery counts from its first attempt, so that an outage of ours expires nothing.
                delivery.expires_at = now + self.expires_after;
            }
            chosen.push(delivery);
        }
        self.claim_chosen(chosen, now).await
    }

    async fn claim_chosen(&mut self, chosen: Vec<Waiting>, now: EpochMillis) -> Result<usize, StoreError> {
        if chosen.is_empty() {
            return Ok(0);
        }
        let begin_before = Instant::now() + LONGEST_WAIT;
        let leased_until = now + self.lease;
        let apps: HashSet<_> = chosen.iter().map(|delivery| delivery.app).collect();
        let store = &self.ports.store;
        let (taken, secrets) = store
            .transact(|| async {
                let mut tx = store.begin().await?;
                let taken: HashSet<DeliveryId> = attempts::claim(&mut tx, &chosen, leased_until).await?;
                let secrets = attempts::signing_secrets(&mut tx, &apps, now).await?;
                tx.commit().await?;
                Ok((taken, secrets))
            })
            .await?;
        for delivery in chosen {
            if taken.contains(&delivery.id) {
                self.endpoints.push(Claimed {
                    secrets: secrets.get(&delivery.app).cloned().unwrap_or_default(),
                    lane: Lane::of(&delivery),
                    begin_before,
                    delivery,
                });
            }
        }
        Ok(taken.len())
    }

    /// Claims from the table for endpoints that have room again. True when something was claimed.
    async fn refill(&mut self) -> bool {
        let mut any = false;
        for lane in Lane::BOTH {
            for (endpoint, room) in self.endpoints.to_refill(lane, REFILLS, Instant::now()) {
                match self.refill_endpoint(&endpoint, lane, room).await {
                    Ok(claimed) => any |= claimed > 0,
                    Err(failure) => {
                        // The sweep parks it again.
                        self.endpoints.unpark(&endpoint, lane);
                        warn!(error = %chain(&failure), "claiming callbacks later");
                    }
                }
            }
        }
        any
    }

    async fn refill_endpoint(
        &mut self,
        endpoint: &str,
        lane: Lane,
        room: usize,
    ) -> Result<usize, StoreError> {
        // An endpoint before this one may have used the room of the lane up.
        let room = room.min(self.endpoints.lane_room(lane));
        if room == 0 {
            return Ok(0);
        }
        let limit = u32::try_from(room).unwrap_or(u32::MAX);
        let now = self.ports.store.now();
        let series = match lane {
            Lane::First => Series::NotBegun,
            Lane::Retry => Series::Begun,
        };
        let mut reader = self.ports.store.reader().await?;
        let due = attempts::due_at_endpoint(&mut reader, endpoint, series, now, limit).await?;
        drop(reader);
        let complete = due.len() < room;
        let claimed = self.claim(due).await?;
        if complete || claimed == 0 {
            // With nothing claimed the rows were somebody else's: the sweep looks again.
            self.endpoints.unpark(endpoint, lane);
        }
        Ok(claimed)
    }

    /// Takes in every other request that is over already.
    fn gather(&mut self) {
        while let Some(done) = self.requests.try_join_next_with_id() {
            self.done(done);
        }
    }

    fn done(&mut self, done: Result<(Id, Done), JoinError>) {
        let (id, done) = match done {
            Ok((id, done)) => (id, Some(done)),
            Err(panicked) => {
                error!(error = %panicked, "a callback request panicked");
                (panicked.id(), None)
            }
        };
        reach(CrashPoint::RelayPosted);
        let Some((endpoint, lane)) = self.tasks.remove(&id) else {
            return;
        };
        let now = Instant::now();
        let Some(done) = done else {
            return self
                .endpoints
                .finished(&endpoint, lane, Duration::ZERO, true, None, now);
        };
        let busy = matches!(done.answer.status, Some(429 | 503));
        let asked = self
            .plan
            .asked_pause(&done.answer, self.ports.store.now())
            .filter(|_| busy);
        let failed = !matches!(done.answer.status, Some(200..=299));
        self.endpoints
            .finished(&endpoint, lane, done.took, failed, asked, now);
        if self.finished.is_empty() {
            self.record_at = now + RECORD_LINGER;
        }
        let finished = self.conclude(done);
        self.finished.push(finished);
    }

    /// Completes what is under way and gives back what has not begun.
    async fn wind_down(mut self) {
        self.unbegun.extend(
            self.endpoints
                .drain_queued()
                .into_iter()
                .map(|claimed| claimed.delivery),
        );
        while let Some(done) = self.requests.join_next_with_id().await {
            self.done(done);
        }
        self.record().await;
    }
}
