//! `job_info`: the row as a type, inserting and reading it. Who may change it when stands in the modules of the
//! operations: submission, claim, settle.

use super::{Connection, Row, StoreError, key_chunks, placeholders, row_chunks};
use crate::{
    id::{AppId, JobId},
    job::{Backoff, ConcurrencyPolicy, JobStatus, Misfire, MisfirePolicy, RetryPolicy, Selector, Trigger},
    raw_json::RawJson,
    time::EpochMillis,
    trace_parent::TraceParent,
};
use sha2::{Digest, Sha256};
use sqlx::{AssertSqlSafe, any::AnyRow};
use std::collections::BTreeMap;

/// A job as it stands in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRow {
    /// The job.
    pub id: JobId,
    /// Its tenant.
    pub app: AppId,
    /// For people.
    pub name: String,
    /// What runs it.
    pub handler: String,
    /// Given to every execution that has none of its own.
    pub params: RawJson,
    /// What makes it fire.
    pub trigger: Trigger,
    /// No firing before this instant.
    pub start_at: Option<EpochMillis>,
    /// No firing after this instant.
    pub end_at: Option<EpochMillis>,
    /// The next planned firing; none while nothing is planned.
    pub next_trigger_time: Option<EpochMillis>,
    /// Stored status; [`JobStatus::Running`] is derived and never stored.
    pub status: JobStatus,
    /// Why it is [`JobStatus::Invalid`]; or why it is [`JobStatus::Cancelled`], when nobody asked for that.
    pub invalid_reason: Option<String>,
    /// Grows with every write.
    pub version: i64,
    /// Grows with every change a user makes: the `ETag`.
    pub definition_version: i64,
    /// The submitter's key.
    pub client_request_id: Option<String>,
    /// Hash of the canonical content, to tell a replay from another job under the same key.
    pub content_hash: String,
    /// Where outcomes are reported.
    pub callback_url: Option<String>,
    /// 0 to 9, higher first.
    pub priority: u8,
    /// Run time allowed, in milliseconds.
    pub timeout_ms: i64,
    /// Time from due to start after which it expires, in milliseconds.
    pub start_deadline_ms: Option<i64>,
    /// Attempts and pauses.
    pub retry: RetryPolicy,
    /// What happens to missed firings.
    pub misfire: Misfire,
    /// What happens to overlapping firings.
    pub concurrency: ConcurrencyPolicy,
    /// A key under which executions of several jobs take turns.
    pub concurrency_key: Option<String>,
    /// Executions a firing is split into.
    pub shards: u32,
    /// Labels a worker must carry.
    pub selector: Selector,
    /// For people and filters.
    pub labels: BTreeMap<String, String>,
    /// The trace that its submission belongs to.
    pub traceparent: Option<TraceParent>,
    /// When it was accepted.
    pub created_at: EpochMillis,
    /// When it was last written.
    pub updated_at: EpochMillis,
}

impl JobRow {
    /// The slot key its executions hold while open, if its policies ask for one.
    #[must_use]
    pub fn slot_key(&self) -> Option<String> {
        match (&self.concurrency_key, self.concurrency) {
            (Some(key), _) => Some(super::slots::shared_key(self.app, key)),
            (None, ConcurrencyPolicy::Serial | ConcurrencyPolicy::Discard) => {
                Some(super::slots::job_key(self.id))
            }
            (None, ConcurrencyPolicy::Parallel) => None,
        }
    }

    /// The class its executions wait in.
    #[must_use]
    pub fn class_key(&self) -> String {
        class_key(self.app, &self.handler, &self.selector)
    }
}

/// Executions with one handler, app and selector compete for the same workers: they wait in one class. SHA-256, hex.
#[must_use]
pub fn class_key(app: AppId, handler: &str, selector: &Selector) -> String {
    let mut hash = Sha256::new();
    hash.update(app.to_string());
    hash.update([0]);
    hash.update(handler);
    for (key, value) in selector {
        hash.update([0]);
        hash.update(key);
        hash.update([1]);
        hash.update(value);
    }
    hex(&hash.finalize())
}

/// The hash under which a client request id is unique within its app: over its exact bytes. SHA-256, hex.
#[must_use]
pub fn client_request_hash(client_request_id: &str) -> String {
    hex(&Sha256::digest(client_request_id))
}

/// Lower-case hexadecimal.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}

const COLUMNS: [&str; 36] = [
    "id",
    "app_id",
    "name",
    "handler",
    "params",
    "trigger_type",
    "trigger_spec",
    "parent_job_id",
    "start_at",
    "end_at",
    "next_trigger_time",
    "status",
    "invalid_reason",
    "version",
    "definition_version",
    "client_request_id",
    "client_request_hash",
    "content_hash",
    "callback_url",
    "priority",
    "timeout_ms",
    "start_deadline_ms",
    "retry_max_attempts",
    "retry_backoff",
    "retry_initial_ms",
    "retry_max_ms",
    "misfire_policy",
    "misfire_max_catch_up",
    "concurrency_policy",
    "concurrency_key",
    "shards",
    "selector",
    "labels",
    "class_key",
    "traceparent",
    "created_at",
];

