//! What `isocost doctor` looks at in the database, and what the roles look at when they start.

use super::{
    Dialect, Store, StoreError, StoreOptions,
    dialect::STATEMENTS_KEPT,
    migrations::{self, Schema},
};
use crate::{
    doctor::{Finding, Findings, version_numbers},
    error_chain::chain,
};
use sqlx::Row as _;
use std::collections::{BTreeSet, HashMap};

/// Indexes without which a hot path reads whole tables.
const NEEDED_INDEXES: [(&str, &str); 9] = [
    ("job_info", "idx_status_next_time"),
    ("job_info", "uq_client_request"),
    ("job_execution", "uq_execution"),
    ("job_execution", "idx_execution_due"),
    ("job_execution", "idx_execution_class"),
    ("job_execution", "idx_execution_slot"),
    ("worker_node", "uq_worker_incarnation"),
    ("callback_delivery", "idx_callback_due"),
    ("callback_delivery", "idx_callback_endpoint"),
];
const OLDEST_MYSQL: (u32, u32, u32) = (8, 0, 17);
const OLDEST_MARIADB: (u32, u32, u32) = (10, 6, 0);
const SKEW_WARNING_MS: i64 = 500;
const SKEW_PROBLEM_MS: i64 = 5_000;
/// Server variables that the checks read.
const VARIABLES: &str = "show global variables where variable_name in (\
    'version', 'version_comment', 'innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin', 'wsrep_on', \
    'group_replication_group_name', 'group_replication_single_primary_mode', 'read_only', 'max_allowed_packet')";

/// Everything there is to check, from reaching the database on.
pub async fn examine(options: &StoreOptions) -> Vec<Finding> {
    let mut findings = Findings::of("database");
    let store = match Store::connect(options).await {
        Ok(store) => store,
        Err(error) => {
            findings.problem(
                "reachable",
                chain(&error).to_string(),
                "check store.url (host, port, user, password, database) and that the server runs",
            );
            return findings.finish();
        }
    };
    let outcome = look(&store, options, &mut findings).await;
    note_failure(&mut findings, outcome);
    store.close().await;
    findings.finish()
}

/// What would break a promise although everything seems to work.
pub async fn promises(store: &Store) -> Vec<Finding> {
    let mut findings = Findings::of("database");
    if store.dialect() == Dialect::MySql {
        let outcome = async {
            let variables = variables(store).await?;
            check_durability(&variables, &mut findings);
            Ok(())
        };
        let outcome = outcome.await;
        note_failure(&mut findings, outcome);
    }
    findings.finish()
}

fn note_failure(findings: &mut Findings, outcome: Result<(), StoreError>) {
    if let Err(error) = outcome {
        findings.problem(
            "readable",
            chain(&error).to_string(),
            "see what the server's log says, and run this again",
        );
    }
}

async fn look(store: &Store, options: &StoreOptions, findings: &mut Findings) -> Result<(), StoreError> {
    let variables = variables(store).await?;
    findings.ok("reachable", format!("as {}", current_user(store).await?));
    check_version(&variables, findings);
    check_durability(&variables, findings);
    check_isolation(store, findings).await?;
    check_connections(store, options, findings).await?;
    let skew_ms = store.measure_clock().await?;
    check_clock(skew_ms, findings);
    match migrations::state(store).await? {
        Schema::Current => findings.ok("tables", "up to date"),
        state @ Schema::Newer { .. } => {
            findings.problem(
                "tables",
                state.to_string(),
                "use a version of Isocost that is as new as the one that made them",
            );
        }
        state @ Schema::Broken { .. } => findings.problem(
            "tables",
            state.to_string(),
            "restore the database from before the migration, then run `isocost migrate`",
        ),
        state => {
            findings.problem("tables", state.to_string(), "run `isocost migrate` once");
            return Ok(());
        }
    }
    check_indexes(store, findings).await?;
    check_permissions(store, findings).await;
    Ok(())
}

