//! Who may be posted to now: at most so many requests at once to an endpoint, two lanes with room of their own, and the
//! rest left in the table. No I/O and no clock of its own.
//!
//! A delivery is claimed only when its endpoint has room. While an endpoint answers fast, some more are claimed ahead,
//! so that one receiver can be served at full speed; a slow one never has more than its requests under way. An endpoint
//! that has failed several times in a row gets one request at a time until one succeeds.

use isocost_common::store::callbacks::attempts::Waiting;
use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::Duration,
};
use tokio::time::Instant;

/// Which of two queues a delivery goes through, so that a flood of retries never delays first attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Lane {
    /// First attempts.
    First,
    /// Everything after them.
    Retry,
}

impl Lane {
    pub(super) const BOTH: [Self; 2] = [Self::First, Self::Retry];

    /// The lane of the next attempt of a delivery.
    pub(super) fn of(delivery: &Waiting) -> Self {
        if delivery.attempt == delivery.retry_from {
            Self::First
        } else {
            Self::Retry
        }
    }
}

/// A delivery taken for one attempt.
#[derive(Debug, Clone)]
pub(super) struct Claimed {
    /// The row as it was before; this attempt has the next number.
    pub(super) delivery: Waiting,
    /// Live secrets of its app.
    pub(super) secrets: Vec<String>,
    /// Its lane.
    pub(super) lane: Lane,
    /// Not to be begun after this: the lease could run out in the middle.
    pub(super) begin_before: Instant,
}

/// Failures in a row after which an endpoint is only probed.
const BREAK_AFTER: u32 = 5;
/// Answers faster than this allow claiming ahead.
const FAST: Duration = Duration::from_millis(250);
/// Deliveries claimed ahead for each request that may be under way.
const AHEAD: usize = 16;
/// Longest time a `Retry-After` stops the other deliveries to an endpoint, which may serve many.
const MAX_BLOCK: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Endpoint {
    queued: [VecDeque<Claimed>; 2],
    running: usize,
    failures: u32,
    mean: Option<Duration>,
    blocked_until: Option<Instant>,
}

impl Endpoint {
    fn claimed(&self) -> usize {
        self.running + self.queued.iter().map(VecDeque::len).sum::<usize>()
    }

    fn is_blocked(&self, now: Instant) -> bool {
        self.blocked_until.is_some_and(|until| now < until)
    }

    fn at_once(&self, per_endpoint: usize) -> usize {
        if self.failures >= BREAK_AFTER {
            1
        } else {
            per_endpoint
        }
    }
}

/// All endpoints with something to do, or with a history that matters.
pub(super) struct Endpoints {
    per_endpoint: usize,
    lane_limits: [usize; 2],
    lane_running: [usize; 2],
    lane_claimed: [usize; 2],
    endpoints: HashMap<String, Endpoint>,
    /// Endpoints with something queued, in the order in which they take turns.
    turns: [VecDeque<String>; 2],
    /// Endpoints with due deliveries in the table, by lane.
    parked: [BTreeSet<String>; 2],
}

impl Endpoints {
    /// `in_flight` is shared between the lanes three to one.
    pub(super) fn new(per_endpoint: usize, in_flight: usize) -> Self {
        let retries = (in_flight / 4).max(1);
        Self {
            per_endpoint,
            lane_limits: [in_flight.saturating_sub(retries).max(1), retries],
            lane_running: [0, 0],
            lane_claimed: [0, 0],
            endpoints: HashMap::new(),
            turns: [VecDeque::new(), VecDeque::new()],
            parked: [BTreeSet::new(), BTreeSet::new()],
        }
    }

    /// How many more deliveries may be claimed in a lane, whatever their endpoint.
    pub(super) fn lane_room(&self, lane: Lane) -> usize {
        (2 * self.lane_limits[lane as usize]).saturating_sub(self.lane_claimed[lane as usize])
    }

    /// How many more deliveries to `endpoint` may be claimed.
    pub(super) fn room(&self, endpoint: &str, now: Instant) -> usize {
        let Some(endpoint) = self.endpoints.get(endpoint) else {
            return self.per_endpoint;
        };
        if endpoint.is_blocked(now) {
            return 0;
        }
        let at_once = endpoint.at_once(self.per_endpoint);
        let fast = endpoint.failures == 0 && endpoint.mean.is_some_and(|mean| mean < FAST);
        let depth = if fast { at_once * AHEAD } else { at_once };
        depth.saturating_sub(endpoint.claimed())
    }

    /// Queues a claimed delivery.
    pub(super) fn push(&mut self, claimed: Claimed) {
        let lane = claimed.lane as usize;
        let name = claimed.delivery.endpoint.clone();
        let endpoint = self.endpoints.entry(name.clone()).or_default();
        if endpoint.queued[lane].is_empty() {
            self.turns[lane].push_back(name);
        }
        endpoint.queued[lane].push_back(claimed);
        self.lane_claimed[lane] += 1;
    }

