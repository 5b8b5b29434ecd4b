//! The relay's side of the outbox: what is due, taking it under a lease, and what became of an attempt.

use super::DeliveryStatus;
use crate::{
    execution::limit_text,
    id::{AppId, DeliveryId, ExecutionId, JobId},
    message::CallbackTicket,
    store::{
        BulkUpdate, Connection, Row, StoreError, Tx,
        job_log::{self, LogEntry},
        placeholders, row_chunks,
        transitions::by_weight,
    },
    time::EpochMillis,
    trace_parent::TraceParent,
};
use sqlx::{AssertSqlSafe, any::AnyRow};
use std::collections::{HashMap, HashSet};

/// Most of a response body that is kept, in bytes.
pub const RESPONSE_LIMIT: usize = 16 * 1024;
const ERROR_LIMIT: usize = 1_000;

/// A delivery that waits for its next attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The delivery.
    pub id: DeliveryId,
    /// Whose secrets sign it.
    pub app: AppId,
    /// The job, for its log.
    pub job: JobId,
    /// The execution it reports.
    pub execution: ExecutionId,
    /// Where it goes.
    pub url: String,
    /// Scheme, host and port of it.
    pub endpoint: String,
    /// Sent byte for byte.
    pub body: String,
    /// The trace of the job's submission.
    pub traceparent: Option<TraceParent>,
    /// Attempts made so far.
    pub attempt: u32,
    /// Attempts made before the present series of retries.
    pub retry_from: u32,
    /// Not to be sent before.
    pub next_attempt_at: EpochMillis,
    /// When it was written.
    pub created_at: EpochMillis,
    /// No attempt is planned after this instant.
    pub expires_at: EpochMillis,
}

const COLUMNS: &str = "id, app_id, job_id, execution_id, url, endpoint, body, attempt, retry_from, next_attempt_at, \
                       created_at, expires_at, traceparent";

fn read(row: &AnyRow) -> Result<Waiting, StoreError> {
    let row = Row(row);
    Ok(Waiting {
        id: row.parsed("id")?,
        app: row.parsed("app_id")?,
        job: row.parsed("job_id")?,
        execution: row.parsed("execution_id")?,
        url: row.text("url")?,
        endpoint: row.text("endpoint")?,
        body: row.text("body")?,
        traceparent: row.opt_parsed("traceparent")?,
        attempt: row.number("attempt")?,
        retry_from: row.number("retry_from")?,
        next_attempt_at: row.instant("next_attempt_at")?,
        created_at: row.instant("created_at")?,
        expires_at: row.instant("expires_at")?,
    })
}

/// The deliveries that these tickets are for, as far as they still wait for exactly that attempt.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn of_tickets(
    connection: &mut Connection,
    tickets: &[CallbackTicket],
) -> Result<Vec<Waiting>, StoreError> {
    let wanted: HashSet<(DeliveryId, u32)> = tickets
        .iter()
        .map(|ticket| (ticket.delivery, ticket.attempt))
        .collect();
    let mut ids: Vec<DeliveryId> = wanted.iter().map(|(id, _)| *id).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut waiting = Vec::with_capacity(ids.len());
    for chunk in row_chunks(&ids) {
        let sql = format!(
            "select {COLUMNS} from callback_delivery where status = {} and id in ({}) order by id",
            DeliveryStatus::Pending.code(),
            placeholders(chunk.len(), 0)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for id in chunk {
            query = query.bind(id.to_string());
        }
        for row in query.fetch_all(&mut *connection).await? {
            waiting.push(read(&row)?);
        }
    }
    waiting.retain(|delivery| wanted.contains(&(delivery.id, delivery.attempt + 1)));
    Ok(waiting)
}

/// Whether the present series of attempts of a delivery has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Series {
    /// Its first attempt is due.
    NotBegun,
    /// A repeated attempt is due.
    Begun,
}

