//! Publishing: executions leave for their workers in messages of many, pipelined, and again until the broker has them.

use crate::in_flight::{Delivered, InFlight};
use isocost_common::{
    broker::{Broker, Message, Publication, PublishOutcome, topology::Names},
    crash_point::{CrashPoint, reach},
    execution::Claim,
    id::{IncarnationId, WorkerId},
    message::{CallbackTicket, ControlAction, ControlMessage, DispatchMessage, DispatchedExecution, kind},
};
use std::{collections::BTreeMap, sync::Arc};
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

/// An execution on its way to its worker.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) worker: WorkerId,
    pub(crate) incarnation: IncarnationId,
    pub(crate) execution: DispatchedExecution,
}

/// Publishes without waiting, and keeps what the broker has not confirmed.
pub(crate) struct Publisher {
    broker: Arc<dyn Broker>,
    names: Names,
    in_flight: InFlight<Publication>,
    calls: JoinSet<Vec<(Option<u64>, PublishOutcome)>>,
}

impl Publisher {
    pub(crate) fn new(broker: Arc<dyn Broker>, names: Names) -> Self {
        Self {
            broker,
            names,
            in_flight: InFlight::default(),
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
                let number = self.in_flight.add(publication.clone(), claims);
                publications.push((Some(number), publication));
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
        self.in_flight.len()
    }

    fn call(&mut self, publications: Vec<(Option<u64>, Publication)>) {
        if publications.is_empty() {
            return;
        }
        let broker = Arc::clone(&self.broker);
        self.calls.spawn(async move {
            let (letters, publications): (Vec<Option<u64>>, Vec<_>) = publications.into_iter().unzip();
            let dispatches = letters.iter().any(Option::is_some);
            if dispatches {
                reach(CrashPoint::PublishUnsent);
            }
            let outcomes = broker.publish(publications).await;
            if dispatches {
                reach(CrashPoint::PublishConfirmed);
            }
            letters.into_iter().zip(outcomes).collect()
        });
    }

    /// Waits for the end of a publishing call; for ever when none is under way. Cancel-safe.
    pub(crate) async fn next_outcome(&mut self, now: impl Fn() -> Instant) -> Vec<Delivered<Publication>> {
        loop {
            match self.calls.join_next().await {
                Some(Ok(outcomes)) => return self.settle(outcomes, now()),
                Some(Err(failure)) => self.broken(&failure, now()),
                None => std::future::pending().await,
            }
        }
    }

    /// The calls that have ended by now.
    pub(crate) fn outcomes(&mut self, now: Instant) -> Vec<Delivered<Publication>> {
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
        self.in_flight.in_doubt(now);
    }

    fn settle(
        &mut self,
        outcomes: Vec<(Option<u64>, PublishOutcome)>,
        now: Instant,
    ) -> Vec<Delivered<Publication>> {
        let mut delivered = Vec::new();
        for (number, outcome) in outcomes {
            let Some(number) = number else { continue };
            let Some(letter) = self.in_flight.on_outcome(number, outcome, now) else {
                continue;
            };
            if letter.returned {
                debug!(queue = letter.message.routing_key, "a dispatch was returned");
                metrics::counter!("isocost_dispatches_returned_total").increment(1);
            }
            delivered.push(letter);
        }
        delivered
    }

    /// Publishes again, under the same number and the same `not_after`, what was not confirmed and whose pause is over;
    /// forgets what nobody owns any more.
    pub(crate) fn publish_again(&mut self, now: Instant, is_owned: impl Fn(Claim) -> bool) {
        let again = self.in_flight.due_again(now, is_owned);
        self.call(
            again
                .into_iter()
                .map(|(number, publication)| (Some(number), publication))
                .collect(),
        );
    }

    /// Pauses that an outage let grow are over with it: what waits is published again at once.
    pub(crate) fn broker_is_back(&mut self, now: Instant) {
        self.in_flight.broker_is_back(now);
    }

    /// The earliest instant at which something is published again.
    pub(crate) fn next_again(&self) -> Option<Instant> {
        self.in_flight.next_again()
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
