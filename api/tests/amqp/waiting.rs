//! What may be accepted later is kept, unacked, and neither refused nor in the way of others.

use crate::{
    cases,
    site::{Line, SOON, Site, new_app, new_key, set_limits},
};
use anyhow::Result;
use isocost_common::{
    store::apps::{App, Scope},
    test_support::{TestStore, eventually},
};

cases! {
    an_app_over_its_pending_limit_waits_and_others_go_on,
    a_rate_limit_slows_down_and_refuses_nothing,
}

const JOB: &str = r#"{"jobName": "a job", "jobHandler": "noop"}"#;

async fn an_app_over_its_pending_limit_waits_and_others_go_on(site: &Site) -> Result<()> {
    let limited = App {
        max_pending_jobs: Some(3),
        ..site.app.clone()
    };
    set_limits(&site.store, &limited).await?;
    let other = new_app(&site.store, "another app").await?;
    let key = new_key(&site.store, other.id, &[Scope::Submit]).await?;
    let own = (0..10).map(|number| site.message(&format!("own-{number}"), JOB));
    site.publish(own.collect()).await?;
    site.jobs_are(3).await?;
    let others = (0..10).map(|number| {
        let mut message = site.message(&format!("other-{number}"), JOB);
        message
            .headers
            .insert("authorization".into(), format!("Bearer {key}"));
        message
    });
    site.publish(others.collect()).await?;
    site.jobs_are(13).await?;
    assert_eq!(site.ready(&site.names.dead_submissions_queue()).await?, 0);
    set_limits(&site.store, &site.app).await?;
    site.jobs_are(20).await
}

async fn a_rate_limit_slows_down_and_refuses_nothing(site: &Site) -> Result<()> {
    let limited = App {
        rate_limit_per_second: Some(5),
        ..site.app.clone()
    };
    set_limits(&site.store, &limited).await?;
    let messages = (0..12).map(|number| site.message(&format!("order-{number}"), JOB));
    site.publish(messages.collect()).await?;
    site.jobs_are(12).await?;
    assert_eq!(site.ready(&site.names.dead_submissions_queue()).await?, 0);
    Ok(())
}

/// A table that is missing stands for whatever makes the database take nothing at all.
async fn no_message_is_blamed_for_a_database_that_takes_nothing(site: &Site) -> Result<()> {
    rename(site, "job_info", "job_info_away").await?;
    let messages = (0..20).map(|number| site.message(&format!("order-{number}"), JOB));
    site.publish(messages.collect()).await?;
    let queue = site.names.submissions_queue();
    eventually("all are in hand", SOON, async || {
        Ok((site.ready(&queue).await? == 0).then_some(()))
    })
    .await?;
    rename(site, "job_info_away", "job_info").await?;
    site.jobs_are(20).await?;
    assert_eq!(site.ready(&site.names.dead_submissions_queue()).await?, 0);
    Ok(())
}

async fn rename(site: &Site, from: &str, to: &str) -> Result<()> {
    let mut tx = site.store.begin().await?;
    sqlx::query(sqlx::AssertSqlSafe(format!("alter table {from} rename to {to}")))
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(())
}

mod missing_table {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_message_is_blamed_for_a_database_that_takes_nothing() -> Result<()> {
        TestStore::on_mysql(async |store| {
            let site = Site::start(store, Line::memory().await?).await?;
            super::no_message_is_blamed_for_a_database_that_takes_nothing(&site).await?;
            // Batches are taken one after the other: once this one is stored, those before it are acked.
            site.publish(vec![site.message("last", JOB)]).await?;
            site.jobs_are(21).await?;
            let unacked = site.stop_and_count_unacked().await?;
            assert!(unacked <= 1, "{unacked} are unacked");
            Ok(())
        })
        .await
    }
}

mod database_away {
    use super::*;
    use anyhow::Context;
    use isocost_common::{
        store::{Store, StoreOptions},
        test_support::proxy::{Proxy, Traffic},
    };
    use std::time::Duration;
    use url::Url;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn submissions_wait_for_the_database_and_are_accepted_once() -> Result<()> {
        TestStore::on_mysql(async |store| {
            let (proxied, proxy) = behind_proxy(store).await?;
            let site = Site::start(&proxied, Line::memory().await?).await?;
            // Something was accepted before, so that whatever fails now could be blamed.
            site.publish(vec![site.message("before", JOB)]).await?;
            site.jobs_are(1).await?;
            proxy.set(Traffic::Refuse).await?;
            proxy.reset_all();
            let messages = (0..300).map(|number| site.message(&format!("order-{number}"), JOB));
            site.publish(messages.collect()).await?;
            let queue = site.names.submissions_queue();
            eventually("all are in hand", SOON, async || {
                Ok((site.ready(&queue).await? == 0).then_some(()))
            })
            .await?;
            eventually("the intake has tried", SOON, async || {
                Ok((proxied.ping().await.is_err()).then_some(()))
            })
            .await?;
            assert_eq!(site.ready(&site.names.dead_submissions_queue()).await?, 0);
            proxy.set(Traffic::Pass).await?;
            site.jobs_are(301).await?;
            assert_eq!(site.ready(&site.names.dead_submissions_queue()).await?, 0);
            // Batches are taken one after the other: once this one is stored, those before it are acked, but for what lost the
            // answer to its commit in the outage.
            site.publish(vec![site.message("last", JOB)]).await?;
            site.jobs_are(302).await?;
            let unacked = site.stop_and_count_unacked().await?;
            assert!(unacked < 300, "nothing is acked");
            proxied.close().await;
            Ok(())
        })
        .await
    }

    /// The database of the test through a proxy. It fails soon, as a test should.
    async fn behind_proxy(store: &TestStore) -> Result<(Store, Proxy)> {
        let mut url = Url::parse(&store.options().url)?;
        let host = url.host_str().context("the URL names no host")?;
        let target = tokio::net::lookup_host((host, url.port().unwrap_or(3306)))
            .await?
            .next();
        let proxy = Proxy::start(target.context("the host has no address")?).await?;
        let _ = url.set_ip_host(proxy.address().ip());
        let _ = url.set_port(Some(proxy.address().port()));
        let options = StoreOptions {
            acquire_timeout: Duration::from_secs(1),
            ..StoreOptions::new(url.as_str())
        };
        Ok((Store::connect(&options).await?, proxy))
    }
}
