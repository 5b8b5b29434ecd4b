//! Jobs submitted over AMQP: the body, the checks and the commit are those of `POST /openapi/jobs`.
//!
//! A message is acked when its job is durable and its answer, if one was asked for, has left; or when it can never be
//! accepted and lies in the dead letters with the reason. Until then it is kept, unacked: while the database is away,
//! while its app is over a limit, while an answer is not confirmed. So a crash at any moment brings it again, and its
//! client request id makes sure that it is one job.

mod held;
mod letter;
mod sender;

use crate::{
    access::over_quota,
    input::JsonBody,
    jobs::{KeyBeside, Prepared, store},
    problem::{Kind, Problem},
    state::ApiState,
};
use futures_util::FutureExt;
use held::{Arrived, Held, Letters};
use isocost_common::{
    broker::{
        PublishOutcome,
        subscription::{Subscription, patient, pause},
        topology::Names,
    },
    crash_point::{CrashPoint, reach},
    store::apps::App,
    trace_parent::TRACEPARENT,
};
use letter::{Verdict, answer_to, dead_letter, header_of};
use metrics::{counter, gauge};
use std::{collections::HashMap, panic::AssertUnwindSafe, time::Duration};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

/// Messages taken in together; they share a commit.
const BATCH: usize = 500;
/// Unacked messages of this process: a batch in hand and the next one, or what is held.
const WINDOW: usize = 2 * BATCH;
/// Waited for more messages after the first, which nobody notices and which fills batches.
const LINGER: Duration = Duration::from_millis(2);
/// When a message is tried again whose app is over a limit, or that failed for a reason inside.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
const BACKLOG_EVERY: Duration = Duration::from_secs(5);

/// Takes submissions in until `shutdown`; the batch in hand is completed first.
pub(crate) async fn run(state: ApiState, shutdown: CancellationToken) {
    let names = Names::new(&state.config().broker.namespace);
    let broker = state.ports().broker.clone();
    let queue = names.submissions_queue();
    info!(queue, "submissions over AMQP are taken in");
    let (sender, batches) = mpsc::channel(1);
    let topology = names.shared_topology(&state.config().relay.delay_tiers());
    let subscription = Subscription::new(broker, topology, queue, WINDOW as u16, shutdown.clone())
        .shown_by(state.submissions().clone());
    let intake = Intake {
        names,
        shutdown: shutdown.clone(),
        held: Vec::new(),
        pauses: Box::new(patient()),
        resume_at: Instant::now(),
        accepted: 0,
        state,
    };
    tokio::join!(
        feed(subscription, sender),
        watch_backlog(intake.names.submissions_queue(), intake.state.clone(), &shutdown),
        intake.run(batches)
    );
}

/// Reads on its own, because a wait for a batch must not be dropped in the middle.
async fn feed(mut subscription: Subscription, sender: mpsc::Sender<Vec<Arrived>>) {
    while let Some((deliveries, acker)) = subscription.next(BATCH, LINGER).await {
        let batch = deliveries.into_iter().map(|delivery| Arrived {
            delivery,
            acker: acker.clone(),
            failed: None,
        });
        if sender.send(batch.collect()).await.is_err() {
            return;
        }
    }
}

async fn watch_backlog(queue: String, state: ApiState, shutdown: &CancellationToken) {
    while pause(shutdown, BACKLOG_EVERY).await {
        if let Ok(Some(seen)) = state.ports().broker.inspect(&queue).await {
            gauge!("isocost_submissions_backlog_messages").set(seen.messages as f64);
        }
    }
}

struct Intake {
    state: ApiState,
    names: Names,
    shutdown: CancellationToken,
    /// What cannot be finished yet, unacked.
    held: Vec<(Instant, Held)>,
    /// Pauses of the outage under way, or of the next one.
    pauses: Box<dyn Iterator<Item = Duration> + Send + Sync>,
    /// Nothing new is taken before.
    resume_at: Instant,
    /// Submissions accepted so far.
    accepted: u64,
}

