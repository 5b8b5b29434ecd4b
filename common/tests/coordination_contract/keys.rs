//! Start keys: the first to claim one has it.

use crate::{LONG, SHORT, UnderTest, unique};
use anyhow::{Result, ensure};
use isocost_common::test_support::eventually;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Barrier;

pub(crate) async fn a_key_is_claimed_once(under_test: &dyn UnderTest) -> Result<()> {
    let (one, other) = (under_test.connect().await?, under_test.connect().await?);
    let key = unique("key");
    ensure!(one.claim_key(&key, LONG).await?);
    ensure!(!other.claim_key(&key, LONG).await?);
    ensure!(!one.claim_key(&key, LONG).await?, "not even by the same caller");
    ensure!(other.claim_key(&unique("key"), LONG).await?);
    Ok(())
}

pub(crate) async fn a_freed_key_can_be_claimed_again(under_test: &dyn UnderTest) -> Result<()> {
    let (one, other) = (under_test.connect().await?, under_test.connect().await?);
    let key = unique("key");
    ensure!(one.claim_key(&key, LONG).await?);
    one.free_key(&key).await?;
    ensure!(other.claim_key(&key, LONG).await?);
    Ok(())
}

pub(crate) async fn a_key_runs_out(under_test: &dyn UnderTest) -> Result<()> {
    let service = under_test.connect().await?;
    let key = unique("key");
    let before = Instant::now();
    ensure!(service.claim_key(&key, SHORT).await?);
    eventually("the key is free", Duration::from_secs(5), async || {
        Ok(service.claim_key(&key, LONG).await?.then_some(()))
    })
    .await?;
    let lasted = before.elapsed();
    ensure!(lasted >= SHORT, "it lasted only {lasted:?}");
    Ok(())
}

pub(crate) async fn freeing_a_free_key_is_no_error(under_test: &dyn UnderTest) -> Result<()> {
    let service = under_test.connect().await?;
    service.free_key(&unique("key")).await?;
    Ok(())
}

pub(crate) async fn of_many_at_once_exactly_one_claims(under_test: &dyn UnderTest) -> Result<()> {
    const CONTENDERS: usize = 16;
    let key = unique("key");
    let start = Arc::new(Barrier::new(CONTENDERS));
    let mut contenders = tokio::task::JoinSet::new();
    for _ in 0..CONTENDERS {
        let service = under_test.connect().await?;
        let (key, start) = (key.clone(), Arc::clone(&start));
        contenders.spawn(async move {
            start.wait().await;
            service.claim_key(&key, LONG).await
        });
    }
    let mut claimed = 0;
    while let Some(first) = contenders.join_next().await {
        claimed += usize::from(first??);
    }
    ensure!(claimed == 1, "{claimed} claimed it");
    Ok(())
}

pub(crate) async fn it_answers(under_test: &dyn UnderTest) -> Result<()> {
    under_test.connect().await?.ping().await?;
    Ok(())
}
