//! Takes in what workers report: folds a batch, decides with the transition table, settles, commits, announces, and
//! only then acks. Reports that arrive twice change nothing, so a crash between any two of these steps is repaired by
//! the redelivery.
//!
//! The results queue has one active consumer at a time, so reports are taken in the order in which they were confirmed:
//! that is what *unknown* relies on. A report that cannot be taken in is given up alone, after everything that could, and
//! only when it is to blame itself ([`dead_letters`]); otherwise it waits, and with it everything after it.

mod dead_letters;
pub mod decide;
mod flush;
pub mod fold;
mod logs;
mod take;

pub use flush::all_taken_in;

use crate::subscription::{Subscription, declare, patient, pause};
use fold::Item;
use isocost_common::{
    Ports,
    broker::{Acker, BrokerError, Delivery, Message, Publication, PublishOutcome, Topology, topology::Names},
    config::Config,
    crash_point::{CrashPoint, reach},
    error_chain::chain,
    message::{ReportMessage, SettledMessage, Wake, kind},
    readiness::{Flag, Readiness},
    time::EpochMillis,
};
use metrics::{counter, gauge, histogram};
use std::{collections::BTreeMap, time::Duration};
use take::{Taken, take_in};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// Waited for more reports after the first: less than anybody notices, enough to share a commit.
const LINGER: Duration = Duration::from_millis(2);
const BACKLOG_EVERY: Duration = Duration::from_secs(5);
/// How long a newer dispatcher has to take over the queue of results.
const LEFT_TO_OTHERS: Duration = Duration::from_secs(5);
/// Reports that wait longer than this for the database are told of in the readiness.
const WORTH_TELLING: Duration = Duration::from_secs(3);

/// Why the intake could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A queue or exchange exists and is different.
    #[error("declaring the queues of the intake")]
    Declare(#[source] BrokerError),
}

/// Takes in results, log lines and progress until `shutdown`; the batch in hand is completed first.
///
/// # Errors
/// [`Error::Declare`] at start. Later failures are logged and tried again.
pub async fn run(config: Config, ports: Ports, shutdown: CancellationToken) -> Result<(), Error> {
    let ports = ports.recording_outcomes(config.broker.outcomes);
    let names = Names::new(&config.broker.namespace);
    let topology = names.shared_topology(&config.relay.delay_tiers());
    if !declare(ports.broker.as_ref(), &topology, &shutdown)
        .await
        .map_err(Error::Declare)?
    {
        return Ok(());
    }
    let intake = Intake {
        batch: usize::try_from(config.dispatcher.intake_batch).unwrap_or(1_000),
        names,
        topology,
        taking_in: told_of_in(&ports.readiness),
        ports,
        shutdown,
    };
    tokio::join!(intake.results(), logs::run(&intake), intake.watch_backlog());
    Ok(())
}

/// A process whose intake waits for the database is not ready.
fn told_of_in(readiness: &Readiness) -> Flag {
    let taking_in = readiness.flag("results", "not taken in yet");
    taking_in.met();
    taking_in
}

struct Intake {
    batch: usize,
    names: Names,
    topology: Topology,
    /// Whether the database takes reports.
    taking_in: Flag,
    ports: Ports,
    shutdown: CancellationToken,
}

/// The process shuts down while the database is away: what is unacked comes again.
struct Interrupted;

type Pauses = Box<dyn Iterator<Item = Duration> + Send>;

impl Intake {
    fn subscribe(&self, queue: String) -> Subscription {
        // Twice a batch, so that the next one is here when this one is committed.
        let prefetch = u16::try_from(self.batch * 2).unwrap_or(u16::MAX);
        let (broker, topology) = (self.ports.broker.clone(), self.topology.clone());
        Subscription::new(broker, topology, queue, prefetch, self.shutdown.clone())
    }

    async fn results(&self) {
        let mut subscription = self
            .subscribe(self.names.results_queue())
            .needed(&self.ports.readiness, "results queue");
        while let Some((deliveries, acker)) = subscription.next(self.batch, LINGER).await {
            let (markers, deliveries) = without_markers(deliveries);
            let (messages, newer) = self.read(&deliveries, acker.as_ref()).await;
            for part in cut(&messages, self.batch) {
                if self.take_in_part(part, acker.as_ref()).await.is_err() {
                    return;
                }
            }
            match newer {
                // Markers speak for everything before them, so they go back as well.
                Some(why) => subscription.step_aside(&why, LEFT_TO_OTHERS).await,
                None => self.pass_on(markers, acker.as_ref()).await,
            }
        }
    }

