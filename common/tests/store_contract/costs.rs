//! What the hot statements read, as the server counts it (`Handler_read…`): no more rows than they need, however many
//! there are. On MariaDB or MySQL; for SQLite there are the plans in `schema`.

use anyhow::{Result, ensure};
use isocost_common::{
    execution::ExecutionStatus,
    id::{AppId, DeliveryId, ExecutionId, JobId},
    job::JobStatus,
    store::{
        Dialect, Store, StoreError, StoreOptions,
        callbacks::{
            self, NewDelivery,
            attempts::{self, Series},
        },
        claim,
        executions::ExecutionRow,
        history,
        jobs::JobRow,
        listing::{self, ExecutionFilter, JobFilter},
        placement, recovery,
        settle::{self, Ended},
        submission,
    },
    store_tests,
    test_support::{
        TestStore,
        given::{self, PLANNED},
    },
    time::EpochMillis,
};
use sqlx::{AssertSqlSafe, Row};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

store_tests! {
    a_claim_reads_the_same_rows_however_many_wait,
    hot_statements_read_what_they_need,
    a_connection_keeps_every_statement_prepared,
}

/// A statement more than a connection keeps costs it 40 ms: Nagle's algorithm waits for the server's delayed acknowledgement
/// of the one that goes.
async fn a_connection_keeps_every_statement_prepared(store: &TestStore) -> Result<()> {
    const STATEMENTS: usize = 240;
    let one = Counted::of(store).await?;
    let mut reader = one.0.reader().await?;
    let mut took = Duration::ZERO;
    for _ in 0..2 {
        let begun = Instant::now();
        for number in 0..STATEMENTS {
            sqlx::query(AssertSqlSafe(format!("select ? + {number}")))
                .bind(1_i64)
                .fetch_one(&mut *reader)
                .await?;
        }
        took = begun.elapsed();
    }
    drop(reader);
    one.0.close().await;
    println!("{STATEMENTS} different statements again: {took:?}");
    ensure!(took < Duration::from_millis(10 * STATEMENTS as u64), "{took:?}");
    Ok(())
}

/// Far more than any statement may read.
const MANY: usize = 20_000;
const LIMIT: u32 = 500;

/// A store with one connection: what it reads, that session has read.
struct Counted(Store);

impl Counted {
    async fn of(store: &TestStore) -> Result<Self> {
        let options = StoreOptions {
            max_connections: 1,
            ..store.options().clone()
        };
        Ok(Self(Store::connect(&options).await?))
    }

    /// Rows read so far. What asking costs counts as well.
    async fn counter(&self) -> Result<i64, StoreError> {
        let mut reader = self.0.reader().await?;
        let rows = sqlx::query("show session status like 'Handler\\_read%'")
            .fetch_all(&mut *reader)
            .await?;
        rows.iter()
            .map(|row| {
                let value: String = row.try_get(1)?;
                value
                    .parse::<i64>()
                    .map_err(|_| StoreError::Corrupt(value.clone()))
            })
            .sum()
    }

    /// How many rows `work` reads.
    async fn reads<T>(
        &self,
        work: impl AsyncFnOnce(&Store) -> Result<T, StoreError>,
    ) -> Result<(i64, T), StoreError> {
        let first = self.counter().await?;
        let before = self.counter().await?;
        let answer = work(&self.0).await?;
        let after = self.counter().await?;
        Ok((after - before - (before - first), answer))
    }
}

async fn write(store: &TestStore, statement: String) -> Result<u64> {
    let mut tx = store.begin().await?;
    let done = sqlx::query(AssertSqlSafe(statement)).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(done.rows_affected())
}

