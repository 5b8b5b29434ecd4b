//! Who takes part, and when: the product's ids, instants and rows for what the model knows by small numbers.
//!
//! Time is abstract. What matters of it is which `not_after` have passed: handover number n of a run has the n-th of
//! them, an hour after the one before, and "now" lies two minutes behind the last one that has passed, where a worker may
//! also forget.

use super::world::{At, Ending, Report, View, World};
use isocost_common::{
    execution::{Claim, ExecutionError, ExecutionStatus, Facts, Outcome},
    id::{ExecutionId, IncarnationId, WorkerId},
    message::ReportEvent,
    raw_json::RawJson,
    store::{
        executions::ExecutionRow,
        placement::Class,
        recovery::{Owned, Standing},
        workers::WorkerStatus,
    },
    test_support::given,
    time::EpochMillis,
};
use isocost_dispatcher::held::Held;
use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};
use tokio::time::Instant;

/// Starts an execution may have, interruptions not counted.
pub(crate) const MAX_ATTEMPTS: u32 = 2;
/// How far ahead leaders set `not_after`.
pub(crate) const NOT_AFTER: Duration = Duration::from_secs(15);

const HOUR_MS: i64 = 3_600_000;
const BEGIN: EpochMillis = given::PLANNED;

struct Cast {
    rows: Vec<ExecutionRow>,
    workers: [WorkerId; 2],
    class: Arc<Class>,
    begin: Instant,
}

static CAST: LazyLock<Cast> = LazyLock::new(|| {
    let job = given::job();
    let row = |number: u8| ExecutionRow {
        id: execution(number),
        max_attempts: MAX_ATTEMPTS,
        ..given::execution(&job, ExecutionStatus::Pending)
    };
    Cast {
        rows: (0..4).map(row).collect(),
        workers: ["a", "b"].map(|name| WorkerId::parse(name).expect("a valid name")),
        class: Arc::new(Class {
            key: job.class_key(),
            app: job.app,
            handler: job.handler.clone(),
            selector: job.selector.clone(),
        }),
        begin: Instant::now(),
    }
});

fn execution(number: u8) -> ExecutionId {
    format!("00000000-0000-7000-8000-0000000000e{number}")
        .parse()
        .expect("a UUID")
}

/// The incarnation of a life.
pub(crate) fn incarnation(life: u8) -> IncarnationId {
    static LIVES: LazyLock<[IncarnationId; 4]> = LazyLock::new(|| {
        [0, 1, 2, 3].map(|life| {
            format!("00000000-0000-7000-8000-0000000000a{life}")
                .parse()
                .expect("a UUID")
        })
    });
    LIVES[life as usize]
}

/// Its worker.
pub(crate) fn worker(life: u8) -> WorkerId {
    CAST.workers[life as usize % 2].clone()
}

pub(crate) fn claim(at: At) -> Claim {
    Claim {
        execution: CAST.rows[at.execution as usize].id,
        dispatch_seq: i64::from(at.seq),
    }
}

/// The instant after which a handover may not be taken.
pub(crate) fn not_after(world: &World, at: At) -> EpochMillis {
    EpochMillis(BEGIN.0 + i64::from(world.handover(at).tick) * HOUR_MS)
}

pub(crate) fn now(world: &World) -> EpochMillis {
    EpochMillis(BEGIN.0 + i64::from(world.passed) * HOUR_MS + 120_000)
}

/// After everything.
pub(crate) const NEVER: EpochMillis = EpochMillis(i64::MAX / 2);

/// Before every `not_after`.
pub(crate) const LONG_AGO: EpochMillis = BEGIN;

/// A clock reading of a leader, this long after whatever it remembers.
pub(crate) fn later(by: Duration) -> Instant {
    CAST.begin + by
}

/// The row, as the store would read it.
pub(crate) fn row(world: &World, number: u8) -> ExecutionRow {
    let execution = &world.executions[number as usize];
    let row = execution.row;
    let at = At {
        execution: number,
        seq: execution.seq(),
    };
    let last = execution.handovers.last();
    let handed_over = last.map(|_| BEGIN);
    ExecutionRow {
        status: row.status,
        attempt: u32::from(row.attempt),
        interruptions: u32::from(row.interruptions),
        dispatch_seq: i64::from(at.seq),
        worker: last.map(|handover| worker(handover.owner)),
        incarnation: last.map(|handover| incarnation(handover.owner)),
        epoch: last.map(|_| 1),
        not_after: last.map(|_| not_after(world, at)),
        dispatched_at: handed_over,
        started_at: handed_over.filter(|_| row.status == ExecutionStatus::Running),
        cancel_requested_at: row.cancel_requested.then_some(BEGIN),
        ..CAST.rows[number as usize].clone()
    }
}

