//! Everything in one process, which dies whole and is started again.

use super::{
    VISITS, needs_a_cluster,
    visit::{Visit, Work, World, called_back_once},
};
use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, stream};
use isocost_tests::jobs::wait_for_execution;
use isocost_tests::receiver::Receiver;
use isocost_tests::site::{Life, Site};

/// Sites at once: each waits most of the time.
const AT_ONCE: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn one_process_dies_between_every_pair_of_steps_and_goes_on() -> Result<()> {
    let visits = VISITS.iter().filter(|visit| !needs_a_cluster(visit.point));
    let outcomes = stream::iter(visits.copied()).map(|visit| async move {
        let outcome = die_and_go_on(visit).await;
        outcome.with_context(|| format!("{visit:?}"))
    });
    let outcomes: Vec<Result<()>> = outcomes.buffer_unordered(AT_ONCE).collect().await;
    let failures: Vec<String> = outcomes
        .iter()
        .filter_map(|outcome| outcome.as_ref().err())
        .map(|failure| format!("{failure:#}"))
        .collect();
    println!("{} visits, {} failed", outcomes.len(), failures.len());
    ensure!(failures.is_empty(), "{}", failures.join("\n\n"));
    Ok(())
}

async fn die_and_go_on(visit: Visit) -> Result<()> {
    let site = Site::with_ledger()?;
    let receiver = Receiver::start([]).await?;
    if visit.work == Work::Orphaned {
        let process = site.start().await?;
        let job = visit.ask(process.api(), &receiver).await?;
        wait_for_execution(process.api(), &job, "RUNNING").await?;
        process.kill().await?;
    }
    let point = visit.armed();
    let armed = [("ISOCOST_CRASH_POINT", point.as_str())];
    let (mut life, asked): (Life, _) = if visit.work == Work::Orphaned {
        // It dies before anybody could ask.
        (site.spawn_with(&armed)?, Ok(()))
    } else {
        let process = site.start_with(&armed).await?;
        let asked = visit.ask(process.api(), &receiver).await.map(drop);
        (process.into_life(), asked)
    };
    let status = life
        .ended()
        .await
        .with_context(|| format!("asked for: {asked:?}"))?;
    visit.has_died_here(status, &site.log()?)?;

    let process = site.start().await?;
    let ledger = site.ledger();
    let done = visit
        .ends_well(process.api(), &ledger, &receiver, World::OneProcess)
        .await?;
    if let Some(done) = done {
        called_back_once(&receiver, &done.job).await?;
    }
    process.stop().await
}
