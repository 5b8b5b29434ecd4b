//! A dispatcher of its own for each test, and looks at the tables.

use crate::worker::ScriptedWorker;
use anyhow::Context;
use isocost_common::{
    Ports,
    broker::{Broker, ConsumeOptions, Consumer, Message, Publication, memory::MemoryBroker, topology::Names},
    config::Config,
    coordination::memory::MemoryCoordination,
    execution::ExecutionStatus,
    id::{AppId, ExecutionId, JobId},
    job::{JobStatus, Trigger},
    message::{Wake, kind},
    readiness::Readiness,
    store::{
        Store,
        executions::{self, ExecutionRow},
        jobs::{self, JobRow},
    },
    test_support::{TestStore, eventually, given},
};
use std::{sync::Arc, time::Duration};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Longest wait for anything that should happen soon.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// A database, a broker, a coordination service, and the dispatchers started on them.
pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) broker: Arc<MemoryBroker>,
    coordination: Arc<MemoryCoordination>,
    pub(crate) config: Config,
    pub(crate) names: Names,
    pub(crate) readiness: Readiness,
}

/// A dispatcher that runs until it is stopped.
pub(crate) struct RunningDispatcher {
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), isocost_dispatcher::Error>>,
}

impl RunningDispatcher {
    /// A clean stop: the work in hand is completed.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.shutdown.cancel();
        self.task.await??;
        Ok(())
    }
}

impl World {
    /// Everything but a dispatcher, with leases of a fraction of a second.
    pub(crate) fn new(store: &TestStore) -> Self {
        let mut world = Self::with_long_leases(store);
        world.shorten_leases();
        world
    }

    /// Everything but a dispatcher; a worker is not called dead while a test looks the other way.
    pub(crate) fn with_long_leases(store: &TestStore) -> Self {
        // The probe's client asks for the process's provider; an error means that another test has set it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut config = Config::default();
        config.leases.heartbeat_ms = 20_000;
        config.leases.worker_cancel_ms = 60_000;
        config.leases.worker_exit_ms = 65_000;
        config.leases.dead_after_ms = 70_000;
        Self {
            store: Store::clone(store),
            broker: MemoryBroker::new(),
            coordination: MemoryCoordination::new(),
            names: Names::new(&config.broker.namespace),
            readiness: Readiness::default(),
            config,
        }
    }

    /// For the dispatchers that are started from now on.
    pub(crate) fn shorten_leases(&mut self) {
        let leases = &mut self.config.leases;
        leases.heartbeat_ms = 50;
        leases.worker_cancel_ms = 200;
        leases.worker_exit_ms = 250;
        leases.dead_after_ms = 300;
    }

    pub(crate) fn ports(&self) -> Ports {
        Ports {
            store: self.store.clone(),
            broker: self.broker.connect(),
            coordination: self.coordination.clone(),
            readiness: self.readiness.clone(),
        }
    }

    pub(crate) fn start_dispatcher(&self) -> RunningDispatcher {
        let shutdown = CancellationToken::new();
        let run = isocost_dispatcher::run(self.config.clone(), self.ports(), shutdown.clone());
        RunningDispatcher {
            shutdown,
            task: tokio::spawn(run),
        }
    }

    /// A worker that does what the test says, known to the leader.
    pub(crate) async fn worker(
        &self,
        name: &str,
        handler: &str,
        slots: u32,
    ) -> anyhow::Result<ScriptedWorker> {
        let mut worker = ScriptedWorker::start(self, name, handler, slots).await?;
        self.introduce(&mut worker).await?;
        Ok(worker)
    }

    /// Beats until the leader has written the worker's row.
    pub(crate) async fn introduce(&self, worker: &mut ScriptedWorker) -> anyhow::Result<()> {
        let incarnation = worker.incarnation.to_string();
        eventually("the worker is registered", SOON, async || {
            worker.beat().await?;
            let mut reader = self.store.reader().await?;
            let known: i64 = sqlx::query_scalar("select count(*) from worker_node where incarnation = ?")
                .bind(incarnation.clone())
                .fetch_one(&mut *reader)
                .await?;
            Ok((known == 1).then_some(()))
        })
        .await
    }

