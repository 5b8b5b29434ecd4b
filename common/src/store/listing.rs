//! Reading for people: lists in pages, newest first, and what a job is doing right now.
//!
//! Every list goes by (id) backwards from a given one: ids sort by creation, so a page costs the same however far back
//! it lies. Bulky columns (params, results) are left out of lists.

use super::{
    Connection, Row, StoreError, executions, executions::ExecutionRow, jobs, jobs::JobRow, placeholders,
    row_chunks,
};
use crate::{
    execution::ExecutionStatus,
    id::{AppId, ExecutionId, JobId, WorkerId},
    job::JobStatus,
    time::EpochMillis,
};
use sqlx::{AssertSqlSafe, any::AnyRow};
use std::{collections::HashMap, time::Duration};
use uuid::{ContextV7, Timestamp, Uuid};

/// Executions that the counts of a job look back over, so that a job with millions of them is not slow to show.
pub const COUNTED_EXECUTIONS: i64 = 1_000;

/// How far the clock that ids are made by may differ from the database's.
const ID_CLOCK_SLACK: Duration = Duration::from_secs(600);

/// Which jobs to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFilter {
    /// Of this app.
    pub app: AppId,
    /// In this status; [`JobStatus::Running`] is derived here as it is shown.
    pub status: Option<JobStatus>,
    /// With this handler.
    pub handler: Option<String>,
    /// With this text in the name, literally.
    pub name: Option<String>,
    /// With this label.
    pub label: Option<(String, String)>,
}

/// Which executions to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutionFilter {
    /// Of this app.
    pub app: AppId,
    /// Of this job.
    pub job: Option<JobId>,
    /// In one of these states; empty for any.
    pub statuses: Vec<ExecutionStatus>,
    /// With this handler.
    pub handler: Option<String>,
    /// Last given to this worker.
    pub worker: Option<WorkerId>,
    /// Made at this instant or later.
    pub from: Option<EpochMillis>,
    /// Made before this instant.
    pub to: Option<EpochMillis>,
}

/// A `where` clause under construction, with its values in order.
struct Conditions {
    text: String,
    values: Vec<Value>,
}

enum Value {
    Text(String),
    Int(i64),
}

impl Conditions {
    fn new(condition: &str, value: Value) -> Self {
        Self {
            text: condition.to_owned(),
            values: vec![value],
        }
    }

    fn and(&mut self, condition: &str, values: impl IntoIterator<Item = Value>) {
        self.text.push_str(" and ");
        self.text.push_str(condition);
        self.values.extend(values);
    }

    async fn fetch(
        self,
        connection: &mut Connection,
        select: &str,
        tail: &str,
        limit: i64,
    ) -> Result<Vec<AnyRow>, StoreError> {
        let sql = format!("{select} where {} {tail} limit ?", self.text);
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for value in self.values {
            query = match value {
                Value::Text(text) => query.bind(text),
                Value::Int(int) => query.bind(int),
            };
        }
        Ok(query.bind(limit).fetch_all(connection).await?)
    }
}

/// Jobs that were derived as running: they hold an execution that a worker owns.
const RUNNING_JOBS: &str =
    "job_id from job_execution where job_execution.app_id = ? and job_execution.status in (3, 4)";

/// A page of jobs, newest first, without their params (`null` stands there). `before` is the last one of the page
/// before.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn jobs(
    connection: &mut Connection,
    filter: &JobFilter,
    before: Option<JobId>,
    limit: i64,
) -> Result<Vec<JobRow>, StoreError> {
    let app = || Value::Text(filter.app.to_string());
    let mut conditions = Conditions::new("job_info.app_id = ?", app());
    match filter.status {
        Some(status @ (JobStatus::Running | JobStatus::Waiting)) => {
            conditions.and("job_info.status = ?", [Value::Int(JobStatus::Waiting.code())]);
            // MySQL reads the hint: without it, it joins all jobs before it takes the first page of them.
            let is = if status == JobStatus::Running {
                "in (select"
            } else {
                "not in (select /*+ subquery(materialization) */"
            };
            conditions.and(&format!("job_info.id {is} {RUNNING_JOBS})"), [app()]);
        }
        Some(status) => conditions.and("job_info.status = ?", [Value::Int(status.code())]),
        None => {}
    }
    if let Some(handler) = &filter.handler {
        conditions.and("job_info.handler = ?", [Value::Text(handler.clone())]);
    }
    if let Some(name) = &filter.name {
        conditions.and("instr(job_info.name, ?) > 0", [Value::Text(name.clone())]);
    }
    if let Some((key, value)) = &filter.label {
        conditions.and(
            "job_info.id in (select job_id from job_label where label_key = ? and label_value = ?)",
            [Value::Text(key.clone()), Value::Text(value.clone())],
        );
    }
    if let Some(before) = before {
        conditions.and("job_info.id < ?", [Value::Text(before.to_string())]);
    }
    let columns = jobs::columns().replace("job_info.params", "'null' as params");
    // In the order of the page; unless a label may lead to few jobs straight away.
    let index = match (&filter.label, filter.status, &filter.handler) {
        (Some(_), ..) => "",
        (None, Some(_), _) => "/*! force index (idx_job_app_status) */",
        (None, None, Some(_)) => "/*! force index (idx_job_handler) */",
        (None, None, None) => "/*! force index (idx_job_app) */",
    };
    let select = format!("select {columns} from job_info {index}");
    let rows = conditions
        .fetch(connection, &select, "order by job_info.id desc", limit)
        .await?;
    rows.iter()
        .map(|row| jobs::read_lenient(row).map(|(job, _)| job))
        .collect()
}