/// Up to `limit` deliveries to `endpoint` that are due, the longest overdue first.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn due_at_endpoint(
    connection: &mut Connection,
    endpoint: &str,
    series: Series,
    now: EpochMillis,
    limit: u32,
) -> Result<Vec<Waiting>, StoreError> {
    let compared = match series {
        Series::NotBegun => "=",
        Series::Begun => ">",
    };
    let sql = format!(
        "select {COLUMNS} from callback_delivery /*! force index (idx_callback_endpoint) */ \
         where status = {} and endpoint = ? and next_attempt_at <= ? \
         and attempt {compared} retry_from order by next_attempt_at limit ?",
        DeliveryStatus::Pending.code()
    );
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(endpoint.to_owned())
        .bind(now.0)
        .bind(i64::from(limit))
        .fetch_all(connection)
        .await?;
    rows.iter().map(read).collect()
}

/// Endpoints with a delivery that was due before `before`.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn overdue_endpoints(
    connection: &mut Connection,
    before: EpochMillis,
    limit: u32,
) -> Result<Vec<String>, StoreError> {
    // The grouping names the whole beginning of the index, so that MySQL and MariaDB jump from endpoint to endpoint.
    let sql = format!(
        "select endpoint, min(next_attempt_at) as earliest from callback_delivery \
         /*! force index (idx_callback_endpoint) */ where status = {} group by status, endpoint having min(next_attempt_at) < ? order by earliest limit ?",
        DeliveryStatus::Pending.code()
    );
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(before.0)
        .bind(i64::from(limit))
        .fetch_all(connection)
        .await?;
    rows.iter().map(|row| Row(row).text("endpoint")).collect()
}

/// Takes deliveries for one attempt each, under a lease: those of `waiting` that nobody else took meanwhile. Their
/// `expires_at` is stored as given.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn claim(
    tx: &mut Tx,
    waiting: &[Waiting],
    leased_until: EpochMillis,
) -> Result<HashSet<DeliveryId>, StoreError> {
    let mut free: HashSet<(DeliveryId, u32)> = HashSet::with_capacity(waiting.len());
    for chunk in row_chunks(waiting) {
        let sql = format!(
            "select id, attempt from callback_delivery where status = {} and id in ({}) order by id{}",
            DeliveryStatus::Pending.code(),
            placeholders(chunk.len(), 0),
            tx.dialect().for_update_skip_locked()
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for delivery in chunk {
            query = query.bind(delivery.id.to_string());
        }
        for row in query.fetch_all(&mut **tx).await? {
            let row = Row(&row);
            free.insert((row.parsed("id")?, row.number("attempt")?));
        }
    }
    let mut taken: Vec<&Waiting> = waiting
        .iter()
        .filter(|delivery| free.contains(&(delivery.id, delivery.attempt)))
        .collect();
    taken.sort_by_key(|delivery| delivery.id);
    let guard = format!(
        "callback_delivery.status = {} and callback_delivery.attempt = v.attempt - 1",
        DeliveryStatus::Pending.code()
    );
    let dialect = tx.dialect();
    BulkUpdate {
        table: "callback_delivery",
        columns: &["id", "attempt", "status", "leased_until", "expires_at"],
        set: "",
        set_values: &[],
        guard: &guard,
    }
    .execute(tx, dialect, &taken, |query, delivery| {
        query
            .bind(delivery.id.to_string())
            .bind(i64::from(delivery.attempt) + 1)
            .bind(DeliveryStatus::Delivering.code())
            .bind(leased_until.0)
            .bind(delivery.expires_at.0)
    })
    .await?;
    Ok(taken.into_iter().map(|delivery| delivery.id).collect())
}

/// The live signing secrets of apps, newest first.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn signing_secrets(
    connection: &mut Connection,
    apps: &HashSet<AppId>,
    now: EpochMillis,
) -> Result<HashMap<AppId, Vec<String>>, StoreError> {
    let apps: Vec<_> = apps.iter().collect();
    let mut secrets: HashMap<AppId, Vec<String>> = HashMap::with_capacity(apps.len());
    for chunk in row_chunks(&apps) {
        let sql = format!(
            "select app_id, secret from webhook_secret where app_id in ({}) \
             and (retired_at is null or retired_at > ?) order by created_at desc",
            placeholders(chunk.len(), 0)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for app in chunk {
            query = query.bind(app.to_string());
        }
        for row in query.bind(now.0).fetch_all(&mut *connection).await? {
            let row = Row(&row);
            secrets
                .entry(row.parsed("app_id")?)
                .or_default()
                .push(row.text("secret")?);
        }
    }
    Ok(secrets)
}

/// What became of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptRecord {
    /// The delivery.
    pub delivery: DeliveryId,
    /// The job, for its log.
    pub job: JobId,
    /// The execution it reports.
    pub execution: ExecutionId,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// When it began.
    pub started_at: EpochMillis,
    /// When it was over.
    pub finished_at: EpochMillis,
    /// Status of the answer; none when there was none.
    pub status_code: Option<u16>,
    /// Why it failed; none when it succeeded.
    pub error: Option<String>,
    /// The beginning of the answer's body.
    pub response_body: Option<String>,
    /// Where the delivery stands now.
    pub status: DeliveryStatus,
    /// When the next attempt is due, while it is [`DeliveryStatus::Pending`].
    pub next_attempt_at: EpochMillis,
    /// For the steps of the execution.
    pub step: String,
}