/// Inserts jobs with their labels. All or nothing: the caller's transaction decides.
///
/// # Errors
/// [`StoreError::Duplicate`] when an id or a client request id is taken.
pub async fn insert_many(connection: &mut Connection, jobs: &[JobRow]) -> Result<(), StoreError> {
    for chunk in row_chunks(jobs) {
        let sql = format!(
            "insert into job_info ({}, updated_at) values {}",
            COLUMNS.join(", "),
            placeholders(chunk.len(), COLUMNS.len() + 1)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for job in chunk {
            query = bind_job(query, job)?;
        }
        query.execute(&mut *connection).await?;
    }
    insert_labels(connection, jobs).await
}

fn bind_job<'q>(
    query: super::sql::AnyQuery<'q>,
    job: &JobRow,
) -> Result<super::sql::AnyQuery<'q>, StoreError> {
    let json = |value: &dyn erased::Json| value.text();
    let parent = match &job.trigger {
        Trigger::After { job_id, .. } => Some(job_id.to_string()),
        _ => None,
    };
    Ok(query
        .bind(job.id.to_string())
        .bind(job.app.to_string())
        .bind(job.name.clone())
        .bind(job.handler.clone())
        .bind(job.params.as_str().to_owned())
        .bind(job.trigger.code())
        .bind(json(&job.trigger)?)
        .bind(parent)
        .bind(job.start_at.map(|at| at.0))
        .bind(job.end_at.map(|at| at.0))
        .bind(job.next_trigger_time.map(|at| at.0))
        .bind(job.status.code())
        .bind(job.invalid_reason.clone())
        .bind(job.version)
        .bind(job.definition_version)
        .bind(job.client_request_id.clone())
        .bind(job.client_request_id.as_deref().map(client_request_hash))
        .bind(job.content_hash.clone())
        .bind(job.callback_url.clone())
        .bind(i64::from(job.priority))
        .bind(job.timeout_ms)
        .bind(job.start_deadline_ms)
        .bind(i64::from(job.retry.max_attempts))
        .bind(job.retry.backoff.code())
        .bind(job.retry.initial_ms)
        .bind(job.retry.max_ms)
        .bind(job.misfire.policy.code())
        .bind(i64::from(job.misfire.max_catch_up))
        .bind(job.concurrency.code())
        .bind(job.concurrency_key.clone())
        .bind(i64::from(job.shards))
        .bind(if job.selector.is_empty() {
            None
        } else {
            Some(json(&job.selector)?)
        })
        .bind(if job.labels.is_empty() {
            None
        } else {
            Some(json(&job.labels)?)
        })
        .bind(job.class_key())
        .bind(job.traceparent.as_ref().map(ToString::to_string))
        .bind(job.created_at.0)
        .bind(job.updated_at.0))
}

/// `serde_json::to_string` behind an object, so that one closure serves the several types of a row.
mod erased {
    use crate::store::StoreError;

    pub(super) trait Json {
        fn text(&self) -> Result<String, StoreError>;
    }

    impl<T: serde::Serialize> Json for T {
        fn text(&self) -> Result<String, StoreError> {
            serde_json::to_string(self).map_err(|error| StoreError::Corrupt(error.to_string()))
        }
    }
}

/// Writes every column of a job in place of the row that has `version`, and its labels; false when that row has moved on.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn replace(connection: &mut Connection, job: &JobRow, version: i64) -> Result<bool, StoreError> {
    let assignments: Vec<_> = COLUMNS.iter().map(|column| format!("{column} = ?")).collect();
    let sql = format!(
        "update job_info set {}, updated_at = ? where id = ? and version = ?",
        assignments.join(", ")
    );
    let changed = bind_job(sqlx::query(AssertSqlSafe(sql)), job)?
        .bind(job.id.to_string())
        .bind(version)
        .execute(&mut *connection)
        .await?;
    if changed.rows_affected() == 0 {
        return Ok(false);
    }
    sqlx::query("delete from job_label where job_id = ?")
        .bind(job.id.to_string())
        .execute(&mut *connection)
        .await?;
    insert_labels(connection, std::slice::from_ref(job)).await?;
    Ok(true)
}