/// Copies a row of `table` `times` times under new ids, with some columns replaced by expressions in which `n` counts.
async fn multiply(
    store: &TestStore,
    table: &str,
    id: &str,
    times: usize,
    replaced: &[(&str, &str)],
) -> Result<()> {
    let mut reader = store.reader().await?;
    let names = sqlx::query(
        "select cast(column_name as char(64)) as name from information_schema.columns
          where table_schema = database() and table_name = ? order by ordinal_position",
    )
    .bind(table)
    .fetch_all(&mut *reader)
    .await?;
    drop(reader);
    let replaced: BTreeMap<&str, &str> = replaced.iter().copied().collect();
    let mut columns = Vec::new();
    let mut values = Vec::new();
    for row in &names {
        let name: String = row.try_get("name")?;
        values.push(match (name.as_str(), replaced.get(name.as_str())) {
            (_, Some(expression)) => (*expression).to_owned(),
            // Ids sort by age, as ours do.
            ("id", None) => "concat('01a', lpad(lower(hex(n)), 5, '0'), substr(t.id, 9))".to_owned(),
            (name, None) => format!("t.{name}"),
        });
        columns.push(name);
    }
    let digits = "(select 0 d union all select 1 union all select 2 union all select 3 union all select 4 union all \
                  select 5 union all select 6 union all select 7 union all select 8 union all select 9)";
    let statement = format!(
        "insert into {table} ({}) select {} from {table} t join
           (select a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d + 100000 * g.d as n
              from {digits} a, {digits} b, {digits} c, {digits} e, {digits} f, {digits} g) numbers
          where t.id = '{id}' and n < {times}",
        columns.join(", "),
        values.join(", ")
    );
    let copied = write(store, statement).await?;
    ensure!(
        copied == times as u64,
        "{copied} rows of {table} instead of {times}"
    );
    Ok(())
}

async fn analyze(store: &TestStore) -> Result<()> {
    let mut reader = store.reader().await?;
    for table in ["job_info", "job_execution", "callback_delivery", "job_log"] {
        sqlx::query(AssertSqlSafe(format!("analyze table {table}")))
            .fetch_all(&mut *reader)
            .await?;
    }
    Ok(())
}

async fn a_claim_reads_the_same_rows_however_many_wait(store: &TestStore) -> Result<()> {
    if store.dialect() == Dialect::Sqlite {
        return Ok(());
    }
    let job = given::job();
    given::insert(store, std::slice::from_ref(&job), &[]).await?;
    let now = PLANNED + Duration::from_secs(3_600);
    let counted = Counted::of(store).await?;
    let claim = async || -> Result<(i64, Duration)> {
        let begun = Instant::now();
        let work = async |store: &Store| {
            let mut tx = store.begin().await?;
            Ok(claim::lock_due(&mut tx, now, LIMIT).await?.0)
        };
        let (rows, due) = counted.reads(work).await?;
        ensure!(due.len() == LIMIT as usize && due.iter().all(|row| row.job.is_ok()));
        Ok((rows, begun.elapsed()))
    };
    multiply(store, "job_info", &job.id.to_string(), 10_000, &later()).await?;
    analyze(store).await?;
    let (few, few_took) = claim().await?;
    write(store, format!("delete from job_info where id <> '{}'", job.id)).await?;
    multiply(store, "job_info", &job.id.to_string(), 100_000, &later()).await?;
    analyze(store).await?;
    let (many, many_took) = claim().await?;
    println!(
        "a claim of {LIMIT} reads {few} rows of 10,000 ({few_took:?}) and {many} of 100,000 ({many_took:?})"
    );
    ensure!(many <= few, "{many} rows of 100,000, but {few} of 10,000");
    ensure!(few <= 2 * i64::from(LIMIT) + 10, "{few} rows for {LIMIT} jobs");
    Ok(())
}

/// Each a millisecond later than the one before, and without a client request.
fn later() -> [(&'static str, &'static str); 2] {
    [
        ("next_trigger_time", "t.next_trigger_time + n"),
        ("client_request_hash", "null"),
    ]
}

/// Jobs and executions by the ten thousand, of every kind the statements must pass over.
struct Crowd {
    app: AppId,
    job: JobId,
    class: String,
    endpoint: String,
}