/// Writes what became of attempts, unless their lease was lost meanwhile.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn record(tx: &mut Tx, attempts: &[AttemptRecord]) -> Result<(), StoreError> {
    let mut sorted: Vec<&AttemptRecord> = attempts.iter().collect();
    sorted.sort_by_key(|attempt| attempt.delivery);
    let guard = format!(
        "callback_delivery.status = {} and callback_delivery.attempt = v.attempt",
        DeliveryStatus::Delivering.code()
    );
    let dialect = tx.dialect();
    BulkUpdate {
        table: "callback_delivery",
        columns: &[
            "id",
            "attempt",
            "status",
            "next_attempt_at",
            "finished_at",
            "last_status_code",
            "last_error",
        ],
        set: "leased_until = null",
        set_values: &[],
        guard: &guard,
    }
    .execute(tx, dialect, &sorted, |query, attempt| {
        let finished_at = attempt.status.is_ended().then_some(attempt.finished_at.0);
        query
            .bind(attempt.delivery.to_string())
            .bind(i64::from(attempt.attempt))
            .bind(attempt.status.code())
            .bind(attempt.next_attempt_at.0)
            .bind(finished_at)
            .bind(attempt.status_code.map(i64::from))
            .bind(limited_error(attempt))
    })
    .await?;
    insert_attempts(tx, &sorted).await?;
    let steps: Vec<LogEntry> = attempts.iter().map(step).collect();
    job_log::append(tx, &steps).await
}

fn limited_error(attempt: &AttemptRecord) -> Option<String> {
    attempt
        .error
        .as_deref()
        .map(|error| limit_text(error, ERROR_LIMIT).into_owned())
}

fn step(attempt: &AttemptRecord) -> LogEntry {
    LogEntry {
        job: attempt.job,
        execution: Some(attempt.execution),
        attempt: 0,
        dispatch_seq: 0,
        from: None,
        to: None,
        worker: None,
        message: Some(attempt.step.clone()),
        at: attempt.finished_at,
    }
}

async fn insert_attempts(tx: &mut Tx, attempts: &[&AttemptRecord]) -> Result<(), StoreError> {
    let body_bytes = |attempt: &&AttemptRecord| attempt.response_body.as_ref().map_or(0, String::len);
    let upsert = tx.dialect().on_conflict_update(
        &["delivery_id", "attempt"],
        &["finished_at", "status_code", "error", "response_body"],
    );
    for part in by_weight(attempts, body_bytes) {
        for chunk in row_chunks(part) {
            let sql = format!(
                "insert into callback_attempt (delivery_id, attempt, started_at, finished_at, status_code, error, \
                 response_body) values {}{upsert}",
                placeholders(chunk.len(), 7)
            );
            let mut query = sqlx::query(AssertSqlSafe(sql));
            for attempt in chunk {
                let body = attempt.response_body.as_deref();
                query = query
                    .bind(attempt.delivery.to_string())
                    .bind(i64::from(attempt.attempt))
                    .bind(attempt.started_at.0)
                    .bind(attempt.finished_at.0)
                    .bind(attempt.status_code.map(i64::from))
                    .bind(limited_error(attempt))
                    .bind(body.map(|body| limit_text(body, RESPONSE_LIMIT).into_owned()));
            }
            query.execute(&mut **tx).await?;
        }
    }
    Ok(())
}

