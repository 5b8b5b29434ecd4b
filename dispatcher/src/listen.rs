//! What the leader listens to: heartbeats, what the intake settled, and calls to wake up. Each comes through a queue of
//! this process alone, which lives as long as its term.

use isocost_common::{
    broker::{Broker, ConsumeOptions, ConsumerEnded, Delivery, Topology, next_batch, topology::Names},
    message::{Heartbeat, Marker, SettledMessage, Wake, kind},
};
use parking_lot::Mutex;
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// Events the leader may lag behind before its listeners wait.
const INBOX: usize = 4_096;
const PREFETCH: u16 = 512;
const PAUSE: Duration = Duration::from_millis(200);

/// Something the leader hears.
#[derive(Debug)]
pub(crate) enum Event {
    /// A worker lives, and when we heard it.
    Heartbeat(Box<Heartbeat>, Instant),
    /// Heartbeats may have been missed up to now.
    HeartbeatsInterrupted,
    /// Every heartbeat that was queued before this marker was heard.
    HeartbeatsMarker(Marker),
    /// What a batch of reports changed.
    Settled(SettledMessage),
    /// Every report that was queued before this marker was taken in.
    ResultsMarker(Marker),
    /// Something is due at this instant, or was changed by a user.
    Wake(Wake),
}

/// So many beats without a heartbeat, and the queue is bound anew: nobody is told when a binding is lost.
const SILENT_BEATS: u32 = 3;

/// The three listeners of one term.
pub(crate) struct Listeners {
    tasks: JoinSet<()>,
    pub(crate) events: mpsc::Receiver<Event>,
    pub(crate) heartbeats_queue: String,
}

impl Listeners {
    /// Starts listening. `term` ends them.
    pub(crate) fn start(
        broker: &Arc<dyn Broker>,
        names: &Names,
        process: &str,
        heartbeat: Duration,
        term: &CancellationToken,
    ) -> Self {
        let (sender, events) = mpsc::channel(INBOX);
        let mut tasks = JoinSet::new();
        let exchanges = [
            names.heartbeats_exchange(),
            names.settled_exchange(),
            names.wake_exchange(),
        ];
        for exchange in &exchanges {
            let listener = Listener {
                broker: Arc::clone(broker),
                topology: names.listener_topology(exchange, process),
                queue: names.listener_queue(exchange, process),
                hears_heartbeats: *exchange == exchanges[0],
                silence: heartbeat * SILENT_BEATS,
                heard_at: Mutex::new(Instant::now()),
                events: sender.clone(),
                term: term.clone(),
            };
            tasks.spawn(listener.run());
        }
        Self {
            tasks,
            events,
            heartbeats_queue: names.listener_queue(&exchanges[0], process),
        }
    }

    /// Waits until every listener has ended, and its queue is gone.
    pub(crate) async fn finish(mut self) {
        self.events.close();
        while self.tasks.join_next().await.is_some() {}
    }
}

struct Listener {
    broker: Arc<dyn Broker>,
    topology: Topology,
    queue: String,
    hears_heartbeats: bool,
    /// No heartbeat for so long is suspicious.
    silence: Duration,
    heard_at: Mutex<Instant>,
    events: mpsc::Sender<Event>,
    term: CancellationToken,
}

impl Listener {
    async fn run(self) {
        while !self.term.is_cancelled() {
            let listened = tokio::select! {
                listened = self.listen() => listened,
                never = self.bind_again() => match never {},
            };
            match listened {
                Ok(()) => break,
                Err(reason) => debug!(queue = self.queue, reason, "listening again"),
            }
            tokio::select! {
                () = self.term.cancelled() => {}
                () = sleep(PAUSE) => {}
            }
        }
        if let Err(error) = self.broker.delete_queue(&self.queue).await {
            debug!(queue = self.queue, %error, "the queue goes with its connection");
        }
    }

    /// Binds the queue anew whenever it was silent for long: without workers for nothing, else because somebody deleted
    /// the exchange or the binding.
    async fn bind_again(&self) -> Infallible {
        if !self.hears_heartbeats {
            return std::future::pending().await;
        }
        loop {
            sleep(self.silence).await;
            if self.heard_at.lock().elapsed() >= self.silence
                && let Err(error) = self.broker.declare(&self.topology).await
            {
                debug!(queue = self.queue, %error, "binding the queue again");
            }
        }
    }

    /// Consumes until the consumer ends; `Ok` when the term does.
    async fn listen(&self) -> Result<(), String> {
        self.broker
            .declare(&self.topology)
            .await
            .map_err(|error| error.to_string())?;
        let options = ConsumeOptions {
            prefetch: PREFETCH,
            exclusive: true,
        };
        let mut consumer = self
            .broker
            .consume(&self.queue, options)
            .await
            .map_err(|error| error.to_string())?;
        // Also the first time: from here on heartbeats are heard, and no lease may count from before.
        if self.hears_heartbeats && self.events.send(Event::HeartbeatsInterrupted).await.is_err() {
            return Ok(());
        }
        let acker = consumer.acker();
        loop {
            let batch = tokio::select! {
                () = self.term.cancelled() => return Ok(()),
                batch = next_batch(consumer.as_mut(), usize::from(PREFETCH), Duration::ZERO) => batch,
            };
            let batch = batch.map_err(|ConsumerEnded { reason, .. }| reason)?;
            *self.heard_at.lock() = Instant::now();
            let tags: Vec<_> = batch.iter().map(|delivery| delivery.tag).collect();
            for event in self.read(&batch) {
                if self.events.send(event).await.is_err() {
                    return Ok(());
                }
            }
            acker.ack(&tags).await;
        }
    }

    /// The events of a batch, in order; its calls to wake up as one.
    fn read(&self, batch: &[Delivery]) -> Vec<Event> {
        let now = Instant::now();
        let mut wake: Option<Wake> = None;
        let mut events = Vec::with_capacity(batch.len());
        for Delivery { message, .. } in batch {
            let event = match message.kind.as_str() {
                kind::HEARTBEAT => message
                    .parse::<Heartbeat>()
                    .map(|heartbeat| Some(Event::Heartbeat(Box::new(heartbeat), now))),
                kind::SETTLED => message.parse().map(|settled| Some(Event::Settled(settled))),
                kind::MARKER if self.hears_heartbeats => message
                    .parse()
                    .map(|marker| Some(Event::HeartbeatsMarker(marker))),
                kind::MARKER => message.parse().map(|marker| Some(Event::ResultsMarker(marker))),
                kind::WAKE => message.parse::<Wake>().map(|call| {
                    wake = Some(wake.map_or(call, |earlier| Wake {
                        due: earlier.due.min(call.due),
                        orders: earlier.orders || call.orders,
                    }));
                    None
                }),
                // A newer version may say more than this one understands.
                _ => Ok(None),
            };
            match event {
                Ok(event) => events.extend(event),
                Err(error) => warn!(queue = self.queue, kind = message.kind, %error, "an unreadable message"),
            }
        }
        events.extend(wake.map(Event::Wake));
        events
    }
}