async fn fill(store: &TestStore) -> Result<Crowd> {
    let job = given::job();
    let rows: Vec<_> = ExecutionStatus::ALL
        .into_iter()
        .map(|status| ExecutionRow {
            shard: status.code() as u32,
            ..given::execution(&job, status)
        })
        .collect();
    given::insert(store, std::slice::from_ref(&job), &rows).await?;
    multiply(store, "job_info", &job.id.to_string(), MANY, &later()).await?;
    for row in &rows {
        let (times, changed) = match row.status {
            // In twenty classes.
            ExecutionStatus::Pending => (MANY, "concat(substr(t.class_key, 1, 60), n mod 20)"),
            ExecutionStatus::Dispatched | ExecutionStatus::Running => (50, "t.class_key"),
            ExecutionStatus::Scheduled | ExecutionStatus::Succeeded => (MANY, "t.class_key"),
            _ => (500, "t.class_key"),
        };
        multiply(
            store,
            "job_execution",
            &row.id.to_string(),
            times,
            &[
                ("class_key", changed),
                // A firing of its own each.
                ("scheduled_time", "t.scheduled_time + 1 + n"),
                ("not_before", "t.not_before + n"),
                ("rank_time", "t.rank_time + n"),
                ("finished_at", "t.finished_at + n"),
            ],
        )
        .await?;
    }
    deliveries(store, &job, &rows).await?;
    analyze(store).await?;
    Ok(Crowd {
        app: job.app,
        job: job.id,
        endpoint: "https://example.com7".into(),
        class: format!("{:.60}7", job.class_key()),
    })
}

/// Ten endpoints with many deliveries each.
async fn deliveries(store: &TestStore, job: &JobRow, rows: &[ExecutionRow]) -> Result<()> {
    let Some(ended) = rows.iter().find(|row| row.status == ExecutionStatus::Succeeded) else {
        return Ok(());
    };
    let delivery = NewDelivery {
        id: DeliveryId::generate(),
        app: job.app,
        job: job.id,
        execution: ended.id,
        url: "https://example.com/hook".into(),
        event_type: "execution.succeeded",
        body: "{}".into(),
        traceparent: None,
        created_at: PLANNED,
    };
    let mut tx = store.begin().await?;
    callbacks::insert_many(&mut tx, std::slice::from_ref(&delivery)).await?;
    tx.commit().await?;
    multiply(
        store,
        "callback_delivery",
        &delivery.id.to_string(),
        MANY,
        &[
            ("endpoint", "concat(t.endpoint, n mod 10)"),
            ("next_attempt_at", "t.next_attempt_at + n"),
            // Of executions that are not here: their own must not be kept by them.
            (
                "execution_id",
                "concat('01b', lpad(lower(hex(n)), 5, '0'), substr(t.execution_id, 9))",
            ),
        ],
    )
    .await
}

