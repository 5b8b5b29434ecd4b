//! One role of a cluster dies and is started again, while everybody else goes on. Four clusters on the same servers share
//! the points, so that one waits while another works.

use super::{
    VISITS,
    visit::{Done, TOLD, Visit, Work, World, called_back_once},
};
use anyhow::{Context, Result, ensure};
use isocost_common::crash_point::CrashPoint::{self, *};
use isocost_tests::broker_side::{Listener, submit};
use isocost_tests::cluster::{Cluster, Process, Role};
use isocost_tests::jobs::{LONG, wait_for_execution};
use isocost_tests::receiver::Receiver;

#[tokio::test(flavor = "multi_thread")]
async fn every_role_dies_between_every_pair_of_steps_and_the_cluster_goes_on() -> Result<()> {
    let first = Cluster::without_tables().await?;
    let lanes = ["told", "due", "run", "dead"];
    let outcomes = futures_util::future::join_all(lanes.map(|lane| visit_all(&first, lane))).await;
    let failures: Vec<String> = outcomes
        .into_iter()
        .zip(lanes)
        .flat_map(|(outcome, lane)| match outcome {
            Ok(failures) => failures,
            Err(failure) => vec![format!("{lane}: {failure:#}")],
        })
        .collect();
    println!("{} visits, {} failed", VISITS.len(), failures.len());
    ensure!(failures.is_empty(), "{}", failures.join("\n\n"));
    Ok(())
}

/// The cluster in which a point is visited.
const fn lane_of(point: CrashPoint) -> &'static str {
    match point {
        SubmissionUncommitted
        | SubmissionCommitted
        | AmqpStored
        | AmqpAnswered
        | SteeringCommitted
        | DeletionRequested
        | OutcomeClaimed
        | OutcomePublished
        | RelayClaimed
        | RelayPosted
        | RelayRecorded => "told",
        ClaimUncommitted | ClaimCommitted | PublishUnsent | PublishConfirmed | IntakeUncommitted
        | IntakeCommitted | IntakeAnnounced | SettleWritten => "due",
        WorkerTaken | WorkerStartKeySet | WorkerRunning | WorkerStartUnsent | WorkerStartConfirmed
        | WorkerFinished | WorkerEndUnsent | WorkerEndConfirmed => "run",
        ChangeCommitted | PlacementUncommitted | PlacementCommitted | DeletionDone | EpochBegun
        | RecoveryBuried | RecoveryUncommitted | RecoveryCommitted => "dead",
    }
}

/// Who comes by a point.
const fn role_of(point: CrashPoint) -> Role {
    match point {
        SubmissionUncommitted
        | SubmissionCommitted
        | AmqpStored
        | AmqpAnswered
        | SteeringCommitted
        | DeletionRequested => Role::Api,
        WorkerTaken | WorkerStartKeySet | WorkerRunning | WorkerStartUnsent | WorkerStartConfirmed
        | WorkerFinished | WorkerEndUnsent | WorkerEndConfirmed => Role::LedgerWorker,
        OutcomeClaimed | OutcomePublished | RelayClaimed | RelayPosted | RelayRecorded => Role::Relay,
        _ => Role::Dispatcher,
    }
}

/// Those of one cluster, one after the other; what failed.
async fn visit_all(servers: &Cluster, name: &str) -> Result<Vec<String>> {
    let mut lane = Lane::start(servers, name).await?;
    let mut failures = Vec::new();
    let mut done = Vec::new();
    let mut visits: Vec<Visit> = VISITS
        .iter()
        .filter(|visit| lane_of(visit.point) == name)
        .copied()
        .collect();
    // What a relay had claimed when it died waits longest: it goes first.
    visits.sort_by_key(|visit| role_of(visit.point) != Role::Relay);
    for visit in visits {
        match lane.die_and_go_on(visit).await {
            Ok(ended) => done.extend(ended),
            Err(failure) => failures.push(format!("{visit:?}: {failure:#}")),
        }
    }
    for Done { job, execution } in done {
        called_back_once(&lane.receiver, &job).await?;
        lane.outcomes.wait_for(&execution, TOLD).await?;
    }
    Ok(failures)
}

