//! The database of a site that is stopped, for rows that no API call would write.

use anyhow::{Context, Result, ensure};
use sqlx::{Connection, SqliteConnection};

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