    /// The next delivery to post, if a lane has room and an endpoint has.
    pub(super) fn start_next(&mut self) -> Option<Claimed> {
        Lane::BOTH.into_iter().find_map(|lane| self.start_next_of(lane))
    }

    fn start_next_of(&mut self, lane: Lane) -> Option<Claimed> {
        let lane = lane as usize;
        if self.lane_running[lane] >= self.lane_limits[lane] {
            return None;
        }
        for _ in 0..self.turns[lane].len() {
            let name = self.turns[lane].pop_front()?;
            let Some(endpoint) = self.endpoints.get_mut(&name) else {
                continue;
            };
            if endpoint.running >= endpoint.at_once(self.per_endpoint) {
                self.turns[lane].push_back(name);
                continue;
            }
            let claimed = endpoint.queued[lane].pop_front();
            if !endpoint.queued[lane].is_empty() {
                self.turns[lane].push_back(name);
            }
            if let Some(claimed) = claimed {
                endpoint.running += 1;
                self.lane_running[lane] += 1;
                return Some(claimed);
            }
        }
        None
    }

    /// A request is over. `failed` counts against the endpoint; `asked_pause` is what it asked for.
    pub(super) fn finished(
        &mut self,
        name: &str,
        lane: Lane,
        took: Duration,
        failed: bool,
        asked_pause: Option<Duration>,
        now: Instant,
    ) {
        let lane = lane as usize;
        self.lane_running[lane] = self.lane_running[lane].saturating_sub(1);
        self.lane_claimed[lane] = self.lane_claimed[lane].saturating_sub(1);
        let Some(endpoint) = self.endpoints.get_mut(name) else {
            return;
        };
        endpoint.running = endpoint.running.saturating_sub(1);
        endpoint.failures = if failed {
            endpoint.failures.saturating_add(1)
        } else {
            0
        };
        endpoint.mean = Some(endpoint.mean.map_or(took, |mean| (mean * 7 + took) / 8));
        if let Some(pause) = asked_pause {
            endpoint.blocked_until = Some(now + pause.min(MAX_BLOCK));
        }
    }

    /// Everything queued and not begun; for giving back at shutdown.
    pub(super) fn drain_queued(&mut self) -> Vec<Claimed> {
        let mut queued = Vec::new();
        for endpoint in self.endpoints.values_mut() {
            for lane in Lane::BOTH {
                let lane = lane as usize;
                self.lane_claimed[lane] -= endpoint.queued[lane].len();
                queued.extend(endpoint.queued[lane].drain(..));
            }
        }
        self.turns = [VecDeque::new(), VecDeque::new()];
        queued
    }

    /// Notes that the table holds due deliveries to this endpoint.
    pub(super) fn park(&mut self, endpoint: &str, lane: Lane) {
        let parked = &mut self.parked[lane as usize];
        if !parked.contains(endpoint) {
            parked.insert(endpoint.to_owned());
        }
    }

    /// Notes that the table holds none any more.
    pub(super) fn unpark(&mut self, endpoint: &str, lane: Lane) {
        self.parked[lane as usize].remove(endpoint);
    }

    /// Parked endpoints of a lane that have room, with how much; at most `limit`.
    pub(super) fn to_refill(&self, lane: Lane, limit: usize, now: Instant) -> Vec<(String, usize)> {
        let lane_room = self.lane_room(lane);
        if lane_room == 0 {
            return Vec::new();
        }
        self.parked[lane as usize]
            .iter()
            .filter_map(|name| {
                let room = self.room(name, now).min(lane_room);
                // One row more is worth a statement only when the endpoint would run dry.
                let dry = self
                    .endpoints
                    .get(name)
                    .is_none_or(|endpoint| endpoint.claimed() <= self.per_endpoint);
                (room > 0 && dry).then(|| (name.clone(), room))
            })
            .take(limit)
            .collect()
    }

    /// Forgets endpoints that have nothing to do and nothing to remember.
    pub(super) fn forget_idle(&mut self, now: Instant) {
        self.endpoints.retain(|name, endpoint| {
            endpoint.claimed() > 0
                || (endpoint.failures > 0 && self.parked.iter().any(|parked| parked.contains(name)))
                || endpoint.is_blocked(now)
        });
    }

