//! Exchanges and queues: declared, deleted, looked at, and declared again for every new session, when one was found
//! missing, and now and then: an operator may delete what a session that goes on needs, bindings without a trace.
//!
//! A refusal closes its channel in AMQP, so all of this has a channel of its own, which is replaced after a refusal, and
//! goes one by one. It is a channel of the consuming connection, because an exclusive queue belongs to the connection
//! that declared it.

use super::{
    arguments::{exchange_kind, exchange_options, queue_arguments, queue_options},
    error::Failure,
    link::{Link, Session},
};
use crate::broker::{Binding, BrokerError, Exchange, Queue, QueueKind, QueueState, Topology};
use lapin::{
    Channel,
    options::{QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions},
    types::{FieldTable, ShortString},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;
use tracing::warn;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Everything is declared again after so many seconds, whether it is missed or not. Not all processes at once: they may
/// have connected together.
const AGAIN_AFTER_SECS: std::ops::Range<f64> = 20.0..30.0;

pub(super) struct Control {
    link: Arc<Link>,
    /// Held over whole operations: a restored session cannot miss what is being declared.
    state: tokio::sync::Mutex<State>,
    /// Something was found missing.
    suspected: AtomicBool,
}

#[derive(Default)]
struct State {
    /// All that was ever declared here.
    topology: Topology,
    /// What the present session could not restore yet.
    rest: Topology,
    /// When everything is declared again.
    again_at: Option<Instant>,
    channel: Option<Channel>,
}

impl Control {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self {
            link,
            state: tokio::sync::Mutex::default(),
            suspected: AtomicBool::new(false),
        }
    }

    /// This exchange was found missing: soon everything is declared again.
    pub(super) fn suspect(&self, exchange: &str) {
        if !self.suspected.swap(true, Ordering::Relaxed) {
            warn!(
                exchange,
                "published to an exchange that does not exist; it is declared again"
            );
        }
    }

    pub(super) async fn declare(&self, topology: &Topology) -> Result<(), BrokerError> {
        let session = self.link.session().await?;
        let mut state = self.state.lock().await;
        // Remembered first: if the connection breaks meanwhile, the next session declares it.
        let before = state.topology.clone();
        state.topology.remember(topology);
        let declared = state.declare_all(&session, topology).await;
        declared.map_err(|(name, failure)| match failure {
            Failure::Unavailable(reason) => BrokerError::Unavailable(reason),
            // Only the connection that we lost can hold a queue of ours, and the broker will notice.
            Failure::Locked(reason) if before.owns(&name) => BrokerError::Unavailable(reason),
            failure => {
                state.topology = before;
                failure.about(&name)
            }
        })
    }

    pub(super) async fn delete_queue(&self, queue: &str) -> Result<(), BrokerError> {
        let session = self.link.session().await?;
        let mut state = self.state.lock().await;
        let name = short(queue).map_err(|failure| failure.about(queue))?;
        let deleted = state
            .on_channel(&session, async move |channel| {
                channel
                    .queue_delete(name, QueueDeleteOptions::default())
                    .await
                    .map(|_| ())
            })
            .await;
        match deleted {
            // RabbitMQ answers ok when there is none; other brokers of the same protocol do not.
            Ok(()) | Err(Failure::NotFound(_)) => {
                state.topology.forget_queue(queue);
                state.rest.forget_queue(queue);
                Ok(())
            }
            Err(failure) => Err(failure.about(queue)),
        }
    }

    pub(super) async fn inspect(&self, queue: &str) -> Result<Option<QueueState>, BrokerError> {
        let session = self.link.session().await?;
        let mut state = self.state.lock().await;
        let name = short(queue).map_err(|failure| failure.about(queue))?;
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let found = state
            .on_channel(&session, async move |channel| {
                channel.queue_declare(name, options, FieldTable::default()).await
            })
            .await;
        match found {
            Ok(found) => Ok(Some(QueueState {
                messages: u64::from(found.message_count()),
                consumers: u64::from(found.consumer_count()),
            })),
            Err(Failure::NotFound(_)) => Ok(None),
            Err(failure) => Err(failure.about(queue)),
        }
    }

    /// True for an exclusive queue of ours. Another connection that holds it can only be the one we lost, which the
    /// broker has not noticed yet.
    pub(super) async fn owns(&self, queue: &str) -> bool {
        let state = self.state.lock().await;
        state.topology.owns(queue)
    }

    /// Declares everything again on a new session. What is refused is left for [`Control::keep_up`].
    pub(super) async fn restore(&self, session: &Session) -> Result<(), String> {
        let mut state = self.state.lock().await;
        state.channel = None;
        state.begin_again();
        state.restore_rest(session).await?;
        for queue in &state.rest.queues {
            warn!(queue = queue.name, "a queue could not be declared again yet");
        }
        Ok(())
    }

    /// Tries once more to declare what was refused; and everything when something was found missing, or was not looked
    /// after for a while.
    pub(super) async fn keep_up(&self, session: &Session) {
        let mut state = self.state.lock().await;
        let due = state.again_at.is_none_or(|again_at| again_at <= Instant::now());
        if self.suspected.swap(false, Ordering::Relaxed) || due {
            state.begin_again();
        }
        if state.rest != Topology::default() {
            // A broken connection shows by itself.
            let _ = state.restore_rest(session).await;
        }
    }
}

