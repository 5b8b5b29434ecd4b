//! Looks into the database from outside: who leads, and what is still open.

use crate::checker::TermOfOffice;
use anyhow::{Context, Result};
use sqlx::{AnyConnection, Connection, Row};
use std::time::Duration;
use tokio::{task::JoinHandle, time::sleep};
use tokio_util::sync::CancellationToken;

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Notes every leader it sees.
pub(super) struct Watch(JoinHandle<Vec<TermOfOffice>>);

impl Watch {
    pub(super) fn start(url: String, stop: CancellationToken) -> Self {
        sqlx::any::install_default_drivers();
        Self(tokio::spawn(async move {
            let mut seen: Vec<TermOfOffice> = Vec::new();
            while !stop.is_cancelled() {
                // The database is broken on purpose: then the next look is over a new connection.
                if let Ok(mut connection) = AnyConnection::connect(&url).await {
                    while let (false, Ok(term)) = (stop.is_cancelled(), look(&mut connection).await) {
                        if seen.last().is_none_or(|last| last.epoch != term.epoch) {
                            seen.push(term);
                        }
                        sleep(LOOK_EVERY).await;
                    }
                }
                sleep(LOOK_EVERY).await;
            }
            seen
        }))
    }

    pub(super) async fn ended(self) -> Result<Vec<TermOfOffice>> {
        self.0.await.context("the watch panicked")
    }
}

async fn look(connection: &mut AnyConnection) -> Result<TermOfOffice> {
    let row = sqlx::query("select epoch, holder, taken_at from leader_epoch")
        .fetch_one(connection)
        .await?;
    Ok(TermOfOffice {
        epoch: row.try_get("epoch")?,
        holder: row.try_get("holder")?,
        taken_at: row.try_get("taken_at")?,
    })
}

/// Rows of executions, firings and callbacks that are still to end.
pub(super) async fn open_work(url: &str) -> Result<i64> {
    sqlx::any::install_default_drivers();
    let mut connection = AnyConnection::connect(url).await?;
    let mut open = 0;
    for query in [
        "select count(*) from job_execution where status < 5",
        "select count(*) from job_info where status = 0 and next_trigger_time is not null",
        "select count(*) from callback_delivery where status in (0, 1)",
    ] {
        open += sqlx::query_scalar::<_, i64>(query)
            .fetch_one(&mut connection)
            .await?;
    }
    connection.close().await?;
    Ok(open)
}