async fn variables(store: &Store) -> Result<HashMap<String, String>, StoreError> {
    let mut reader = store.reader().await?;
    let rows = sqlx::query(VARIABLES).fetch_all(&mut *reader).await?;
    // MariaDB sends text, MySQL sends bytes.
    let text = |row: &sqlx::any::AnyRow, column: usize| {
        row.try_get::<String, _>(column).or_else(|_| {
            let bytes = row.try_get::<Vec<u8>, _>(column)?;
            Ok::<_, sqlx::Error>(String::from_utf8_lossy(&bytes).into_owned())
        })
    };
    rows.iter()
        .map(|row| Ok((text(row, 0)?.to_lowercase(), text(row, 1)?)))
        .collect()
}

async fn scalar_text(store: &Store, sql: &'static str) -> Result<String, StoreError> {
    let mut reader = store.reader().await?;
    Ok(sqlx::query_scalar(sql).fetch_one(&mut *reader).await?)
}

async fn scalar_number(store: &Store, sql: &'static str) -> Result<i64, StoreError> {
    let mut reader = store.reader().await?;
    Ok(sqlx::query_scalar(sql).fetch_one(&mut *reader).await?)
}

async fn current_user(store: &Store) -> Result<String, StoreError> {
    scalar_text(store, "select cast(current_user() as char(255))").await
}

fn check_version(variables: &HashMap<String, String>, findings: &mut Findings) {
    let empty = String::new();
    let version = variables.get("version").unwrap_or(&empty);
    let is_mariadb = version.contains("MariaDB");
    let (name, oldest) = if is_mariadb {
        ("MariaDB", OLDEST_MARIADB)
    } else {
        ("MySQL", OLDEST_MYSQL)
    };
    let says = format!("{name} {version}");
    if version_numbers(version) < oldest {
        let (major, minor, patch) = oldest;
        let remedy = format!("upgrade to {name} {major}.{minor}.{patch} or newer");
        findings.problem("version", says, &remedy);
    } else {
        findings.ok("version", says);
    }
    if variables.get("read_only").is_some_and(|value| value == "ON") {
        findings.problem(
            "writable",
            "the server is read-only",
            "point store.url at the primary, not at a replica",
        );
    }
}

/// Whether what was answered survives a power cut and a failover, and whether a lock is one.
fn check_durability(variables: &HashMap<String, String>, findings: &mut Findings) {
    let value = |name: &str| variables.get(name).map_or("", String::as_str);
    match value("innodb_flush_log_at_trx_commit") {
        "1" => findings.ok("flush at commit", "innodb_flush_log_at_trx_commit = 1"),
        other => findings.warning(
            "flush at commit",
            format!("innodb_flush_log_at_trx_commit = {other}: a crash of the machine loses accepted jobs"),
            "set innodb_flush_log_at_trx_commit = 1",
        ),
    }
    let has_binlog = matches!(value("log_bin"), "ON" | "1");
    match (has_binlog, value("sync_binlog")) {
        (false, _) => findings.ok("binary log", "off: nothing is replicated"),
        (true, "1") => findings.ok("binary log", "sync_binlog = 1"),
        (true, other) => findings.warning(
            "binary log",
            format!(
                "sync_binlog = {other}: after a crash of the machine the replicas may miss accepted jobs"
            ),
            "set sync_binlog = 1",
        ),
    }
    let galera = matches!(value("wsrep_on"), "ON" | "1");
    let group = !value("group_replication_group_name").is_empty()
        && matches!(value("group_replication_single_primary_mode"), "OFF" | "0");
    if galera || group {
        findings.warning(
            "one primary",
            if galera {
                "Galera takes writes on every node, and locks of one node do not hold on another"
            } else {
                "group replication runs with several primaries, and locks of one do not hold on another"
            },
            "send every role to the same node, for example by a proxy with one writer",
        );
    } else {
        findings.ok("one primary", "no cluster of several writers");
    }
}

