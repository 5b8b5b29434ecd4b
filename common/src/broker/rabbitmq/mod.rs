//! RabbitMQ behind the broker port, over lapin.
//!
//! Two connections, each kept up in the background ([`link`]): one publishes, one consumes and declares. Nothing here
//! fails because RabbitMQ is away: publications are then [`Unknown`](PublishOutcome::Unknown), everything else is
//! [`Unavailable`](BrokerError::Unavailable), and both come back by themselves.
//!
//! A publication waits at most [`PUBLISH_DEADLINE`] for its answer; while RabbitMQ is blocked by an alarm it waits as
//! long unsent, and is then unknown too. How returned messages find their publication is told in [`returns`].

mod arguments;
mod consumer;
mod control;
mod dial;
mod error;
mod health;
mod lane;
mod link;
mod message;
mod returns;

pub use dial::InvalidBrokerUrl;

use self::{
    consumer::RabbitConsumer,
    control::Control,
    dial::Dial,
    health::Health,
    lane::{Batch, Lane},
    link::{Link, Purpose},
};
use super::{
    Broker, BrokerError, BrokerHealth, ConsumeOptions, Consumer, Publication, PublishOutcome, QueueState,
    Topology,
};
use crate::config::BrokerConfig;
use async_trait::async_trait;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Longest wait of a publication for its answer.
pub const PUBLISH_DEADLINE: Duration = lane::PUBLISH_DEADLINE;

/// Channels that publish. One call of `publish` goes over one of them, so that its order is kept; the least loaded is
/// taken, so that a small call does not wait behind a large one.
const LANES: usize = 4;
/// Calls of `publish` that wait in front of one channel.
const LANE_QUEUE: usize = 1_024;

/// A client of RabbitMQ.
pub struct RabbitBroker {
    consuming: Arc<Link>,
    control: Arc<Control>,
    health: Arc<Health>,
    lanes: Vec<LaneHandle>,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

struct LaneHandle {
    batches: mpsc::Sender<Batch>,
    load: Arc<AtomicUsize>,
}

impl RabbitBroker {
    /// Returns at once and connects in the background. `connection_name` shows in RabbitMQ's management.
    ///
    /// # Errors
    /// The URL cannot be used.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn start(config: &BrokerConfig, connection_name: &str) -> Result<Arc<Self>, InvalidBrokerUrl> {
        let dial = Arc::new(Dial::new(config.url.reveal(), connection_name)?);
        let health = Arc::new(Health::new());
        let link = |purpose| Arc::new(Link::new(purpose, Arc::clone(&dial), Arc::clone(&health)));
        let (publishing, consuming) = (link(Purpose::Publish), link(Purpose::Consume));
        let control = Arc::new(Control::new(Arc::clone(&consuming)));
        let (tasks, shutdown) = (TaskTracker::new(), CancellationToken::new());
        let user: Arc<str> = dial.user().into();
        let start_lane = |_| {
            let (batches, receiver) = mpsc::channel(LANE_QUEUE);
            let load = Arc::<AtomicUsize>::default();
            let lane = Lane::new(
                Arc::clone(&publishing),
                Arc::clone(&control),
                Arc::clone(&user),
                receiver,
                Arc::clone(&load),
            );
            tasks.spawn(lane.run());
            LaneHandle { batches, load }
        };
        let lanes = (0..LANES).map(start_lane).collect();
        let (link, stop) = (Arc::clone(&publishing), shutdown.clone());
        tasks.spawn(async move { link.keep_up(None, &stop).await });
        let (link, control_of_link, stop) = (Arc::clone(&consuming), Arc::clone(&control), shutdown.clone());
        tasks.spawn(async move { link.keep_up(Some(&control_of_link), &stop).await });
        Ok(Arc::new(Self {
            consuming,
            control,
            health,
            lanes,
            tasks,
            shutdown,
        }))
    }
}

#[async_trait]
impl Broker for RabbitBroker {
    async fn declare(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.control.declare(topology).await
    }

    async fn delete_queue(&self, queue: &str) -> Result<(), BrokerError> {
        self.control.delete_queue(queue).await
    }

    async fn publish(&self, publications: Vec<Publication>) -> Vec<PublishOutcome> {
        let total = publications.len();
        let unknown = || vec![PublishOutcome::Unknown; total];
        let Some(lane) = self
            .lanes
            .iter()
            .min_by_key(|lane| lane.load.load(Ordering::Relaxed))
        else {
            return unknown();
        };
        if total == 0 {
            return Vec::new();
        }
        // Counted only once it is certain to arrive: a caller may give up before.
        let Ok(place) = lane.batches.reserve().await else {
            return unknown();
        };
        lane.load.fetch_add(total, Ordering::Relaxed);
        let (answer, outcomes) = oneshot::channel();
        place.send(Batch { publications, answer });
        // A lane that ended first answers nothing.
        outcomes.await.unwrap_or_else(|_| unknown())
    }

    async fn consume(&self, queue: &str, options: ConsumeOptions) -> Result<Box<dyn Consumer>, BrokerError> {
        let session = self.consuming.session().await?;
        let consumer = RabbitConsumer::start(&session, &self.control, queue, options).await?;
        Ok(Box::new(consumer))
    }

    async fn inspect(&self, queue: &str) -> Result<Option<QueueState>, BrokerError> {
        self.control.inspect(queue).await
    }

    fn health(&self) -> watch::Receiver<BrokerHealth> {
        self.health.follow()
    }

    async fn close(&self) {
        self.shutdown.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for RabbitBroker {
    fn drop(&mut self) {
        // The tasks then end by themselves, and the connections with them.
        self.shutdown.cancel();
    }
}