impl Intake {
    async fn run(mut self, mut batches: mpsc::Receiver<Vec<Arrived>>) {
        let shutdown = self.shutdown.clone();
        loop {
            gauge!("isocost_submissions_held_messages").set(self.held.len() as f64);
            self.take_up_held().await;
            let next = self.held.iter().map(|(at, _)| *at).min();
            let has_room = self.held.len() < WINDOW && self.resume_at <= Instant::now();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
                batch = batches.recv(), if has_room => match batch {
                    Some(batch) => self.take(batch).await,
                    None => return,
                },
            }
        }
    }

    /// Tries again what is due of the held messages.
    async fn take_up_held(&mut self) {
        let now = Instant::now();
        let (due, later): (Vec<_>, Vec<_>) = self.held.drain(..).partition(|(at, _)| *at <= now);
        self.held = later;
        let (mut again, mut unsent) = (Vec::new(), Vec::new());
        for (_, held) in due {
            match held {
                Held::Submission(arrived) => again.push(*arrived),
                Held::Letters(letters) => unsent.push(letters),
            }
        }
        if !unsent.is_empty() {
            self.send(unsent).await;
        }
        for batch in again.chunks(BATCH) {
            self.take(batch.to_vec()).await;
        }
    }

    /// Judges messages, stores the jobs of those that are in order, answers, acks.
    async fn take(&mut self, batch: Vec<Arrived>) {
        let arrival = self.state.submitter().announce();
        let mut verdicts: Vec<Option<Verdict>> = Vec::with_capacity(batch.len());
        let (mut prepared, mut places) = (Vec::new(), Vec::new());
        for (place, outcome) in self.judge(&batch).await.into_iter().enumerate() {
            match outcome {
                Ok(job) => {
                    prepared.push(job);
                    places.push(place);
                    verdicts.push(None);
                }
                Err(problem) => verdicts.push(Some(Err(problem))),
            }
        }
        if !prepared.is_empty() {
            let count = prepared.len();
            let stored = match store(&self.state, prepared, arrival).await {
                Ok(stored) => stored,
                Err(problem) => vec![Err(problem); count],
            };
            reach(CrashPoint::AmqpStored);
            for (place, outcome) in places.into_iter().zip(stored) {
                verdicts[place] = Some(outcome);
            }
        }
        let judged = batch.into_iter().zip(verdicts);
        self.settle(judged.filter_map(|(arrived, verdict)| Some((arrived, verdict?))))
            .await;
    }

    /// What stands against each message before the database is asked. Messages of one app count together.
    async fn judge(&self, batch: &[Arrived]) -> Vec<Result<Prepared, Problem>> {
        let mut judged = Vec::with_capacity(batch.len());
        let mut wanted: HashMap<_, (App, usize)> = HashMap::new();
        for arrived in batch {
            // A message that brings the checks down must not take the others along.
            let outcome = AssertUnwindSafe(self.read(arrived)).catch_unwind().await;
            let outcome = outcome.unwrap_or_else(|_| {
                error!(
                    message.id = arrived.delivery.message.message_id,
                    "checking a submission panicked"
                );
                Err(Problem::internal())
            });
            if let Ok((app, _)) = &outcome {
                wanted.entry(app.id).or_insert_with(|| (app.clone(), 0)).1 += 1;
            }
            judged.push(outcome);
        }
        let mut granted = HashMap::new();
        for (id, (app, count)) in wanted {
            let room = self.state.quotas().take(self.state.store(), &app, count).await;
            granted.insert(id, room.map_err(Problem::from));
        }
        let mut grant = |(app, job): (App, Prepared)| match granted.get_mut(&app.id) {
            Some(Ok(0)) | None => Err(over_quota(&app)),
            Some(Ok(room)) => {
                *room -= 1;
                Ok(job)
            }
            Some(Err(problem)) => Err(problem.clone()),
        };
        judged
            .into_iter()
            .map(|outcome| outcome.and_then(&mut grant))
            .collect()
    }

    async fn read(&self, arrived: &Arrived) -> Result<(App, Prepared), Problem> {
        let message = &arrived.delivery.message;
        if let Some(queue) = &message.reply_to
            && self.names.owns(queue)
        {
            return Err(Problem::new(
                Kind::InvalidRequest,
                "reply-to.reserved",
                "reply_to must not name a queue of the scheduler itself; use a queue of your own",
            ));
        }
        let app = sender::app_of(&self.state, message).await?;
        let body = JsonBody::of_message(message, &self.state)?;
        let beside = KeyBeside::MessageId(message.message_id.clone());
        let trace = header_of(message, TRACEPARENT).and_then(|text| text.trim().parse().ok());
        let prepared = Prepared::read(&self.state, app.id, body.required()?, beside)
            .await?
            .traced(trace);
        // Counted last: what is refused for ever uses up nothing.
        self.state
            .rates()
            .take(app.id, app.rate_limit_per_second)
            .permitted()?;
        Ok((app, prepared))
    }

    /// Holds what may succeed later, and finishes the rest.
    async fn settle(&mut self, judged: impl Iterator<Item = (Arrived, Verdict)>) {
        let mut letters = Vec::new();
        let mut outage = false;
        for (mut arrived, verdict) in judged {
            let again = match verdict.as_ref().map_err(Problem::kind) {
                Ok(_) => {
                    self.accepted += 1;
                    None
                }
                Err(Kind::Unavailable) => {
                    outage = true;
                    Some(Instant::now())
                }
                Err(Kind::TooManyRequests) => Some(Instant::now() + AGAIN_AFTER),
                Err(Kind::Internal) if !arrived.is_to_blame(self.accepted) => {
                    Some(Instant::now() + AGAIN_AFTER)
                }
                Err(_) => None,
            };
            match again {
                Some(at) => self.held.push((at, Held::Submission(Box::new(arrived)))),
                None => letters.push(self.finish(arrived, &verdict)),
            }
        }
        self.pace(outage);
        self.send(letters).await;
    }

    /// After an outage nothing is tried for a while, and longer each time.
    fn pace(&mut self, outage: bool) {
        if !outage {
            self.pauses = Box::new(patient());
            return;
        }
        let pause = self.pauses.next().unwrap_or_default();
        warn!(
            held = self.held.len(),
            pause_ms = pause.as_millis(),
            "submissions wait: nothing can be made durable now"
        );
        self.resume_at = Instant::now() + pause;
        for (at, _) in &mut self.held {
            *at = (*at).max(self.resume_at);
        }
    }

    /// The letters that have to leave before this message is acked.
    fn finish(&self, arrived: Arrived, verdict: &Verdict) -> Letters {
        let message = &arrived.delivery.message;
        let outcome = match verdict {
            Ok(submitted) if submitted.replayed => "replayed",
            Ok(_) => "accepted",
            Err(problem) => {
                warn!(message.id = message.message_id, %problem, "a submission goes to the dead letters");
                "dead"
            }
        };
        counter!("isocost_submissions_total", "outcome" => outcome).increment(1);
        let dead = verdict
            .as_ref()
            .err()
            .map(|problem| dead_letter(&self.names, message, problem));
        let answer = answer_to(&self.names, message, verdict);
        Letters {
            unsent: dead.into_iter().chain(answer).collect(),
            tag: arrived.delivery.tag,
            acker: arrived.acker,
        }
    }

    /// Sends letters all together and acks what all of whose letters have left.
    async fn send(&mut self, mut letters: Vec<Letters>) {
        let publications = letters.iter_mut().flat_map(|letters| letters.unsent.clone());
        let publications: Vec<_> = publications.collect();
        if !publications.is_empty() {
            let mut outcomes = self.state.ports().broker.publish(publications).await.into_iter();
            let mut lost_queue = false;
            for letters in &mut letters {
                letters.unsent.retain(|letter| {
                    let outcome = outcomes.next().unwrap_or(PublishOutcome::Unknown);
                    let is_answer = letter.routing_key != self.names.dead_submissions_queue();
                    match outcome {
                        PublishOutcome::Confirmed => return false,
                        PublishOutcome::Returned | PublishOutcome::Nacked if is_answer => {
                            debug!(queue = letter.routing_key, ?outcome, "nobody takes the answer");
                            return false;
                        }
                        PublishOutcome::Returned => lost_queue = true,
                        PublishOutcome::Nacked | PublishOutcome::Unknown => {}
                    }
                    true
                });
            }
            if lost_queue {
                self.restore_queues().await;
            }
        }
        let (done, kept): (Vec<_>, Vec<_>) =
            letters.into_iter().partition(|letters| letters.unsent.is_empty());
        reach(CrashPoint::AmqpAnswered);
        held::ack(&done).await;
        if !kept.is_empty() {
            warn!(letters = kept.len(), "answers and dead letters are sent again");
            let again = Instant::now() + AGAIN_AFTER;
            self.held
                .extend(kept.into_iter().map(|letters| (again, Held::Letters(letters))));
        }
    }

    /// Somebody deleted the queue of dead letters.
    async fn restore_queues(&self) {
        let topology = self
            .names
            .shared_topology(&self.state.config().relay.delay_tiers());
        if let Err(failure) = self.state.ports().broker.declare(&topology).await {
            warn!(%failure, "the queue of dead submissions is missing and cannot be declared");
        }
    }
}
