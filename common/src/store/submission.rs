//! Accepting jobs: many concurrent submissions in one transaction, each judged alone.
//!
//! The unique key (app, client request id) decides idempotency. The usual group is new and goes in with one statement,
//! without any read; only when a key turns out to be taken is it looked up who has it.

use super::{
    Connection, Row, Store, StoreError, Tx, deletion,
    followers::{self, Beginning, Leading},
    jobs,
    jobs::{JobRow, client_request_hash},
    key_chunks, placeholders,
};
use crate::{
    crash_point::{CrashPoint, reach},
    id::{AppId, JobId},
    job::{JobStatus, Trigger},
    time::EpochMillis,
};
use sqlx::AssertSqlSafe;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};
use tracing::{debug, warn};

/// How often a group is tried again after keys were taken, or a commit was lost, while it was under way.
const MAX_ROUNDS: u32 = 8;

/// No more tries from then on: the client is told to try again, and may be nearer to its own patience's end.
const LAST_TRY_AFTER: Duration = Duration::from_secs(2);

/// What became of one submission.
#[derive(Debug, Clone)]
pub enum Admission {
    /// Stored just now.
    Accepted {
        /// Its first firing; for a job that follows an ended one this is decided when it is stored.
        next_trigger_time: Option<EpochMillis>,
    },
    /// The same content was accepted under this key before.
    Replayed(KeyHolder),
    /// The key belongs to a job with other content.
    KeyReused(KeyHolder),
    /// The key belongs to a job with the same content that was deleted.
    JobDeleted(KeyHolder),
    /// The job it follows does not exist in this app.
    NoSuchParent,
    /// The job it follows is over and can no longer end as wanted: why.
    NeverFires(String),
    /// This job cannot be stored, whatever its neighbours do.
    Failed(Arc<StoreError>),
}

/// The job that holds a client request id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyHolder {
    /// The job.
    pub id: JobId,
    /// Its stored status.
    pub status: JobStatus,
    /// Its next firing.
    pub next_trigger_time: Option<EpochMillis>,
    /// Its content.
    content_hash: String,
    /// It was deleted: what stands here of its status is what was first.
    deleted: bool,
}

impl KeyHolder {
    fn of(job: &JobRow) -> Self {
        Self {
            id: job.id,
            status: job.status,
            next_trigger_time: job.next_trigger_time,
            content_hash: job.content_hash.clone(),
            deleted: false,
        }
    }

    fn judge(self, job: &JobRow) -> Admission {
        if self.deleted && self.content_hash == job.content_hash {
            Admission::JobDeleted(self)
        } else if self.id == job.id {
            // Our own row, from a commit whose answer was lost.
            Admission::Accepted {
                next_trigger_time: self.next_trigger_time,
            }
        } else if self.content_hash == job.content_hash {
            Admission::Replayed(self)
        } else {
            Admission::KeyReused(self)
        }
    }
}

