//! One channel that publishes: what waits for it, what is in flight on it, and what becomes of that.

use super::{
    control::Control,
    error::missing_exchange,
    link::{GRACE, Link, Session, Standing},
    message,
    returns::{Answer, Confirm, Returns},
};
use crate::broker::{Publication, PublishOutcome};
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use lapin::{
    Channel, Confirmation,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::ShortString,
};
use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tracing::{error, warn};

/// Publications in flight on one channel.
pub(super) const WINDOW: usize = 512;
/// Longest wait for the broker's answer, or for a place in the window while nothing moves.
pub(super) const PUBLISH_DEADLINE: Duration = Duration::from_secs(10);
/// So many given up and still unanswered, and the channel is replaced.
const MAX_ABANDONED: usize = WINDOW;
/// Pause before a channel that was closed is opened anew.
const REOPEN_PAUSE: Duration = Duration::from_millis(100);

/// One call of `publish`.
pub(super) struct Batch {
    pub(super) publications: Vec<Publication>,
    pub(super) answer: oneshot::Sender<Vec<PublishOutcome>>,
}

/// A batch that is not yet answered.
struct Open {
    outcomes: Vec<PublishOutcome>,
    unsettled: usize,
    answer: Option<oneshot::Sender<Vec<PublishOutcome>>>,
}

/// The part of a batch that was not yet sent.
struct Unsent {
    batch: u64,
    next: usize,
    publications: std::vec::IntoIter<Publication>,
    since: Instant,
}

/// A publication in flight whose outcome somebody waits for.
struct InFlight {
    batch: u64,
    index: usize,
    exchange: String,
    mandatory: bool,
    sent_at: Instant,
}

type Sending = BoxFuture<'static, (Answer, Option<lapin::Error>)>;

pub(super) struct Lane {
    link: Arc<Link>,
    /// Of the other connection: told what is missing.
    control: Arc<Control>,
    user: Arc<str>,
    batches: mpsc::Receiver<Batch>,
    /// Publications that were given to this lane and are not settled.
    load: Arc<AtomicUsize>,
    open: HashMap<u64, Open>,
    unsent: VecDeque<Unsent>,
    in_flight: HashMap<u64, InFlight>,
    /// Stamps in the order of sending, for the deadline.
    sent: VecDeque<(Instant, u64)>,
    last_stamp: u64,
    last_batch: u64,
    last_progress: Instant,
    counters: Counters,
}

impl Lane {
    pub(super) fn new(
        link: Arc<Link>,
        control: Arc<Control>,
        user: Arc<str>,
        batches: mpsc::Receiver<Batch>,
        load: Arc<AtomicUsize>,
    ) -> Self {
        Self {
            link,
            control,
            user,
            batches,
            load,
            open: HashMap::new(),
            unsent: VecDeque::new(),
            in_flight: HashMap::new(),
            sent: VecDeque::new(),
            last_stamp: 0,
            last_batch: 0,
            last_progress: Instant::now(),
            counters: Counters::new(),
        }
    }

    /// Publishes until its senders are gone or the link is closed for good.
    pub(super) async fn run(mut self) {
        let mut standing = self.link.standing();
        loop {
            let now = standing.borrow_and_update().clone();
            let gave_up_at = match now {
                Standing::Closed => return,
                Standing::Up(session) => match self.work(&session, &mut standing).await {
                    Worked::SendersGone => return,
                    // Its channel was closed, or it broke and the link has not noticed yet.
                    Worked::ChannelEnded => Instant::now() + PUBLISH_DEADLINE,
                },
                Standing::Down { since, .. } => since + GRACE,
            };
            let pause = tokio::time::sleep(REOPEN_PAUSE);
            tokio::pin!(pause);
            loop {
                if Instant::now() >= gave_up_at {
                    self.give_up_unsent(|_| true);
                }
                let up = matches!(*standing.borrow(), Standing::Up(_));
                tokio::select! {
                    changed = standing.changed() => match changed {
                        Ok(()) => break,
                        Err(_) => return,
                    },
                    () = &mut pause, if up => break,
                    batch = self.batches.recv() => match batch {
                        Some(batch) => self.take(batch),
                        None => return,
                    },
                    () = tokio::time::sleep_until(gave_up_at), if !self.unsent.is_empty() => {}
                }
            }
        }
    }