    /// Tells whoever sent these markers that everything before them is taken in. One that is lost here is sent again.
    async fn pass_on(&self, markers: Vec<Delivery>, acker: &dyn Acker) {
        let tags: Vec<_> = markers.iter().map(|marker| marker.tag).collect();
        let publications: Vec<_> = markers
            .into_iter()
            .map(|marker| publication(self.names.settled_exchange(), String::new(), marker.message))
            .collect();
        if !publications.is_empty() {
            self.ports.broker.publish(publications).await;
            acker.ack(&tags).await;
        }
    }

    /// Reads the messages; one that makes no sense goes to the dead letters at once. One that only a newer program can
    /// read is kept for such a program, unacked, with everything after it: reports are taken in in order. Then it is also
    /// said why to step aside.
    async fn read<'a>(
        &self,
        deliveries: &'a [Delivery],
        acker: &dyn Acker,
    ) -> (Vec<(&'a Delivery, ReportMessage)>, Option<String>) {
        let mut messages = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            match delivery.message.parse() {
                Ok(message) => messages.push((delivery, message)),
                Err(newer) if newer.is_newer() => {
                    let why = format!("a report waits for a newer version of this program: {newer}");
                    return (messages, Some(why));
                }
                Err(cause) => {
                    let why = format!("it cannot be read: {cause}");
                    self.bury(delivery, &why, acker).await;
                }
            }
        }
        (messages, None)
    }

    async fn bury(&self, delivery: &Delivery, why: &str, acker: &dyn Acker) {
        dead_letters::bury(self.ports.broker.as_ref(), &self.names, delivery, why, acker).await;
    }

    /// Takes in whole messages and acks them; what is to be given up goes to the dead letters.
    async fn take_in_part(
        &self,
        part: &[(&Delivery, ReportMessage)],
        acker: &dyn Acker,
    ) -> Result<(), Interrupted> {
        let items = items(part);
        histogram!("isocost_intake_batch_reports").record(items.len() as f64);
        let given_up = self.take_in_all(&items).await?;
        let mut done = Vec::with_capacity(part.len());
        for (index, (delivery, _)) in part.iter().enumerate() {
            match given_up.get(&index) {
                Some(why) => self.bury(delivery, why, acker).await,
                None => done.push(delivery.tag),
            }
        }
        reach(CrashPoint::IntakeAnnounced);
        acker.ack(&done).await;
        Ok(())
    }

    /// Takes in all items in order, halving whatever fails until the failing one stands alone. That one is given up when
    /// it is to blame itself, and else tried until it goes. Returns the messages with given up items, and why.
    async fn take_in_all(&self, items: &[Item]) -> Result<BTreeMap<usize, String>, Interrupted> {
        let mut given_up = BTreeMap::new();
        let mut parts = vec![items];
        let mut pauses: Pauses = Box::new(patient());
        let mut failing_since = None;
        while let Some(part) = parts.pop() {
            let failure = match take_in(&self.ports.store, part).await {
                Ok(taken) => {
                    reach(CrashPoint::IntakeCommitted);
                    self.taking_in.met();
                    (pauses, failing_since) = (Box::new(patient()), None);
                    self.announce(taken).await;
                    continue;
                }
                Err(failure) => failure,
            };
            let cause = chain(&failure).to_string();
            if part.len() > 1 && !failure.is_transient() {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
                continue;
            }
            if failure.is_fault_of_the_rows() && self.note(&part[0], &cause).await {
                given_up.insert(part[0].delivery, cause);
                continue;
            }
            warn!(reports = part.len(), error = cause, "taking in reports again");
            if failing_since.get_or_insert_with(Instant::now).elapsed() >= WORTH_TELLING {
                self.taking_in.missing(&format!("reports wait: {cause}"));
            }
            parts.push(part);
            if !pause(&self.shutdown, pauses.next().unwrap_or_default()).await {
                return Err(Interrupted);
            }
        }
        Ok(given_up)
    }

    /// Notes on the execution that a report is given up. False when not even that could be written: then the database
    /// takes nothing at all, and the report is not to blame.
    async fn note(&self, item: &Item, cause: &str) -> bool {
        let noted = dead_letters::note(&self.ports.store, item, cause).await;
        if let Err(probe) = &noted {
            warn!(error = %chain(probe), "the database takes nothing in");
        }
        noted.is_ok()
    }

    /// Tells the leader what changed and the relay what to deliver. Best effort: the leader reloads from the database,
    /// and the sweeper finds deliveries without a ticket.
    async fn announce(&self, taken: Taken) {
        record(&taken);
        let mut publications = Vec::with_capacity(taken.applied.callbacks.len() + 2);
        if !taken.settled.is_empty() {
            let settled = SettledMessage {
                settled: taken.settled,
            };
            publications.push(publication(
                self.names.settled_exchange(),
                String::new(),
                Message::json(kind::SETTLED, &settled),
            ));
        }
        if let Some(due) = taken.applied.due {
            publications.push(publication(
                self.names.wake_exchange(),
                String::new(),
                Message::json(kind::WAKE, &Wake { due, orders: false }),
            ));
        }
        publications.extend(taken.applied.callbacks.iter().map(|ticket| {
            publication(
                self.names.callbacks_exchange(),
                self.names.first_callbacks_queue(),
                Message::json(kind::CALLBACK, ticket),
            )
        }));
        if publications.is_empty() {
            return;
        }
        let outcomes = self.ports.broker.publish(publications).await;
        let lost = outcomes
            .iter()
            .filter(|outcome| **outcome != PublishOutcome::Confirmed)
            .count();
        if lost > 0 {
            debug!(lost, "announcements were not confirmed");
        }
    }

    async fn watch_backlog(&self) {
        while pause(&self.shutdown, BACKLOG_EVERY).await {
            if let Ok(Some(state)) = self.ports.broker.inspect(&self.names.results_queue()).await {
                gauge!("isocost_intake_backlog_messages").set(state.messages as f64);
            }
        }
    }
}

