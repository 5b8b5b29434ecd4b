//! One visit to a crash point: what is asked for, by a client that asks again when it gets no answer, and what must be
//! true afterwards.

use anyhow::{Context, Result, bail, ensure};
use isocost_common::crash_point::CrashPoint;
use isocost_tests::api::{Api, text};
use isocost_tests::bounds;
use isocost_tests::jobs::{LONG, once, wait_for_execution, with};
use isocost_tests::ledger::Ledger;
use isocost_tests::patience::eventually;
use isocost_tests::receiver::Receiver;
use isocost_tests::steps;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

/// Long enough for the start to be reported by itself, before the end.
const RUN_MS: u64 = 300;
/// Long enough for a worker to be killed, or a user to delete the job, meanwhile.
const LONG_RUN_MS: u64 = 2_000;

/// A relay that died keeps what it had claimed: a delivery for its request's deadline and half a minute, an outcome for
/// a minute.
pub(super) const TOLD: Duration = Duration::from_secs(120);

/// What leads to the point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// A run, submitted over REST.
    Run,
    /// A run, submitted over AMQP.
    OverAmqp,
    /// An attempt that fails, and one that does not.
    Retried,
    /// A job that is not due yet, cancelled.
    Cancelled,
    /// A job that runs, deleted.
    Deleted,
    /// A run whose worker dies.
    Orphaned,
}

/// Where a handler may run a second time, because its run was cut off or nobody can know how far it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// Nowhere.
    Never,
    /// Where the broker dies along with the process, and the worker's word with it.
    InOneProcess,
    /// Everywhere.
    Always,
}

/// A point, and how it is come by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Visit {
    pub(super) point: CrashPoint,
    pub(super) nth: u32,
    pub(super) work: Work,
    pub(super) again: Again,
}

impl Visit {
    pub(super) const fn of(point: CrashPoint, work: Work) -> Self {
        Self {
            point,
            nth: 1,
            work,
            again: Again::Never,
        }
    }

    pub(super) const fn nth(self, nth: u32) -> Self {
        Self { nth, ..self }
    }

    pub(super) const fn again(self, again: Again) -> Self {
        Self { again, ..self }
    }

    /// The value that arms it.
    pub(super) fn armed(&self) -> String {
        format!("{}@{}", self.point.name(), self.nth)
    }

    /// As a client request id: the job's, however often it is submitted.
    pub(super) fn key(&self) -> String {
        self.armed()
    }

    /// It died here and nowhere else, as `kill -9` makes a process die.
    pub(super) fn has_died_here(&self, status: ExitStatus, log: &str) -> Result<()> {
        let said = format!("crash point {}: dying", self.point.name());
        ensure!(
            status.signal() == Some(9) && log.contains(&said),
            "it ended with {status}, and not at the point"
        );
        Ok(())
    }

    /// The job, with what is called back.
    pub(super) fn job(&self, receiver: &Receiver) -> Value {
        let (params, more) = match self.work {
            Work::Run | Work::OverAmqp => (json!({ "ms": RUN_MS }), json!({})),
            Work::Retried => (json!({ "fails": 1 }), json!({})),
            Work::Cancelled => {
                let later = json!({ "type": "once", "delayMs": 3_600_000 });
                (json!({}), json!({ "trigger": later }))
            }
            Work::Deleted | Work::Orphaned => (json!({ "ms": LONG_RUN_MS }), json!({})),
        };
        let job = json!({
            "clientRequestId": self.key(),
            "params": params,
            "callbackUrl": receiver.url(),
            "retry": { "maxAttempts": 5, "backoff": "fixed", "initialMs": 10, "maxMs": 10 }
        });
        with(with(once("ledger"), job), more)
    }

    /// Asks for it over REST. Fails when the process dies before its answer.
    pub(super) async fn ask(&self, api: &Api, receiver: &Receiver) -> Result<String> {
        let submitted = api.post("/openapi/jobs", &self.job(receiver)).await?;
        let id = text(&submitted.success()?, "jobId")?;
        match self.work {
            Work::Cancelled => cancel(api, &id).await?,
            Work::Deleted => {
                wait_for_execution(api, &id, "RUNNING").await?;
                delete(api, &id).await?;
            }
            Work::Run | Work::OverAmqp | Work::Retried | Work::Orphaned => {}
        }
        Ok(id)
    }

    /// Asks again, as a client does that got no answer, and waits for the end. What is returned still has to be told to
    /// whom it concerns.
    pub(super) async fn ends_well(
        &self,
        api: &Api,
        ledger: &Ledger,
        receiver: &Receiver,
        world: World,
    ) -> Result<Option<Done>> {
        let again = api.post("/openapi/jobs", &self.job(receiver)).await?;
        if self.work == Work::Deleted && again.status == StatusCode::CONFLICT {
            return Ok(None); // It is gone, and its key is still taken.
        }
        let id = text(&again.success()?, "jobId")?;
        match self.work {
            Work::Cancelled => {
                cancel(api, &id).await?;
                ensure!(
                    api.job(&id).await?["status"] == "CANCELLED",
                    "it is not cancelled"
                );
                ensure!(api.executions(&id).await?.is_empty(), "it was fired");
                Ok(None)
            }
            Work::Deleted => {
                delete(api, &id).await?;
                eventually("the job is gone", LONG, async || {
                    let status = api.get(&format!("/openapi/jobs/{id}")).await?.status;
                    Ok((status == StatusCode::NOT_FOUND).then_some(()))
                })
                .await?;
                Ok(None)
            }
            Work::Run | Work::OverAmqp | Work::Retried | Work::Orphaned => {
                let execution = succeeded(api, &id).await?;
                self.ran_as_it_may(&execution, ledger, world)?;
                let execution = text(&execution, "executionId")?;
                Ok(Some(Done { job: id, execution }))
            }
        }
    }

