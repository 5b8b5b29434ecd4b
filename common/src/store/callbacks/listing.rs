//! The API's side of the outbox: deliveries with their attempts, and delivering them again.

use super::{DeliveryStatus, default_expiry};
use crate::{
    id::{AppId, DeliveryId, ExecutionId, JobId},
    message::CallbackTicket,
    store::{Connection, Row, StoreError, Tx, placeholders, row_chunks},
    time::EpochMillis,
};
use sqlx::{AssertSqlSafe, any::AnyRow};
use std::collections::HashMap;

/// Which deliveries to list: newest first, all conditions together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeliveryFilter {
    /// Of this app; of every app when absent.
    pub app: Option<AppId>,
    /// In this status.
    pub status: Option<DeliveryStatus>,
    /// About executions of this job.
    pub job: Option<JobId>,
    /// About this execution.
    pub execution: Option<ExecutionId>,
    /// Older than this one: the last of the page before.
    pub before: Option<DeliveryId>,
}

/// A delivery as it is shown. Its body is left out: it may be large.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryRow {
    /// The `webhook-id` of every attempt.
    pub id: DeliveryId,
    /// Its app.
    pub app: AppId,
    /// The job.
    pub job: JobId,
    /// The execution it reports.
    pub execution: ExecutionId,
    /// Where it goes.
    pub url: String,
    /// The `type` of its body.
    pub event_type: String,
    /// Where it stands.
    pub status: DeliveryStatus,
    /// Attempts made.
    pub attempt: u32,
    /// When the next attempt is due, while one is planned.
    pub next_attempt_at: EpochMillis,
    /// When it was written.
    pub created_at: EpochMillis,
    /// When it ends unsuccessful for its age.
    pub expires_at: EpochMillis,
    /// When it ended.
    pub finished_at: Option<EpochMillis>,
    /// Status of the last answer.
    pub last_status_code: Option<i64>,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
}

/// One attempt as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptRow {
    /// Which, from 1.
    pub attempt: u32,
    /// When it began.
    pub started_at: EpochMillis,
    /// When it was over.
    pub finished_at: Option<EpochMillis>,
    /// Status of the answer.
    pub status_code: Option<i64>,
    /// Why it failed.
    pub error: Option<String>,
    /// The beginning of the answer's body.
    pub response_body: Option<String>,
}

/// Lists deliveries, newest first.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn list(
    connection: &mut Connection,
    filter: &DeliveryFilter,
    limit: u32,
) -> Result<Vec<DeliveryRow>, StoreError> {
    let conditions = [
        ("app_id = ?", filter.app.map(|app| app.to_string())),
        ("job_id = ?", filter.job.map(|job| job.to_string())),
        ("execution_id = ?", filter.execution.map(|id| id.to_string())),
        ("id < ?", filter.before.map(|id| id.to_string())),
    ];
    let mut sql =
        "select id, app_id, job_id, execution_id, url, event_type, status, attempt, next_attempt_at, \
                   created_at, expires_at, finished_at, last_status_code, last_error \
                   from callback_delivery where 1 = 1"
            .to_owned();
    for (condition, _) in conditions.iter().filter(|(_, value)| value.is_some()) {
        sql.push_str(" and ");
        sql.push_str(condition);
    }
    if filter.status.is_some() {
        sql.push_str(" and status = ?");
    }
    sql.push_str(" order by id desc limit ?");
    let mut query = sqlx::query(AssertSqlSafe(sql));
    for value in conditions.into_iter().filter_map(|(_, value)| value) {
        query = query.bind(value);
    }
    if let Some(status) = filter.status {
        query = query.bind(status.code());
    }
    let rows = query.bind(i64::from(limit)).fetch_all(connection).await?;
    rows.iter().map(read).collect()
}

fn read(row: &AnyRow) -> Result<DeliveryRow, StoreError> {
    let row = Row(row);
    Ok(DeliveryRow {
        id: row.parsed("id")?,
        app: row.parsed("app_id")?,
        job: row.parsed("job_id")?,
        execution: row.parsed("execution_id")?,
        url: row.text("url")?,
        event_type: row.text("event_type")?,
        status: row.coded("status", DeliveryStatus::from_code)?,
        attempt: row.number("attempt")?,
        next_attempt_at: row.instant("next_attempt_at")?,
        created_at: row.instant("created_at")?,
        expires_at: row.instant("expires_at")?,
        finished_at: row.opt_instant("finished_at")?,
        last_status_code: row.opt_int("last_status_code")?,
        last_error: row.opt_text("last_error")?,
    })
}