    /// Requests under way.
    pub(super) fn running(&self) -> usize {
        self.lane_running.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isocost_common::{
        id::{AppId, DeliveryId, ExecutionId, JobId},
        time::EpochMillis,
    };

    const SOON: Duration = Duration::from_millis(5);

    fn claimed(endpoint: &str, lane: Lane) -> Claimed {
        Claimed {
            delivery: Waiting {
                id: DeliveryId::generate(),
                app: AppId::generate(),
                job: JobId::generate(),
                execution: ExecutionId::generate(),
                url: format!("{endpoint}/hook"),
                endpoint: endpoint.into(),
                body: String::new(),
                traceparent: None,
                attempt: 0,
                retry_from: 0,
                next_attempt_at: EpochMillis(0),
                created_at: EpochMillis(0),
                expires_at: EpochMillis(0),
            },
            secrets: Vec::new(),
            lane,
            begin_before: Instant::now(),
        }
    }

    fn started(endpoints: &mut Endpoints) -> Vec<String> {
        std::iter::from_fn(|| endpoints.start_next())
            .map(|claimed| claimed.delivery.endpoint)
            .collect()
    }

    #[test]
    fn wh03_an_endpoint_gets_its_share_and_no_more() {
        let mut endpoints = Endpoints::new(4, 256);
        for _ in 0..10 {
            endpoints.push(claimed("http://slow", Lane::First));
        }
        endpoints.push(claimed("http://other", Lane::First));
        let running = started(&mut endpoints);
        assert_eq!(running.iter().filter(|name| *name == "http://slow").count(), 4);
        assert!(running.contains(&"http://other".to_owned()));
        assert_eq!(endpoints.room("http://slow", Instant::now()), 0);
    }

    #[test]
    fn only_a_fast_endpoint_is_claimed_ahead_for() {
        let mut endpoints = Endpoints::new(4, 256);
        let now = Instant::now();
        assert_eq!(endpoints.room("http://a", now), 4);
        endpoints.push(claimed("http://a", Lane::First));
        started(&mut endpoints);
        assert_eq!(endpoints.room("http://a", now), 3);
        endpoints.finished("http://a", Lane::First, SOON, false, None, now);
        assert_eq!(endpoints.room("http://a", now), 64);
        endpoints.push(claimed("http://a", Lane::First));
        started(&mut endpoints);
        endpoints.finished("http://a", Lane::First, Duration::from_secs(15), true, None, now);
        assert_eq!(endpoints.room("http://a", now), 4);
    }

    #[test]
    fn an_endpoint_that_keeps_failing_is_probed_with_one_request() {
        let mut endpoints = Endpoints::new(4, 256);
        let now = Instant::now();
        for _ in 0..BREAK_AFTER {
            endpoints.push(claimed("http://down", Lane::First));
            started(&mut endpoints);
            endpoints.finished("http://down", Lane::First, SOON, true, None, now);
        }
        assert_eq!(endpoints.room("http://down", now), 1);
        endpoints.push(claimed("http://down", Lane::Retry));
        started(&mut endpoints);
        endpoints.finished("http://down", Lane::Retry, SOON, false, None, now);
        assert!(endpoints.room("http://down", now) >= 4);
    }

    #[test]
    fn wh07_an_endpoint_that_asks_for_a_pause_gets_one() {
        let mut endpoints = Endpoints::new(4, 256);
        let now = Instant::now();
        endpoints.push(claimed("http://busy", Lane::First));
        started(&mut endpoints);
        let pause = Some(Duration::from_secs(30));
        endpoints.finished("http://busy", Lane::First, SOON, true, pause, now);
        endpoints.park("http://busy", Lane::Retry);
        assert!(endpoints.to_refill(Lane::Retry, 10, now).is_empty());
        let later = now + Duration::from_secs(31);
        let refilled = endpoints.to_refill(Lane::Retry, 10, later);
        assert_eq!(refilled, [("http://busy".to_owned(), 4)]);
        assert!(endpoints.to_refill(Lane::First, 10, later).is_empty());
    }

    #[test]
    fn a_flood_of_retries_leaves_first_attempts_their_room() {
        let mut endpoints = Endpoints::new(4, 8);
        for host in 0..20 {
            endpoints.push(claimed(&format!("http://retry-{host}"), Lane::Retry));
        }
        assert_eq!(started(&mut endpoints).len(), 2);
        endpoints.push(claimed("http://fresh", Lane::First));
        assert_eq!(started(&mut endpoints), ["http://fresh"]);
    }

    #[test]
    fn endpoints_take_turns() {
        let mut endpoints = Endpoints::new(1, 8);
        for _ in 0..3 {
            endpoints.push(claimed("http://a", Lane::First));
            endpoints.push(claimed("http://b", Lane::First));
        }
        let now = Instant::now();
        let mut order = Vec::new();
        for _ in 0..3 {
            for name in started(&mut endpoints) {
                endpoints.finished(&name, Lane::First, SOON, false, None, now);
                order.push(name);
            }
        }
        assert_eq!(order.len(), 6);
        assert_eq!(order.iter().filter(|name| *name == "http://a").count(), 3);
    }

    #[test]
    fn what_was_not_begun_can_be_given_back_whole() {
        let mut endpoints = Endpoints::new(1, 8);
        for _ in 0..3 {
            endpoints.push(claimed("http://a", Lane::First));
        }
        assert_eq!(started(&mut endpoints).len(), 1);
        assert_eq!(endpoints.drain_queued().len(), 2);
        assert_eq!(endpoints.start_next().map(|c| c.lane), None);
        assert_eq!(endpoints.running(), 1);
    }
}
