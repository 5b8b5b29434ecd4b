//! How the database runs what the processes ask of it, when the tables are large: every statement that a mixed load
//! brings is taken from the server's own log and explained.

use super::{all_succeed, start_many};
use anyhow::{Context, Result, ensure};
use isocost_tests::api::{Api, items, text};
use isocost_tests::cluster::{Cluster, Role};
use isocost_tests::jobs::{LONG, cron, once, wait_for_end, wait_for_execution, with};
use isocost_tests::patience::eventually;
use isocost_tests::receiver::{Receiver, Reply};
use regex::Regex;
use reqwest::{Method, header};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, Row};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::sleep;

/// Copies of each row of the first round.
const COPIES: u32 = 400;
/// A step that looks at more rows than this reads a table instead of an index.
const MANY: u64 = 1_000;
/// The copies ended so much earlier.
const LONG_AGO: Duration = Duration::from_secs(3 * 24 * 3_600);
/// How long the upkeep of every role is watched at least: several of its rounds.
const UPKEEP: Duration = Duration::from_secs(5);

/// Of each table the columns with ids of its rows, which every copy needs anew, and what of it is copied.
const LARGE: [(&str, &[&str], &str); 5] = [
    ("job_info", &["id", "parent_job_id"], "status in (2, 3, 5, 6)"),
    ("job_execution", &["id", "job_id"], "finished_at is not null"),
    ("job_log", &["job_id", "execution_id"], "true"),
    (
        "callback_delivery",
        &["id", "job_id", "execution_id"],
        "finished_at is not null",
    ),
    ("callback_attempt", &["delivery_id"], "true"),
];

#[tokio::test(flavor = "multi_thread")]
async fn no_statement_of_any_role_reads_a_large_table_from_end_to_end() -> Result<()> {
    let cluster = Cluster::on_database(&[
        "--log-output=TABLE",
        "--general-log=1",
        "--innodb-stats-auto-recalc=0",
    ])
    .await?;
    cluster.migrate().await?;
    let mariadb = &cluster.servers().mariadb;
    mariadb
        .execute("grant select on mysql.general_log to isocost@'127.0.0.1'")
        .await?;
    let mut dispatchers = start_many(&cluster, Role::Dispatcher, "dispatcher", 2).await?;
    let mut workers = start_many(&cluster, Role::Worker, "worker", 2).await?;
    let _relay = cluster.start(Role::Relay, "relay").await?;
    let api_process = cluster.start(Role::Api, "api").await?;
    let api = cluster.api(&api_process)?;
    let receiver = Receiver::start([Reply::status(503)]).await?;
    let mut database = MySqlConnection::connect(&mariadb.options().url).await?;

    use_everything(&api, &receiver).await?;
    multiply(&mut database).await?;
    let since: String = sqlx::query_scalar("select cast(now(6) as char)")
        .fetch_one(&mut database)
        .await?;
    use_everything(&api, &receiver).await?;
    // A change of leader, and a worker that dies with a run: what is read at a start, and by recovery.
    let held = api
        .submit(&with(once("sleep"), json!({ "params": { "ms": 60_000 } })))
        .await?;
    let holder = text(&wait_for_execution(&api, &held, "RUNNING").await?, "workerId")?;
    for dispatcher in &mut dispatchers {
        dispatcher.stop().await?;
        dispatcher.restart().await?;
    }
    workers[usize::from(holder.ends_with('2'))].kill().await?;
    sleep(UPKEEP).await;

    let statements = statements(&mut database, &since).await?;
    ensure!(
        statements.len() > 100,
        "only {} kinds of statements were seen",
        statements.len()
    );
    let mut scans = Vec::new();
    for statement in statements.values() {
        scans.extend(scan(&mut database, statement).await?);
    }
    println!(
        "{} kinds of statements, {} of them read too much",
        statements.len(),
        scans.len()
    );
    ensure!(scans.is_empty(), "{}", scans.join("\n\n"));
    database.close().await?;
    Ok(())
}

