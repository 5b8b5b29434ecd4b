//! Every exchange and queue by name and arguments: one set that RabbitMQ 3.10 to 4.x accepts. Durable names carry a
//! version, because a queue's arguments cannot be changed in place.

use crate::id::{IncarnationId, WorkerId};
use std::time::Duration;

/// How an exchange routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExchangeKind {
    /// By equal routing key.
    Direct,
    /// To every bound queue.
    Fanout,
    /// By pattern: `*` one word, `#` any number.
    Topic,
}

/// A durable exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    /// Its name, namespace included.
    pub name: String,
    /// How it routes.
    pub kind: ExchangeKind,
}

/// What a queue is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueKind {
    /// Durable, replicated.
    Quorum,
    /// Durable, on one node.
    Classic,
    /// Gone with the connection that declared it, and not before: a consumer may end and consume anew.
    Exclusive,
}

/// A queue and its arguments. Build with [`Queue::new`] and set what differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// Its name, namespace included.
    pub name: String,
    /// What it is made of (`x-queue-type`, always explicit).
    pub kind: QueueKind,
    /// Deleted after so long without a consumer (`x-expires`).
    pub expires: Option<Duration>,
    /// Messages leave it after so long (`x-message-ttl`), to the dead-letter exchange if there is one.
    pub message_ttl: Option<Duration>,
    /// Priorities 0 to this (`x-max-priority`), classic queues only.
    pub max_priority: Option<u8>,
    /// Messages kept; the oldest go first (`x-max-length`, `x-overflow` = drop-head).
    pub max_length: Option<u64>,
    /// Deliveries after which a message is dead-lettered (`x-delivery-limit`), quorum queues only.
    pub delivery_limit: Option<u32>,
    /// Exchange and routing key of dead letters.
    pub dead_letter: Option<(String, String)>,
    /// Of several consumers one is given deliveries, the next one when that one is gone
    /// (`x-single-active-consumer`): what is consumed in order is then also taken in order.
    pub single_active_consumer: bool,
}

impl Queue {
    /// A queue with no further arguments.
    #[must_use]
    pub fn new(name: String, kind: QueueKind) -> Self {
        Self {
            name,
            kind,
            expires: None,
            message_ttl: None,
            max_priority: None,
            max_length: None,
            delivery_limit: None,
            dead_letter: None,
            single_active_consumer: false,
        }
    }
}

/// Routes from an exchange to a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// The exchange.
    pub exchange: String,
    /// The queue.
    pub queue: String,
    /// The key or pattern; empty for a fanout.
    pub routing_key: String,
}

/// Exchanges, queues and bindings that belong together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    /// Exchanges.
    pub exchanges: Vec<Exchange>,
    /// Queues.
    pub queues: Vec<Queue>,
    /// Bindings between them.
    pub bindings: Vec<Binding>,
}

/// Redeliveries are expected when a consumer backs off during an outage, so the limit is far beyond any outage; the
/// default of RabbitMQ 4 (20) would dead-letter good messages.
const DELIVERY_LIMIT: u32 = 1_000_000;
const WORKER_QUEUE_EXPIRES: Duration = Duration::from_secs(300);
const LOG_QUEUE_LENGTH: u64 = 100_000;

/// All names under one namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    namespace: String,
}