    /// Publishes over one channel until it ends. What was in flight is then unknown.
    async fn work(&mut self, session: &Session, standing: &mut watch::Receiver<Standing>) -> Worked {
        let opened = tokio::time::timeout(PUBLISH_DEADLINE, async {
            let channel = session.connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            lapin::Result::Ok(channel)
        });
        let Ok(Ok(channel)) = opened.await else {
            self.give_up_unsent(|unsent| unsent.since.elapsed() > PUBLISH_DEADLINE);
            return Worked::ChannelEnded;
        };
        let channel = Arc::new(channel);
        let mut blocked = session.blocked();
        let mut returns = Returns::default();
        let mut sendings = FuturesUnordered::new();
        let worked = loop {
            if !channel.status().connected() {
                break Worked::ChannelEnded;
            }
            if sendings.len() > self.in_flight.len() + MAX_ABANDONED {
                warn!(
                    "RabbitMQ leaves {} publications unanswered: their channel is replaced",
                    sendings.len()
                );
                break Worked::ChannelEnded;
            }
            if !*blocked.borrow_and_update() {
                self.fill(&channel, &mut sendings);
            }
            let deadline = self.next_deadline();
            tokio::select! {
                answered = answered(&mut sendings) => self.settle(&mut returns, answered, sendings.is_empty()),
                batch = self.batches.recv() => match batch {
                    Some(batch) => self.take(batch),
                    None => break Worked::SendersGone,
                },
                _ = blocked.changed() => {}
                // Whatever comes now, this session is over. Looked at again by the caller.
                _ = standing.changed() => {
                    standing.mark_changed();
                    break Worked::ChannelEnded;
                }
                () = tokio::time::sleep_until(deadline) => self.expire(),
            }
        };
        // Whoever had an answer on its way gets it.
        if let Some(answers) = answered(&mut sendings).now_or_never() {
            self.settle(&mut returns, answers, sendings.is_empty());
        }
        let lost: Vec<_> = self.in_flight.keys().copied().collect();
        for stamp in lost {
            self.settle_one(stamp, PublishOutcome::Unknown);
        }
        worked
    }

    /// Takes in a batch, and those that wait behind it.
    fn take(&mut self, batch: Batch) {
        let mut next = Some(batch);
        while let Some(Batch { publications, answer }) = next {
            self.last_batch += 1;
            let open = Open {
                outcomes: vec![PublishOutcome::Unknown; publications.len()],
                unsettled: publications.len(),
                answer: Some(answer),
            };
            self.open.insert(self.last_batch, open);
            self.unsent.push_back(Unsent {
                batch: self.last_batch,
                next: 0,
                publications: publications.into_iter(),
                since: Instant::now(),
            });
            next = self.batches.try_recv().ok();
        }
    }

    /// Sends what has room in the window.
    fn fill(&mut self, channel: &Arc<Channel>, sendings: &mut FuturesUnordered<Sending>) {
        let now = Instant::now();
        while self.in_flight.len() < WINDOW {
            let Some(unsent) = self.unsent.front_mut() else {
                return;
            };
            let Some(publication) = unsent.publications.next() else {
                self.unsent.pop_front();
                continue;
            };
            let (batch, index) = (unsent.batch, unsent.next);
            unsent.next += 1;
            if let Some(what) = message::too_long(&publication) {
                error!("a message with a {what} of more than 255 bytes cannot be published");
                self.settle_in(batch, index, PublishOutcome::Nacked);
                continue;
            }
            self.last_stamp += 1;
            let stamp = self.last_stamp;
            self.in_flight.insert(
                stamp,
                InFlight {
                    batch,
                    index,
                    exchange: publication.exchange.clone(),
                    mandatory: publication.mandatory,
                    sent_at: now,
                },
            );
            self.sent.push_back((now, stamp));
            self.last_progress = now;
            sendings.push(send(Arc::clone(channel), publication, stamp, Arc::clone(&self.user)).boxed());
        }
    }

