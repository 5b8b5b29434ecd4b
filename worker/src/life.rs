//! The life of one incarnation: its tasks, and the two ways it ends.

use crate::{
    Error,
    boot_clock::BootInstant,
    consume::{take_dispatches, take_requests},
    handler_log::{self, HandlerLogReceiver, send_log},
    heartbeat::{beat, say_bye},
    incarnation::{End, Incarnation},
    left_over::LeftOver,
    outbox::send_reports,
    run_control::{STOP_GRACE, StopReason},
    runtime::Runtime,
    upkeep::{refuse_the_patient, tidy_up, watch_lease},
};
use backon::{BackoffBuilder, ExponentialBuilder};
use isocost_common::broker::subscription::pause_or_back;
use std::{sync::Arc, time::Duration};
use tokio::{
    task::JoinSet,
    time::{timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

/// After its grace a handler's future is dropped; its task ends within this, or it blocks.
const SETTLE: Duration = Duration::from_secs(1);
/// A worker that stops waits this long for the broker to take its last reports. What it does not take, the leader finds
/// out by the death of the incarnation.
const FLUSH: Duration = Duration::from_secs(10);

/// What the process does after an incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// It was asked to stop.
    Stop,
    /// It goes on as a new incarnation.
    Again,
}

/// The tasks of an incarnation, by what stops them.
struct Tasks {
    taking: CancellationToken,
    beating: CancellationToken,
    sending: CancellationToken,
    taker: JoinSet<()>,
    beater: JoinSet<()>,
    sender: JoinSet<()>,
}

/// Lives one incarnation through.
///
/// # Errors
/// [`Error::HandlersStillRunning`]; [`Error::Task`].
pub(crate) async fn live(runtime: &Arc<Runtime>, shutdown: &CancellationToken) -> Result<After, Error> {
    let (log, log_receiver) = handler_log::channel();
    let incarnation = Incarnation::new(runtime, log);
    if !declare(&incarnation, shutdown).await {
        return Ok(After::Stop);
    }
    // Before the first heartbeat: from then on the leader may take the incarnation before for dead.
    let left_over = runtime.take_left_over();
    if let Some(left_over) = left_over
        && !left_over.send(shutdown).await
    {
        return Ok(After::Stop);
    }
    runtime.set_current(&incarnation);
    info!(worker.id = %runtime.worker, incarnation = %incarnation.id, "worker started");
    let mut tasks = Tasks::start(&incarnation, log_receiver);
    tokio::select! {
        () = shutdown.cancelled() => stop(&incarnation, tasks).await,
        end = incarnation.ended() => abandon(&incarnation, tasks, end).await.map(|()| After::Again),
        failed = tasks.any_ended() => Err(Error::Task(failed)),
    }
}

/// Declares all it needs, however long the broker is away. False when the process was asked to stop meanwhile.
async fn declare(incarnation: &Incarnation, shutdown: &CancellationToken) -> bool {
    let runtime = &incarnation.runtime;
    let mut pauses = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(Duration::from_secs(2))
        .with_jitter()
        .without_max_times()
        .build();
    loop {
        let shared = runtime.broker.declare(&runtime.shared_topology()).await;
        let declared = match shared {
            Ok(()) => {
                runtime
                    .broker
                    .declare(&runtime.worker_topology(incarnation.id))
                    .await
            }
            Err(error) => Err(error),
        };
        match declared {
            Ok(()) => return true,
            Err(error) => warn!(error = %error, "declaring exchanges and queues; trying again"),
        }
        tokio::select! {
            () = pause_or_back(incarnation.broker(), pauses.next().unwrap_or(SETTLE)) => {}
            () = shutdown.cancelled() => return false,
        }
    }
}

impl Tasks {
    fn start(incarnation: &Arc<Incarnation>, log: HandlerLogReceiver) -> Self {
        let mut tasks = Self {
            taking: CancellationToken::new(),
            beating: CancellationToken::new(),
            sending: CancellationToken::new(),
            taker: JoinSet::new(),
            beater: JoinSet::new(),
            sender: JoinSet::new(),
        };
        macro_rules! spawn {
            ($set:ident, $stop:ident, $task:ident) => {{
                let (incarnation, stop) = (Arc::clone(incarnation), tasks.$stop.clone());
                tasks
                    .$set
                    .spawn(async move { $task(&incarnation, &stop).await });
            }};
        }
        spawn!(beater, beating, beat);
        spawn!(taker, taking, take_requests);
        spawn!(taker, taking, take_dispatches);
        spawn!(sender, sending, send_reports);
        spawn!(sender, sending, refuse_the_patient);
        spawn!(sender, sending, tidy_up);
        spawn!(sender, sending, watch_lease_until_ended);
        let (acks, stop) = (Arc::clone(&incarnation.acks), tasks.sending.clone());
        tasks.sender.spawn(async move { acks.send(&stop).await });
        let (incarnation, stop) = (Arc::clone(incarnation), tasks.sending.clone());
        tasks
            .sender
            .spawn(async move { send_log(&incarnation, log, &stop).await });
        tasks
    }

    /// Waits for a task to end that should not have.
    async fn any_ended(&mut self) -> Option<tokio::task::JoinError> {
        let ended = tokio::select! {
            ended = self.taker.join_next() => ended,
            ended = self.beater.join_next() => ended,
            ended = self.sender.join_next() => ended,
        };
        ended.and_then(Result::err)
    }

    async fn stop_taking(&mut self, patience: Duration) {
        self.taking.cancel();
        join(&mut self.taker, patience).await;
    }

    async fn stop_beating(&mut self, patience: Duration) {
        self.beating.cancel();
        join(&mut self.beater, patience).await;
    }

    async fn stop_sending(&mut self, patience: Duration) {
        self.sending.cancel();
        join(&mut self.sender, patience).await;
    }
}

/// The watch goes on until told, so that its end is no sign of a fault.
async fn watch_lease_until_ended(incarnation: &Incarnation, stop: &CancellationToken) {
    watch_lease(incarnation, stop).await;
    stop.cancelled().await;
}

async fn join(tasks: &mut JoinSet<()>, patience: Duration) {
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                error!(error = %error, "a task of the worker failed");
            }
        }
    };
    if timeout(patience, all).await.is_err() {
        warn!("tasks of the worker do not end in time; dropping them");
        tasks.shutdown().await;
    }
}