/// A page of executions, newest first, without params and results. `before` is the last one of the page before.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn executions(
    connection: &mut Connection,
    filter: &ExecutionFilter,
    before: Option<ExecutionId>,
    limit: i64,
) -> Result<Vec<ExecutionRow>, StoreError> {
    if filter.statuses.is_empty() {
        return executions_in(connection, filter, None, before, limit).await;
    }
    // One state at a time goes along an index however rare the state is; no word of the API has more than three.
    let mut rows = Vec::new();
    for status in &filter.statuses {
        rows.extend(executions_in(connection, filter, Some(*status), before, limit).await?);
    }
    rows.sort_unstable_by_key(|row| std::cmp::Reverse(row.id));
    rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    Ok(rows)
}

async fn executions_in(
    connection: &mut Connection,
    filter: &ExecutionFilter,
    status: Option<ExecutionStatus>,
    before: Option<ExecutionId>,
    limit: i64,
) -> Result<Vec<ExecutionRow>, StoreError> {
    let app = Value::Text(filter.app.to_string());
    let mut conditions = match filter.job {
        Some(job) => {
            let mut conditions = Conditions::new("job_execution.job_id = ?", Value::Text(job.to_string()));
            // Not a condition that an index answers: two indexes would be intersected, over all rows of both.
            conditions.and("coalesce(job_execution.app_id, '') = ?", [app]);
            conditions
        }
        None => Conditions::new("job_execution.app_id = ?", app),
    };
    if let Some(status) = status {
        conditions.and("job_execution.status = ?", [Value::Int(status.code())]);
    }
    if let Some(handler) = &filter.handler {
        conditions.and("job_execution.handler = ?", [Value::Text(handler.clone())]);
    }
    if let Some(worker) = &filter.worker {
        conditions.and("job_execution.worker_id = ?", [Value::Text(worker.to_string())]);
    }
    // The bounds on the id make the range an index range; those on created_at make it exact.
    if let Some(from) = filter.from {
        conditions.and(
            "job_execution.id >= ? and job_execution.created_at >= ?",
            [Value::Text(id_at(from - ID_CLOCK_SLACK)), Value::Int(from.0)],
        );
    }
    if let Some(to) = filter.to {
        conditions.and(
            "job_execution.id < ? and job_execution.created_at < ?",
            [Value::Text(id_at(to + ID_CLOCK_SLACK)), Value::Int(to.0)],
        );
    }
    if let Some(before) = before {
        conditions.and("job_execution.id < ?", [Value::Text(before.to_string())]);
    }
    let index = match (filter.job, status) {
        (Some(_), _) => "idx_execution_job",
        (None, Some(_)) => "idx_execution_app_status",
        (None, None) => "idx_execution_app",
    };
    let select = format!(
        "select {} from job_execution /*! force index ({index}) */",
        light_columns()
    );
    let rows = conditions
        .fetch(connection, &select, "order by job_execution.id desc", limit)
        .await?;
    rows.iter().map(executions::read).collect()
}

fn light_columns() -> String {
    executions::columns()
        .replace("job_execution.params", "'null' as params")
        .replace("job_execution.result", "'null' as result")
}

/// The smallest id that a UUIDv7 made at this instant may have, as text.
fn id_at(instant: EpochMillis) -> String {
    let millis = u64::try_from(instant.0).unwrap_or(0);
    let timestamp = Timestamp::from_unix(
        ContextV7::new(),
        millis / 1_000,
        u32::try_from(millis % 1_000 * 1_000_000).unwrap_or(0),
    );
    let mut bytes = Uuid::new_v7(timestamp).into_bytes();
    bytes[6..].fill(0);
    Uuid::from_bytes(bytes).to_string()
}

/// What a job is doing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Activity {
    /// Executions that a worker owns now.
    pub running: i64,
    /// The newest execution, without params; its result only where it was asked for.
    pub last: Option<ExecutionRow>,
}

