//! A worker on an in-process broker, and a leader played by the test: it hands over executions and reads what the
//! worker says.

#![allow(dead_code, reason = "each test binary uses a part of it")]

mod unplugged;

use isocost_common::{
    broker::{
        Broker, ConsumeOptions, Message, MessageHeaders, Publication, PublishOutcome, SCHEMA_VERSION_HEADER,
        memory::MemoryBroker, topology::Names,
    },
    config::Config,
    execution::{Claim, Outcome},
    id::{AppId, ExecutionId, IncarnationId, JobId, WorkerId},
    message::{
        ControlAction, ControlMessage, DispatchMessage, DispatchedExecution, Heartbeat, LogMessage, Report,
        ReportEvent, ReportMessage, kind,
    },
    raw_json::RawJson,
    time::EpochMillis,
};
use isocost_worker::{Error, Worker, WorkerBuilder};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::Notify,
    task::{JoinHandle, JoinSet},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

/// Far beyond anything a test waits for, also on a busy machine.
const DEADLINE: Duration = Duration::from_secs(20);
const WORKER: &str = "w1";
/// The trace of every execution here.
pub(crate) const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// What the leader has seen.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) reports: Vec<Report>,
    pub(crate) report_messages: usize,
    pub(crate) heartbeats: Vec<Heartbeat>,
    pub(crate) logs: Vec<LogMessage>,
}

/// The services, and the leader's ears.
pub(crate) struct Stage {
    pub(crate) broker: Arc<MemoryBroker>,
    pub(crate) coordination: Arc<unplugged::Pluggable>,
    pub(crate) config: Config,
    names: Names,
    leader: Arc<MemoryBroker>,
    seen: Arc<Mutex<Seen>>,
    news: Arc<Notify>,
    ears: JoinSet<()>,
}

/// A worker that runs.
pub(crate) struct Running {
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), Error>>,
}

impl Stage {
    /// Services without anybody at work.
    pub(crate) async fn new() -> Self {
        let mut config = Config::default();
        config.worker.id = WORKER.into();
        config.worker.listen = "127.0.0.1:0".into();
        config.worker.advertise = "127.0.0.1".into();
        config.worker.slots = 4;
        config.leases.heartbeat_ms = 100;
        let names = Names::new(&config.broker.namespace);
        let broker = MemoryBroker::new();
        let leader = broker.connect();
        leader
            .declare(&names.shared_topology(&config.relay.delay_tiers()))
            .await
            .expect("declared");
        let mut stage = Self {
            coordination: unplugged::Pluggable::new(),
            config,
            broker,
            leader,
            seen: Arc::default(),
            news: Arc::default(),
            ears: JoinSet::new(),
            names,
        };
        let heartbeats = stage.names.heartbeats_exchange();
        let listener = stage.names.listener_topology(&heartbeats, "test");
        stage.leader.declare(&listener).await.expect("declared");
        let queue = stage.names.listener_queue(&heartbeats, "test");
        stage
            .hear(queue, |seen, heartbeat| seen.heartbeats.push(heartbeat))
            .await;
        let results = stage.names.results_queue();
        stage
            .hear(results, |seen, message: ReportMessage| {
                seen.report_messages += 1;
                seen.reports.extend(message.reports);
            })
            .await;
        let logs = stage.names.logs_queue();
        stage.hear(logs, |seen, message| seen.logs.push(message)).await;
        stage
    }

