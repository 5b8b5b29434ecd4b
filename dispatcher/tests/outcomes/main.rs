//! Outcomes on their way from the table to whoever is bound, on each broker and each database.

mod site;

use anyhow::{Context, Result, ensure};
use isocost_common::{
    execution::ExecutionStatus,
    store::outcomes,
    test_support::{TestStore, eventually},
};
use site::{SOON, Site, keys, take};
use std::{collections::BTreeSet, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    time::timeout,
};

/// Makes tests of every case: each broker and each database is used.
macro_rules! cases {
    ($($case:ident),+ $(,)?) => {
        cases!(@on memory_sqlite, on_sqlite, memory, $($case),+);
        cases!(@on memory_mysql, on_mysql, memory, $($case),+);
        cases!(@on rabbit_mysql, on_mysql, rabbit, $($case),+);
    };
    (@on $module:ident, $store:ident, $line:ident, $($case:ident),+) => {
        mod $module {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() -> anyhow::Result<()> {
                isocost_common::test_support::TestStore::$store(async |store| {
                    let site = crate::site::Site::start(store, crate::site::Line::$line().await?).await?;
                    super::$case(&site).await?;
                    site.close().await;
                    Ok(())
                })
                .await
            })+
        }
    };
}

cases! {
    every_outcome_arrives_with_its_key_and_every_byte,
    patterns_reach_over_the_dots_of_a_handler,
    outcomes_that_nobody_wants_are_done_with,
    an_outage_of_the_broker_loses_nothing,
    two_relays_share_the_work,
    what_a_killed_relay_had_claimed_is_published_by_the_next,
}

async fn every_outcome_arrives_with_its_key_and_every_byte(site: &Site) -> Result<()> {
    let ends = [
        ExecutionStatus::Succeeded,
        ExecutionStatus::Failed,
        ExecutionStatus::TimedOut,
        ExecutionStatus::Cancelled,
        ExecutionStatus::Lost,
        ExecutionStatus::Expired,
        ExecutionStatus::Skipped,
    ];
    let mut consumer = site.bind("#").await?;
    let rows: Vec<_> = ends
        .iter()
        .map(|status| site.outcome("report", *status))
        .collect();
    site.write(&rows).await?;
    let relay = site.relay();
    for row in &rows {
        let delivery = take(consumer.as_mut()).await?;
        let key = format!("billing.report.{}", row.status.api_name());
        ensure!(
            delivery.routing_key == key,
            "{} is not {key}",
            delivery.routing_key
        );
        let message = delivery.message;
        assert_eq!(message.message_id, row.execution.to_string());
        assert_eq!(message.body, row.body.as_str());
        assert_eq!(message.kind, row.status.outcome_type());
        assert_eq!(message.headers["traceparent"], site::TRACE);
    }
    site.is_empty().await?;
    relay.stop().await
}

async fn patterns_reach_over_the_dots_of_a_handler(site: &Site) -> Result<()> {
    let relay = site.relay();
    let mut failed = site.bind("#.FAILED").await?;
    let mut of_reports = site.bind("billing.report.#").await?;
    let mut one_word = site.bind("billing.*.FAILED").await?;
    let rows = [
        site.outcome("report.daily", ExecutionStatus::Failed),
        site.outcome("report.daily", ExecutionStatus::Succeeded),
        site.outcome("noop", ExecutionStatus::Failed),
    ];
    site.write(&rows).await?;
    let daily = "billing.report.daily";
    let expected = |keys: &[String]| keys.iter().cloned().collect::<BTreeSet<_>>();
    let no = "billing.noop.FAILED".to_owned();
    assert_eq!(
        keys(failed.as_mut(), 2).await?,
        expected(&[format!("{daily}.FAILED"), no.clone()])
    );
    assert_eq!(
        keys(of_reports.as_mut(), 2).await?,
        expected(&[format!("{daily}.FAILED"), format!("{daily}.SUCCEEDED")])
    );
    assert_eq!(keys(one_word.as_mut(), 1).await?, expected(&[no]));
    relay.stop().await
}

async fn outcomes_that_nobody_wants_are_done_with(site: &Site) -> Result<()> {
    site.write(&[site.outcome("report", ExecutionStatus::Succeeded)])
        .await?;
    let relay = site.relay();
    site.is_empty().await?;
    relay.stop().await
}