/// What these jobs of one app are doing. `with_results` also reads the results of the last executions.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn activity(
    connection: &mut Connection,
    app: AppId,
    ids: &[JobId],
    with_results: bool,
) -> Result<HashMap<JobId, Activity>, StoreError> {
    let mut found: HashMap<JobId, Activity> = HashMap::new();
    for chunk in row_chunks(ids) {
        let marks = placeholders(chunk.len(), 0);
        let running = format!(
            "select job_id, count(*) as running from job_execution
              where app_id = ? and status in (3, 4) and +job_id in ({marks}) group by job_id"
        );
        for row in fetch_for(connection, running, Some(app), chunk).await? {
            let row = Row(&row);
            found.entry(row.parsed("job_id")?).or_default().running = row.int("running")?;
        }
        let columns = if with_results {
            executions::columns().replace("job_execution.params", "'null' as params")
        } else {
            light_columns()
        };
        let last = format!(
            "select {columns} from job_info
               join job_execution on job_execution.id =
                    (select e.id from job_execution e where e.job_id = job_info.id order by e.id desc limit 1)
              where job_info.id in ({marks})"
        );
        for row in fetch_for(connection, last, None, chunk).await? {
            let execution = executions::read(&row)?;
            let job = execution.job;
            found.entry(job).or_default().last = Some(execution);
        }
    }
    Ok(found)
}

async fn fetch_for(
    connection: &mut Connection,
    sql: String,
    app: Option<AppId>,
    ids: &[JobId],
) -> Result<Vec<AnyRow>, StoreError> {
    let mut query = sqlx::query(AssertSqlSafe(sql));
    if let Some(app) = app {
        query = query.bind(app.to_string());
    }
    for id in ids {
        query = query.bind(id.to_string());
    }
    Ok(query.fetch_all(connection).await?)
}

/// How many of the newest [`COUNTED_EXECUTIONS`] executions of a job are in which state.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn counts(
    connection: &mut Connection,
    job: JobId,
) -> Result<Vec<(ExecutionStatus, i64)>, StoreError> {
    let rows = sqlx::query(
        "select status, count(*) as executions
           from (select status from job_execution where job_id = ? order by id desc limit ?) newest
          group by status",
    )
    .bind(job.to_string())
    .bind(COUNTED_EXECUTIONS)
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            let row = Row(row);
            Ok((
                row.coded("status", ExecutionStatus::from_code)?,
                row.int("executions")?,
            ))
        })
        .collect()
}

/// A transition as it is announced to people who watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedTransition {
    /// Grows with every transition.
    pub seq: i64,
    /// The job.
    pub job: JobId,
    /// The execution; none for an event of the job.
    pub execution: Option<ExecutionId>,
    /// Starts so far.
    pub attempt: u32,
    /// The state before.
    pub from: Option<ExecutionStatus>,
    /// The state after.
    pub to: Option<ExecutionStatus>,
    /// The worker concerned.
    pub worker: Option<String>,
    /// Why.
    pub message: Option<String>,
    /// When.
    pub at: EpochMillis,
}

/// The transitions of an app after `after`, oldest first.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn transitions_after(
    connection: &mut Connection,
    app: AppId,
    after: i64,
    limit: i64,
) -> Result<Vec<WatchedTransition>, StoreError> {
    let rows = sqlx::query(
        "select seq, job_log.job_id, job_log.execution_id, attempt, from_status, to_status, worker_id, message, at
           from job_log join job_info on job_info.id = job_log.job_id
          where job_log.seq > ? and job_info.app_id = ? order by job_log.seq limit ?",
    )
    .bind(after)
    .bind(app.to_string())
    .bind(limit)
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            let row = Row(row);
            Ok(WatchedTransition {
                seq: row.int("seq")?,
                job: row.parsed("job_id")?,
                execution: row.opt_parsed("execution_id")?,
                attempt: row.number("attempt")?,
                from: row.opt_int("from_status")?.and_then(ExecutionStatus::from_code),
                to: row.opt_int("to_status")?.and_then(ExecutionStatus::from_code),
                worker: row.opt_text("worker_id")?,
                message: row.opt_text("message")?,
                at: row.instant("at")?,
            })
        })
        .collect()
}

/// The number of the newest transition; 0 before the first.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn newest_transition(connection: &mut Connection) -> Result<i64, StoreError> {
    let row = sqlx::query("select coalesce(max(seq), 0) as newest from job_log")
        .fetch_one(connection)
        .await?;
    Row(&row).int("newest")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_bound_sorts_with_the_ids_of_its_instant() {
        let now = EpochMillis::system_now();
        let id = ExecutionId::generate().to_string();
        assert!(id_at(now - Duration::from_millis(1)) < id);
        assert!(id < id_at(now + Duration::from_secs(2)));
    }
}
