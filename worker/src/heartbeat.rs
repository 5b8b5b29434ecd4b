//! Heartbeats over both paths. Either acknowledgement renews the lease, so the loss of one service stops nothing.

use crate::{
    boot_clock::BootInstant,
    cpu::CpuMeter,
    incarnation::{End, Incarnation},
};
use isocost_common::{
    broker::{Message, Publication, PublishOutcome},
    coordination::HeartbeatAnswer,
    message::{Heartbeat, kind},
};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// The last heartbeat of a worker that stops may take this long.
const BYE_PATIENCE: Duration = Duration::from_secs(2);

/// A way a heartbeat takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    Broker,
    Coordination,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Acknowledged,
    Fenced,
    Failed,
}

/// Sends heartbeats until `stop`: at once, at the configured distance, and when something changed that cannot wait.
pub(crate) async fn beat(incarnation: &Incarnation, stop: &CancellationToken) {
    let (sender, receiver) = watch::channel(None);
    // Each path takes the newest heartbeat when it is free, so that a slow one delays neither the other nor the beat.
    tokio::join!(
        compose(incarnation, sender, stop),
        follow(incarnation, Path::Broker, receiver.clone(), stop),
        follow(incarnation, Path::Coordination, receiver, stop),
    );
}

/// Says that the worker has stopped and holds nothing.
pub(crate) async fn say_bye(incarnation: &Incarnation) {
    let bye = incarnation.heartbeat(100, true);
    let paths = async {
        tokio::join!(
            send(incarnation, Path::Broker, &bye),
            send(incarnation, Path::Coordination, &bye)
        )
    };
    if timeout(BYE_PATIENCE, paths).await.is_err() {
        warn!("the last heartbeat was not acknowledged in time");
    }
}

async fn compose(
    incarnation: &Incarnation,
    sender: watch::Sender<Option<Arc<Heartbeat>>>,
    stop: &CancellationToken,
) {
    let mut cpu = CpuMeter::start();
    let mut ticks = tokio::time::interval(incarnation.runtime.config.leases.heartbeat());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = incarnation.changed.notified() => {}
            () = stop.cancelled() => return,
        }
        let heartbeat = incarnation.heartbeat(cpu.idle_percent(), false);
        sender.send_replace(Some(Arc::new(heartbeat)));
    }
}

async fn follow(
    incarnation: &Incarnation,
    path: Path,
    mut receiver: watch::Receiver<Option<Arc<Heartbeat>>>,
    stop: &CancellationToken,
) {
    let mut failing = false;
    while receiver.changed().await.is_ok() {
        let Some(heartbeat) = receiver.borrow_and_update().clone() else {
            continue;
        };
        let sent = BootInstant::now();
        let answer = tokio::select! {
            answer = send(incarnation, path, &heartbeat) => answer,
            () = stop.cancelled() => return,
        };
        report_change(path, &mut failing, answer);
        match answer {
            Answer::Acknowledged if incarnation.lease.renew(sent, BootInstant::now()) => {
                incarnation.registered.cancel();
            }
            Answer::Acknowledged => incarnation.end(End::LeaseLost),
            Answer::Fenced => incarnation.end(End::Fenced),
            Answer::Failed => {}
        }
    }
}

fn report_change(path: Path, failing: &mut bool, answer: Answer) {
    let fails = answer == Answer::Failed;
    if std::mem::replace(failing, fails) == fails {
        return;
    }
    if fails {
        warn!(?path, "heartbeats are not acknowledged");
    } else {
        info!(?path, "heartbeats are acknowledged again");
    }
}

async fn send(incarnation: &Incarnation, path: Path, heartbeat: &Heartbeat) -> Answer {
    let message = Message::json(kind::HEARTBEAT, heartbeat);
    match path {
        Path::Broker => {
            let publication = Publication {
                exchange: incarnation.runtime.names.heartbeats_exchange(),
                routing_key: String::new(),
                mandatory: false,
                message,
            };
            match incarnation.broker().publish(vec![publication]).await.first() {
                Some(PublishOutcome::Confirmed) => Answer::Acknowledged,
                _ => Answer::Failed,
            }
        }
        Path::Coordination => {
            let life = Duration::from_millis(incarnation.runtime.config.leases.dead_after_ms);
            let payload = String::from_utf8_lossy(&message.body);
            let coordination = &incarnation.runtime.coordination;
            match coordination.heartbeat(incarnation.id, &payload, life).await {
                Ok(HeartbeatAnswer::Accepted) => Answer::Acknowledged,
                Ok(HeartbeatAnswer::Fenced) => Answer::Fenced,
                Err(_) => Answer::Failed,
            }
        }
    }
}
