//! A cluster of one process, for examples: a broker and a coordination service in memory, and a leader that hands one
//! execution to the worker, gives it the next attempt when it asks for one, and prints what it reports.

use anyhow::{Context, bail};
use isocost_common::{
    broker::{
        Broker, ConsumeOptions, Consumer, Message, Publication, PublishOutcome, memory::MemoryBroker,
        topology::Names,
    },
    config::Config,
    coordination::{Coordination, memory::MemoryCoordination},
    execution::{Claim, Outcome},
    id::{AppId, ExecutionId, JobId},
    message::{
        DispatchMessage, DispatchedExecution, Heartbeat, LogMessage, ReportEvent, ReportMessage, kind,
    },
    raw_json::RawJson,
    time::EpochMillis,
};
use isocost_worker::{Worker, WorkerBuilder};
use std::{sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// Runs one execution of `handler` on a worker with what `offer` adds, for at most `attempts` attempts.
pub(crate) async fn run(
    offer: impl FnOnce(WorkerBuilder) -> WorkerBuilder,
    handler: &str,
    params: serde_json::Value,
    attempts: u32,
) -> anyhow::Result<()> {
    let mut config = Config::default();
    config.worker.id = "example".into();
    config.worker.listen = "127.0.0.1:0".into();
    let names = Names::new(&config.broker.namespace);
    let (broker, coordination) = (MemoryBroker::new(), MemoryCoordination::new());
    let shared = names.shared_topology(&config.relay.delay_tiers());
    broker.declare(&shared).await?;

    let shutdown = CancellationToken::new();
    let worker = offer(Worker::builder(config)).ports(broker.connect(), coordination.clone());
    let worker = tokio::spawn(worker.run(shutdown.clone()));
    let printer = tokio::spawn(print_log(consume(&broker, &names.logs_queue()).await?));
    let leader = Leader {
        queue: worker_queue(&names, &coordination).await?,
        results: consume(&broker, &names.results_queue()).await?,
        exchange: names.dispatch_exchange(),
        broker,
    };
    leader
        .see_through(handler, RawJson::from_value(&params)?, attempts)
        .await?;
    shutdown.cancel();
    worker.await??;
    printer.abort();
    Ok(())
}

struct Leader {
    broker: Arc<MemoryBroker>,
    exchange: String,
    queue: String,
    results: Box<dyn Consumer>,
}

impl Leader {
    async fn see_through(mut self, handler: &str, params: RawJson, attempts: u32) -> anyhow::Result<()> {
        let execution = ExecutionId::generate();
        for attempt in 1..=attempts {
            let dispatched = dispatched(execution, attempt, handler, &params);
            self.hand_over(dispatched).await?;
            match self.outcome().await? {
                Outcome::Failed {
                    retryable: true,
                    retry_after_ms,
                    ..
                } if attempt < attempts => {
                    tokio::time::sleep(Duration::from_millis(retry_after_ms.unwrap_or(100))).await;
                }
                _ => break,
            }
        }
        Ok(())
    }

    async fn hand_over(&self, execution: DispatchedExecution) -> anyhow::Result<()> {
        let executions = vec![execution];
        let publication = Publication {
            exchange: self.exchange.clone(),
            routing_key: self.queue.clone(),
            mandatory: true,
            message: Message::json(kind::DISPATCH, &DispatchMessage { executions }),
        };
        match self.broker.publish(vec![publication]).await.first() {
            Some(PublishOutcome::Confirmed) => Ok(()),
            other => bail!("the worker's queue did not take the execution: {other:?}"),
        }
    }

    async fn outcome(&mut self) -> anyhow::Result<Outcome> {
        loop {
            let delivery = self.results.next().await?;
            self.results.acker().ack(&[delivery.tag]).await;
            for report in delivery.message.parse::<ReportMessage>()?.reports {
                println!("report    {:?}", report.event);
                if let ReportEvent::Finished { outcome, .. } = report.event {
                    return Ok(outcome);
                }
            }
        }
    }
}

fn dispatched(execution: ExecutionId, attempt: u32, handler: &str, params: &RawJson) -> DispatchedExecution {
    let now = EpochMillis::system_now();
    DispatchedExecution {
        claim: Claim {
            execution,
            dispatch_seq: i64::from(attempt),
        },
        job: JobId::generate(),
        app: AppId::generate(),
        epoch: 1,
        attempt,
        not_after: now + Duration::from_secs(15),
        placed_at: now,
        scheduled_time: now,
        handler: handler.into(),
        job_name: "example".into(),
        params: params.clone(),
        shard: 0,
        shards: 1,
        timeout_ms: 60_000,
        priority: 5,
        traceparent: None,
    }
}

async fn consume(broker: &Arc<MemoryBroker>, queue: &str) -> anyhow::Result<Box<dyn Consumer>> {
    let options = ConsumeOptions {
        prefetch: 100,
        exclusive: false,
    };
    Ok(broker.consume(queue, options).await?)
}

/// A worker's queue is named for its incarnation, which its first heartbeat tells.
async fn worker_queue(names: &Names, coordination: &MemoryCoordination) -> anyhow::Result<String> {
    for _ in 0..500 {
        if let Some(stored) = coordination.heartbeats().await?.stored.first() {
            let heartbeat: Heartbeat = serde_json::from_str(&stored.payload)?;
            return Ok(names.worker_queue(&heartbeat.worker, heartbeat.incarnation));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    None.context("the worker did not register")
}

async fn print_log(mut logs: Box<dyn Consumer>) -> anyhow::Result<()> {
    loop {
        let delivery = logs.next().await?;
        let message: LogMessage = delivery.message.parse()?;
        for line in message.lines {
            println!(
                "log       attempt {} line {}: {}",
                line.attempt, line.line, line.message
            );
        }
        for progress in message.progress {
            println!("progress  {} % {}", progress.percent, progress.message);
        }
    }
}
