//! The schema: applied once by whoever starts together, the same on both databases, with the indexes that the hot
//! queries need.

use anyhow::{Context, Result, ensure};
use isocost_common::{
    execution::ExecutionStatus,
    id::{AppId, ExecutionId, JobId},
    job::JobStatus,
    store::{
        Dialect, Store, StoreOptions,
        jobs::JobRow,
        migrations::{self, Schema},
        outcomes,
    },
    store_tests,
    test_support::{
        TestStore,
        given::{self, PLANNED},
    },
};
use sqlx::{AssertSqlSafe, Connection as _, Row, migrate::Migrator};
use std::{collections::BTreeMap, path::Path, time::Duration};

store_tests! {
    migrating_again_changes_nothing,
    processes_that_start_together_migrate_once,
    what_an_older_version_held_is_kept,
    the_schema_is_the_one_in_the_other_dialect,
    text_is_stored_as_four_byte_utf8_and_compared_by_bytes,
    due_jobs_are_found_by_their_index,
    hot_queries_use_their_indexes,
    a_closed_database_is_one_file,
}

async fn migrating_again_changes_nothing(store: &TestStore) -> Result<()> {
    let before = columns(store).await?;
    migrations::run(store).await?;
    let again = store.connect_again().await?;
    migrations::run(&again).await?;
    again.close().await;
    ensure!(columns(store).await? == before);
    Ok(())
}

async fn processes_that_start_together_migrate_once(store: &TestStore) -> Result<()> {
    const PROCESSES: usize = 8;
    let fresh = fresh_database(store).await?;
    let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(PROCESSES));
    let mut processes = tokio::task::JoinSet::new();
    for _ in 0..PROCESSES {
        let (options, barrier) = (fresh.clone(), std::sync::Arc::clone(&barrier));
        processes.spawn(async move {
            barrier.wait().await;
            let store = Store::connect(&options).await?;
            migrations::run(&store).await?;
            store.ping().await?;
            store.close().await;
            anyhow::Ok(())
        });
    }
    let mut failures = Vec::new();
    while let Some(process) = processes.join_next().await {
        failures.extend(process?.err());
    }
    let migrated = Store::connect(&fresh).await?;
    let same = columns(&migrated).await? == columns(store).await?;
    migrated.close().await;
    drop_database(store, &fresh).await?;
    ensure!(
        failures.is_empty(),
        "{} of {PROCESSES} failed: {:?}",
        failures.len(),
        failures[0]
    );
    ensure!(same, "the schema is not complete");
    Ok(())
}

/// Before version 5 each outcome had a row of its own.
async fn what_an_older_version_held_is_kept(store: &TestStore) -> Result<()> {
    const HANDLER: &str = r#"says "ümläut" \ 1"#;
    const BODY: &str = r#"{"data":{"amount":123456789012345678901234567890,"note":"a \"quote\""}}"#;
    let fresh = fresh_database(store).await?;
    let migrated = Store::connect(&fresh).await?;
    let mut older = sqlx::AnyConnection::connect(&fresh.url).await?;
    let migrator = match store.dialect() {
        Dialect::Sqlite => sqlx::migrate!("../migrations/sqlite"),
        Dialect::MySql => sqlx::migrate!("../migrations/mysql"),
    };
    let migrator = Migrator {
        locking: false,
        ..migrator
    };
    migrator.run_direct(Some(4), &mut older, false).await?;
    ensure!(
        migrations::state(&migrated).await?
            == Schema::Behind {
                found: 4,
                known: migrator.iter().count() as i64
            }
    );
    let (execution, app) = (ExecutionId::generate(), AppId::generate());
    for (handler, traceparent, id) in [
        (
            HANDLER,
            Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
            execution,
        ),
        ("plain", None, ExecutionId::generate()),
    ] {
        sqlx::query(
            "insert into outcome_outbox (execution_id, app_id, handler, status, body, created_at, due_at, traceparent) \
             values (?, ?, ?, 5, ?, 1700000000000, 1700000000001, ?)",
        )
        .bind(id.to_string())
        .bind(app.to_string())
        .bind(handler)
        .bind(BODY)
        .bind(traceparent)
        .execute(&mut older)
        .await?;
    }
    older.close().await?;

    migrations::run(&migrated).await?;
    ensure!(columns(&migrated).await? == columns(store).await?);
    let mut tx = migrated.begin().await?;
    let mut batches = outcomes::claim(&mut tx, PLANNED, PLANNED, 10).await?;
    tx.commit().await?;
    migrated.close().await;
    drop_database(store, &fresh).await?;
    batches.sort_by_key(|batch| batch.outcomes[0].execution);
    ensure!(batches.len() == 2, "{batches:?}");
    let kept = &batches[0].outcomes[0];
    ensure!((kept.execution, kept.app) == (execution, app));
    ensure!(kept.handler == HANDLER && kept.body.as_str() == BODY, "{kept:?}");
    ensure!(
        kept.status == ExecutionStatus::Succeeded && kept.traceparent.is_some(),
        "{kept:?}"
    );
    ensure!(batches[1].outcomes[0].traceparent.is_none());
    Ok(())
}