async fn hot_statements_read_what_they_need(store: &TestStore) -> Result<()> {
    if store.dialect() == Dialect::Sqlite {
        return Ok(());
    }
    let crowd = fill(store).await?;
    let now = PLANNED + Duration::from_secs(3_600);
    let limit = i64::from(LIMIT);
    let counted = Counted::of(store).await?;
    let mut too_many = Vec::new();
    /// Runs a statement, and notes when it reads more rows than allowed.
    macro_rules! at_most {
        ($most:expr, $what:literal, $function:path $(, $argument:expr)*) => {
            let work = async |store: &Store| {
                let mut tx = store.begin().await?;
                $function(&mut tx $(, $argument)*).await.map(|_| ())
            };
            let (rows, ()) = counted.reads(work).await?;
            println!("{rows:>8} rows, at most {:>6}: {}", $most, $what);
            if rows > $most {
                too_many.push(format!("{}: {rows} rows, {} allowed", $what, $most));
            }
        };
    }
    at_most!(30, "the agenda", claim::agenda);
    at_most!(2 * limit + 10, "a claim", claim::lock_due, now, LIMIT);
    at_most!(limit + 5, "what becomes due", claim::due_executions, now, LIMIT);
    at_most!(20, "start deadlines", claim::past_start_deadline, now, LIMIT);
    at_most!(60, "the classes of what is pending", placement::pending_classes);
    at_most!(10, "one class", placement::pending_class, &crowd.class);
    at_most!(
        2 * 64 + 10,
        "64 pending of a class",
        placement::lock_pending,
        &crowd.class,
        now,
        64
    );
    at_most!(3 * 102 + 10, "what workers own", recovery::owned);
    at_most!(110, "cancels requested", recovery::cancel_requested);
    at_most!(
        5,
        "how an unknown execution stands",
        recovery::standings,
        &[ExecutionId::generate()]
    );
    at_most!(
        5,
        "open executions of an idle job",
        claim::with_open_executions,
        &[JobId::generate()]
    );
    let jobs_in = |status| JobFilter {
        app: crowd.app,
        status,
        handler: None,
        name: None,
        label: None,
    };
    at_most!(60, "a page of jobs", listing::jobs, &jobs_in(None), None, 50);
    at_most!(
        60,
        "a page of jobs in a rare state",
        listing::jobs,
        &jobs_in(Some(JobStatus::Cancelled)),
        None,
        50
    );
    at_most!(
        500,
        "a page of waiting jobs",
        listing::jobs,
        &jobs_in(Some(JobStatus::Waiting)),
        None,
        50
    );
    at_most!(
        500,
        "a page of running jobs",
        listing::jobs,
        &jobs_in(Some(JobStatus::Running)),
        None,
        50
    );
    let executions_in = |job, statuses: &[ExecutionStatus]| ExecutionFilter {
        app: crowd.app,
        job,
        statuses: statuses.to_vec(),
        handler: None,
        worker: None,
        from: None,
        to: None,
    };
    at_most!(
        60,
        "a page of executions",
        listing::executions,
        &executions_in(None, &[]),
        None,
        50
    );
    at_most!(
        60,
        "a page of executions in a rare state",
        listing::executions,
        &executions_in(None, &[ExecutionStatus::Failed]),
        None,
        50
    );
    at_most!(
        60,
        "a page of a job's executions",
        listing::executions,
        &executions_in(Some(crowd.job), &[]),
        None,
        50
    );
    at_most!(
        20,
        "four callbacks due at an endpoint",
        attempts::due_at_endpoint,
        &crowd.endpoint,
        Series::NotBegun,
        now,
        4
    );
    at_most!(
        100,
        "endpoints with something overdue",
        attempts::overdue_endpoints,
        now,
        100
    );
    at_most!(5, "expired leases of relays", attempts::any_expired_lease, now);
    at_most!(
        5,
        "leases of relays that nobody holds",
        attempts::recover_expired_leases,
        now,
        100
    );
    let batch = i64::from(history::PRUNE_BATCH);
    let (rows, pruned) = counted
        .reads(async |store| history::prune_executions(store, now).await)
        .await?;
    println!("{rows:>8} rows: {pruned} executions are pruned");
    ensure!(
        pruned as i64 == batch && rows <= 20 * batch,
        "{rows} rows for {pruned}"
    );
    // Jobs that ended long ago and still have executions are looked at in vain.
    write(
        store,
        format!("update job_info set status = {}", JobStatus::Success.code()),
    )
    .await?;
    let (rows, pruned) = counted
        .reads(async |store| history::prune_jobs(store, EpochMillis(i64::MAX / 2)).await)
        .await?;
    println!("{rows:>8} rows: {pruned} jobs are pruned");
    ensure!(
        pruned as i64 == batch && rows <= 20 * batch,
        "{rows} rows for {pruned}"
    );
    let ended = ended_runs(store).await?;
    let (rows, _) = counted
        .reads(async |store| settle::settle(&mut store.begin().await?, &ended).await)
        .await?;
    println!("{rows:>8} rows: {} ends of one-shots are settled", ended.len());
    ensure!(
        rows <= 15 * ended.len() as i64,
        "{rows} rows for {} ends",
        ended.len()
    );
    let submitted: Vec<JobRow> = (0..100).map(|number| submitted(crowd.app, number)).collect();
    for round in ["new", "known"] {
        let (rows, _) = counted
            .reads(async |store| submission::admit(store, &submitted).await)
            .await?;
        println!("{rows:>8} rows: 100 {round} submissions");
        ensure!(rows <= 500, "{rows} rows for 100 {round} submissions");
    }
    ensure!(too_many.is_empty(), "{too_many:#?}");
    Ok(())
}

/// One that has just ended of each of 300 jobs.
async fn ended_runs(store: &TestStore) -> Result<Vec<Ended>> {
    let mut reader = store.reader().await?;
    let ids = sqlx::query("select id from job_info order by id limit 300")
        .fetch_all(&mut *reader)
        .await?;
    ids.iter()
        .map(|row| {
            let id: String = row.try_get("id")?;
            let job = JobRow {
                id: id.parse()?,
                ..given::job()
            };
            Ok(Ended {
                row: given::execution(&job, ExecutionStatus::Succeeded),
                held_slot: false,
            })
        })
        .collect()
}

fn submitted(app: AppId, number: usize) -> JobRow {
    JobRow {
        app,
        client_request_id: Some(format!("request {number}")),
        ..given::job()
    }
}
