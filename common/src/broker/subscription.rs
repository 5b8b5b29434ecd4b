//! A queue consumed for as long as the process runs: again after every interruption, with growing pauses.

use super::{
    Acker, Broker, BrokerError, BrokerHealth, ConsumeOptions, Consumer, Delivery, Topology, next_batch,
};
use crate::readiness::{Flag, Readiness};
use backon::{BackoffBuilder, ExponentialBuilder};
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// Pauses of anything that is tried again until it works: 50 ms doubling to 5 s, jittered, without end.
pub fn patient() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(Duration::from_secs(5))
        .with_factor(2.0)
        .with_jitter()
        .without_max_times()
        .build()
}

/// Waits; false when `shutdown` came first.
pub async fn pause(shutdown: &CancellationToken, pause: Duration) -> bool {
    tokio::select! {
        () = shutdown.cancelled() => false,
        () = tokio::time::sleep(pause) => true,
    }
}

/// Waits before something is asked of the broker again: for `pause`, but not past the moment at which a broker that was
/// away is back. An outage lets pauses grow, and they must not outlast it.
pub async fn pause_or_back(broker: &dyn Broker, pause: Duration) {
    let mut health = broker.health();
    if matches!(*health.borrow_and_update(), BrokerHealth::Down(_)) {
        let back = health.wait_for(|health| !matches!(health, BrokerHealth::Down(_)));
        // Out of time, or back, or closed for good: the next try tells.
        let _ = tokio::time::timeout(pause, back).await;
    } else {
        tokio::time::sleep(pause).await;
    }
}

/// Declares `topology`, waiting for the broker if need be. False when `shutdown` came first.
///
/// # Errors
/// [`BrokerError::Conflict`] when something of it exists and is different, [`BrokerError::Forbidden`] when the user lacks a
/// right: an operator has to look.
pub async fn declare(
    broker: &dyn Broker,
    topology: &Topology,
    shutdown: &CancellationToken,
) -> Result<bool, BrokerError> {
    let mut pauses = patient();
    loop {
        match broker.declare(topology).await {
            Ok(()) => return Ok(true),
            Err(error @ (BrokerError::Conflict { .. } | BrokerError::Forbidden { .. })) => return Err(error),
            Err(error) => debug!(%error, "declaring the topology again"),
        }
        tokio::select! {
            () = shutdown.cancelled() => return Ok(false),
            () = pause_or_back(broker, pauses.next().unwrap_or_default()) => {}
        }
    }
}

/// Somebody deleted the queue, or has not declared it yet.
async fn declare_again(broker: &dyn Broker, topology: &Topology, queue: &str, was_there: bool) -> bool {
    let declared = broker.declare(topology).await;
    match &declared {
        Ok(()) if was_there => warn!(queue, "the queue was gone, and is declared again"),
        Ok(()) => debug!(queue, "the queue is declared"),
        Err(error) => warn!(queue, %error, "declaring the queue again"),
    }
    declared.is_ok()
}

/// One queue and the consumer on it, when there is one.
pub struct Subscription {
    broker: Arc<dyn Broker>,
    /// With the queue in it: declared again when the queue is gone.
    topology: Topology,
    queue: String,
    options: ConsumeOptions,
    shutdown: CancellationToken,
    consumer: Option<Box<dyn Consumer>>,
    has_consumed: bool,
    /// Whether there is a consumer, for the readiness of the process.
    consuming: Option<Flag>,
}

impl Subscription {
    /// Consumes nothing yet; at most `prefetch` deliveries will be unacked at once. `topology` has the queue in it.
    #[must_use]
    pub fn new(
        broker: Arc<dyn Broker>,
        topology: Topology,
        queue: String,
        prefetch: u16,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            broker,
            topology,
            queue,
            options: ConsumeOptions {
                prefetch,
                exclusive: false,
            },
            shutdown,
            consumer: None,
            has_consumed: false,
            consuming: None,
        }
    }

    /// Without a consumer the process is not ready, under this name.
    #[must_use]
    pub fn needed(self, readiness: &Readiness, name: &'static str) -> Self {
        self.shown_by(readiness.flag(name, "not consumed yet"))
    }

    /// Tells this flag whether there is a consumer.
    #[must_use]
    pub fn shown_by(self, consuming: Flag) -> Self {
        Self {
            consuming: Some(consuming),
            ..self
        }
    }

    /// Ends the consumer, so that what is unacked goes to whoever consumes next, and waits before it consumes again.
    pub async fn step_aside(&mut self, why: &str, pause: Duration) {
        self.consumer = None;
        if let Some(consuming) = &self.consuming {
            consuming.missing(why);
        }
        warn!(queue = self.queue, why, "leaving the queue to others");
        self::pause(&self.shutdown, pause).await;
    }

    /// Up to `limit` deliveries and the handle that settles them; none once the process shuts down.
    pub async fn next(&mut self, limit: usize, linger: Duration) -> Option<(Vec<Delivery>, Arc<dyn Acker>)> {
        let mut pauses = patient();
        while !self.shutdown.is_cancelled() {
            let failure = match &mut self.consumer {
                Some(consumer) => {
                    let acker = consumer.acker();
                    let batch = tokio::select! {
                        () = self.shutdown.cancelled() => return None,
                        batch = next_batch(consumer.as_mut(), limit, linger) => batch,
                    };
                    match batch {
                        Ok(batch) => return Some((batch, acker)),
                        Err(ended) => ended.to_string(),
                    }
                }
                None => match self.broker.consume(&self.queue, self.options).await {
                    Ok(consumer) => {
                        self.consumer = Some(consumer);
                        self.has_consumed = true;
                        if let Some(consuming) = &self.consuming {
                            consuming.met();
                        }
                        continue;
                    }
                    Err(error) => {
                        let (broker, was_there) = (&*self.broker, self.has_consumed);
                        if matches!(error, BrokerError::NoSuchQueue(_))
                            && declare_again(broker, &self.topology, &self.queue, was_there).await
                            && !was_there
                        {
                            continue;
                        }
                        error.to_string()
                    }
                },
            };
            self.consumer = None;
            if let Some(consuming) = &self.consuming {
                consuming.missing(&failure);
            }
            warn!(queue = self.queue, failure, "consuming again");
            tokio::select! {
                () = self.shutdown.cancelled() => {}
                () = pause_or_back(&*self.broker, pauses.next().unwrap_or_default()) => {}
            }
        }
        None
    }
}
