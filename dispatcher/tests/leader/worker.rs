//! A worker whose every word a test decides.

use crate::world::{SOON, World};
use anyhow::Context;
use isocost_common::{
    broker::{Broker, ConsumeOptions, Consumer, Message, Publication, PublishOutcome, memory::MemoryBroker},
    coordination::{Coordination, HeartbeatAnswer},
    execution::{Claim, Outcome},
    id::{IncarnationId, WorkerId},
    job::Selector,
    message::{
        ControlAction, ControlMessage, DispatchMessage, DispatchedExecution, HandlerLoad, Heartbeat,
        Holdings, Report, ReportEvent, ReportMessage, kind,
    },
    raw_json::RawJson,
    time::EpochMillis,
};
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::time::timeout;

/// Long enough for a mistake to show.
const QUIET: Duration = Duration::from_millis(400);

pub(crate) struct ScriptedWorker {
    pub(crate) id: WorkerId,
    pub(crate) incarnation: IncarnationId,
    pub(crate) holdings: Holdings,
    pub(crate) host: String,
    handler: HandlerLoad,
    report_number: u64,
    broker: Arc<MemoryBroker>,
    coordination: Arc<dyn Coordination>,
    names: isocost_common::broker::topology::Names,
    dispatches: Box<dyn Consumer>,
    controls: Box<dyn Consumer>,
    received: VecDeque<DispatchedExecution>,
    actions: VecDeque<ControlAction>,
}

impl ScriptedWorker {
    pub(crate) async fn start(world: &World, name: &str, handler: &str, slots: u32) -> anyhow::Result<Self> {
        let (id, incarnation) = (WorkerId::parse(name)?, IncarnationId::generate());
        let broker = world.broker.connect();
        let names = world.names.clone();
        broker
            .declare(&names.shared_topology(&world.config.relay.delay_tiers()))
            .await?;
        broker
            .declare(&names.worker_topology(&id, incarnation, Duration::from_secs(60)))
            .await?;
        let options = ConsumeOptions {
            prefetch: 1_000,
            exclusive: false,
        };
        Ok(Self {
            dispatches: broker
                .consume(&names.worker_queue(&id, incarnation), options)
                .await?,
            controls: broker
                .consume(&names.control_queue(&id, incarnation), options)
                .await?,
            handler: HandlerLoad {
                name: handler.into(),
                slots,
                busy: 0,
                stuck: 0,
            },
            id,
            incarnation,
            holdings: Holdings::default(),
            host: "127.0.0.1".into(),
            report_number: 0,
            coordination: world.ports().coordination,
            names,
            broker,
            received: VecDeque::new(),
            actions: VecDeque::new(),
        })
    }

    /// One heartbeat, over both paths.
    pub(crate) async fn beat(&mut self) -> anyhow::Result<HeartbeatAnswer> {
        self.say(false).await
    }

    /// The last heartbeat.
    pub(crate) async fn bye(&mut self) -> anyhow::Result<HeartbeatAnswer> {
        self.say(true).await
    }

    async fn say(&mut self, bye: bool) -> anyhow::Result<HeartbeatAnswer> {
        self.report_number += 1;
        let heartbeat = Heartbeat {
            worker: self.id.clone(),
            incarnation: self.incarnation,
            report_number: self.report_number,
            host: self.host.clone(),
            port: 0,
            handlers: vec![self.handler.clone()],
            labels: Selector::new(),
            cpu_idle_percent: 100,
            draining: false,
            bye,
            sent_at: EpochMillis::system_now(),
            holdings: self.holdings.clone(),
        };
        let message = Message::json(kind::HEARTBEAT, &heartbeat);
        let payload = String::from_utf8(message.body.to_vec())?;
        let answer = self
            .coordination
            .heartbeat(self.incarnation, &payload, Duration::from_millis(100))
            .await?;
        self.publish(self.names.heartbeats_exchange(), String::new(), message)
            .await?;
        Ok(answer)
    }

    /// The next execution it is given.
    pub(crate) async fn next(&mut self) -> anyhow::Result<DispatchedExecution> {
        if let Some(execution) = self.received.pop_front() {
            return Ok(execution);
        }
        let delivery = timeout(SOON, self.dispatches.next())
            .await
            .context("no dispatch came")??;
        self.dispatches.acker().ack(&[delivery.tag]).await;
        self.received
            .extend(delivery.message.parse::<DispatchMessage>()?.executions);
        self.received.pop_front().context("a dispatch without executions")
    }

    pub(crate) async fn next_many(&mut self, count: usize) -> anyhow::Result<Vec<DispatchedExecution>> {
        let mut executions = Vec::with_capacity(count);
        while executions.len() < count {
            executions.push(self.next().await?);
        }
        Ok(executions)
    }

    /// Fails if it is given anything within a while.
    pub(crate) async fn gets_nothing(&mut self) -> anyhow::Result<()> {
        let received = self.received.len();
        anyhow::ensure!(received == 0, "{received} executions came");
        if let Ok(delivery) = timeout(QUIET, self.dispatches.next()).await {
            anyhow::bail!("a dispatch came: {:?}", delivery?.message);
        }
        Ok(())
    }

    /// The next request of the leader.
    pub(crate) async fn next_request(&mut self) -> anyhow::Result<ControlAction> {
        if let Some(action) = self.actions.pop_front() {
            return Ok(action);
        }
        let delivery = timeout(SOON, self.controls.next())
            .await
            .context("no request came")??;
        self.controls.acker().ack(&[delivery.tag]).await;
        self.actions
            .extend(delivery.message.parse::<ControlMessage>()?.actions);
        self.actions
            .pop_front()
            .context("a control message without actions")
    }

    pub(crate) async fn report(&self, claim: Claim, event: ReportEvent) -> anyhow::Result<()> {
        let message = ReportMessage {
            worker: self.id.clone(),
            incarnation: self.incarnation,
            reports: vec![Report { claim, event }],
        };
        let message = Message::json(kind::REPORT, &message);
        self.publish(self.names.results_exchange(), self.names.results_queue(), message)
            .await
    }

    pub(crate) async fn started(&self, execution: &DispatchedExecution) -> anyhow::Result<()> {
        let event = ReportEvent::Started {
            at: execution.placed_at,
            attempt: execution.attempt,
        };
        self.report(execution.claim, event).await
    }

    pub(crate) async fn finished(&self, execution: &DispatchedExecution) -> anyhow::Result<()> {
        let event = ReportEvent::Finished {
            outcome: Outcome::Succeeded {
                result: RawJson::null(),
            },
            started_at: execution.placed_at,
            at: execution.placed_at,
            attempt: execution.attempt,
        };
        self.report(execution.claim, event).await
    }

    async fn publish(&self, exchange: String, routing_key: String, message: Message) -> anyhow::Result<()> {
        let publication = Publication {
            exchange,
            routing_key,
            mandatory: false,
            message,
        };
        let outcomes = self.broker.publish(vec![publication]).await;
        anyhow::ensure!(outcomes == [PublishOutcome::Confirmed], "{outcomes:?}");
        Ok(())
    }
}
