//! The one way an execution changes state after it was made, except being placed: reports of workers, cancels, deaths,
//! deadlines. Callers lock the rows, decide with [`ExecutionStatus::after`], and apply the steps; those that reach a
//! terminal state are settled in the same transaction.

use super::{
    BulkUpdate, Connection, Row, StoreError, Tx,
    executions::{self, ExecutionRow},
    job_log::{self, LogEntry},
    key_chunks, placeholders,
    settle::{self, Ended},
    slots,
    sql::AnyQuery,
};
use crate::{
    execution::{Claim, ExecutionError, ExecutionStatus, Step},
    id::{ExecutionId, JobId},
    job::{Backoff, ConcurrencyPolicy, RetryPolicy},
    message::CallbackTicket,
    raw_json::RawJson,
    time::EpochMillis,
};
use sqlx::AssertSqlSafe;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Most bytes of results and errors in one statement: well below the smallest packet limit of a server (16 MiB).
pub(super) const STATEMENT_BYTES: usize = 4 << 20;

/// One decided step of one locked execution.
#[derive(Debug, Clone)]
pub struct Change {
    /// The row as it was locked: its status and `dispatch_seq` are the guard of the UPDATE.
    pub before: ExecutionRow,
    /// What the transition table decided.
    pub step: Step,
    /// When it happened, for `job_log` and `finished_at`. Not later than the database's now.
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

impl Applied {
    /// Notes that something is due at `at`.
    pub(super) fn due_at(&mut self, at: EpochMillis) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Adds what else followed.
    pub(super) fn add(&mut self, more: Self) {
        self.callbacks.extend(more.callbacks);
        self.due = self.due.into_iter().chain(more.due).min();
    }
}

/// Locks executions, with their slots and jobs first as the lock order asks, and returns the rows as they are now, in
/// ascending order of ids; ids without a row are left out.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn lock(tx: &mut Tx, ids: &[ExecutionId]) -> Result<Vec<ExecutionRow>, StoreError> {
    let lock = tx.dialect().for_update();
    // Without row locks the transaction itself is the lock: SQLite has one writer.
    if !lock.is_empty() {
        let (slots, jobs) = above(tx, ids).await?;
        hold(tx, "concurrency_slot", "slot_key", &slots).await?;
        hold(tx, "job_info", "id", &jobs).await?;
    }
    executions::get_many(tx, ids, lock).await
}