    /// One applied result; attempts that are told apart; no run that the crash does not explain.
    fn ran_as_it_may(&self, execution: &Value, ledger: &Ledger, world: World) -> Result<()> {
        let steps = steps::of(execution)?;
        ensure!(
            steps::first_illegal(&steps).is_none(),
            "{:?} in {steps:#?}",
            steps::first_illegal(&steps)
        );
        let runs = ledger
            .runs()?
            .remove(&text(execution, "executionId")?)
            .unwrap_or_default();
        let distinct: BTreeSet<u32> = runs.iter().copied().collect();
        ensure!(distinct.len() == runs.len(), "one attempt ran twice: {runs:?}");
        let planned = if self.work == Work::Retried { 2 } else { 1 };
        let is_cut_off = match (self.again, world) {
            _ if self.work == Work::Orphaned => true,
            (Again::Always, _) | (Again::InOneProcess, World::OneProcess) => true,
            (Again::InOneProcess | Again::Never, _) => false,
        };
        let bound = if is_cut_off {
            bounds::count("crash-in-run")
        } else {
            bounds::count("crash-before-start")
        };
        let most = planned - 1 + usize::try_from(bound?)?;
        // Another worker's lease that ran out on a busy machine explains a run as well; it shows in the steps.
        let explained =
            planned - 1 + usize::from(world.takes_back(self.point) || self.work == Work::Orphaned);
        let others = steps::taken_back(&steps).len().saturating_sub(explained);
        ensure!(
            (planned..=most + others).contains(&runs.len()),
            "attempts {runs:?} ran, where {planned} were planned and {most} are allowed: {steps:#?}"
        );
        Ok(())
    }
}

/// A job that has succeeded, and its execution.
pub(super) struct Done {
    pub(super) job: String,
    pub(super) execution: String,
}

/// Where it happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum World {
    /// Everything dies.
    OneProcess,
    /// One role dies.
    Cluster,
}

impl World {
    /// Whether the crash itself takes an execution back from its worker.
    fn takes_back(self, point: CrashPoint) -> bool {
        self == Self::OneProcess || point.name().starts_with("worker.")
    }
}

async fn cancel(api: &Api, id: &str) -> Result<()> {
    let path = format!("/openapi/jobs/{id}/cancel");
    api.post(&path, &json!({})).await?.success().map(drop)
}

async fn delete(api: &Api, id: &str) -> Result<()> {
    let path = format!("/openapi/jobs/{id}?cancel=true");
    let answer = api.call(Method::DELETE, &path, None).await?;
    let gone = answer.status.is_success() || answer.status == StatusCode::NOT_FOUND;
    ensure!(gone, "{}: {}", answer.status, answer.text);
    Ok(())
}

/// The one execution of a job that must succeed.
async fn succeeded(api: &Api, id: &str) -> Result<Value> {
    let job = eventually("the job has succeeded", LONG, async || {
        let job = api.job(id).await?;
        match job["status"].as_str() {
            Some("SUCCESS") => Ok(Some(Ok(job))),
            Some("WAITING" | "RUNNING") => bail!("{job:#}"),
            _ => Ok(Some(Err(job))),
        }
    })
    .await?;
    let job = job.map_err(|job| anyhow::anyhow!("it ended otherwise: {job:#}"))?;
    let executions = api.executions(id).await?;
    ensure!(executions.len() == 1, "{} executions", executions.len());
    let execution = api
        .execution(&text(&job["lastExecution"], "executionId")?)
        .await?;
    let result = execution["result"]["attempt"].as_u64().context("a result")?;
    ensure!(
        Some(result) == execution["attempt"].as_u64(),
        "the result is that of another attempt: {execution:#}"
    );
    Ok(execution)
}

/// At least one call, all of them under one id.
pub(super) async fn called_back_once(receiver: &Receiver, job: &str) -> Result<()> {
    eventually(&format!("job {job} is called back"), TOLD, async || {
        let mut deliveries = BTreeSet::new();
        for hit in receiver.hits() {
            let body: Value = serde_json::from_slice(&hit.body)?;
            if body["data"]["jobId"] == job {
                ensure!(body["type"] == "execution.succeeded", "{body}");
                deliveries.insert(hit.header("webhook-id")?.to_owned());
            }
        }
        ensure!(deliveries.len() < 2, "called back under {deliveries:?}");
        Ok((deliveries.len() == 1).then_some(()))
    })
    .await
}
