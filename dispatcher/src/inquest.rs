//! An inquest into one silent incarnation: what the coordination service, the worker's own port and its queue say.

use crate::death::{Subject, Verdict};
use isocost_common::{Ports, broker::topology::Names, id::IncarnationId};
use serde::Deserialize;
use tracing::debug;

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
    if let Some(verdict) = subject.after_probe(answering) {
        return verdict;
    }
    // Without the service's word it may be renewing its lease there, where only we cannot see it.
    let Ok(heartbeats) = ports.coordination.heartbeats().await else {
        return Verdict::Unclear;
    };
    let stored = heartbeats.stored.into_iter();
    let ages = stored
        .filter(|beat| beat.incarnation == subject.incarnation)
        .map(|beat| beat.age);
    if let Some(verdict) = subject.after_last_heartbeat(ages.min(), heartbeats.known_for) {
        return verdict;
    }
    let queue = names.worker_queue(&subject.worker, subject.incarnation);
    match ports.broker.inspect(&queue).await {
        Ok(state) => subject.after_queue(state.map(|state| state.consumers)),
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