/// The slots and jobs that ending these executions may write, those of child jobs included.
async fn above(tx: &mut Tx, ids: &[ExecutionId]) -> Result<(BTreeSet<String>, BTreeSet<String>), StoreError> {
    let (mut slots, mut jobs) = (BTreeSet::new(), BTreeSet::new());
    for chunk in key_chunks(ids) {
        let sql = format!(
            "select job_execution.job_id, job_execution.slot_key, child.id as child_id, child.app_id as child_app, \
             child.concurrency_policy as child_policy, child.concurrency_key as child_key \
             from job_execution left join job_info child /*! force index (idx_job_parent) */ \
             on child.parent_job_id = job_execution.job_id \
             where job_execution.id in ({})",
            placeholders(chunk.len(), 0)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for id in chunk {
            query = query.bind(id.to_string());
        }
        for row in query.fetch_all(&mut **tx).await? {
            let row = Row(&row);
            jobs.insert(row.text("job_id")?);
            slots.extend(row.opt_text("slot_key")?);
            if let Some(child) = row.opt_parsed::<JobId>("child_id")? {
                jobs.insert(child.to_string());
                let policy = row.coded("child_policy", ConcurrencyPolicy::from_code)?;
                match row.opt_text("child_key")? {
                    Some(key) => slots.extend([slots::shared_key(row.parsed("child_app")?, &key)]),
                    None if policy != ConcurrencyPolicy::Parallel => slots.extend([slots::job_key(child)]),
                    None => {}
                }
            }
        }
    }
    Ok((slots, jobs))
}

async fn hold(tx: &mut Tx, table: &str, key: &str, keys: &BTreeSet<String>) -> Result<(), StoreError> {
    let lock = tx.dialect().for_update();
    let keys: Vec<_> = keys.iter().collect();
    for chunk in key_chunks(&keys) {
        let sql = format!(
            "select {key} from {table} where {key} in ({}) order by {key}{lock}",
            placeholders(chunk.len(), 0)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for key in chunk {
            query = query.bind((*key).clone());
        }
        query.fetch_all(&mut **tx).await?;
    }
    Ok(())
}

/// Writes the steps, their log, and for terminal ones everything that hangs on the end of an execution: the job's
/// status, the successor of a fixed delay, the slot and the next blocked execution, child jobs, the callback row.
///
/// # Errors
/// [`StoreError`] of the database; also when a guard lets fewer rows through than were locked, which means a bug.
pub async fn apply(tx: &mut Tx, changes: &[Change]) -> Result<Applied, StoreError> {
    let mut written: Vec<(&Change, ExecutionRow)> = changes.iter().map(|c| (c, c.after())).collect();
    written.sort_by_key(|(_, row)| row.id);
    update(tx, &written).await?;
    tx.become_of(written.iter().map(|(_, row)| row.status));
    let log: Vec<LogEntry> = written.iter().flat_map(|(change, row)| change.log(row)).collect();
    job_log::append(tx, &log).await?;
    let mut waiting = Applied::default();
    for (change, row) in &written {
        match row.status {
            ExecutionStatus::Scheduled => waiting.due_at(row.not_before),
            ExecutionStatus::Pending => waiting.due_at(change.at),
            _ => {}
        }
    }
    let ended: Vec<Ended> = written
        .into_iter()
        .filter(|(_, row)| row.status.is_terminal())
        .map(|(change, row)| Ended {
            held_slot: change.before.status != ExecutionStatus::Blocked,
            row,
        })
        .collect();
    let mut applied = settle::settle(tx, &ended).await?;
    if let Some(due) = waiting.due {
        applied.due_at(due);
    }
    Ok(applied)
}

impl Change {
    /// The row as the step leaves it.
    #[must_use]
    pub fn after(&self) -> ExecutionRow {
        let Step {
            to,
            attempt,
            interruptions,
        } = self.step;
        let before = &self.before;
        let mut row = ExecutionRow {
            status: to,
            attempt,
            interruptions,
            not_before: self.not_before.unwrap_or(before.not_before),
            started_at: self.started_at.or(before.started_at),
            ..before.clone()
        };
        if to == ExecutionStatus::Pending {
            row.due_at = before.due_at.or(Some(self.at));
        }
        if to.is_terminal() {
            row.finished_at = Some(self.at);
            row.result.clone_from(&self.result);
        }
        row.error = match to {
            ExecutionStatus::Succeeded | ExecutionStatus::Skipped => None,
            _ if to.is_terminal() => self.error.clone().or_else(|| default_error(to)),
            _ => self.error.clone().or_else(|| before.error.clone()),
        };
        // Progress belongs to one run.
        if !to.is_terminal() {
            (row.progress_percent, row.progress_message) = (None, None);
        }
        row
    }

    /// One row, or two when the end of a run is the first that is heard of its start.
    fn log(&self, after: &ExecutionRow) -> Vec<LogEntry> {
        let before = &self.before;
        let mut entry = LogEntry {
            job: before.job,
            execution: Some(before.id),
            attempt: after.attempt,
            dispatch_seq: before.dispatch_seq,
            from: Some(before.status),
            to: Some(after.status),
            worker: before.worker.clone().filter(|_| before.status.is_owned()),
            message: self.message.clone(),
            at: self.at,
        };
        let implied = self.started_at.filter(|_| {
            before.status == ExecutionStatus::Dispatched && after.status != ExecutionStatus::Running
        });
        let Some(started_at) = implied else {
            return vec![entry];
        };
        let start = LogEntry {
            to: Some(ExecutionStatus::Running),
            message: None,
            at: started_at,
            ..entry.clone()
        };
        entry.from = Some(ExecutionStatus::Running);
        vec![start, entry]
    }

    fn carries_outcome(&self) -> bool {
        self.step.to.is_terminal() || self.error.is_some()
    }
}

fn default_error(end: ExecutionStatus) -> Option<ExecutionError> {
    let (code, message) = match end {
        ExecutionStatus::Lost => (
            "worker.lost",
            "its worker died or lost its lease, and no attempt is left",
        ),
        ExecutionStatus::Expired => ("start.deadline-passed", "it did not start before its deadline"),
        ExecutionStatus::TimedOut => ("run.timed-out", "it ran longer than its time limit"),
        ExecutionStatus::Cancelled => ("cancelled", "it was cancelled on request"),
        _ => return None,
    };
    Some(ExecutionError::new(code, message))
}

/// What every step may write besides the state; `dispatch_seq` is repeated for the guard and keeps its value.
const MOVED: [&str; 9] = [
    "id",
    "dispatch_seq",
    "attempt",
    "interruptions",
    "not_before",
    "due_at",
    "started_at",
    "progress_percent",
    "progress_message",
];
/// What the end of a run writes besides.
const ENDED: [&str; 13] = [
    "id",
    "dispatch_seq",
    "attempt",
    "interruptions",
    "not_before",
    "due_at",
    "started_at",
    "progress_percent",
    "progress_message",
    "finished_at",
    "result",
    "error_code",
    "error_message",
];

/// What a plain end writes: nothing else of the row has changed. Each column of each row costs the database, and nearly
/// every end is plain.
const ENDED_PLAINLY: [&str; 6] = [
    "id",
    "dispatch_seq",
    "attempt",
    "started_at",
    "finished_at",
    "result",
];

/// Which columns a step writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Written {
    Moved,
    Ended,
    EndedPlainly,
}

impl Written {
    fn by(change: &Change, row: &ExecutionRow) -> Self {
        let rest = |row: &ExecutionRow| {
            let progress = (row.progress_percent, row.progress_message.clone());
            (
                row.interruptions,
                row.not_before,
                row.due_at,
                progress,
                row.error.clone(),
            )
        };
        match change.carries_outcome() {
            false => Self::Moved,
            true if rest(row) == rest(&change.before) => Self::EndedPlainly,
            true => Self::Ended,
        }
    }

    fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Moved => &MOVED,
            Self::Ended => &ENDED,
            Self::EndedPlainly => &ENDED_PLAINLY,
        }
    }

    fn bind<'q>(self, query: AnyQuery<'q>, row: &ExecutionRow) -> AnyQuery<'q> {
        match self {
            Self::Moved => bind_moved(query, row),
            Self::Ended => bind_ended(query, row),
            Self::EndedPlainly => bind_ended_plainly(query, row),
        }
    }
}