/// What users and jobs do, once each.
async fn use_everything(api: &Api, receiver: &Receiver) -> Result<()> {
    let called_back = |job: Value| {
        with(
            job,
            json!({ "callbackUrl": receiver.url(), "labels": { "of": "plans" } }),
        )
    };
    let mut ids = api.submit_batch(&vec![called_back(once("noop")); 20]).await?;
    ids.push(
        api.submit(&with(
            once("echo"),
            json!({ "clientRequestId": chrono::Utc::now().to_rfc3339() }),
        ))
        .await?,
    );
    let fails = with(
        once("fail"),
        json!({ "params": { "message": "as asked" }, "retry": { "maxAttempts": 2, "initialMs": 10, "maxMs": 10 } }),
    );
    let failed = api.submit(&called_back(fails)).await?;
    wait_for_end(api, &failed).await?;
    all_succeed(api, &ids, LONG).await?;
    let serial = with(
        cron("sleep", "* * * * * ?"),
        json!({ "params": { "ms": 1_500 }, "concurrency": "serial" }),
    );
    let repeated = api.submit(&serial).await?;
    let after = with(
        once("noop"),
        json!({ "trigger": { "type": "after", "jobId": repeated } }),
    );
    let follower = api.post("/openapi/jobs", &after).await?;
    let later = api
        .submit(&with(
            once("noop"),
            json!({ "trigger": { "type": "once", "at": "2099-01-01T00:00:00Z" }, "startDeadlineMs": 1_000 }),
        ))
        .await?;
    let longer = api
        .submit(&with(once("sleep"), json!({ "params": { "ms": 60_000 } })))
        .await?;
    wait_for_execution(api, &longer, "RUNNING").await?;
    read_everything(api, &ids[0], &failed).await?;
    steer(api, &repeated, &later).await?;
    let cancelled = format!("/openapi/jobs/{longer}/cancel");
    api.post(&cancelled, &json!({})).await?.success()?;
    wait_for_end(api, &longer).await?;
    if let Ok(follower) = follower.success() {
        let follower = format!("/openapi/jobs/{}/cancel", text(&follower, "jobId")?);
        api.post(&follower, &json!({})).await?;
    }
    eventually("the webhooks have arrived", LONG, async || {
        let waiting = api.get("/openapi/callbacks?status=PENDING").await?.success()?;
        Ok(items(waiting)?.is_empty().then_some(()))
    })
    .await
}

/// Every list, by each of its filters.
async fn read_everything(api: &Api, job: &str, failed: &str) -> Result<()> {
    let execution = text(
        api.executions(failed).await?.first().context("no execution")?,
        "executionId",
    )?;
    for path in [
        "/openapi/jobs".to_owned(),
        "/openapi/jobs?status=WAITING".to_owned(),
        "/openapi/jobs?status=SUCCESS".to_owned(),
        "/openapi/jobs?status=RUNNING".to_owned(),
        "/openapi/jobs?status=FAILED".to_owned(),
        "/openapi/jobs?handler=noop".to_owned(),
        "/openapi/jobs?name=test%20of%20noop".to_owned(),
        "/openapi/jobs?label=of:plans".to_owned(),
        "/openapi/executions".to_owned(),
        "/openapi/executions?status=FAILED".to_owned(),
        "/openapi/executions?status=RUNNING".to_owned(),
        "/openapi/executions?handler=noop".to_owned(),
        "/openapi/executions?workerId=worker1".to_owned(),
        "/openapi/executions?from=2099-01-01T00:00:00Z".to_owned(),
        format!("/openapi/executions?jobId={job}"),
        format!("/openapi/jobs/{job}"),
        format!("/openapi/jobs/{job}/executions?status=SUCCEEDED"),
        format!("/openapi/executions/{execution}"),
        format!("/openapi/executions/{execution}/logs"),
        "/openapi/callbacks".to_owned(),
        "/openapi/callbacks?status=EXHAUSTED".to_owned(),
        format!("/openapi/callbacks?jobId={failed}"),
        format!("/openapi/callbacks?executionId={execution}"),
        "/openapi/workers".to_owned(),
        "/openapi/handlers".to_owned(),
        "/openapi/stats".to_owned(),
        "/openapi/stats?window=1d".to_owned(),
    ] {
        let answer = api.get(&path).await?;
        ensure!(answer.status.is_success(), "{path}: {}", answer.text);
    }
    api.jobs(&[job.to_owned(), failed.to_owned()]).await?;
    let again = format!("/openapi/executions/{execution}/retry");
    api.post(&again, &json!({})).await?.success()?;
    let range = json!({ "from": "2099-01-01T00:00:00Z", "to": "2099-01-02T00:00:00Z" });
    api.post("/openapi/callbacks/redeliver", &range)
        .await?
        .success()?;
    Ok(())
}

/// Every way to change what is there.
async fn steer(api: &Api, repeated: &str, later: &str) -> Result<()> {
    wait_for_execution(api, repeated, "SUCCEEDED").await?;
    for word in ["trigger", "pause", "resume", "cancel"] {
        let path = format!("/openapi/jobs/{repeated}/{word}");
        api.post(&path, &json!({})).await?.success()?;
    }
    let path = format!("/openapi/jobs/{later}");
    let seen = api.get(&path).await?;
    let changed = reqwest::Client::new()
        .patch(format!("{}{path}", api.base()))
        .bearer_auth(api.key())
        .header(
            header::IF_MATCH,
            seen.headers.get(header::ETAG).context("no ETag")?,
        )
        .json(&json!({ "priority": 3 }))
        .send()
        .await?;
    ensure!(changed.status().is_success(), "{}", changed.text().await?);
    let deleted = format!("{path}?cancel=true");
    api.call(Method::DELETE, &deleted, None).await?.success()?;
    let bulk =
        json!({ "action": "retry", "filter": { "label": "of:plans", "status": "FAILED" }, "dryRun": true });
    api.post("/openapi/jobs/bulk", &bulk).await?.success()?;
    Ok(())
}