/// An empty database beside the one of the test.
async fn fresh_database(store: &TestStore) -> Result<StoreOptions> {
    let url = match store.dialect() {
        Dialect::Sqlite => store.options().url.replace("test.db", "fresh.db"),
        Dialect::MySql => {
            let name = format!("isocost_{}", JobId::generate().as_uuid().simple());
            let mut reader = store.reader().await?;
            sqlx::query(AssertSqlSafe(format!("create database {name}")))
                .execute(&mut *reader)
                .await?;
            let (server, parameters) = split_url(&store.options().url);
            let (server, _) = server.rsplit_once('/').context("no database in the URL")?;
            format!("{server}/{name}{parameters}")
        }
    };
    Ok(StoreOptions {
        url,
        ..store.options().clone()
    })
}

async fn drop_database(store: &TestStore, options: &StoreOptions) -> Result<()> {
    if store.dialect() == Dialect::MySql {
        let (url, _) = split_url(&options.url);
        let (_, name) = url.rsplit_once('/').context("no database in the URL")?;
        let mut reader = store.reader().await?;
        sqlx::query(AssertSqlSafe(format!("drop database {name}")))
            .execute(&mut *reader)
            .await?;
    }
    Ok(())
}

fn split_url(url: &str) -> (&str, &str) {
    url.split_at(url.find('?').unwrap_or(url.len()))
}

#[derive(Debug, PartialEq, Eq)]
struct Column {
    /// As migrations declare it, in the words both dialects share.
    kind: String,
    nullable: bool,
}

type Columns = BTreeMap<(String, String), Column>;

/// Every column of every table of ours.
async fn columns(store: &Store) -> Result<Columns> {
    let sql = match store.dialect() {
        Dialect::Sqlite => {
            "select t.name as table_name, c.name as column_name, lower(c.type) as kind, \
             case when c.\"notnull\" = 0 and c.pk = 0 then 'YES' else 'NO' end as nullable \
             from sqlite_master t join pragma_table_info(t.name) c \
             where t.type = 'table' and t.name not like 'sqlite_%' and t.name not like '\\_sqlx%' escape '\\'"
        }
        // Casts: information_schema gives these texts types of its own.
        Dialect::MySql => {
            "select cast(table_name as char(64)) as table_name, cast(column_name as char(64)) as column_name, \
             cast(column_type as char(64)) as kind, cast(is_nullable as char(3)) as nullable \
             from information_schema.columns \
             where table_schema = database() and table_name not like '\\_sqlx%'"
        }
    };
    let mut reader = store.reader().await?;
    let rows = sqlx::query(sql).fetch_all(&mut *reader).await?;
    rows.iter()
        .map(|row| {
            let text = |name: &str| row.try_get::<String, _>(name);
            // Display widths say nothing, SQLite has one kind of long text, and its counters must be `integer`.
            let kind = match text("kind")?.as_str() {
                kind if kind.starts_with("bigint") => "bigint".to_owned(),
                "integer" => "bigint".to_owned(),
                kind if kind.starts_with("int") => "int".to_owned(),
                "mediumtext" | "longtext" => "text".to_owned(),
                kind => kind.to_owned(),
            };
            let column = Column {
                kind,
                nullable: text("nullable")? == "YES",
            };
            Ok(((text("table_name")?, text("column_name")?), column))
        })
        .collect()
}

async fn the_schema_is_the_one_in_the_other_dialect(store: &TestStore) -> Result<()> {
    let here = columns(store).await?;
    ensure!(here.len() > 100, "only {} columns were found", here.len());
    if store.dialect() == Dialect::Sqlite {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("other.db").display());
    let sqlite = Store::connect(&StoreOptions::new(&url)).await?;
    migrations::run(&sqlite).await?;
    let there = columns(&sqlite).await?;
    sqlite.close().await;
    for key in here.keys().chain(there.keys()) {
        ensure!(
            here.get(key) == there.get(key),
            "{key:?} is {:?} in MySQL and {:?} in SQLite",
            here.get(key),
            there.get(key)
        );
    }
    Ok(())
}

async fn text_is_stored_as_four_byte_utf8_and_compared_by_bytes(store: &TestStore) -> Result<()> {
    let mut reader = store.reader().await?;
    if store.dialect() == Dialect::MySql {
        let others: i64 = sqlx::query_scalar(
            "select count(*) from information_schema.columns where table_schema = database() \
             and table_name not like '\\_sqlx%' and collation_name is not null and collation_name <> 'utf8mb4_bin'",
        )
        .fetch_one(&mut *reader)
        .await?;
        ensure!(
            others == 0,
            "{others} columns compare by something else than bytes"
        );
    }
    let equal: i64 = sqlx::query_scalar(
        "select count(*) from (select 'a' as x) one join (select 'A' as x union all select 'á') other on one.x = other.x",
    )
    .fetch_one(&mut *reader)
    .await?;
    ensure!(equal == 0 || store.dialect() == Dialect::MySql);
    Ok(())
}

