//! An intake with a database and a broker of its own.

use isocost_common::{
    Ports,
    broker::{
        Broker, ConsumeOptions, Consumer, Message, Publication, PublishOutcome, memory::MemoryBroker,
        topology::Names,
    },
    config::Config,
    coordination::memory::MemoryCoordination,
    execution::{Claim, ExecutionStatus, Outcome},
    id::{ExecutionId, IncarnationId, JobId, WorkerId},
    job::{JobStatus, RetryPolicy, Trigger},
    message::{Report, ReportEvent, ReportMessage, SettledMessage, kind},
    raw_json::RawJson,
    readiness::Readiness,
    store::{
        Store, StoreOptions,
        executions::{self, ExecutionRow, TriggerKind},
        jobs::{self, JobRow},
        migrations,
    },
    test_support::given,
    time::EpochMillis,
};
use sqlx::AssertSqlSafe;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) struct Site {
    _folder: tempfile::TempDir,
    pub(crate) store: Store,
    pub(crate) broker: Arc<MemoryBroker>,
    pub(crate) names: Names,
    pub(crate) worker: WorkerId,
    pub(crate) incarnation: IncarnationId,
    pub(crate) readiness: Readiness,
    settled: Box<dyn Consumer>,
    shutdown: CancellationToken,
    running: JoinHandle<Result<(), isocost_dispatcher::intake::Error>>,
}

impl Site {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let url = format!("sqlite:{}", folder.path().join("intake.db").display());
        let store = Store::connect(&StoreOptions::new(&url)).await?;
        migrations::run(&store).await?;
        let config = Config::default();
        let names = Names::new(&config.broker.namespace);
        let broker = MemoryBroker::new();
        broker
            .declare(&names.shared_topology(&config.relay.delay_tiers()))
            .await?;
        broker
            .declare(&names.listener_topology(&names.settled_exchange(), "test"))
            .await?;
        let queue = names.listener_queue(&names.settled_exchange(), "test");
        let settled = broker.consume(&queue, consuming()).await?;
        let readiness = Readiness::default();
        let ports = Ports {
            store: store.clone(),
            broker: broker.clone(),
            coordination: MemoryCoordination::new(),
            readiness: readiness.clone(),
        };
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(isocost_dispatcher::intake::run(config, ports, shutdown.clone()));
        Ok(Self {
            _folder: folder,
            store,
            broker,
            names,
            worker: WorkerId::parse("worker-a")?,
            incarnation: IncarnationId::generate(),
            readiness,
            settled,
            shutdown,
            running,
        })
    }

    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.shutdown.cancel();
        self.running.await??;
        Ok(())
    }

    /// A one-shot that has fired, with its execution on our worker.
    pub(crate) async fn dispatched(&self, retry: RetryPolicy) -> anyhow::Result<ExecutionRow> {
        let now = self.store.now();
        let job = one_shot(retry, now);
        let row = ExecutionRow {
            id: ExecutionId::generate(),
            job: job.id,
            app: job.app,
            handler: job.handler.clone(),
            scheduled_time: now,
            shard: 0,
            trigger_key: String::new(),
            trigger_kind: TriggerKind::Schedule,
            status: ExecutionStatus::Dispatched,
            not_before: now,
            class_key: job.class_key(),
            rank_time: now.0,
            attempt: 0,
            interruptions: 0,
            max_attempts: job.retry.max_attempts,
            dispatch_seq: 1,
            worker: Some(self.worker.clone()),
            incarnation: Some(self.incarnation),
            epoch: Some(1),
            not_after: None,
            slot_key: None,
            params: None,
            created_at: now,
            due_at: Some(now),
            dispatched_at: Some(now),
            started_at: None,
            finished_at: None,
            start_deadline_at: None,
            timeout_ms: 60_000,
            cancel_requested_at: None,
            progress_percent: None,
            progress_message: None,
            result: None,
            error: None,
        };
        let mut tx = self.store.begin().await?;
        jobs::insert_many(&mut tx, &[job]).await?;
        executions::insert_many(&mut tx, std::slice::from_ref(&row)).await?;
        tx.commit().await?;
        Ok(row)
    }

    /// Publishes reports as our worker does, in one message.
    pub(crate) async fn report(&self, events: Vec<(Claim, ReportEvent)>) -> anyhow::Result<()> {
        let message = ReportMessage {
            worker: self.worker.clone(),
            incarnation: self.incarnation,
            reports: events
                .into_iter()
                .map(|(claim, event)| Report { claim, event })
                .collect(),
        };
        self.publish(
            self.names.results_exchange(),
            self.names.results_queue(),
            Message::json(kind::REPORT, &message),
        )
        .await
    }

    pub(crate) async fn publish(
        &self,
        exchange: String,
        routing_key: String,
        message: Message,
    ) -> anyhow::Result<()> {
        let publication = Publication {
            exchange,
            routing_key,
            mandatory: true,
            message,
        };
        let outcomes = self.broker.publish(vec![publication]).await;
        anyhow::ensure!(outcomes == [PublishOutcome::Confirmed], "{outcomes:?}");
        Ok(())
    }

    /// Does something to the database behind the intake's back.
    pub(crate) async fn execute(&self, sql: &str) -> anyhow::Result<()> {
        let mut tx = self.store.begin().await?;
        sqlx::query(AssertSqlSafe(sql.to_owned()))
            .execute(&mut *tx)
            .await?;
        Ok(tx.commit().await?)
    }

    pub(crate) async fn next_settled(&mut self) -> anyhow::Result<SettledMessage> {
        let delivery = tokio::time::timeout(Duration::from_secs(10), self.settled.next()).await??;
        Ok(delivery.message.parse()?)
    }

    pub(crate) async fn execution(&self, id: ExecutionId) -> anyhow::Result<ExecutionRow> {
        let mut reader = self.store.reader().await?;
        Ok(executions::get(&mut reader, id).await?.expect("stored"))
    }

    pub(crate) async fn job_status(&self, id: JobId) -> anyhow::Result<JobStatus> {
        let mut reader = self.store.reader().await?;
        Ok(jobs::get(&mut reader, id).await?.expect("stored").status)
    }

    /// Messages ready in a queue.
    pub(crate) async fn ready(&self, queue: &str) -> anyhow::Result<u64> {
        Ok(self.broker.inspect(queue).await?.expect("declared").messages)
    }

    /// Waits until the execution has this status, at most ten seconds.
    pub(crate) async fn eventually(&self, id: ExecutionId, status: ExecutionStatus) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let now = self.execution(id).await?.status;
            if now == status {
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < deadline, "still {now}, not {status}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

pub(crate) fn consuming() -> ConsumeOptions {
    ConsumeOptions {
        prefetch: 10,
        exclusive: false,
    }
}

fn one_shot(retry: RetryPolicy, now: EpochMillis) -> JobRow {
    JobRow {
        callback_url: Some("https://example.com/hook".into()),
        retry,
        created_at: now,
        updated_at: now,
        ..given::job_with(Trigger::Once { at: now })
    }
}

pub(crate) fn started(store: &Store) -> ReportEvent {
    ReportEvent::Started {
        at: store.now(),
        attempt: 1,
    }
}

pub(crate) fn finished(store: &Store, outcome: Outcome) -> ReportEvent {
    ReportEvent::Finished {
        outcome,
        started_at: store.now(),
        at: store.now(),
        attempt: 1,
    }
}

pub(crate) fn success() -> Outcome {
    Outcome::Succeeded {
        result: RawJson::null(),
    }
}