/// A cluster with one process of each role.
struct Lane {
    cluster: Cluster,
    api: Process,
    dispatcher: Process,
    relay: Process,
    worker: Process,
    workers: usize,
    receiver: Receiver,
    outcomes: Listener,
    answers: Listener,
}

impl Lane {
    async fn start(servers: &Cluster, name: &str) -> Result<Self> {
        let cluster = servers
            .beside(name)
            .await?
            .with_short_leases()
            .with("ISOCOST__RELAY__TIMEOUT_MS", "1000");
        let (api, dispatcher, relay, worker) = tokio::try_join!(
            cluster.start(Role::Api, "api"),
            cluster.start(Role::Dispatcher, "dispatcher"),
            cluster.start(Role::Relay, "relay"),
            cluster.start(Role::LedgerWorker, "worker1"),
        )?;
        let rabbitmq = &cluster.servers().rabbitmq;
        let outcomes = Listener::follow(&rabbitmq.config(), &format!("{name}.outcomes")).await?;
        let answers = Listener::answers(&rabbitmq.config(), &format!("answers-{name}")).await?;
        Ok(Self {
            cluster,
            api,
            dispatcher,
            relay,
            worker,
            workers: 1,
            receiver: Receiver::start([]).await?,
            outcomes,
            answers,
        })
    }

    fn process(&mut self, role: Role) -> &mut Process {
        match role {
            Role::Api => &mut self.api,
            Role::Dispatcher => &mut self.dispatcher,
            Role::Relay => &mut self.relay,
            Role::Worker | Role::LedgerWorker | Role::All => &mut self.worker,
        }
    }

    async fn die_and_go_on(&mut self, visit: Visit) -> Result<Option<Done>> {
        let role = role_of(visit.point);
        if visit.work == Work::Orphaned {
            self.orphan(visit).await?;
        }
        let asked = self.reach(visit, role).await;
        let process = self.process(role);
        let status = process
            .ended()
            .await
            .with_context(|| format!("asked for: {asked:?}"));
        let died = status.and_then(|status| visit.has_died_here(status, &process.log()?));
        process.restart().await?;
        died?;

        if visit.work == Work::OverAmqp {
            // What was not acked comes again by itself.
            self.answers.wait_for(&visit.key(), LONG).await?;
        }
        let api = self.cluster.api(&self.api)?;
        let ledger = self.cluster.ledger();
        visit
            .ends_well(&api, &ledger, &self.receiver, World::Cluster)
            .await
    }

    /// Arms the point and asks for what leads there; an API that dies on the way gives no answer.
    async fn reach(&mut self, visit: Visit, role: Role) -> Result<()> {
        let point = visit.armed();
        let process = self.process(role);
        process.stop().await?;
        process.spawn_again(&[("ISOCOST_CRASH_POINT", &point)])?;
        if visit.work == Work::Orphaned {
            return Ok(()); // It dies of what it finds, and may never be ready.
        }
        process.wait_until_ready().await?;
        let api = self.cluster.api(&self.api)?;
        if visit.work == Work::OverAmqp {
            let rabbitmq = self.cluster.servers().rabbitmq.config();
            let exchange = format!("{}.submissions", lane_of(visit.point));
            let answered = (&*visit.key(), &*format!("answers-{}", lane_of(visit.point)));
            submit(
                &rabbitmq,
                &exchange,
                api.key(),
                &visit.job(&self.receiver),
                answered,
            )
            .await
        } else {
            visit.ask(&api, &self.receiver).await.map(drop)
        }
    }

    /// A worker dies with a run in its hands; another one is there.
    async fn orphan(&mut self, visit: Visit) -> Result<()> {
        let api = self.cluster.api(&self.api)?;
        let job = visit.ask(&api, &self.receiver).await?;
        wait_for_execution(&api, &job, "RUNNING").await?;
        self.workers += 1;
        let name = format!("worker{}", self.workers);
        // Not ready before a dispatcher has heard of it is no matter: it is not waited for.
        let other = self.cluster.spawn(Role::LedgerWorker, &name, &[])?;
        self.worker.kill().await?;
        self.worker = other;
        Ok(())
    }
}