/// Gives claimed deliveries back whose attempt has not begun: it is not counted.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn release(tx: &mut Tx, claimed: &[Waiting]) -> Result<(), StoreError> {
    let mut sorted: Vec<&Waiting> = claimed.iter().collect();
    sorted.sort_by_key(|delivery| delivery.id);
    let guard = format!(
        "callback_delivery.status = {} and callback_delivery.attempt = v.attempt + 1",
        DeliveryStatus::Delivering.code()
    );
    let dialect = tx.dialect();
    BulkUpdate {
        table: "callback_delivery",
        columns: &["id", "attempt", "status"],
        set: "leased_until = null",
        set_values: &[],
        guard: &guard,
    }
    .execute(tx, dialect, &sorted, |query, delivery| {
        query
            .bind(delivery.id.to_string())
            .bind(i64::from(delivery.attempt))
            .bind(DeliveryStatus::Pending.code())
    })
    .await?;
    Ok(())
}

/// True when a relay stopped in the middle of an attempt and its lease is over.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn any_expired_lease(connection: &mut Connection, now: EpochMillis) -> Result<bool, StoreError> {
    let sql = format!(
        "select id from callback_delivery where status = {} and leased_until < ? limit 1",
        DeliveryStatus::Delivering.code()
    );
    let found = sqlx::query(AssertSqlSafe(sql))
        .bind(now.0)
        .fetch_optional(connection)
        .await?;
    Ok(found.is_some())
}

/// Ends every lease, for a start that has proof that no relay of before is alive. [`recover_expired_leases`] then puts
/// the deliveries back at once.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn end_all_leases(connection: &mut Connection) -> Result<u64, StoreError> {
    let sql = format!(
        "update callback_delivery set leased_until = 0 where status = {}",
        DeliveryStatus::Delivering.code()
    );
    let ended = sqlx::query(AssertSqlSafe(sql)).execute(connection).await?;
    Ok(ended.rows_affected())
}

/// Puts deliveries back whose relay stopped in the middle of an attempt: the attempt is counted, for its request may
/// have arrived. At most `limit`; returns how many.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn recover_expired_leases(tx: &mut Tx, now: EpochMillis, limit: u32) -> Result<usize, StoreError> {
    let sql = format!(
        "select id, job_id, execution_id, attempt, next_attempt_at from callback_delivery \
         where status = {} and leased_until < ? order by id limit ?{}",
        DeliveryStatus::Delivering.code(),
        tx.dialect().for_update_skip_locked()
    );
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(now.0)
        .bind(i64::from(limit))
        .fetch_all(&mut **tx)
        .await?;
    let mut interrupted = Vec::with_capacity(rows.len());
    for row in &rows {
        let row = Row(row);
        let attempt = row.number("attempt")?;
        interrupted.push(AttemptRecord {
            delivery: row.parsed("id")?,
            job: row.parsed("job_id")?,
            execution: row.parsed("execution_id")?,
            attempt,
            // Not known better: it began soon after it was due.
            started_at: row.instant("next_attempt_at")?.min(now),
            finished_at: now,
            status_code: None,
            error: Some("the relay stopped during this attempt".into()),
            response_body: None,
            status: DeliveryStatus::Pending,
            next_attempt_at: now,
            step: format!("callback attempt {attempt} was interrupted and is repeated"),
        });
    }
    if !interrupted.is_empty() {
        record(tx, &interrupted).await?;
    }
    Ok(interrupted.len())
}

/// Ends deliveries that became too old while no relay was there to try them. One that was never tried is not too old.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn expire_overdue(connection: &mut Connection, now: EpochMillis) -> Result<u64, StoreError> {
    let sql = format!(
        "update callback_delivery set status = {}, finished_at = ? \
         where status = {} and next_attempt_at <= ? and expires_at < ? and attempt > retry_from",
        DeliveryStatus::Expired.code(),
        DeliveryStatus::Pending.code()
    );
    let expired = sqlx::query(AssertSqlSafe(sql))
        .bind(now.0)
        .bind(now.0)
        .bind(now.0)
        .execute(connection)
        .await?;
    Ok(expired.rows_affected())
}
