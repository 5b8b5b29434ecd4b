//! What the processes ask of the database, as the database counts it.

use super::{all_succeed, start_many};
use anyhow::{Result, ensure};
use isocost_tests::cluster::{Cluster, Role};
use isocost_tests::jobs::once;
use sqlx::{Connection, MySqlConnection, Row};
use std::time::Duration;

const JOBS: usize = 300;
const ROUNDS: usize = 4;
const ALL_DONE: Duration = Duration::from_secs(60);
/// Statements of sizes that no batch had before; a text of its own for each batch would be hundreds.
const NEW_SIZES: i64 = 80;

/// A statement whose text holds a value is prepared for each value: the server parses it anew, and for each one that a
/// connection keeps no longer it waits 40 ms.
#[tokio::test(flavor = "multi_thread")]
async fn statements_are_prepared_once_and_their_values_are_bound() -> Result<()> {
    let cluster = Cluster::new().await?;
    let _dispatcher = cluster.start(Role::Dispatcher, "dispatcher").await?;
    let _workers = start_many(&cluster, Role::Worker, "worker", 2).await?;
    let _relay = cluster.start(Role::Relay, "relay").await?;
    let api_process = cluster.start(Role::Api, "api").await?;
    let api = cluster.api(&api_process)?;
    let mut prepared = Vec::new();
    for _ in 0..ROUNDS {
        let before = prepares(&cluster).await?;
        // One by one: each is a claim, a placement and a settling of its own.
        let mut ids = Vec::with_capacity(JOBS);
        for _ in 0..JOBS {
            ids.push(api.submit(&once("noop")).await?);
        }
        all_succeed(&api, &ids, ALL_DONE).await?;
        prepared.push(prepares(&cluster).await? - before);
    }
    println!("statements prepared for {JOBS} jobs, and again: {prepared:?}");
    ensure!(prepared[ROUNDS - 1] < NEW_SIZES, "{prepared:?}");
    Ok(())
}

async fn prepares(cluster: &Cluster) -> Result<i64> {
    let mut database = MySqlConnection::connect(&cluster.servers().mariadb.options().url).await?;
    let row = sqlx::query("show global status like 'Com_stmt_prepare'")
        .fetch_one(&mut database)
        .await?;
    let count: String = row.try_get(1)?;
    database.close().await?;
    Ok(count.parse()?)
}