async fn check_isolation(store: &Store, findings: &mut Findings) -> Result<(), StoreError> {
    // MariaDB before 11.1 and MySQL before 8 know the first name only, MySQL 8 the second.
    let old = scalar_text(store, "select cast(@@session.tx_isolation as char(64))").await;
    let level = match old {
        Ok(level) => level,
        Err(_) => scalar_text(store, "select cast(@@session.transaction_isolation as char(64))").await?,
    };
    if level == "READ-COMMITTED" {
        findings.ok("isolation", "sessions of Isocost read committed");
    } else {
        findings.problem(
            "isolation",
            format!("sessions of Isocost run at {level}"),
            "let no proxy or init_connect change the isolation of a session",
        );
    }
    Ok(())
}

async fn check_connections(
    store: &Store,
    options: &StoreOptions,
    findings: &mut Findings,
) -> Result<(), StoreError> {
    let most = scalar_number(store, "select cast(@@max_connections as signed)").await?;
    let ours = i64::from(options.max_connections);
    let remedy = "raise max_connections of the server, or lower store.max_connections";
    check_room("connections", most, ours, remedy, findings);
    // Beyond this limit every new statement fails.
    let most = scalar_number(store, "select cast(@@max_prepared_stmt_count as signed)").await?;
    let ours = ours * i64::from(STATEMENTS_KEPT);
    let remedy = "raise max_prepared_stmt_count of the server, or lower store.max_connections";
    check_room("prepared statements", most, ours, remedy, findings);
    Ok(())
}

/// Room for three processes is the least of a cluster.
fn check_room(what: &'static str, most: i64, ours: i64, remedy: &str, findings: &mut Findings) {
    let says = format!("the server takes {most}, each process of Isocost up to {ours}");
    if most < ours * 3 {
        findings.warning(what, says, remedy);
    } else {
        findings.ok(what, says);
    }
}

fn check_clock(skew_ms: i64, findings: &mut Findings) {
    let says = format!("{skew_ms} ms from this machine's");
    let remedy = "synchronise the clocks of both machines (NTP)";
    if skew_ms.abs() > SKEW_PROBLEM_MS {
        findings.problem("clock", format!("{says}: no dispatcher here will lead"), remedy);
    } else if skew_ms.abs() > SKEW_WARNING_MS {
        findings.warning("clock", says, remedy);
    } else {
        findings.ok("clock", says);
    }
}

async fn check_indexes(store: &Store, findings: &mut Findings) -> Result<(), StoreError> {
    let mut reader = store.reader().await?;
    let rows = sqlx::query(
        "select distinct cast(concat(table_name, '.', index_name) as char(200)) as name \
         from information_schema.statistics where table_schema = database()",
    )
    .fetch_all(&mut *reader)
    .await?;
    let present: BTreeSet<String> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    let missing: Vec<String> = NEEDED_INDEXES
        .iter()
        .map(|(table, index)| format!("{table}.{index}"))
        .filter(|name| !present.contains(name))
        .collect();
    if missing.is_empty() {
        findings.ok("indexes", format!("{} of them", present.len()));
    } else {
        findings.problem(
            "indexes",
            format!("missing: {}", missing.join(", ")),
            "create them as in migrations/mysql, or every pass reads whole tables",
        );
    }
    Ok(())
}

/// Really writes, and takes it back: grants alone do not tell whether a statement would pass.
async fn check_permissions(store: &Store, findings: &mut Findings) {
    let tried = async {
        let mut tx = store.begin().await?;
        let name = "doctor";
        let dialect = store.dialect();
        super::settings::put(&mut tx, dialect, name, "true", store.now()).await?;
        sqlx::query("select name from setting where name = ? for update")
            .bind(name)
            .fetch_all(&mut *tx)
            .await?;
        sqlx::query("delete from setting where name = ?")
            .bind(name)
            .execute(&mut *tx)
            .await?;
        // Dropped, it is rolled back.
        drop(tx);
        Ok::<_, StoreError>(())
    };
    match tried.await {
        Ok(()) => findings.ok("permissions", "reads, writes and locks rows"),
        Err(error) => findings.problem(
            "permissions",
            chain(&error).to_string(),
            "grant select, insert, update and delete on the database to this user; `isocost migrate` also needs create, \
             alter, index and drop",
        ),
    }
}
