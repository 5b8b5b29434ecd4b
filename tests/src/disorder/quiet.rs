//! The same load on a standalone installation that nothing happens to.

use super::{Plan, come_to_rest, hooks::Hooks, load, now_ms, terms};
use crate::{
    checker::{Record, TermOfOffice, tables::Tables},
    site::Site,
};
use anyhow::{Context, Result};
use std::time::Duration;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Runs a small load for some seconds and returns what was written down about it.
///
/// # Errors
/// When the program cannot be run.
pub async fn run_quietly(seed: u64) -> Result<Record> {
    let plan = Plan {
        during: Duration::from_secs(10),
        jobs_per_second: 12,
        recurring: 1,
        ..Plan::short(seed)
    };
    let site = Site::with_ledger()?.with("ISOCOST__RELAY__RETRY_DELAYS_MS", "[100, 200, 400, 800, 1600]");
    let process = site.start().await?;
    let hooks = Hooks::start(seed).await?;
    let enough = CancellationToken::new();
    let loading = tokio::spawn(load::run(
        vec![process.api().clone()],
        plan,
        hooks.url().to_owned(),
        enough.clone(),
    ));
    sleep(plan.during).await;
    enough.cancel();
    let load = loading.await.context("the load panicked")??;
    let healed_at = now_ms();
    let url = format!("sqlite:{}?mode=ro", site.data().join("isocost.db").display());
    come_to_rest(&url).await?;
    process.stop().await?;
    // Opened by nobody else now: it may be recovered from its log.
    let tables = Tables::read(&url.replace("?mode=ro", "")).await?;
    let leaders = tables.epochs.iter().map(|row| TermOfOffice {
        epoch: row.epoch,
        holder: row.holder.clone(),
        taken_at: row.taken_at,
    });
    Ok(Record {
        terms: terms(healed_at)?,
        submissions: load.submissions,
        cancels: load.cancels,
        runs: site.ledger().all()?,
        calls: hooks.calls(),
        faults: Vec::new(),
        lives: Vec::new(),
        terms_of_office: leaders.collect(),
        tables,
    })
}
