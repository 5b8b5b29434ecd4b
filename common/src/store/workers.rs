//! `worker_node`: one row an incarnation, written by the leader from heartbeats.

use super::{BulkUpdate, Connection, Row, StoreError, Tx, key_chunks, placeholders, row_chunks};
use crate::{
    id::{IncarnationId, WorkerId},
    job::Selector,
    message::HandlerLoad,
    time::EpochMillis,
};
use sqlx::{AssertSqlSafe, any::AnyRow};
use std::collections::{BTreeMap, BTreeSet};

/// Where an incarnation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkerStatus {
    /// Takes work.
    Online,
    /// Takes nothing new.
    Draining,
    /// Has said goodbye.
    Offline,
    /// Was proven dead.
    Dead,
}

impl WorkerStatus {
    /// The number stored in the table.
    #[must_use]
    pub const fn code(self) -> i64 {
        self as i64
    }

    /// The status with this stored number.
    #[must_use]
    pub const fn from_code(code: i64) -> Option<Self> {
        match code {
            0 => Some(Self::Online),
            1 => Some(Self::Draining),
            2 => Some(Self::Offline),
            3 => Some(Self::Dead),
            _ => None,
        }
    }

    /// True when it never comes back: what it owns must be given to others.
    #[must_use]
    pub const fn has_ended(self) -> bool {
        matches!(self, Self::Offline | Self::Dead)
    }
}

/// An incarnation as it stands in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerRow {
    /// The worker.
    pub worker: WorkerId,
    /// Its incarnation.
    pub incarnation: IncarnationId,
    /// Where `/livez` answers.
    pub host: String,
    /// Where `/livez` answers; 0 when it does not listen.
    pub port: u16,
    /// What it offers.
    pub handlers: Vec<HandlerLoad>,
    /// Labels that selectors are matched against.
    pub labels: Selector,
    /// Where it stands. [`save`] leaves the status of a known incarnation alone: see [`set_status`].
    pub status: WorkerStatus,
    /// A drain was requested.
    pub drain_requested: bool,
    /// Executions it owns.
    pub active: u32,
    /// CPU idle, 0 to 100.
    pub cpu_idle_percent: u8,
    /// Mean run time of the last minutes, in milliseconds.
    pub mean_cost_ms: i64,
    /// First heartbeat.
    pub registered_at: EpochMillis,
    /// Last heartbeat.
    pub last_heartbeat: EpochMillis,
}

const COLUMNS: [&str; 14] = [
    "worker_id",
    "incarnation",
    "host",
    "port",
    "handlers",
    "labels",
    "capacity",
    "status",
    "drain_requested",
    "active_count",
    "cpu_idle_percent",
    "mean_cost_ms",
    "registered_at",
    "last_heartbeat",
];
/// What a later heartbeat may change.
const REFRESHED: [&str; 9] = [
    "host",
    "port",
    "handlers",
    "labels",
    "capacity",
    "active_count",
    "cpu_idle_percent",
    "mean_cost_ms",
    "last_heartbeat",
];

/// Registers incarnations, and refreshes those that are known; never their status or a requested drain.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn save(tx: &mut Tx, rows: &[WorkerRow]) -> Result<(), StoreError> {
    let dialect = tx.dialect();
    for chunk in row_chunks(rows) {
        let sql = format!(
            "insert into worker_node ({}) values {}{}",
            COLUMNS.join(", "),
            placeholders(chunk.len(), COLUMNS.len()),
            dialect.on_conflict_update(&["worker_id", "incarnation"], &REFRESHED)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for row in chunk {
            let json = |error: serde_json::Error| StoreError::Corrupt(error.to_string());
            let capacity: i64 = row.handlers.iter().map(|handler| i64::from(handler.slots)).sum();
            query = query
                .bind(row.worker.as_str().to_owned())
                .bind(row.incarnation.to_string())
                .bind(row.host.clone())
                .bind(i64::from(row.port))
                .bind(serde_json::to_string(&row.handlers).map_err(json)?)
                .bind(serde_json::to_string(&row.labels).map_err(json)?)
                .bind(capacity)
                .bind(row.status.code())
                .bind(i64::from(row.drain_requested))
                .bind(i64::from(row.active))
                .bind(i64::from(row.cpu_idle_percent))
                .bind(row.mean_cost_ms)
                .bind(row.registered_at.0)
                .bind(row.last_heartbeat.0);
        }
        query.execute(&mut **tx).await?;
    }
    Ok(())
}

/// Sets the status of incarnations that have not ended; an end is final and gets its instant. Returns how many changed.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn set_status(
    tx: &mut Tx,
    changes: &[(IncarnationId, WorkerStatus)],
    now: EpochMillis,
) -> Result<u64, StoreError> {
    let dialect = tx.dialect();
    let guard = format!("worker_node.status < {}", WorkerStatus::Offline.code());
    BulkUpdate {
        table: "worker_node",
        columns: &["incarnation", "status", "ended_at"],
        set: "",
        set_values: &[],
        guard: &guard,
    }
    .execute(tx, dialect, changes, |query, (incarnation, status)| {
        query
            .bind(incarnation.to_string())
            .bind(status.code())
            .bind(status.has_ended().then_some(now.0))
    })
    .await
}