    fn settle(&mut self, returns: &mut Returns, answered: Vec<(Answer, Option<lapin::Error>)>, idle: bool) {
        self.last_progress = Instant::now();
        let mut answers = Vec::with_capacity(answered.len());
        for (answer, error) in answered {
            answers.push(answer);
            if let Some(exchange) = error.as_ref().and_then(missing_exchange) {
                self.settle_without(&exchange);
            }
        }
        for (stamp, outcome) in returns.judge(&answers, idle) {
            self.settle_one(stamp, outcome);
        }
    }

    /// RabbitMQ closes the channel over an exchange that does not exist: what went there is refused, the rest is unknown.
    fn settle_without(&mut self, exchange: &str) {
        let refused = self
            .in_flight
            .iter()
            .filter(|(_, in_flight)| in_flight.exchange == exchange);
        let refused: Vec<_> = refused.map(|(stamp, _)| *stamp).collect();
        if !refused.is_empty() {
            self.control.suspect(exchange);
        }
        for stamp in refused {
            self.settle_one(stamp, PublishOutcome::Nacked);
        }
    }

    fn settle_one(&mut self, stamp: u64, outcome: PublishOutcome) {
        // Unless it was given up before.
        if let Some(in_flight) = self.in_flight.remove(&stamp) {
            debug_assert!(in_flight.mandatory || outcome != PublishOutcome::Returned);
            self.counters
                .latency
                .record(in_flight.sent_at.elapsed().as_secs_f64());
            self.settle_in(in_flight.batch, in_flight.index, outcome);
        }
    }

    fn settle_in(&mut self, batch: u64, index: usize, outcome: PublishOutcome) {
        self.counters.count(outcome);
        self.load.fetch_sub(1, Ordering::Relaxed);
        let Some(open) = self.open.get_mut(&batch) else {
            return;
        };
        open.outcomes[index] = outcome;
        open.unsettled -= 1;
        if open.unsettled == 0
            && let Some(mut open) = self.open.remove(&batch)
            && let Some(answer) = open.answer.take()
        {
            // Dropped by a caller that does not wait any more.
            let _ = answer.send(open.outcomes);
        }
    }

    /// When the next publication has waited too long.
    fn next_deadline(&mut self) -> Instant {
        while let Some((_, stamp)) = self.sent.front()
            && !self.in_flight.contains_key(stamp)
        {
            self.sent.pop_front();
        }
        let sent = self.sent.front().map(|(sent_at, _)| *sent_at);
        let unsent = self
            .unsent
            .front()
            .map(|unsent| unsent.since.max(self.last_progress));
        let first = sent.into_iter().chain(unsent).min().unwrap_or_else(Instant::now);
        first + PUBLISH_DEADLINE
    }

    /// Gives up what has waited too long.
    fn expire(&mut self) {
        let expired = Instant::now() - PUBLISH_DEADLINE;
        while let Some((sent_at, stamp)) = self.sent.front().copied()
            && sent_at <= expired
        {
            self.sent.pop_front();
            self.settle_one(stamp, PublishOutcome::Unknown);
        }
        if self.last_progress <= expired {
            self.give_up_unsent(|unsent| unsent.since <= expired);
        }
    }

    fn give_up_unsent(&mut self, is_over: impl Fn(&Unsent) -> bool) {
        for mut unsent in std::mem::take(&mut self.unsent) {
            if is_over(&unsent) {
                for index in unsent.next..unsent.next + unsent.publications.len() {
                    self.settle_in(unsent.batch, index, PublishOutcome::Unknown);
                }
                unsent.publications = Vec::new().into_iter();
            } else {
                self.unsent.push_back(unsent);
            }
        }
    }
}

