//! Publishing: executions leave for their workers in messages of many, pipelined, and again until the broker has them.

use isocost_common::{
    broker::{Broker, Message, Publication, PublishOutcome, topology::Names},
    execution::Claim,
    id::{IncarnationId, WorkerId},
    message::{CallbackTicket, ControlAction, ControlMessage, DispatchMessage, DispatchedExecution, kind},
};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};
use tokio::{
    task::{JoinError, JoinSet},
    time::Instant,
};
use tracing::{debug, warn};

/// Executions in one message.
const MOST_EXECUTIONS: usize = 64;
/// Bytes of params in one message, unless a single execution has more.
const MOST_BYTES: usize = 256 * 1024;
/// Publishing calls under way before placing waits.
const MOST_CALLS: usize = 64;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// An execution on its way to its worker.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) worker: WorkerId,
    pub(crate) incarnation: IncarnationId,
    pub(crate) execution: DispatchedExecution,
}

/// A message that the broker has not confirmed yet.
#[derive(Debug)]
struct Letter {
    publication: Publication,
    claims: Vec<Claim>,
    tries: u32,
    /// When it is published again; none while a call is under way.
    again_at: Option<Instant>,
}

/// What became of the executions of a letter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub(crate) claims: Vec<Claim>,
}

/// The in-flight table: what was committed as dispatched and is not confirmed by the broker.
pub(crate) struct Publisher {
    broker: Arc<dyn Broker>,
    names: Names,
    letters: HashMap<u64, Letter>,
    next_letter: u64,
    calls: JoinSet<Vec<(Option<u64>, PublishOutcome)>>,
}

impl Publisher {
    pub(crate) fn new(broker: Arc<dyn Broker>, names: Names) -> Self {
        Self {
            broker,
            names,
            letters: HashMap::new(),
            next_letter: 0,
            calls: JoinSet::new(),
        }
    }

    /// True while so much is under way that nothing more should be placed.
    pub(crate) fn is_congested(&self) -> bool {
        self.calls.len() >= MOST_CALLS
    }

    /// Sends executions to their workers.
    pub(crate) fn dispatch(&mut self, parcels: Vec<Parcel>) {
        // By worker and priority: the queue orders whole messages.
        let mut groups: BTreeMap<(WorkerId, IncarnationId, u8), Vec<DispatchedExecution>> = BTreeMap::new();
        for parcel in parcels {
            groups
                .entry((parcel.worker, parcel.incarnation, parcel.execution.priority))
                .or_default()
                .push(parcel.execution);
        }
        let mut publications = Vec::new();
        for ((worker, incarnation, priority), executions) in groups {
            let queue = self.names.worker_queue(&worker, incarnation);
            for executions in split(executions) {
                let claims = executions.iter().map(|execution| execution.claim).collect();
                let mut message = Message::json(kind::DISPATCH, &DispatchMessage { executions });
                message.priority = priority;
                let publication = Publication {
                    exchange: self.names.dispatch_exchange(),
                    routing_key: queue.clone(),
                    mandatory: true,
                    message,
                };
                publications.push((Some(self.next_letter), publication.clone()));
                let letter = Letter {
                    publication,
                    claims,
                    tries: 1,
                    again_at: None,
                };
                self.letters.insert(self.next_letter, letter);
                self.next_letter += 1;
            }
        }
        self.call(publications);
    }

    /// Sends requests to one worker. Nothing is kept of them: whoever asks, asks again until it is served.
    pub(crate) fn control(
        &mut self,
        worker: &WorkerId,
        incarnation: IncarnationId,
        actions: &[ControlAction],
    ) {
        let publications = actions.chunks(MOST_EXECUTIONS).map(|actions| {
            let message = ControlMessage {
                actions: actions.to_vec(),
            };
            Publication {
                exchange: self.names.control_exchange(),
                routing_key: self.names.control_queue(worker, incarnation),
                mandatory: true,
                message: Message::json(kind::CONTROL, &message),
            }
        });
        let publications = publications.map(|publication| (None, publication)).collect();
        self.call(publications);
    }

    /// Sends something whose loss somebody else makes good.
    pub(crate) fn send(&mut self, publications: Vec<Publication>) {
        self.call(
            publications
                .into_iter()
                .map(|publication| (None, publication))
                .collect(),
        );
    }

    /// Sends the tickets of callbacks that are due; one that is lost is found by the relay's sweeper.
    pub(crate) fn send_tickets(&mut self, tickets: &[CallbackTicket]) {
        let publications = tickets.iter().map(|ticket| Publication {
            exchange: self.names.callbacks_exchange(),
            routing_key: self.names.first_callbacks_queue(),
            mandatory: true,
            message: Message::json(kind::CALLBACK, ticket),
        });
        let publications = publications.collect();
        self.send(publications);
    }

    /// Messages the broker has not confirmed.
    pub(crate) fn unconfirmed(&self) -> usize {
        self.letters.len()
    }