pub(crate) fn facts(world: &World, number: u8) -> Facts {
    let row = world.row(number);
    Facts {
        attempt: u32::from(row.attempt),
        interruptions: u32::from(row.interruptions),
        max_attempts: MAX_ATTEMPTS,
        cancel_requested: row.cancel_requested,
    }
}

/// What a leader that reloads reads of it, when it is owned.
pub(crate) fn owned(world: &World, number: u8) -> Option<Owned> {
    let row = row(world, number);
    if !row.status.is_owned() {
        return None;
    }
    let owner = world.executions[number as usize].handovers.last()?.owner;
    let is_buried = world.lives[owner as usize].buried;
    Some(Owned {
        claim: row.claim(),
        app: row.app,
        handler: row.handler,
        class_key: row.class_key,
        status: row.status,
        worker: row.worker?,
        incarnation: row.incarnation?,
        epoch: row.epoch?,
        not_after: row.not_after?,
        dispatched_at: row.dispatched_at?,
        started_at: row.started_at,
        timeout_ms: row.timeout_ms,
        cancel_requested: row.cancel_requested_at.is_some(),
        owner: Some(if is_buried {
            WorkerStatus::Dead
        } else {
            WorkerStatus::Online
        }),
    })
}

pub(crate) fn standing(world: &World, number: u8) -> Standing {
    let row = row(world, number);
    Standing {
        claim: row.claim(),
        status: row.status,
        incarnation: row.incarnation,
    }
}

pub(crate) fn class() -> Arc<Class> {
    Arc::clone(&CAST.class)
}

/// The handover as the leader's set holds it. It has known it for long, and asked nothing lately.
pub(crate) fn held(world: &World, at: At, view: View) -> Held {
    let owner = world.handover(at).owner;
    Held {
        claim: claim(at),
        worker: worker(owner),
        incarnation: incarnation(owner),
        class: class(),
        status: view.status,
        placed_at: BEGIN,
        not_after: not_after(world, at),
        epoch: 1,
        since: CAST.begin,
        started_at: (view.status == ExecutionStatus::Running).then_some(BEGIN),
        timeout_ms: CAST.rows[at.execution as usize].timeout_ms,
        cancel_requested: view.cancel_requested,
        published: view.published,
        unnamed: 0,
        asked_at: None,
    }
}

/// What of it is in the model's view.
pub(crate) fn view(held: &Held) -> View {
    View {
        seq: u8::try_from(held.claim.dispatch_seq).expect("few handovers"),
        status: held.status,
        published: held.published,
        cancel_requested: held.cancel_requested,
    }
}

pub(crate) fn outcome(ending: Ending) -> Outcome {
    match ending {
        Ending::Succeeded => Outcome::Succeeded {
            result: RawJson::null(),
        },
        Ending::Failed => Outcome::Failed {
            error: ExecutionError::new("handler.failed", "no"),
            retryable: true,
            retry_after_ms: None,
        },
        Ending::TimedOut => Outcome::TimedOut,
        Ending::Interrupted => Outcome::Interrupted {
            reason: "stopped".into(),
        },
        Ending::Cancelled => Outcome::Cancelled,
    }
}

/// The report as it travels.
pub(crate) fn event(report: Report, ending: Option<Ending>) -> ReportEvent {
    match report {
        Report::Started => ReportEvent::Started {
            at: BEGIN,
            attempt: 1,
        },
        Report::Refused => ReportEvent::Refused {
            reason: "no room".into(),
        },
        Report::Released => ReportEvent::Released,
        Report::Unknown => ReportEvent::Unknown,
        Report::Finished => ReportEvent::Finished {
            outcome: outcome(ending.unwrap_or(Ending::Interrupted)),
            started_at: BEGIN,
            at: BEGIN,
            attempt: 1,
        },
    }
}