/// So many copies of what has ended that a plan makes a difference, from days of which no figure is asked for. The
/// statistics of the server stay those of the small tables.
async fn multiply(database: &mut MySqlConnection) -> Result<()> {
    for (table, ids, which) in LARGE {
        let columns: Vec<String> = sqlx::query(
            "select cast(column_name as char) from information_schema.columns \
             where table_schema = database() and table_name = ? and extra not like '%auto_increment%' \
             order by ordinal_position",
        )
        .bind(table)
        .fetch_all(&mut *database)
        .await?
        .iter()
        .map(|row| row.try_get(0))
        .collect::<Result<_, _>>()?;
        let values: Vec<String> = columns
            .iter()
            .map(|column| match column.as_str() {
                "client_request_id" | "client_request_hash" => "null".to_owned(),
                "finished_at" => format!("finished_at - {}", LONG_AGO.as_millis()),
                id if ids.contains(&id) => format!("concat(lpad(hex(i), 8, '0'), substr({id}, 9))"),
                other => other.to_owned(),
            })
            .collect();
        let sql = format!(
            "insert into {table} ({}) with recursive copy (i) as (select 1 union all select i + 1 from copy where i < {COPIES}) \
             select {} from copy, {table} where {which}",
            columns.join(", "),
            values.join(", ")
        );
        let copied = sqlx::query(AssertSqlSafe(sql)).execute(&mut *database).await?;
        println!("{table}: {} rows more", copied.rows_affected());
        ensure!(copied.rows_affected() > 5 * MANY, "{table} is too small to tell");
    }
    Ok(())
}

/// One example of each statement that was executed since then, by its text without values.
async fn statements(database: &mut MySqlConnection, since: &str) -> Result<BTreeMap<String, String>> {
    let value = Regex::new(r"'(?:[^'\\]|\\.|'')*'|\b\d+\b|\bNULL\b")?;
    let list = Regex::new(r"(?:\(?\?\)?(?:, ?)?)+")?;
    let explainable = Regex::new(r"(?i)^\s*(?:with|select|update|delete|insert\s.*\sselect)\s")?;
    let rows = sqlx::query(
        "select distinct cast(argument as char) from mysql.general_log \
         where command_type = 'Execute' and event_time >= ?",
    )
    .bind(since)
    .fetch_all(&mut *database)
    .await?;
    let mut kinds = BTreeMap::new();
    for row in rows {
        let statement: String = row.try_get(0)?;
        if !explainable.is_match(&statement) {
            continue;
        }
        let shape = value.replace_all(&statement, "?");
        kinds.insert(list.replace_all(&shape, "?").into_owned(), statement);
    }
    Ok(kinds)
}

/// What is wrong with the plan of a statement.
async fn scan(database: &mut MySqlConnection, statement: &str) -> Result<Option<String>> {
    // MySQL 9 draws trees unless it is told not to; MariaDB does not know the word.
    drop(
        sqlx::raw_sql("set session explain_format = 'TRADITIONAL'")
            .execute(&mut *database)
            .await,
    );
    let steps = sqlx::raw_sql(AssertSqlSafe(format!("explain {statement}")))
        .fetch_all(&mut *database)
        .await
        .with_context(|| format!("explaining {statement}"))?;
    let mut reads_too_much = false;
    let mut plan = Vec::with_capacity(steps.len());
    for step in steps {
        let word = |column| -> Result<String> {
            Ok(step
                .try_get_unchecked::<Option<String>, _>(column)?
                .unwrap_or_default())
        };
        let (table, kind, key, rows) = (word("table")?, word("type")?, word("key")?, word("rows")?);
        // With a filter of row ids its share follows: `105 (3%)`.
        let count = rows.split(' ').next().filter(|count| !count.is_empty());
        let count: u64 = count.map_or(Ok(0), str::parse).context(rows)?;
        reads_too_much |= matches!(kind.as_str(), "ALL" | "index") && count > MANY;
        plan.push(format!("{table}: {kind} {key}, {count} rows, {}", word("Extra")?));
    }
    Ok(reads_too_much.then(|| format!("{}\n  of {statement}", plan.join("\n"))))
}