    fn call(&mut self, publications: Vec<(Option<u64>, Publication)>) {
        if publications.is_empty() {
            return;
        }
        let broker = Arc::clone(&self.broker);
        self.calls.spawn(async move {
            let (letters, publications): (Vec<_>, Vec<_>) = publications.into_iter().unzip();
            let outcomes = broker.publish(publications).await;
            letters.into_iter().zip(outcomes).collect()
        });
    }

    /// Waits for the end of a publishing call; for ever when none is under way. Cancel-safe.
    pub(crate) async fn next_outcome(&mut self, now: impl Fn() -> Instant) -> Vec<Delivered> {
        loop {
            match self.calls.join_next().await {
                Some(Ok(outcomes)) => return self.settle(outcomes, now()),
                Some(Err(failure)) => self.broken(&failure, now()),
                None => std::future::pending().await,
            }
        }
    }

    /// The calls that have ended by now.
    pub(crate) fn outcomes(&mut self, now: Instant) -> Vec<Delivered> {
        let mut delivered = Vec::new();
        while let Some(ended) = self.calls.try_join_next() {
            match ended {
                Ok(outcomes) => delivered.extend(self.settle(outcomes, now)),
                Err(failure) => self.broken(&failure, now),
            }
        }
        delivered
    }

    /// A call ended without a word, and nobody knows which: whatever waits for an answer is published again.
    fn broken(&mut self, failure: &JoinError, now: Instant) {
        warn!(%failure, "a publishing call broke");
        for letter in self.letters.values_mut() {
            letter.again_at.get_or_insert(now + FIRST_PAUSE);
        }
    }

    fn settle(&mut self, outcomes: Vec<(Option<u64>, PublishOutcome)>, now: Instant) -> Vec<Delivered> {
        let mut delivered = Vec::new();
        for (number, outcome) in outcomes {
            let Some(number) = number else { continue };
            match outcome {
                PublishOutcome::Confirmed | PublishOutcome::Returned => {
                    let Some(letter) = self.letters.remove(&number) else {
                        continue;
                    };
                    if outcome == PublishOutcome::Returned {
                        // That incarnation has no queue: its lease decides, and a query when it comes back.
                        debug!(queue = letter.publication.routing_key, "a dispatch was returned");
                        metrics::counter!("isocost_dispatches_returned_total").increment(1);
                    }
                    delivered.push(Delivered {
                        claims: letter.claims,
                    });
                }
                PublishOutcome::Nacked | PublishOutcome::Unknown => {
                    if let Some(letter) = self.letters.get_mut(&number) {
                        let pause = FIRST_PAUSE * 2_u32.saturating_pow(letter.tries - 1).min(64);
                        letter.again_at = Some(now + pause.min(LONGEST_PAUSE));
                    }
                }
            }
        }
        delivered
    }

    /// Publishes again, under the same number and the same `not_after`, what was not confirmed and whose pause is over;
    /// forgets what nobody owns any more.
    pub(crate) fn publish_again(&mut self, now: Instant, is_owned: impl Fn(Claim) -> bool) {
        let due: Vec<u64> = self
            .letters
            .iter()
            .filter(|(_, letter)| letter.again_at.is_some_and(|at| at <= now))
            .map(|(number, _)| *number)
            .collect();
        let mut publications = Vec::new();
        for number in due {
            let Some(letter) = self.letters.get_mut(&number) else {
                continue;
            };
            if letter.claims.iter().any(|claim| is_owned(*claim)) {
                letter.tries += 1;
                letter.again_at = None;
                publications.push((Some(number), letter.publication.clone()));
            } else {
                self.letters.remove(&number);
            }
        }
        self.call(publications);
    }

    /// Pauses that an outage let grow are over with it: what waits is published again at once.
    pub(crate) fn broker_is_back(&mut self, now: Instant) {
        for letter in self.letters.values_mut() {
            if letter.again_at.is_some() {
                letter.again_at = Some(now);
                letter.tries = 1;
            }
        }
    }

    /// The earliest instant at which something is published again.
    pub(crate) fn next_again(&self) -> Option<Instant> {
        self.letters.values().filter_map(|letter| letter.again_at).min()
    }

    /// Waits for the calls under way; what is not confirmed by then is published again by the next leader.
    pub(crate) async fn finish(&mut self) {
        while self.calls.join_next().await.is_some() {}
    }
}

fn split(executions: Vec<DispatchedExecution>) -> Vec<Vec<DispatchedExecution>> {
    let mut messages: Vec<Vec<DispatchedExecution>> = Vec::new();
    let mut bytes = MOST_BYTES;
    for execution in executions {
        let size = execution.params.as_str().len();
        match messages.last_mut() {
            Some(message) if message.len() < MOST_EXECUTIONS && bytes + size <= MOST_BYTES => {
                bytes += size;
                message.push(execution);
            }
            _ => {
                bytes = size;
                messages.push(vec![execution]);
            }
        }
    }
    messages
}