/// Why a lane stopped working on a channel.
enum Worked {
    ChannelEnded,
    SendersGone,
}

async fn send(
    channel: Arc<Channel>,
    publication: Publication,
    stamp: u64,
    user: Arc<str>,
) -> (Answer, Option<lapin::Error>) {
    let Publication {
        exchange,
        routing_key,
        mandatory,
        message,
    } = publication;
    let properties = message::properties(&message, mandatory.then_some(stamp), &user);
    let options = BasicPublishOptions {
        mandatory,
        immediate: false,
    };
    let (exchange, routing_key) = (ShortString::from(exchange), ShortString::from(routing_key));
    let sent = channel
        .basic_publish(exchange, routing_key, options, &message.body, properties)
        .await;
    drop(message);
    let confirmation = match sent {
        Ok(confirm) => confirm.await,
        Err(error) => Err(error),
    };
    let carried = |returned: Option<lapin::message::BasicReturnMessage>| {
        // One without a stamp cannot be: then it stands for another's.
        returned.map(|returned| message::stamp(&returned.properties).unwrap_or(0))
    };
    let (confirm, error) = match confirmation {
        Ok(Confirmation::Ack(returned)) => (
            Confirm::Acked {
                carried: carried(returned),
            },
            None,
        ),
        Ok(Confirmation::Nack(returned)) => (
            Confirm::Nacked {
                carried: carried(returned),
            },
            None,
        ),
        Ok(Confirmation::NotRequested) => (Confirm::Lost, None),
        Err(error) => (Confirm::Lost, Some(error)),
    };
    let answer = Answer {
        stamp,
        mandatory,
        confirm,
    };
    (answer, error)
}

/// Notes that it was woken, and wakes.
struct Noting {
    woken: AtomicBool,
    waker: Waker,
}

impl Wake for Noting {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        self.waker.wake_by_ref();
    }
}

/// Waits for answers, and takes all there are: for each of them also all that were resolved before it, as
/// [`Returns::judge`] needs. lapin resolves on one thread, and wakes each in turn; `FuturesUnordered` polls in the order
/// of waking. Only when it has polled everything that was woken is the set complete, and that is when it says pending
/// without having been woken meanwhile.
async fn answered<T>(sendings: &mut FuturesUnordered<BoxFuture<'static, T>>) -> Vec<T> {
    std::future::poll_fn(|context| {
        let noting = Arc::new(Noting {
            woken: AtomicBool::new(false),
            waker: context.waker().clone(),
        });
        let waker = Waker::from(Arc::clone(&noting));
        let mut context = Context::from_waker(&waker);
        let mut answers = Vec::new();
        loop {
            noting.woken.store(false, Ordering::SeqCst);
            match sendings.poll_next_unpin(&mut context) {
                Poll::Ready(Some(answer)) => answers.push(answer),
                Poll::Pending if noting.woken.load(Ordering::SeqCst) => {}
                Poll::Ready(None) | Poll::Pending => break,
            }
        }
        if answers.is_empty() {
            Poll::Pending
        } else {
            Poll::Ready(answers)
        }
    })
    .await
}

struct Counters {
    confirmed: metrics::Counter,
    returned: metrics::Counter,
    nacked: metrics::Counter,
    unknown: metrics::Counter,
    latency: metrics::Histogram,
}

impl Counters {
    fn new() -> Self {
        let counter = |outcome: &'static str| metrics::counter!("isocost_broker_publications_total", "outcome" => outcome);
        Self {
            confirmed: counter("confirmed"),
            returned: counter("returned"),
            nacked: counter("nacked"),
            unknown: counter("unknown"),
            latency: metrics::histogram!("isocost_broker_confirm_seconds"),
        }
    }

    fn count(&self, outcome: PublishOutcome) {
        let counter = match outcome {
            PublishOutcome::Confirmed => &self.confirmed,
            PublishOutcome::Returned => &self.returned,
            PublishOutcome::Nacked => &self.nacked,
            PublishOutcome::Unknown => &self.unknown,
        };
        counter.increment(1);
    }
}