/// Marks every incarnation that has not ended as dead: for a start that has proof that nothing of before is alive.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn mark_all_dead(tx: &mut Tx, now: EpochMillis) -> Result<u64, StoreError> {
    let done = sqlx::query("update worker_node set status = ?, ended_at = ? where status in (?, ?)")
        .bind(WorkerStatus::Dead.code())
        .bind(now.0)
        .bind(WorkerStatus::Online.code())
        .bind(WorkerStatus::Draining.code())
        .execute(&mut **tx)
        .await?;
    Ok(done.rows_affected())
}

/// The incarnations that have not ended.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn current(connection: &mut Connection) -> Result<Vec<WorkerRow>, StoreError> {
    let sql = format!(
        "select {} from worker_node where status in (?, ?)",
        COLUMNS.join(", ")
    );
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(WorkerStatus::Online.code())
        .bind(WorkerStatus::Draining.code())
        .fetch_all(connection)
        .await?;
    rows.iter().map(read).collect()
}

/// The status of each of these incarnations that is known.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn statuses(
    connection: &mut Connection,
    incarnations: &[IncarnationId],
) -> Result<Vec<(IncarnationId, WorkerStatus)>, StoreError> {
    let mut statuses = Vec::with_capacity(incarnations.len());
    for chunk in key_chunks(incarnations) {
        let sql = format!(
            "select incarnation, status from worker_node where incarnation in ({})",
            placeholders(chunk.len(), 0)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for incarnation in chunk {
            query = query.bind(incarnation.to_string());
        }
        for row in query.fetch_all(&mut *connection).await? {
            let row = Row(&row);
            let status = row.coded("status", WorkerStatus::from_code)?;
            statuses.push((row.parsed("incarnation")?, status));
        }
    }
    Ok(statuses)
}

/// The newest incarnation of every worker that was heard of at `since` or later, by name.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn heard_since(
    connection: &mut Connection,
    since: EpochMillis,
) -> Result<Vec<WorkerRow>, StoreError> {
    let sql = format!(
        "select {} from worker_node where last_heartbeat >= ? order by worker_id, registered_at desc",
        COLUMNS.join(", ")
    );
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(since.0)
        .fetch_all(connection)
        .await?;
    let mut workers: Vec<WorkerRow> = rows.iter().map(read).collect::<Result<_, _>>()?;
    workers.dedup_by(|later, first| later.worker == first.worker);
    Ok(workers)
}

/// The handlers that workers offer which have not ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OfferedHandlers {
    /// By workers that take work.
    pub online: BTreeSet<String>,
    /// By workers that are being drained.
    pub draining: BTreeSet<String>,
    /// When a worker that takes work and offers the handler was last heard of.
    pub heard_at: BTreeMap<String, EpochMillis>,
}

/// Which handlers are on offer.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn offered_handlers(connection: &mut Connection) -> Result<OfferedHandlers, StoreError> {
    let rows = sqlx::query("select handlers, status, last_heartbeat from worker_node where status in (?, ?)")
        .bind(WorkerStatus::Online.code())
        .bind(WorkerStatus::Draining.code())
        .fetch_all(connection)
        .await?;
    let mut offered = OfferedHandlers::default();
    for row in &rows {
        let row = Row(row);
        let handlers: Vec<HandlerLoad> = row.json("handlers")?;
        if row.int("status")? != WorkerStatus::Online.code() {
            offered
                .draining
                .extend(handlers.into_iter().map(|handler| handler.name));
            continue;
        }
        let heard_at = EpochMillis(row.int("last_heartbeat")?);
        for HandlerLoad { name, .. } in handlers {
            let last = offered.heard_at.entry(name.clone()).or_insert(heard_at);
            *last = heard_at.max(*last);
            offered.online.insert(name);
        }
    }
    Ok(offered)
}

fn read(row: &AnyRow) -> Result<WorkerRow, StoreError> {
    let row = Row(row);
    let worker = row.text("worker_id")?;
    Ok(WorkerRow {
        worker: WorkerId::parse(&worker).map_err(|error| StoreError::Corrupt(error.to_string()))?,
        incarnation: row.parsed("incarnation")?,
        host: row.text("host")?,
        port: row.number("port")?,
        handlers: row.json("handlers")?,
        labels: row.json("labels")?,
        status: row.coded("status", WorkerStatus::from_code)?,
        drain_requested: row.int("drain_requested")? != 0,
        active: row.number("active_count")?,
        cpu_idle_percent: row.number("cpu_idle_percent")?,
        mean_cost_ms: row.int("mean_cost_ms")?,
        registered_at: row.instant("registered_at")?,
        last_heartbeat: row.instant("last_heartbeat")?,
    })
}