/// The attempts of deliveries, oldest first.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn attempts_of(
    connection: &mut Connection,
    deliveries: &[DeliveryId],
) -> Result<HashMap<DeliveryId, Vec<AttemptRow>>, StoreError> {
    let mut attempts: HashMap<DeliveryId, Vec<AttemptRow>> = HashMap::with_capacity(deliveries.len());
    for chunk in row_chunks(deliveries) {
        let sql = format!(
            "select delivery_id, attempt, started_at, finished_at, status_code, error, response_body \
             from callback_attempt where delivery_id in ({}) order by delivery_id, attempt",
            placeholders(chunk.len(), 0)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for delivery in chunk {
            query = query.bind(delivery.to_string());
        }
        for row in query.fetch_all(&mut *connection).await? {
            let row = Row(&row);
            let attempt = AttemptRow {
                attempt: row.number("attempt")?,
                started_at: row.instant("started_at")?,
                finished_at: row.opt_instant("finished_at")?,
                status_code: row.opt_int("status_code")?,
                error: row.opt_text("error")?,
                response_body: row.opt_text("response_body")?,
            };
            attempts
                .entry(row.parsed("delivery_id")?)
                .or_default()
                .push(attempt);
        }
    }
    Ok(attempts)
}

/// Which ended deliveries to send again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Redelivery {
    /// One, whatever its end was, also a success.
    One(DeliveryId),
    /// Those written in a time range (from inclusive, to exclusive) that ended without success.
    Range {
        /// From this instant.
        from: EpochMillis,
        /// Up to, not including, this instant.
        to: EpochMillis,
    },
}

/// Deliveries one call sends again at most; call again for more.
pub const REDELIVERY_BATCH: usize = 1_000;

/// Starts a new series of attempts of ended deliveries of `app`. Returns the tickets to publish after the commit, at
/// most [`REDELIVERY_BATCH`]; none when nothing matches or what matches has not ended.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn redeliver(
    tx: &mut Tx,
    app: Option<AppId>,
    which: &Redelivery,
    now: EpochMillis,
) -> Result<Vec<CallbackTicket>, StoreError> {
    let mut tickets = select_ended(tx, app, which).await?;
    tickets.sort_unstable_by_key(|ticket| ticket.delivery);
    for chunk in row_chunks(&tickets) {
        let sql = format!(
            "update callback_delivery set status = {}, retry_from = attempt, next_attempt_at = ?, expires_at = ?, \
             finished_at = null where id in ({})",
            DeliveryStatus::Pending.code(),
            placeholders(chunk.len(), 0)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql))
            .bind(now.0)
            .bind((now + default_expiry()).0);
        for ticket in chunk {
            query = query.bind(ticket.delivery.to_string());
        }
        query.execute(&mut **tx).await?;
    }
    Ok(tickets)
}

async fn select_ended(
    tx: &mut Tx,
    app: Option<AppId>,
    which: &Redelivery,
) -> Result<Vec<CallbackTicket>, StoreError> {
    let lock = tx.dialect().for_update();
    let of_app = if app.is_some() { " and app_id = ?" } else { "" };
    let delivered = DeliveryStatus::Delivered.code();
    let (hint, condition) = match which {
        Redelivery::One(_) => ("", format!("id = ? and status >= {delivered}")),
        // Few have failed: read by their status, or everybody's deliveries are read, and locked, in the order of their ids.
        Redelivery::Range { .. } => (
            match app {
                Some(_) => "/*! force index (idx_callback_app) */",
                None => "/*! force index (idx_callback_due) */",
            },
            format!("created_at >= ? and created_at < ? and status > {delivered}"),
        ),
    };
    let sql = format!(
        "select id, attempt from callback_delivery {hint} where {condition}{of_app} \
         order by id limit {REDELIVERY_BATCH}{lock}"
    );
    let mut query = sqlx::query(AssertSqlSafe(sql));
    query = match which {
        Redelivery::One(id) => query.bind(id.to_string()),
        Redelivery::Range { from, to } => query.bind(from.0).bind(to.0),
    };
    if let Some(app) = app {
        query = query.bind(app.to_string());
    }
    let rows = query.fetch_all(&mut **tx).await?;
    rows.iter()
        .map(|row| {
            let row = Row(row);
            Ok(CallbackTicket {
                delivery: row.parsed("id")?,
                attempt: row.number::<u32>("attempt")? + 1,
            })
        })
        .collect()
}