async fn update(tx: &mut Tx, written: &[(&Change, ExecutionRow)]) -> Result<(), StoreError> {
    // Both states are the same for a whole statement, which makes the old one a plain guard.
    let mut groups: BTreeMap<_, Vec<&ExecutionRow>> = BTreeMap::new();
    for (change, row) in written {
        let steps = (change.before.status.code(), row.status.code());
        let group = (steps, Written::by(change, row), done_with(row));
        groups.entry(group).or_default().push(row);
    }
    let dialect = tx.dialect();
    for (((from, to), columns, done_with), rows) in groups {
        let guard = format!("job_execution.status = {from} and job_execution.dispatch_seq = v.dispatch_seq");
        let statement = BulkUpdate {
            table: "job_execution",
            columns: columns.columns(),
            set: &format!("status = {to}{done_with}"),
            set_values: &[],
            guard: &guard,
        };
        for part in by_weight(&rows, |row| row_bytes(row)) {
            let changed = statement
                .execute(tx, dialect, part, |query, row: &&ExecutionRow| {
                    columns.bind(query, row)
                })
                .await?;
            if changed != part.len() as u64 {
                return Err(StoreError::Corrupt(format!(
                    "{changed} of {} locked executions still had their status",
                    part.len()
                )));
            }
        }
    }
    Ok(())
}

/// What leaves its index for good: the slot of what has ended, and the start deadline of what has ended or started once
/// and waits to start again.
fn done_with(row: &ExecutionRow) -> &'static str {
    if row.status.is_terminal() {
        ", slot_key = null, start_deadline_at = null"
    } else if row.attempt > row.interruptions && !row.status.is_owned() {
        ", start_deadline_at = null"
    } else {
        ""
    }
}