async fn insert_labels(connection: &mut Connection, jobs: &[JobRow]) -> Result<(), StoreError> {
    let labels: Vec<_> = jobs
        .iter()
        .flat_map(|job| job.labels.iter().map(move |(key, value)| (job.id, key, value)))
        .collect();
    for chunk in row_chunks(&labels) {
        let sql = format!(
            "insert into job_label (job_id, label_key, label_value) values {}",
            placeholders(chunk.len(), 3)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for (job, key, value) in chunk {
            query = query
                .bind(job.to_string())
                .bind((*key).clone())
                .bind((*value).clone());
        }
        query.execute(&mut *connection).await?;
    }
    Ok(())
}

/// Every column of `job_info` that [`read`] needs, qualified, for `select`s of other modules.
#[must_use]
pub fn columns() -> String {
    let qualified: Vec<_> = COLUMNS
        .iter()
        .map(|column| format!("job_info.{column}"))
        .collect();
    format!("{}, job_info.updated_at", qualified.join(", "))
}

/// Turns a row of [`columns`] into the type.
///
/// # Errors
/// [`StoreError::Corrupt`] when the row holds what this program never writes. A trigger that cannot be read is such a
/// case: use [`read_lenient`] where one bad row must not fail its batch.
pub fn read(row: &AnyRow) -> Result<JobRow, StoreError> {
    let trigger = Row(row).json("trigger_spec")?;
    read_with_trigger(row, trigger)
}

/// As [`read`], but a trigger that cannot be read comes back as the reason beside the job (whose trigger is then
/// [`Trigger::Manual`]).
///
/// # Errors
/// [`StoreError::Corrupt`] for anything but the trigger.
pub fn read_lenient(row: &AnyRow) -> Result<(JobRow, Option<String>), StoreError> {
    match Row(row).json("trigger_spec") {
        Ok(trigger) => Ok((read_with_trigger(row, trigger)?, None)),
        Err(error) => Ok((
            read_with_trigger(row, Trigger::Manual {})?,
            Some(error.to_string()),
        )),
    }
}

fn read_with_trigger(row: &AnyRow, trigger: Trigger) -> Result<JobRow, StoreError> {
    let row = Row(row);
    let params = row.text("params")?;
    Ok(JobRow {
        id: row.parsed("id")?,
        app: row.parsed("app_id")?,
        name: row.text("name")?,
        handler: row.text("handler")?,
        params: RawJson::parse(params).map_err(|error| StoreError::Corrupt(format!("params: {error}")))?,
        trigger,
        start_at: row.opt_instant("start_at")?,
        end_at: row.opt_instant("end_at")?,
        next_trigger_time: row.opt_instant("next_trigger_time")?,
        status: row.coded("status", JobStatus::from_code)?,
        invalid_reason: row.opt_text("invalid_reason")?,
        version: row.int("version")?,
        definition_version: row.int("definition_version")?,
        client_request_id: row.opt_text("client_request_id")?,
        content_hash: row.text("content_hash")?,
        callback_url: row.opt_text("callback_url")?,
        priority: row.number("priority")?,
        timeout_ms: row.int("timeout_ms")?,
        start_deadline_ms: row.opt_int("start_deadline_ms")?,
        retry: RetryPolicy {
            max_attempts: row.number("retry_max_attempts")?,
            backoff: row.coded("retry_backoff", Backoff::from_code)?,
            initial_ms: row.int("retry_initial_ms")?,
            max_ms: row.int("retry_max_ms")?,
        },
        misfire: Misfire {
            policy: row.coded("misfire_policy", MisfirePolicy::from_code)?,
            max_catch_up: row.number("misfire_max_catch_up")?,
        },
        concurrency: row.coded("concurrency_policy", ConcurrencyPolicy::from_code)?,
        concurrency_key: row.opt_text("concurrency_key")?,
        shards: row.number("shards")?,
        selector: row.json_or_default("selector")?,
        labels: row.json_or_default("labels")?,
        traceparent: row.opt_parsed("traceparent")?,
        created_at: row.instant("created_at")?,
        updated_at: row.instant("updated_at")?,
    })
}

/// Reads one job.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn get(connection: &mut Connection, id: JobId) -> Result<Option<JobRow>, StoreError> {
    let sql = format!("select {} from job_info where id = ?", columns());
    let row = sqlx::query(AssertSqlSafe(sql))
        .bind(id.to_string())
        .fetch_optional(connection)
        .await?;
    row.as_ref()
        .map(|row| read_lenient(row).map(|(job, _)| job))
        .transpose()
}

/// Reads many jobs; ids without a row are left out.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn get_many(connection: &mut Connection, ids: &[JobId]) -> Result<Vec<JobRow>, StoreError> {
    let mut jobs = Vec::with_capacity(ids.len());
    for chunk in key_chunks(ids) {
        let sql = format!(
            "select {} from job_info where id in ({})",
            columns(),
            placeholders(chunk.len(), 0)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for id in chunk {
            query = query.bind(id.to_string());
        }
        for row in query.fetch_all(&mut *connection).await? {
            jobs.push(read_lenient(&row)?.0);
        }
    }
    Ok(jobs)
}