/// Stores a group of jobs in one transaction and says for each what became of it, in the order given. A job that the
/// database cannot take never fails its neighbours.
///
/// # Errors
/// [`StoreError`] when the group as a whole could not be made durable: the database is away, or the answer to a commit
/// stayed unknown. Then some of it may be stored.
pub async fn admit(store: &Store, jobs: &[JobRow]) -> Result<Vec<Admission>, StoreError> {
    let mut admissions: Vec<Option<Admission>> = vec![None; jobs.len()];
    let (mut order, folded) = fold_equal_keys(jobs);
    let mut rounds = 0;
    let began = Instant::now();
    while !order.is_empty() {
        rounds += 1;
        let wanted: Vec<JobRow> = order.iter().map(|index| jobs[*index].clone()).collect();
        match attempt(store, &wanted).await {
            Ok(inserted) => {
                let refused = inserted.iter().any(Admission::is_refusal);
                for (index, admission) in order.drain(..).zip(inserted) {
                    admissions[index] = Some(admission);
                }
                if refused {
                    answer_replays(store, jobs, &mut admissions).await?;
                }
            }
            Err(StoreError::Retryable(cause)) if rounds < MAX_ROUNDS && began.elapsed() < LAST_TRY_AFTER => {
                debug!(error = %cause, rounds, "storing a group again");
                let pause = rand::random_range(1..=10 * u64::from(rounds));
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            Err(StoreError::Duplicate(_) | StoreError::UnknownCommit(_)) if rounds < MAX_ROUNDS => {
                let holders = holders(store, &wanted).await?;
                order.retain(|index| {
                    let job = &jobs[*index];
                    let holder = holders
                        .get(&Key::of(job))
                        .or_else(|| holders.get(&Key::Id(job.id)));
                    admissions[*index] = holder.cloned().map(|holder| holder.judge(job));
                    holder.is_none()
                });
            }
            Err(error @ (StoreError::Database(_) | StoreError::Refused(_))) if order.len() == 1 => {
                admissions[order[0]] = Some(Admission::Failed(Arc::new(error)));
                order.clear();
            }
            Err(error @ (StoreError::Database(_) | StoreError::Refused(_))) => {
                warn!(jobs = order.len(), %error, "one job of a group cannot be stored; looking for it");
                let (left, right) = wanted.split_at(wanted.len() / 2);
                let mut judged = Box::pin(admit(store, left)).await?;
                judged.extend(Box::pin(admit(store, right)).await?);
                for (index, admission) in order.drain(..).zip(judged) {
                    admissions[index] = Some(admission);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(answer_folded(jobs, admissions, &folded))
}

impl Admission {
    /// Refused for what it follows, before anybody looked at its key.
    const fn is_refusal(&self) -> bool {
        matches!(self, Self::NoSuchParent | Self::NeverFires(_))
    }
}

/// A job that was accepted before is answered as such, whatever has become of the one that it follows.
async fn answer_replays(
    store: &Store,
    jobs: &[JobRow],
    admissions: &mut [Option<Admission>],
) -> Result<(), StoreError> {
    let refused: Vec<usize> = (0..jobs.len())
        .filter(|index| jobs[*index].client_request_id.is_some())
        .filter(|index| admissions[*index].as_ref().is_some_and(Admission::is_refusal))
        .collect();
    let wanted: Vec<JobRow> = refused.iter().map(|index| jobs[*index].clone()).collect();
    let holders = holders(store, &wanted).await?;
    for index in refused {
        let job = &jobs[index];
        if let Some(holder) = holders.get(&Key::of(job)) {
            admissions[index] = Some(holder.clone().judge(job));
        }
    }
    Ok(())
}

/// What a row is unique by.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Key {
    Request(AppId, String),
    Id(JobId),
}

impl Key {
    fn of(job: &JobRow) -> Self {
        match &job.client_request_id {
            Some(text) => Self::Request(job.app, client_request_hash(text)),
            None => Self::Id(job.id),
        }
    }
}

/// Indexes of the jobs to store, in the order of their keys, so that two processes lock alike; and for each of the
/// rest the index of the earlier job with the same key.
fn fold_equal_keys(jobs: &[JobRow]) -> (Vec<usize>, Vec<(usize, usize)>) {
    let mut first_with_key: BTreeMap<Key, usize> = BTreeMap::new();
    let mut folded = Vec::new();
    for (index, job) in jobs.iter().enumerate() {
        let first = *first_with_key.entry(Key::of(job)).or_insert(index);
        if first != index {
            folded.push((index, first));
        }
    }
    (first_with_key.into_values().collect(), folded)
}

fn answer_folded(
    jobs: &[JobRow],
    mut admissions: Vec<Option<Admission>>,
    folded: &[(usize, usize)],
) -> Vec<Admission> {
    for (index, first) in folded {
        let (job, earlier) = (&jobs[*index], &jobs[*first]);
        admissions[*index] = match &admissions[*first] {
            Some(Admission::Accepted { next_trigger_time }) => {
                let mut holder = KeyHolder::of(earlier);
                holder.next_trigger_time = *next_trigger_time;
                Some(holder.judge(job))
            }
            Some(
                Admission::Replayed(holder) | Admission::KeyReused(holder) | Admission::JobDeleted(holder),
            ) => Some(holder.clone().judge(job)),
            other => other.clone(),
        };
    }
    // Every index was either stored, judged or folded.
    admissions.into_iter().flatten().collect()
}

/// Not [`Store::transact`]: a taken key and a lost commit are answered here as well, by the same loop.
async fn attempt(store: &Store, group: &[JobRow]) -> Result<Vec<Admission>, StoreError> {
    let mut tx = store.begin().await?;
    let admissions = insert_group(&mut tx, group).await?;
    reach(CrashPoint::SubmissionUncommitted);
    tx.commit().await?;
    reach(CrashPoint::SubmissionCommitted);
    Ok(admissions)
}

async fn insert_group(tx: &mut Tx, group: &[JobRow]) -> Result<Vec<Admission>, StoreError> {
    let parents = lock_parents(tx, group).await?;
    let mut admissions = Vec::with_capacity(group.len());
    let mut rows = Vec::with_capacity(group.len());
    for job in group {
        let mut row = job.clone();
        match Beginning::of(&row, &parents, row.created_at) {
            None | Some(Beginning::Waits) => {}
            Some(Beginning::FiresAt(at)) => row.next_trigger_time = Some(at),
            Some(Beginning::NoSuchJob) => {
                admissions.push(Admission::NoSuchParent);
                continue;
            }
            Some(Beginning::Never(reason)) => {
                admissions.push(Admission::NeverFires(reason));
                continue;
            }
        }
        admissions.push(Admission::Accepted {
            next_trigger_time: row.next_trigger_time,
        });
        rows.push(row);
    }
    jobs::insert_many(tx, &rows).await?;
    // Looked at last: an insert may have waited for the transaction that deleted the holder of its key.
    if !deletion::holding(tx, &rows).await?.is_empty() {
        let taken = "the client request id belongs to a deleted job";
        return Err(StoreError::Duplicate(sqlx::Error::Protocol(taken.into())));
    }
    Ok(admissions)
}

/// Keeps the parents from ending unseen between this look and the commit.
async fn lock_parents(tx: &mut Tx, group: &[JobRow]) -> Result<HashMap<JobId, Leading>, StoreError> {
    let mut ids: Vec<JobId> = group
        .iter()
        .filter_map(|job| match &job.trigger {
            Trigger::After { job_id, .. } => Some(*job_id),
            _ => None,
        })
        .collect();
    ids.sort_unstable();
    ids.dedup();
    let lock = tx.dialect().for_share();
    followers::leading(tx, &ids, lock).await
}

/// When a job was accepted under this client request id; none when none was.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn accepted_at(
    connection: &mut Connection,
    app: AppId,
    client_request_id: &str,
) -> Result<Option<EpochMillis>, StoreError> {
    let sql = "select created_at from job_info where app_id = ? and client_request_hash = ?";
    let found = sqlx::query(sql)
        .bind(app.to_string())
        .bind(client_request_hash(client_request_id))
        .fetch_optional(connection)
        .await?;
    found
        .map(|row| Ok(EpochMillis(Row(&row).int("created_at")?)))
        .transpose()
}

/// Who holds the keys and the ids of `jobs` now.
async fn holders(store: &Store, jobs: &[JobRow]) -> Result<HashMap<Key, KeyHolder>, StoreError> {
    let mut connection = store.reader().await?;
    let mut found = HashMap::new();
    for (app, deleted) in deletion::holding(&mut connection, jobs).await? {
        for deleted in deleted {
            let holder = KeyHolder {
                id: deleted.job,
                status: JobStatus::Cancelled,
                next_trigger_time: None,
                content_hash: deleted.content_hash,
                deleted: true,
            };
            found.insert(Key::Request(app, deleted.hash), holder);
        }
    }
    let ids: Vec<String> = jobs.iter().map(|job| job.id.to_string()).collect();
    collect_holders(&mut connection, None, &ids, &mut found).await?;
    let apps: HashSet<AppId> = jobs.iter().map(|job| job.app).collect();
    for app in apps {
        let hashes: Vec<String> = jobs
            .iter()
            .filter(|job| job.app == app)
            .filter_map(|job| job.client_request_id.as_deref().map(client_request_hash))
            .collect();
        collect_holders(&mut connection, Some(app), &hashes, &mut found).await?;
    }
    Ok(found)
}

/// Looks up by client request hash within an app, or by id without one.
async fn collect_holders(
    connection: &mut Connection,
    app: Option<AppId>,
    keys: &[String],
    found: &mut HashMap<Key, KeyHolder>,
) -> Result<(), StoreError> {
    let filter = if app.is_some() {
        "/*! force index (uq_client_request) */ where app_id = ? and client_request_hash"
    } else {
        "where id"
    };
    for chunk in key_chunks(keys) {
        let sql = format!(
            "select id, app_id, client_request_hash, content_hash, status, next_trigger_time
               from job_info {filter} in ({})",
            placeholders(chunk.len(), 0)
        );
        let mut query = sqlx::query(AssertSqlSafe(sql));
        if let Some(app) = app {
            query = query.bind(app.to_string());
        }
        for key in chunk {
            query = query.bind(key.clone());
        }
        for row in query.fetch_all(&mut *connection).await? {
            let row = Row(&row);
            let holder = KeyHolder {
                id: row.parsed("id")?,
                status: row.coded("status", JobStatus::from_code)?,
                next_trigger_time: row.opt_instant("next_trigger_time")?,
                content_hash: row.text("content_hash")?,
                deleted: false,
            };
            let key = match row.opt_text("client_request_hash")? {
                Some(hash) => Key::Request(row.parsed("app_id")?, hash),
                None => Key::Id(holder.id),
            };
            found.insert(key, holder);
        }
    }
    Ok(())
}
