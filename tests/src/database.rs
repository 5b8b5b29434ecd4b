//! The database of a site that is stopped, for rows that no API call would write.

use anyhow::{Context, Result, ensure};
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};

use crate::site::Site;

/// Runs a statement that must change a row or more. Numbers are given as text; the column's affinity converts them.
///
/// # Errors
/// When it fails, or finds no row.
pub async fn execute(site: &Site, sql: &'static str, values: &[String]) -> Result<u64> {
    let url = format!("sqlite:{}", site.data().join("isocost.db").display());
    let mut connection = SqliteConnection::connect(&url)
        .await
        .with_context(|| format!("opening {url}"))?;
    let mut statement = sqlx::query(sql);
    for value in values {
        statement = statement.bind(value);
    }
    let changed = statement.execute(&mut connection).await?.rows_affected();
    connection.close().await?;
    ensure!(changed > 0, "no row: {sql}");
    Ok(changed)
}

/// Copies the row with this id so many times; in `changes` stand columns that must differ, with SQL over the number `i`
/// of the copy.
///
/// # Errors
/// When the rows do not fit the table.
pub async fn multiply(
    site: &Site,
    table: &'static str,
    id: &str,
    times: u32,
    changes: &[(&'static str, &'static str)],
) -> Result<()> {
    let mut connection = open(site).await?;
    let columns: Vec<String> = sqlx::query_scalar("select name from pragma_table_info(?)")
        .bind(table)
        .fetch_all(&mut connection)
        .await?;
    let values: Vec<&str> = columns
        .iter()
        .map(|column| {
            let change = changes.iter().find(|(changed, _)| changed == column);
            change.map_or(column.as_str(), |(_, value)| value)
        })
        .collect();
    let sql = format!(
        "with recursive copy (i) as (select 1 union all select i + 1 from copy where i < {times}) \
         insert into {table} ({}) select {} from copy, (select * from {table} where id = ?)",
        columns.join(", "),
        values.join(", ")
    );
    let copied = sqlx::query(AssertSqlSafe(sql))
        .bind(id)
        .execute(&mut connection)
        .await?;
    ensure!(
        copied.rows_affected() == u64::from(times),
        "{} copies",
        copied.rows_affected()
    );
    connection.close().await?;
    Ok(())
}

async fn open(site: &Site) -> Result<SqliteConnection> {
    let url = format!("sqlite:{}", site.data().join("isocost.db").display());
    SqliteConnection::connect(&url)
        .await
        .with_context(|| format!("opening {url}"))
}