    /// Consumes the results queue, alone, and acks nothing. Ends with what it returns.
    pub(crate) async fn hold_results(&self) -> anyhow::Result<Box<dyn Consumer>> {
        let options = ConsumeOptions {
            prefetch: u16::MAX,
            exclusive: false,
        };
        let mut consumer = self.broker.consume(&self.names.results_queue(), options).await?;
        consumer.next().await?;
        Ok(consumer)
    }

    /// Stores jobs and wakes the leader, as the API does.
    pub(crate) async fn submit(&self, jobs: &[JobRow]) -> anyhow::Result<()> {
        given::insert(&self.store, jobs, &[]).await?;
        self.wake().await;
        Ok(())
    }

    pub(crate) async fn wake(&self) {
        self.call(false).await;
    }

    /// Tells the leader that settings or orders to workers were changed.
    pub(crate) async fn call_for_orders(&self) {
        self.call(true).await;
    }

    async fn call(&self, orders: bool) {
        let wake = Wake {
            due: self.store.now(),
            orders,
        };
        let publication = Publication {
            exchange: self.names.wake_exchange(),
            routing_key: String::new(),
            mandatory: false,
            message: Message::json(kind::WAKE, &wake),
        };
        self.broker.publish(vec![publication]).await;
    }

    /// A one-shot that is due now.
    pub(crate) fn due_job(&self, handler: &str) -> JobRow {
        let now = self.store.now();
        JobRow {
            handler: handler.into(),
            next_trigger_time: Some(now),
            ..given::job_with(Trigger::Once { at: now })
        }
    }

    /// As many of them, of one app.
    pub(crate) fn due_jobs(&self, handler: &str, count: usize) -> Vec<JobRow> {
        let app = AppId::generate();
        let job = |_| JobRow {
            app,
            ..self.due_job(handler)
        };
        (0..count).map(job).collect()
    }

    pub(crate) async fn job(&self, id: JobId) -> anyhow::Result<JobRow> {
        let mut reader = self.store.reader().await?;
        jobs::get(&mut reader, id).await?.context("the job is stored")
    }

    /// The executions of a job, oldest first.
    pub(crate) async fn executions(&self, job: JobId) -> anyhow::Result<Vec<ExecutionRow>> {
        let mut reader = self.store.reader().await?;
        let ids: Vec<String> =
            sqlx::query_scalar("select id from job_execution where job_id = ? order by id")
                .bind(job.to_string())
                .fetch_all(&mut *reader)
                .await?;
        let ids: Vec<ExecutionId> = ids.iter().map(|id| id.parse()).collect::<Result<_, _>>()?;
        Ok(executions::get_many(&mut reader, &ids, "").await?)
    }

    /// Waits for a job's executions to be in these states.
    pub(crate) async fn until(
        &self,
        job: JobId,
        expected: &[ExecutionStatus],
    ) -> anyhow::Result<Vec<ExecutionRow>> {
        let mut seen = Vec::new();
        let found = eventually("the executions are as expected", SOON, async || {
            let rows = self.executions(job).await?;
            seen = rows.iter().map(|row| row.status).collect();
            Ok((seen == expected).then_some(rows))
        })
        .await;
        found.with_context(|| format!("{seen:?} instead of {expected:?}"))
    }

    /// Waits for a job to have this status.
    pub(crate) async fn until_job(&self, id: JobId, status: JobStatus) -> anyhow::Result<JobRow> {
        eventually("the job's status is as expected", SOON, async || {
            let job = self.job(id).await?;
            Ok((job.status == status).then_some(job))
        })
        .await
    }

    pub(crate) async fn count(&self, sql: &'static str) -> anyhow::Result<i64> {
        let mut reader = self.store.reader().await?;
        Ok(sqlx::query_scalar(sql).fetch_one(&mut *reader).await?)
    }

    /// Changes rows behind the leader's back.
    pub(crate) async fn execute(&self, sql: &'static str, binds: &[String]) -> anyhow::Result<()> {
        self.store
            .transact(|| async {
                let mut tx = self.store.begin().await?;
                let mut query = sqlx::query(sql);
                for bind in binds {
                    query = query.bind(bind.clone());
                }
                query.execute(&mut *tx).await?;
                tx.commit().await
            })
            .await?;
        Ok(())
    }
}
