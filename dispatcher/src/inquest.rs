//! An inquest into one silent incarnation: what the coordination service, the worker's own port and its queue say.

use isocost_common::{
    Ports,
    broker::topology::Names,
    id::{IncarnationId, WorkerId},
};
use serde::Deserialize;
use std::time::Duration;
use tracing::debug;

/// Leases of silence that need no probe.
const SILENCE_THAT_PROVES: u32 = 3;

/// Who is looked into.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub(crate) worker: WorkerId,
    pub(crate) incarnation: IncarnationId,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// How long no heartbeat of it has come over the broker.
    pub(crate) silence: Duration,
    /// How long a lease is.
    pub(crate) lease: Duration,
    /// A newer incarnation of the same worker at the same address.
    pub(crate) successor: Option<IncarnationId>,
}

/// What an inquest found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Something of it answers, or its other path has not expired.
    Alive,
    /// A part of the evidence could not be had.
    Unclear,
    /// Nobody is there, and why that is certain.
    Dead(&'static str),
}

/// The verdict on one incarnation.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) subject: IncarnationId,
    pub(crate) verdict: Verdict,
}

/// What `/livez` of a worker says.
#[derive(Deserialize)]
struct Livez {
    incarnation: IncarnationId,
}

/// Looks into one silent incarnation. Changes nothing.
pub(crate) async fn examine(
    ports: &Ports,
    names: &Names,
    probe: &reqwest::Client,
    subject: Subject,
) -> Finding {
    let verdict = judge(ports, names, probe, &subject).await;
    debug!(worker.id = %subject.worker, incarnation = %subject.incarnation, ?verdict, "an inquest");
    Finding {
        subject: subject.incarnation,
        verdict,
    }
}

async fn judge(ports: &Ports, names: &Names, probe: &reqwest::Client, subject: &Subject) -> Verdict {
    let answering = livez(probe, subject).await;
    if answering == Some(subject.incarnation) {
        return Verdict::Alive;
    }
    if answering.is_some() && answering == subject.successor {
        return Verdict::Dead("its successor answers on its port");
    }
    // Without a lease of silence only a successor proves anything.
    if subject.silence < subject.lease {
        return Verdict::Unclear;
    }
    match ports.coordination.heartbeats().await {
        Ok(heartbeats) => {
            let mut stored = heartbeats.stored.into_iter();
            if stored.any(|beat| beat.incarnation == subject.incarnation && beat.age < subject.lease) {
                return Verdict::Alive;
            }
            // A service that was flushed or started meanwhile has forgotten heartbeats that renewed a lease.
            if heartbeats.known_for < subject.lease {
                return Verdict::Unclear;
            }
        }
        // It may be renewing its lease there, where only we cannot see it.
        Err(_) => return Verdict::Unclear,
    }
    if subject.silence >= subject.lease * SILENCE_THAT_PROVES {
        return Verdict::Dead("silent for three leases");
    }
    let queue = names.worker_queue(&subject.worker, subject.incarnation);
    match ports.broker.inspect(&queue).await {
        Ok(Some(state)) if state.consumers > 0 => Verdict::Alive,
        Ok(_) => Verdict::Dead("silent for a lease, and nobody answers or consumes"),
        Err(_) => Verdict::Unclear,
    }
}

/// Which incarnation answers at the subject's address, if anybody does within the probe's deadline.
async fn livez(probe: &reqwest::Client, subject: &Subject) -> Option<IncarnationId> {
    if subject.port == 0 {
        return None;
    }
    let url = format!("http://{}:{}/livez", subject.host, subject.port);
    let body = probe.get(url).send().await.ok()?.bytes().await.ok()?;
    let livez: Livez = serde_json::from_slice(&body).ok()?;
    Some(livez.incarnation)
}