macro_rules! names {
    ($($(#[$meta:meta])* $function:ident = $suffix:literal;)+) => {
        impl Names {
            $($(#[$meta])*
            #[must_use]
            pub fn $function(&self) -> String {
                format!(concat!("{}.", $suffix), self.namespace)
            })+
        }
    };
}

names! {
    /// Direct exchange to the workers' queues; the routing key is the queue name.
    dispatch_exchange = "dispatch";
    /// Direct exchange to the workers' control queues; the routing key is the queue name.
    control_exchange = "control";
    /// Direct exchange of what workers report.
    results_exchange = "results";
    /// Queue of what workers report.
    results_queue = "results.v1";
    /// Where reports end that cannot be taken in.
    dead_results_queue = "results.dead.v1";
    /// Fanout exchange of the workers' heartbeats.
    heartbeats_exchange = "heartbeats";
    /// Direct exchange of handlers' log lines and progress.
    logs_exchange = "logs";
    /// Queue of handlers' log lines and progress.
    logs_queue = "logs.v1";
    /// Fanout exchange of what left dispatched and running.
    settled_exchange = "settled";
    /// Fanout exchange of "something is due now".
    wake_exchange = "wake";
    /// Direct exchange of jobs submitted over AMQP.
    submissions_exchange = "submissions";
    /// Queue of jobs submitted over AMQP.
    submissions_queue = "submissions.v1";
    /// Where submissions end that can never be accepted.
    dead_submissions_queue = "submissions.dead";
    /// Direct exchange of callback tickets.
    callbacks_exchange = "callbacks";
    /// Queue of first callback attempts.
    first_callbacks_queue = "callbacks.first.v1";
    /// Queue of repeated callback attempts.
    retry_callbacks_queue = "callbacks.retry.v1";
    /// Where callback tickets end that cannot be read.
    dead_callbacks_queue = "callbacks.dead.v1";
    /// Topic exchange of every terminal outcome.
    outcomes_exchange = "outcomes";
}

impl Names {
    /// Names under `namespace`.
    #[must_use]
    pub fn new(namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
        }
    }

    /// True for names below this namespace.
    #[must_use]
    pub fn owns(&self, name: &str) -> bool {
        name.strip_prefix(&self.namespace)
            .is_some_and(|rest| rest.starts_with('.'))
    }

    /// The dispatch queue of one worker incarnation.
    #[must_use]
    pub fn worker_queue(&self, worker: &WorkerId, incarnation: IncarnationId) -> String {
        format!("{}.worker.{worker}.{incarnation}", self.namespace)
    }

    /// The control queue of one worker incarnation.
    #[must_use]
    pub fn control_queue(&self, worker: &WorkerId, incarnation: IncarnationId) -> String {
        format!("{}.control.{worker}.{incarnation}", self.namespace)
    }

    /// The queue in which one dispatcher process listens to a fanout exchange (`heartbeats`, `settled`, `wake`).
    #[must_use]
    pub fn listener_queue(&self, exchange: &str, process: &str) -> String {
        format!("{exchange}.{process}")
    }

    /// The queue that holds callback tickets back for `delay`, then dead-letters them to the retry lane.
    #[must_use]
    pub fn callback_delay_queue(&self, delay: Duration) -> String {
        format!("{}.callbacks.delay.{}.v1", self.namespace, delay.as_millis())
    }

    /// What all roles share. `callback_delays` are the tiers of the relay.
    #[must_use]
    pub fn shared_topology(&self, callback_delays: &[Duration]) -> Topology {
        use ExchangeKind::{Direct, Fanout, Topic};
        let exchanges = [
            (self.dispatch_exchange(), Direct),
            (self.control_exchange(), Direct),
            (self.results_exchange(), Direct),
            (self.heartbeats_exchange(), Fanout),
            (self.logs_exchange(), Direct),
            (self.settled_exchange(), Fanout),
            (self.wake_exchange(), Fanout),
            (self.submissions_exchange(), Direct),
            (self.callbacks_exchange(), Direct),
            (self.outcomes_exchange(), Topic),
        ];
        let mut topology = Topology {
            exchanges: exchanges.map(|(name, kind)| Exchange { name, kind }).to_vec(),
            ..Topology::default()
        };
        topology.add(
            &self.results_exchange(),
            // A worker's *unknown* may only be applied after what the worker had confirmed before it.
            Queue {
                single_active_consumer: true,
                ..self.intake_queue(self.results_queue(), self.dead_results_queue())
            },
        );
        topology.add(
            &self.results_exchange(),
            Queue::new(self.dead_results_queue(), QueueKind::Quorum),
        );
        topology.add(
            &self.submissions_exchange(),
            self.intake_queue(self.submissions_queue(), self.dead_submissions_queue()),
        );
        // Producers are told the exchange; whichever of these keys they think of is right.
        topology.bindings.extend(
            [String::new(), self.submissions_exchange()].map(|routing_key| Binding {
                exchange: self.submissions_exchange(),
                queue: self.submissions_queue(),
                routing_key,
            }),
        );
        topology.add(
            &self.submissions_exchange(),
            Queue::new(self.dead_submissions_queue(), QueueKind::Quorum),
        );
        topology.add(
            &self.logs_exchange(),
            Queue {
                max_length: Some(LOG_QUEUE_LENGTH),
                ..Queue::new(self.logs_queue(), QueueKind::Classic)
            },
        );
        let lanes = [self.first_callbacks_queue(), self.retry_callbacks_queue()];
        for lane in lanes {
            topology.add(
                &self.callbacks_exchange(),
                self.intake_queue(lane, self.dead_callbacks_queue()),
            );
        }
        topology.add(
            &self.callbacks_exchange(),
            Queue::new(self.dead_callbacks_queue(), QueueKind::Quorum),
        );
        for delay in callback_delays {
            let queue = Queue {
                message_ttl: Some(*delay),
                dead_letter: Some((self.callbacks_exchange(), self.retry_callbacks_queue())),
                ..Queue::new(self.callback_delay_queue(*delay), QueueKind::Quorum)
            };
            topology.add(&self.callbacks_exchange(), queue);
        }
        topology
    }

    /// What one worker incarnation adds. `message_ttl` should be well above the `not_after` of a dispatch.
    #[must_use]
    pub fn worker_topology(
        &self,
        worker: &WorkerId,
        incarnation: IncarnationId,
        message_ttl: Duration,
    ) -> Topology {
        let mut topology = Topology::default();
        let dispatch = Queue {
            expires: Some(WORKER_QUEUE_EXPIRES),
            message_ttl: Some(message_ttl),
            max_priority: Some(crate::job::MAX_PRIORITY),
            ..Queue::new(self.worker_queue(worker, incarnation), QueueKind::Classic)
        };
        topology.add(&self.dispatch_exchange(), dispatch);
        let control = Queue::new(self.control_queue(worker, incarnation), QueueKind::Exclusive);
        topology.add(&self.control_exchange(), control);
        topology
    }

    /// The exclusive queue in which one process listens to a fanout exchange.
    #[must_use]
    pub fn listener_topology(&self, exchange: &str, process: &str) -> Topology {
        let queue = Queue::new(self.listener_queue(exchange, process), QueueKind::Exclusive);
        let binding = Binding {
            exchange: exchange.to_owned(),
            queue: queue.name.clone(),
            routing_key: String::new(),
        };
        Topology {
            exchanges: Vec::new(),
            queues: vec![queue],
            bindings: vec![binding],
        }
    }

    fn intake_queue(&self, name: String, dead: String) -> Queue {
        // Dead letters go through the default exchange, which routes by queue name.
        Queue {
            delivery_limit: Some(DELIVERY_LIMIT),
            dead_letter: Some((String::new(), dead)),
            ..Queue::new(name, QueueKind::Quorum)
        }
    }
}

impl Topology {
    /// Adds a queue bound to `exchange` under its own name.
    fn add(&mut self, exchange: &str, queue: Queue) {
        self.bindings.push(Binding {
            exchange: exchange.to_owned(),
            queue: queue.name.clone(),
            routing_key: queue.name.clone(),
        });
        self.queues.push(queue);
    }
}