fn bind_moved<'q>(query: AnyQuery<'q>, row: &ExecutionRow) -> AnyQuery<'q> {
    query
        .bind(row.id.to_string())
        .bind(row.dispatch_seq)
        .bind(i64::from(row.attempt))
        .bind(i64::from(row.interruptions))
        .bind(row.not_before.0)
        .bind(row.due_at.map(|at| at.0))
        .bind(row.started_at.map(|at| at.0))
        .bind(row.progress_percent)
        .bind(row.progress_message.clone())
}

fn bind_ended<'q>(query: AnyQuery<'q>, row: &ExecutionRow) -> AnyQuery<'q> {
    bind_moved(query, row)
        .bind(row.finished_at.map(|at| at.0))
        .bind(row.result.as_ref().map(|result| result.as_str().to_owned()))
        .bind(row.error.as_ref().map(|error| error.code.clone()))
        .bind(row.error.as_ref().map(|error| error.message.clone()))
}

fn bind_ended_plainly<'q>(query: AnyQuery<'q>, row: &ExecutionRow) -> AnyQuery<'q> {
    query
        .bind(row.id.to_string())
        .bind(row.dispatch_seq)
        .bind(i64::from(row.attempt))
        .bind(row.started_at.map(|at| at.0))
        .bind(row.finished_at.map(|at| at.0))
        .bind(row.result.as_ref().map(|result| result.as_str().to_owned()))
}

fn row_bytes(row: &ExecutionRow) -> usize {
    let result = row.result.as_ref().map_or(0, |result| result.as_str().len());
    result + row.error.as_ref().map_or(0, |error| error.message.len())
}

/// Cuts `rows` into runs of at most [`STATEMENT_BYTES`]; a single heavier row is a run of its own.
pub(super) fn by_weight<T>(rows: &[T], weight: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let mut parts = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, row) in rows.iter().enumerate() {
        let weight = weight(row);
        if index > start && bytes + weight > STATEMENT_BYTES {
            parts.push(&rows[start..index]);
            (start, bytes) = (index, 0);
        }
        bytes += weight;
    }
    if start < rows.len() {
        parts.push(&rows[start..]);
    }
    parts
}

/// Adds a step to the log of an execution without changing it; nothing when there is no such execution.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn note(tx: &mut Tx, claim: Claim, message: &str, at: EpochMillis) -> Result<(), StoreError> {
    let row = sqlx::query("select job_id, attempt from job_execution where id = ?")
        .bind(claim.execution.to_string())
        .fetch_optional(&mut **tx)
        .await?;
    let Some(row) = row else { return Ok(()) };
    let row = Row(&row);
    let entry = LogEntry {
        job: row.parsed("job_id")?,
        execution: Some(claim.execution),
        attempt: row.number("attempt")?,
        dispatch_seq: claim.dispatch_seq,
        from: None,
        to: None,
        worker: None,
        message: Some(message.to_owned()),
        at,
    };
    job_log::append(tx, &[entry]).await
}

/// The retry policies of jobs: asked for only when an attempt failed and another one follows.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn retry_policies(
    connection: &mut Connection,
    jobs: &[JobId],
) -> Result<HashMap<JobId, RetryPolicy>, StoreError> {
    let mut policies = HashMap::with_capacity(jobs.len());
    for chunk in key_chunks(jobs) {
        let sql = format!(
            "select id, retry_max_attempts, retry_backoff, retry_initial_ms, retry_max_ms from job_info \
             where id in ({})",
            placeholders(chunk.len(), 0)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for job in chunk {
            query = query.bind(job.to_string());
        }
        for row in query.fetch_all(&mut *connection).await? {
            let row = Row(&row);
            let policy = RetryPolicy {
                max_attempts: row.number("retry_max_attempts")?,
                backoff: row.coded("retry_backoff", Backoff::from_code)?,
                initial_ms: row.int("retry_initial_ms")?,
                max_ms: row.int("retry_max_ms")?,
            };
            policies.insert(row.parsed("id")?, policy);
        }
    }
    Ok(policies)
}