/// The orderly end. It goes on taking messages until it has nothing left, only to refuse them at once: what waits in
/// its queue is placed elsewhere without waiting for anything else.
async fn stop(incarnation: &Arc<Incarnation>, mut tasks: Tasks) -> Result<After, Error> {
    info!("draining: nothing new is taken, what runs may finish");
    // Closed first: a request to take work again has no effect from here on.
    incarnation.runs.close();
    incarnation.drain();
    let grace = Duration::from_millis(incarnation.runtime.config.worker.grace_ms);
    tokio::select! {
        _finished = timeout(grace, incarnation.runs.wait()) => {}
        end = incarnation.ended() => return abandon(incarnation, tasks, end).await.map(|()| After::Stop),
    }
    incarnation.stop_runs(StopReason::Interrupted("the worker stopped"), STOP_GRACE);
    let all_ended = timeout(STOP_GRACE + SETTLE, incarnation.runs.wait())
        .await
        .is_ok();
    tasks.stop_taking(FLUSH).await;
    delete_queue(incarnation, FLUSH).await;
    let reported = timeout(FLUSH, incarnation.all_reported()).await.is_ok();
    tasks.stop_beating(FLUSH).await;
    if all_ended && reported {
        say_bye(incarnation).await;
    } else {
        warn!(
            all_ended,
            reported, "stopping without a last word; the leader will find out"
        );
    }
    tasks.stop_sending(FLUSH).await;
    if !all_ended {
        return Err(still_running(incarnation));
    }
    info!("worker stopped");
    Ok(After::Stop)
}

/// The end of an incarnation that may not go on. Its handlers are stopped; its reports are sent as long as they may
/// still count, and a late one is refused by its dispatch number.
async fn abandon(incarnation: &Arc<Incarnation>, mut tasks: Tasks, end: End) -> Result<(), Error> {
    error!(?end, incarnation = %incarnation.id, "this incarnation has ended; stopping its handlers");
    tasks.taking.cancel();
    tasks.beating.cancel();
    let left = incarnation
        .lease
        .exit_at()
        .map_or(Duration::ZERO, |exit| exit.since(BootInstant::now()))
        .max(SETTLE);
    let exit = tokio::time::Instant::now() + left;
    let reason = match end {
        End::Fenced => "the worker was declared dead",
        End::LeaseLost => "the worker lost its lease",
    };
    incarnation.stop_runs(StopReason::Interrupted(reason), STOP_GRACE.min(left / 2));
    incarnation.runs.close();
    if timeout_at(exit, incarnation.runs.wait()).await.is_err() {
        // The process has to be gone now, so nothing else is waited for.
        return Err(still_running(incarnation));
    }
    if end == End::LeaseLost {
        // What is not sent by then is left over.
        let _ = timeout_at(exit, incarnation.all_reported()).await;
    }
    // As long as anything of it is here it answers for itself, and the leader takes it for alive. A broker that is cut off
    // must not keep it here: what it held waits to run elsewhere.
    tasks.stop_taking(SETTLE).await;
    tasks.stop_beating(SETTLE).await;
    tasks.stop_sending(SETTLE).await;
    delete_queue(incarnation, SETTLE).await;
    incarnation.runtime.leave(LeftOver::of(incarnation));
    Ok(())
}

/// What is not deleted expires by itself.
async fn delete_queue(incarnation: &Incarnation, patience: Duration) {
    let queue = incarnation.runtime.dispatch_queue(incarnation.id);
    match timeout(patience, incarnation.broker().delete_queue(&queue)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => warn!(queue, error = %error, "deleting the worker's queue"),
        Err(_) => warn!(queue, "the broker does not delete the worker's queue in time"),
    }
}

fn still_running(incarnation: &Incarnation) -> Error {
    let books = incarnation.books.lock();
    Error::HandlersStillRunning(books.runs.values().map(|run| run.handler.clone()).collect())
}