impl State {
    fn begin_again(&mut self) {
        self.rest = self.topology.clone();
        let pause = Duration::from_secs_f64(rand::random_range(AGAIN_AFTER_SECS));
        self.again_at = Some(Instant::now() + pause);
    }

    /// Names what failed.
    async fn declare_all(&mut self, session: &Session, topology: &Topology) -> Result<(), (String, Failure)> {
        for exchange in &topology.exchanges {
            let declared = self.declare_exchange(session, exchange).await;
            declared.map_err(|failure| (exchange.name.clone(), failure))?;
        }
        for queue in &topology.queues {
            let declared = self.declare_queue(session, queue).await;
            declared.map_err(|failure| (queue.name.clone(), failure))?;
        }
        for binding in &topology.bindings {
            let bound = self.bind(session, binding).await;
            bound.map_err(|failure| match failure {
                Failure::NotFound(reason) if reason.contains("no exchange") => {
                    (binding.exchange.clone(), Failure::Different(reason))
                }
                failure => (binding.queue.clone(), failure),
            })?;
        }
        Ok(())
    }

    async fn restore_rest(&mut self, session: &Session) -> Result<(), String> {
        let mut rest = Topology::default();
        let tried = std::mem::take(&mut self.rest);
        for exchange in tried.exchanges {
            let declared = self.declare_exchange(session, &exchange).await;
            if refused(declared)? {
                rest.exchanges.push(exchange);
            }
        }
        for queue in tried.queues {
            let declared = self.declare_queue(session, &queue).await;
            if refused(declared)? {
                rest.queues.push(queue);
            }
        }
        for binding in tried.bindings {
            let bound = self.bind(session, &binding).await;
            if refused(bound)? {
                rest.bindings.push(binding);
            }
        }
        self.rest = rest;
        Ok(())
    }

    async fn declare_exchange(&mut self, session: &Session, exchange: &Exchange) -> Result<(), Failure> {
        let (name, kind) = (short(&exchange.name)?, exchange_kind(exchange.kind));
        self.on_channel(session, async move |channel| {
            channel
                .exchange_declare(name, kind, exchange_options(), FieldTable::default())
                .await
        })
        .await
    }

    async fn declare_queue(&mut self, session: &Session, queue: &Queue) -> Result<(), Failure> {
        let name = short(&queue.name)?;
        let (options, arguments) = (queue_options(queue.kind), queue_arguments(queue));
        self.on_channel(session, async move |channel| {
            channel.queue_declare(name, options, arguments).await.map(|_| ())
        })
        .await
    }

    async fn bind(&mut self, session: &Session, binding: &Binding) -> Result<(), Failure> {
        let (queue, exchange) = (short(&binding.queue)?, short(&binding.exchange)?);
        let key = short(&binding.routing_key)?;
        self.on_channel(session, async move |channel| {
            let options = QueueBindOptions::default();
            channel
                .queue_bind(queue, exchange, key, options, FieldTable::default())
                .await
        })
        .await
    }

    /// Does one thing on the channel; after a failure the next thing gets a new one.
    async fn on_channel<T>(
        &mut self,
        session: &Session,
        operation: impl AsyncFnOnce(&Channel) -> lapin::Result<T>,
    ) -> Result<T, Failure> {
        let done = tokio::time::timeout(PATIENCE, async {
            let channel = match self.channel.take() {
                Some(channel) if channel.status().connected() => channel,
                _ => session.connection.create_channel().await?,
            };
            let done = operation(&channel).await?;
            lapin::Result::Ok((channel, done))
        });
        match done.await {
            Ok(Ok((channel, done))) => {
                self.channel = Some(channel);
                Ok(done)
            }
            Ok(Err(error)) => Err(Failure::from(error)),
            Err(_) => Err(Failure::silence(PATIENCE)),
        }
    }
}

/// True when the broker refused; an error when it cannot be reached.
fn refused(outcome: Result<(), Failure>) -> Result<bool, String> {
    match outcome {
        Ok(()) => Ok(false),
        Err(Failure::Unavailable(reason)) => Err(reason),
        Err(_) => Ok(true),
    }
}

/// A name as AMQP takes it.
pub(super) fn short(name: &str) -> Result<ShortString, Failure> {
    ShortString::try_new(name).map_err(|error| Failure::Different(format!("the name is too long: {error}")))
}

impl Topology {
    /// Takes in what is new; what has the name of something known replaces it.
    fn remember(&mut self, more: &Topology) {
        for exchange in &more.exchanges {
            self.exchanges.retain(|known| known.name != exchange.name);
            self.exchanges.push(exchange.clone());
        }
        for queue in &more.queues {
            self.queues.retain(|known| known.name != queue.name);
            self.queues.push(queue.clone());
        }
        for binding in &more.bindings {
            if !self.bindings.contains(binding) {
                self.bindings.push(binding.clone());
            }
        }
    }

    fn forget_queue(&mut self, name: &str) {
        self.queues.retain(|queue| queue.name != name);
        self.bindings.retain(|binding| binding.queue != name);
    }

    fn owns(&self, name: &str) -> bool {
        self.queues
            .iter()
            .any(|queue| queue.name == name && queue.kind == QueueKind::Exclusive)
    }
}