    async fn hear<T: DeserializeOwned + 'static>(&mut self, queue: String, keep: fn(&mut Seen, T)) {
        let options = ConsumeOptions {
            prefetch: 1_000,
            exclusive: false,
        };
        let leader = Arc::clone(&self.leader);
        let (seen, news) = (Arc::clone(&self.seen), Arc::clone(&self.news));
        let mut consumer = leader.consume(&queue, options).await.expect("a consumer");
        self.ears.spawn(async move {
            loop {
                while let Ok(delivery) = consumer.next().await {
                    let message = delivery.message.parse().expect("a readable message");
                    keep(&mut seen.lock(), message);
                    consumer.acker().ack(&[delivery.tag]).await;
                    news.notify_waiters();
                }
                while let Err(_away) = leader
                    .consume(&queue, options)
                    .await
                    .map(|again| consumer = again)
                {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        });
    }

    /// Starts a worker with what `offer` adds, and waits until it takes work.
    pub(crate) async fn start(&self, offer: impl FnOnce(WorkerBuilder) -> WorkerBuilder) -> Running {
        let shutdown = CancellationToken::new();
        let worker = offer(Worker::builder(self.config.clone()))
            .ports(self.broker.clone(), self.coordination.clone())
            .run(shutdown.clone());
        let running = Running {
            shutdown,
            task: tokio::spawn(worker),
        };
        self.until("the worker registers", |seen| seen.heartbeats.last().map(|_| ()))
            .await;
        running
    }

    /// Waits until `look` finds something.
    pub(crate) async fn until<T>(&self, what: &str, look: impl Fn(&Seen) -> Option<T>) -> T {
        let wait = async {
            loop {
                let news = self.news.notified();
                if let Some(found) = look(&self.seen.lock()) {
                    return found;
                }
                news.await;
            }
        };
        match timeout(DEADLINE, wait).await {
            Ok(found) => found,
            Err(_) => panic!(
                "not within {DEADLINE:?}: {what}; reports {:#?}",
                self.seen.lock().reports
            ),
        }
    }

    /// The newest incarnation that was heard of.
    pub(crate) fn incarnation(&self) -> IncarnationId {
        let seen = self.seen.lock();
        seen.heartbeats.last().expect("a heartbeat was heard").incarnation
    }

    /// Waits for an incarnation other than `old`.
    pub(crate) async fn next_incarnation(&self, old: IncarnationId) -> IncarnationId {
        self.until("a new incarnation registers", |seen| {
            let newest = seen.heartbeats.last()?.incarnation;
            (newest != old).then_some(newest)
        })
        .await
    }

    /// What is in `look` now.
    pub(crate) fn now<T>(&self, look: impl Fn(&Seen) -> T) -> T {
        look(&self.seen.lock())
    }

    /// Hands executions over in one message to the newest incarnation.
    pub(crate) async fn dispatch(&self, executions: Vec<DispatchedExecution>) {
        let queue = self.names.worker_queue(&worker_id(), self.incarnation());
        let message = Message::json(kind::DISPATCH, &DispatchMessage { executions });
        self.publish(self.names.dispatch_exchange(), queue, message).await;
    }

    /// As [`Stage::dispatch`], as a program of another schema version does.
    pub(crate) async fn dispatch_of_version(&self, version: &str, executions: Vec<DispatchedExecution>) {
        let queue = self.names.worker_queue(&worker_id(), self.incarnation());
        let mut message = Message::json(kind::DISPATCH, &DispatchMessage { executions });
        message
            .headers
            .insert(SCHEMA_VERSION_HEADER.into(), version.into());
        self.publish(self.names.dispatch_exchange(), queue, message).await;
    }

    /// Sends requests to the newest incarnation.
    pub(crate) async fn control(&self, actions: Vec<ControlAction>) {
        let queue = self.names.control_queue(&worker_id(), self.incarnation());
        let message = Message::json(kind::CONTROL, &ControlMessage { actions });
        self.publish(self.names.control_exchange(), queue, message).await;
    }

    async fn publish(&self, exchange: String, routing_key: String, message: Message) {
        let publication = Publication {
            exchange,
            routing_key,
            mandatory: true,
            message,
        };
        let deadline = Instant::now() + DEADLINE;
        loop {
            let outcomes = self.leader.publish(vec![publication.clone()]).await;
            if outcomes == [PublishOutcome::Confirmed] {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "the worker's queue does not take messages: {outcomes:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Publishes something else to the dispatch queue of the newest incarnation.
    pub(crate) async fn dispatch_text(&self, text: &'static str) {
        let queue = self.names.worker_queue(&worker_id(), self.incarnation());
        let message = Message {
            headers: MessageHeaders::new(),
            body: text.as_bytes().into(),
            ..Message::json(kind::DISPATCH, &())
        };
        self.publish(self.names.dispatch_exchange(), queue, message).await;
    }

    /// Messages ready or unacked in the newest incarnation's queue; none when there is no queue.
    pub(crate) async fn queue_exists(&self, incarnation: IncarnationId) -> bool {
        let queue = self.names.worker_queue(&worker_id(), incarnation);
        self.leader.inspect(&queue).await.expect("inspected").is_some()
    }

    /// As somebody does by mistake; the leader here waits for another to declare it.
    pub(crate) async fn delete_results_queue(&self) {
        let queue = self.names.results_queue();
        self.leader.delete_queue(&queue).await.expect("deleted");
    }

    /// Waits for the end of a run.
    pub(crate) async fn outcome(&self, claim: Claim) -> Outcome {
        self.until("the run ends", |seen| {
            seen.reports.iter().find_map(|report| match &report.event {
                ReportEvent::Finished { outcome, .. } if report.claim == claim => Some(outcome.clone()),
                _ => None,
            })
        })
        .await
    }

    /// Waits for a report other than of a start.
    pub(crate) async fn verdict(&self, claim: Claim) -> ReportEvent {
        self.until("the handover ends", |seen| {
            seen.reports
                .iter()
                .find(|report| report.claim == claim && !matches!(report.event, ReportEvent::Started { .. }))
                .map(|report| report.event.clone())
        })
        .await
    }

    /// Waits for the start of a run.
    pub(crate) async fn started(&self, claim: Claim) {
        self.until("the run starts", |seen| {
            seen.reports
                .iter()
                .any(|report| report.claim == claim && matches!(report.event, ReportEvent::Started { .. }))
                .then_some(())
        })
        .await;
    }

    /// Everything reported about a claim so far.
    pub(crate) fn said(&self, claim: Claim) -> Vec<ReportEvent> {
        self.now(|seen| {
            let of_claim = seen.reports.iter().filter(|report| report.claim == claim);
            of_claim.map(|report| report.event.clone()).collect()
        })
    }
}

impl Running {
    /// Asks the worker to stop, and waits until it has.
    pub(crate) async fn stop(self) -> Result<(), Error> {
        self.shutdown.cancel();
        self.ended().await
    }

    /// Asks the worker to stop.
    pub(crate) fn ask_to_stop(&self) {
        self.shutdown.cancel();
    }

    /// Waits until the worker has stopped.
    pub(crate) async fn ended(self) -> Result<(), Error> {
        timeout(DEADLINE, self.task)
            .await
            .expect("the worker stops in time")
            .expect("the worker does not panic")
    }
}

fn worker_id() -> WorkerId {
    WorkerId::parse(WORKER).expect("a valid name")
}

/// An execution of `handler`, dispatched now.
pub(crate) fn execution(handler: &str, params: &Value) -> DispatchedExecution {
    let now = EpochMillis::system_now();
    DispatchedExecution {
        claim: Claim {
            execution: ExecutionId::generate(),
            dispatch_seq: 1,
        },
        job: JobId::generate(),
        app: AppId::generate(),
        epoch: 1,
        attempt: 1,
        not_after: now + Duration::from_secs(15),
        placed_at: now,
        scheduled_time: now,
        handler: handler.into(),
        job_name: "a job".into(),
        params: RawJson::from_value(params).expect("JSON"),
        shard: 0,
        shards: 1,
        timeout_ms: 600_000,
        priority: 5,
        traceparent: Some(TRACE.into()),
    }
}

/// The result of a run that ended well, as JSON.
pub(crate) fn result(outcome: &Outcome) -> Value {
    match outcome {
        Outcome::Succeeded { result } => serde_json::from_str(result.as_str()).expect("JSON"),
        other => panic!("not succeeded: {other:?}"),
    }
}

/// Code, message and whether it may be tried again, of a run that failed.
pub(crate) fn failure(outcome: Outcome) -> (String, String, bool) {
    match outcome {
        Outcome::Failed { error, retryable, .. } => (error.code, error.message, retryable),
        other => panic!("not failed: {other:?}"),
    }
}
