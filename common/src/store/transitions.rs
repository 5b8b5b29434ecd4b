//! The one way an execution changes state after it was made, except being placed: reports of workers, cancels, deaths,
//! deadlines. Callers lock the rows, decide with [`ExecutionStatus::after`](crate::execution::ExecutionStatus::after),
//! and apply the steps; those that reach a terminal state are settled in the same transaction.

use super::{StoreError, Tx, executions::ExecutionRow};
use crate::{
    execution::{ExecutionError, Step},
    id::ExecutionId,
    message::CallbackTicket,
    raw_json::RawJson,
    time::EpochMillis,
};

/// One decided step of one locked execution.
#[derive(Debug, Clone)]
pub struct Change {
    /// The row as it was locked: its status and `dispatch_seq` are the guard of the UPDATE.
    pub before: ExecutionRow,
    /// What the transition table decided.
    pub step: Step,
    /// When it happened, for `job_log` and `finished_at`.
    pub at: EpochMillis,
    /// Start of the attempt, when the event carries or implies one.
    pub started_at: Option<EpochMillis>,
    /// For a step to scheduled: when the next attempt is due.
    pub not_before: Option<EpochMillis>,
    /// What the handler returned.
    pub result: Option<RawJson>,
    /// Why it did not succeed.
    pub error: Option<ExecutionError>,
    /// For people, in `job_log`.
    pub message: Option<String>,
}

/// What applying changes led to; for use after the commit.
#[derive(Debug, Clone, Default)]
pub struct Applied {
    /// Callback deliveries that were written and are due now: publish their tickets after the commit.
    pub callbacks: Vec<CallbackTicket>,
    /// The earliest instant at which something became due by this: an unblocked execution, a child job, the next
    /// firing of a fixed delay, a retry.
    pub due: Option<EpochMillis>,
}

/// Locks executions, with their slots and jobs first as the lock order asks, and returns the rows as they are now, in
/// ascending order of ids; ids without a row are left out.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn lock(_tx: &mut Tx, _ids: &[ExecutionId]) -> Result<Vec<ExecutionRow>, StoreError> {
    todo!()
}

/// Writes the steps, their log, and for terminal ones everything that hangs on the end of an execution: the job's
/// status, the successor of a fixed delay, the slot and the next blocked execution, child jobs, the callback row.
///
/// # Errors
/// [`StoreError`] of the database; also when a guard lets fewer rows through than were locked, which means a bug.
pub async fn apply(_tx: &mut Tx, _changes: &[Change]) -> Result<Applied, StoreError> {
    todo!()
}
