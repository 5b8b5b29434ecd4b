//! Locks: one holder, proven by its token, for a time.

use crate::{LONG, SHORT, UnderTest, unique};
use anyhow::{Result, ensure};
use isocost_common::{coordination::Coordination, test_support::eventually};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Barrier;

const DEADLINE: Duration = Duration::from_secs(5);

/// Waits until `token` gets the lock.
async fn gets_it(service: &dyn Coordination, name: &str, token: &str) -> Result<()> {
    eventually("the lock is free", DEADLINE, async || {
        Ok(service.try_lock(name, token, LONG).await?.then_some(()))
    })
    .await
}

pub(crate) async fn a_lock_has_one_holder(under_test: &dyn UnderTest) -> Result<()> {
    let (one, other) = (under_test.connect().await?, under_test.connect().await?);
    let name = unique("lock");
    ensure!(one.try_lock(&name, "one", LONG).await?);
    ensure!(!other.try_lock(&name, "other", LONG).await?);
    Ok(())
}

pub(crate) async fn a_released_lock_is_free(under_test: &dyn UnderTest) -> Result<()> {
    let (one, other) = (under_test.connect().await?, under_test.connect().await?);
    let name = unique("lock");
    ensure!(one.try_lock(&name, "one", LONG).await?);
    ensure!(one.release_lock(&name, "one").await?);
    ensure!(other.try_lock(&name, "other", LONG).await?);
    Ok(())
}

pub(crate) async fn only_the_holder_releases(under_test: &dyn UnderTest) -> Result<()> {
    let service = under_test.connect().await?;
    let name = unique("lock");
    ensure!(service.try_lock(&name, "one", LONG).await?);
    ensure!(!service.release_lock(&name, "other").await?);
    ensure!(!service.release_lock(&name, "").await?);
    ensure!(
        !service.try_lock(&name, "other", LONG).await?,
        "it was released by a stranger"
    );
    ensure!(!service.release_lock(&unique("nobody's"), "one").await?);
    Ok(())
}

pub(crate) async fn only_the_holder_renews(under_test: &dyn UnderTest) -> Result<()> {
    let service = under_test.connect().await?;
    let name = unique("lock");
    ensure!(
        !service.renew_lock(&name, "one", LONG).await?,
        "a lock nobody holds was renewed"
    );
    ensure!(service.try_lock(&name, "one", LONG).await?);
    ensure!(service.renew_lock(&name, "one", LONG).await?);
    ensure!(!service.renew_lock(&name, "other", LONG).await?);
    Ok(())
}

pub(crate) async fn a_lock_runs_out_at_its_ttl(under_test: &dyn UnderTest) -> Result<()> {
    let service = under_test.connect().await?;
    let name = unique("lock");
    let before = Instant::now();
    ensure!(service.try_lock(&name, "one", SHORT).await?);
    gets_it(&*service, &name, "other").await?;
    // Valid at least for its time, counted from before the request.
    let lasted = before.elapsed();
    ensure!(lasted >= SHORT, "it lasted only {lasted:?}");
    Ok(())
}

pub(crate) async fn a_renewed_lock_outlives_its_first_ttl(under_test: &dyn UnderTest) -> Result<()> {
    let service = under_test.connect().await?;
    let (name, witness) = (unique("lock"), unique("witness"));
    ensure!(service.try_lock(&name, "one", SHORT).await?);
    ensure!(service.renew_lock(&name, "one", LONG).await?);
    // Gone once a lock with the first TTL, taken later, is gone.
    ensure!(service.try_lock(&witness, "one", SHORT).await?);
    gets_it(&*service, &witness, "other").await?;
    ensure!(
        !service.try_lock(&name, "other", LONG).await?,
        "the renewal did not count"
    );
    Ok(())
}

pub(crate) async fn an_expired_lock_is_neither_renewed_nor_released_by_its_old_holder(
    under_test: &dyn UnderTest,
) -> Result<()> {
    let service = under_test.connect().await?;
    let name = unique("lock");
    ensure!(service.try_lock(&name, "one", SHORT).await?);
    gets_it(&*service, &name, "other").await?;
    ensure!(!service.renew_lock(&name, "one", LONG).await?);
    ensure!(!service.release_lock(&name, "one").await?);
    ensure!(
        service.renew_lock(&name, "other", LONG).await?,
        "the new holder lost it"
    );
    Ok(())
}

/// A process that is not sure whether it has the lock must renew, which says so, not take.
pub(crate) async fn taking_it_again_with_the_same_token_is_refused(under_test: &dyn UnderTest) -> Result<()> {
    let service = under_test.connect().await?;
    let name = unique("lock");
    ensure!(service.try_lock(&name, "one", LONG).await?);
    ensure!(!service.try_lock(&name, "one", LONG).await?);
    Ok(())
}

pub(crate) async fn locks_with_other_names_are_independent(under_test: &dyn UnderTest) -> Result<()> {
    let service = under_test.connect().await?;
    let (this, that) = (unique("lock"), unique("lock"));
    ensure!(service.try_lock(&this, "token", LONG).await?);
    ensure!(service.try_lock(&that, "token", LONG).await?);
    ensure!(service.release_lock(&this, "token").await?);
    ensure!(service.renew_lock(&that, "token", LONG).await?);
    Ok(())
}

pub(crate) async fn of_many_at_once_exactly_one_gets_it(under_test: &dyn UnderTest) -> Result<()> {
    const CONTENDERS: usize = 16;
    let name = unique("lock");
    let start = Arc::new(Barrier::new(CONTENDERS));
    let mut contenders = tokio::task::JoinSet::new();
    for number in 0..CONTENDERS {
        let service = under_test.connect().await?;
        let (name, start) = (name.clone(), Arc::clone(&start));
        contenders.spawn(async move {
            start.wait().await;
            service.try_lock(&name, &number.to_string(), LONG).await
        });
    }
    let mut holders = 0;
    while let Some(got_it) = contenders.join_next().await {
        holders += usize::from(got_it??);
    }
    ensure!(holders == 1, "{holders} hold it");
    Ok(())
}