async fn an_outage_of_the_broker_loses_nothing(site: &Site) -> Result<()> {
    const COUNT: usize = 600;
    let mut consumer = site.bind("#").await?;
    let relay = site.relay();
    let mut written = BTreeSet::new();
    for part in 0..3 {
        let rows: Vec<_> = (0..COUNT / 3)
            .map(|_| site.outcome("report", ExecutionStatus::Succeeded))
            .collect();
        written.extend(rows.iter().map(|row| row.execution.to_string()));
        site.write(&rows).await?;
        if part == 1 {
            site.break_line().await?;
            consumer = site.consume_again().await?;
        }
    }
    site.is_empty().await?;
    let mut seen = BTreeSet::new();
    while seen.len() < COUNT {
        seen.insert(take(consumer.as_mut()).await?.message.message_id);
    }
    assert_eq!(seen, written);
    relay.stop().await
}

async fn two_relays_share_the_work(site: &Site) -> Result<()> {
    const COUNT: usize = 2_000;
    let mut consumer = site.bind("#").await?;
    let rows: Vec<_> = (0..COUNT)
        .map(|_| site.outcome("report", ExecutionStatus::Succeeded))
        .collect();
    site.write(&rows).await?;
    let started = std::time::Instant::now();
    let relays = [site.relay(), site.relay()];
    site.is_empty().await?;
    println!(
        "{COUNT} outcomes published by two relays in {:?}",
        started.elapsed()
    );
    let mut seen = BTreeSet::new();
    for _ in 0..COUNT {
        let id = take(consumer.as_mut()).await?.message.message_id;
        ensure!(seen.insert(id), "one came twice without any fault");
    }
    for relay in relays {
        relay.stop().await?;
    }
    Ok(())
}

async fn what_a_killed_relay_had_claimed_is_published_by_the_next(site: &Site) -> Result<()> {
    let mut consumer = site.bind("#").await?;
    let row = site.outcome("report", ExecutionStatus::Succeeded);
    site.write(std::slice::from_ref(&row)).await?;
    // It claimed, perhaps published, and did not get to delete.
    let now = site.store.now();
    let until = now + Duration::from_millis(500);
    let mut tx = site.store.begin().await?;
    let claimed = outcomes::claim(&mut tx, now, until, 10).await?;
    tx.commit().await?;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].outcomes, std::slice::from_ref(&row));
    let relay = site.relay();
    let message = take(consumer.as_mut()).await?.message;
    ensure!(
        site.store.now() >= until,
        "it was published before the claim had run out"
    );
    assert_eq!(
        (message.message_id, message.body),
        (row.execution.to_string(), row.body.as_str().to_owned().into())
    );
    site.is_empty().await?;
    relay.stop().await
}

impl Site {
    /// Waits until every outcome was confirmed and deleted.
    async fn is_empty(&self) -> Result<()> {
        eventually("the outbox is empty", SOON, async || {
            let mut reader = self.store.reader().await?;
            let left: i64 = sqlx::query_scalar("select count(*) from outcome_batch")
                .fetch_one(&mut *reader)
                .await?;
            Ok((left == 0).then_some(()))
        })
        .await
    }
}

/// The program of `docs/amqp.md`, run as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_consumer_follows_every_outcome() -> Result<()> {
    const COUNT: usize = 300;
    TestStore::on_mysql(async |store| {
        let site = Site::start(store, site::Line::rabbit().await?).await?;
        let mut follower = site.follower("billing.#", COUNT)?;
        let out = follower.stdout.take().context("no output")?;
        let mut lines = BufReader::new(out).lines();
        let first = timeout(SOON, lines.next_line()).await??.context("it ended")?;
        ensure!(first.starts_with("following "), "{first}");
        let relay = site.relay();
        let rows: Vec<_> = (0..COUNT)
            .map(|_| site.outcome("report.daily", ExecutionStatus::Succeeded))
            .collect();
        site.write(&rows).await?;
        let mut seen = BTreeSet::new();
        while let Some(line) = timeout(SOON, lines.next_line()).await?? {
            let line: serde_json::Value = serde_json::from_str(&line)?;
            ensure!(line["key"] == "billing.report.daily.SUCCEEDED", "{line}");
            seen.insert(line["executionId"].as_str().unwrap_or_default().to_owned());
        }
        let written: BTreeSet<_> = rows.iter().map(|row| row.execution.to_string()).collect();
        assert_eq!(seen, written);
        ensure!(follower.wait().await?.success(), "it failed");
        relay.stop().await?;
        site.close().await;
        Ok(())
    })
    .await
}