fn publication(exchange: String, routing_key: String, message: Message) -> Publication {
    Publication {
        exchange,
        routing_key,
        // A fanout without listeners is nothing to report.
        mandatory: false,
        message,
    }
}

fn without_markers(deliveries: Vec<Delivery>) -> (Vec<Delivery>, Vec<Delivery>) {
    deliveries
        .into_iter()
        .partition(|delivery| delivery.message.kind == kind::MARKER)
}

/// Cuts messages into parts of about `limit` reports; a message is never split.
fn cut<'a, 'd>(
    messages: &'a [(&'d Delivery, ReportMessage)],
    limit: usize,
) -> Vec<&'a [(&'d Delivery, ReportMessage)]> {
    let mut parts = Vec::new();
    let (mut start, mut reports) = (0, 0);
    for (index, (_, message)) in messages.iter().enumerate() {
        if index > start && reports + message.reports.len() > limit {
            parts.push(&messages[start..index]);
            (start, reports) = (index, 0);
        }
        reports += message.reports.len();
    }
    if start < messages.len() {
        parts.push(&messages[start..]);
    }
    parts
}

fn items(part: &[(&Delivery, ReportMessage)]) -> Vec<Item> {
    part.iter()
        .enumerate()
        .flat_map(|(delivery, (_, message))| {
            message.reports.iter().map(move |report| Item {
                delivery,
                incarnation: message.incarnation,
                claim: report.claim,
                event: report.event.clone(),
            })
        })
        .collect()
}

fn record(taken: &Taken) {
    counter!("isocost_reports_stale_total").increment(taken.stale as u64);
    for run in &taken.runs {
        if let Some(ms) = run.settled.cost_ms {
            histogram!("isocost_execution_run_seconds").record(seconds(ms));
        }
        if let Some(ms) = run.end_to_end_ms {
            histogram!("isocost_execution_end_to_end_seconds").record(seconds(ms));
        } else {
            counter!("isocost_execution_retries_total").increment(1);
        }
    }
}

fn seconds(ms: i64) -> f64 {
    EpochMillis(ms).since(EpochMillis(0)).as_secs_f64()
}