/// How the database would run a query, as one text that names the indexes it takes.
async fn plan(store: &TestStore, sql: &str) -> Result<String> {
    let (explain, column) = match store.dialect() {
        Dialect::Sqlite => ("explain query plan", "detail"),
        Dialect::MySql => ("explain", "key"),
    };
    let mut reader = store.reader().await?;
    if store.dialect() == Dialect::MySql {
        // MySQL 9 draws trees unless it is told not to; MariaDB does not know the word.
        drop(
            sqlx::raw_sql("set session explain_format = 'TRADITIONAL'")
                .execute(&mut *reader)
                .await,
        );
    }
    let rows = sqlx::query(AssertSqlSafe(format!("{explain} {sql}")))
        .fetch_all(&mut *reader)
        .await?;
    let steps: Result<Vec<_>, _> = rows
        .iter()
        .map(|row| {
            row.try_get::<Option<String>, _>(column)
                .map(Option::unwrap_or_default)
        })
        .collect();
    Ok(steps?.join("; "))
}

/// Enough rows, of every kind, that a plan is a choice.
async fn fill(store: &TestStore) -> Result<()> {
    let jobs: Vec<_> = (0..2_000_i64)
        .map(|number| JobRow {
            status: JobStatus::ALL[number as usize % JobStatus::ALL.len()],
            next_trigger_time: Some(PLANNED + Duration::from_secs(number as u64)),
            client_request_id: Some(number.to_string()),
            ..given::job()
        })
        .collect();
    let executions: Vec<_> = jobs
        .iter()
        .zip(ExecutionStatus::ALL.into_iter().cycle())
        .map(|(job, status)| given::execution(job, status))
        .collect();
    given::insert(store, &jobs, &executions).await?;
    let analyze = match store.dialect() {
        Dialect::Sqlite => "analyze",
        Dialect::MySql => "analyze table job_info, job_execution",
    };
    let mut tx = store.begin().await?;
    sqlx::query(analyze).fetch_all(&mut *tx).await?;
    tx.commit().await?;
    Ok(())
}

async fn due_jobs_are_found_by_their_index(store: &TestStore) -> Result<()> {
    fill(store).await?;
    let sql = "select id from job_info where status = 0 and next_trigger_time <= 1800000000000 \
               order by next_trigger_time limit 500";
    let plan = plan(store, sql).await?;
    ensure!(plan.contains("idx_status_next_time"), "{plan}");
    Ok(())
}

async fn hot_queries_use_their_indexes(store: &TestStore) -> Result<()> {
    fill(store).await?;
    let queries = [
        (
            "select id from job_execution where status = 2 and class_key = 'c' order by rank_time, id limit 64",
            "idx_execution_class",
        ),
        (
            "select id from job_execution where status = 0 and not_before <= 1800000000000 order by not_before limit 500",
            "idx_execution_due",
        ),
        (
            "select id from job_execution /*! force index (idx_execution_deadline) */ \
             where start_deadline_at <= 1 and status in (0, 1, 2) and attempt = interruptions \
             order by start_deadline_at limit 500",
            "idx_execution_deadline",
        ),
        (
            "select id from job_execution where slot_key = 's' and status = 1 order by rank_time limit 1",
            "idx_execution_slot",
        ),
        (
            "select id from job_execution /*! force index (idx_execution_job) */ where job_id = 'j' order by id desc limit 50",
            "idx_execution_job",
        ),
        (
            "select seq from job_log where execution_id = 'e' order by seq",
            "idx_job_log_execution",
        ),
        (
            "select id from job_info /*! force index (uq_client_request) */ \
             where app_id = 'a' and client_request_hash in ('h', 'i')",
            "uq_client_request",
        ),
        (
            "select id from job_execution /*! force index (uq_execution) */ \
             where job_id = 'j' and scheduled_time = 1 and shard in (0, 1) and trigger_key = ''",
            "uq_execution",
        ),
        (
            "select id from job_info where parent_job_id = 'j'",
            "idx_job_parent",
        ),
        (
            "select id from callback_delivery where status = 0 and endpoint = 'e' and next_attempt_at <= 1 \
             order by next_attempt_at limit 4",
            "idx_callback_endpoint",
        ),
    ];
    for (sql, index) in queries {
        let plan = plan(store, sql).await?;
        ensure!(plan.contains(index), "not by {index} but {plan}: {sql}");
    }
    Ok(())
}

async fn a_closed_database_is_one_file(store: &TestStore) -> Result<()> {
    let Some(path) = store.options().url.strip_prefix("sqlite:") else {
        // A server keeps its files to itself; a closed handle leaves no session behind.
        let other = store.connect_again().await?;
        other.ping().await?;
        other.close().await;
        return Ok(());
    };
    let copy = StoreOptions {
        url: format!("sqlite:{path}.copy"),
        ..store.options().clone()
    };
    let other = Store::connect(&copy).await?;
    migrations::run(&other).await?;
    given::insert(&other, &[given::job()], &[]).await?;
    other.close().await;
    for suffix in ["-wal", "-shm"] {
        let left = format!("{path}.copy{suffix}");
        ensure!(!Path::new(&left).exists(), "{left} was left behind");
    }
    Ok(())
}
