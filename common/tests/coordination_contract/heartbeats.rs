//! Heartbeats and tombstones.

use crate::{LONG, SHORT, UnderTest};
use anyhow::{Context, Result, ensure};
use isocost_common::{
    coordination::{Coordination, HeartbeatAnswer, StoredHeartbeat},
    id::IncarnationId,
    test_support::eventually,
};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(5);

/// The heartbeat of one incarnation, among those of every other test.
async fn stored(service: &dyn Coordination, incarnation: IncarnationId) -> Result<Option<StoredHeartbeat>> {
    let mut all = service.heartbeats().await?.stored;
    all.retain(|heartbeat| heartbeat.incarnation == incarnation);
    ensure!(all.len() <= 1, "one incarnation, {} heartbeats", all.len());
    Ok(all.pop())
}

async fn accepted(
    service: &dyn Coordination,
    incarnation: IncarnationId,
    payload: &str,
    ttl: Duration,
) -> Result<()> {
    let answer = service.heartbeat(incarnation, payload, ttl).await?;
    ensure!(answer == HeartbeatAnswer::Accepted, "{answer:?}");
    Ok(())
}

pub(crate) async fn a_heartbeat_is_seen_with_its_payload_and_age(under_test: &dyn UnderTest) -> Result<()> {
    let (worker, leader) = (under_test.connect().await?, under_test.connect().await?);
    let incarnation = IncarnationId::generate();
    let before = Instant::now();
    accepted(&*worker, incarnation, r#"{"load":"ünïcødé 😀"}"#, LONG).await?;
    let first = stored(&*leader, incarnation).await?.context("it is not there")?;
    ensure!(first.payload == r#"{"load":"ünïcødé 😀"}"#);
    ensure!(first.age <= before.elapsed(), "it is {:?} old", first.age);
    eventually("it grows older", DEADLINE, async || {
        let now = stored(&*leader, incarnation).await?.context("it is gone")?;
        Ok((now.age >= first.age + Duration::from_millis(20)).then_some(()))
    })
    .await
}

pub(crate) async fn the_latest_heartbeat_of_an_incarnation_counts(under_test: &dyn UnderTest) -> Result<()> {
    let service = under_test.connect().await?;
    let incarnation = IncarnationId::generate();
    accepted(&*service, incarnation, "1", LONG).await?;
    let second_sent_at = Instant::now();
    accepted(&*service, incarnation, "2", LONG).await?;
    let latest = stored(&*service, incarnation).await?.context("it is not there")?;
    // Both instants are whole milliseconds, so that an age can be one too many.
    let at_most = second_sent_at.elapsed() + Duration::from_millis(1);
    ensure!(latest.payload == "2" && latest.age <= at_most, "{:?}", latest.age);
    Ok(())
}

pub(crate) async fn a_heartbeat_runs_out(under_test: &dyn UnderTest) -> Result<()> {
    let service = under_test.connect().await?;
    let incarnation = IncarnationId::generate();
    let before = Instant::now();
    accepted(&*service, incarnation, "{}", SHORT).await?;
    eventually("it is gone", DEADLINE, async || {
        Ok(stored(&*service, incarnation).await?.is_none().then_some(()))
    })
    .await?;
    let lasted = before.elapsed();
    ensure!(lasted >= SHORT, "it lasted only {lasted:?}");
    // Running out is no death: it may come back.
    accepted(&*service, incarnation, "{}", LONG).await
}

pub(crate) async fn an_entombed_incarnation_is_fenced_and_unseen(under_test: &dyn UnderTest) -> Result<()> {
    let (worker, leader) = (under_test.connect().await?, under_test.connect().await?);
    let incarnation = IncarnationId::generate();
    accepted(&*worker, incarnation, "{}", LONG).await?;
    leader.entomb(incarnation, LONG).await?;
    ensure!(
        stored(&*leader, incarnation).await?.is_none(),
        "a dead worker is still seen"
    );
    ensure!(worker.heartbeat(incarnation, "{}", LONG).await? == HeartbeatAnswer::Fenced);
    ensure!(
        stored(&*leader, incarnation).await?.is_none(),
        "a fenced heartbeat was stored"
    );
    Ok(())
}

pub(crate) async fn a_tombstone_concerns_one_incarnation(under_test: &dyn UnderTest) -> Result<()> {
    let service = under_test.connect().await?;
    let (dead, alive) = (IncarnationId::generate(), IncarnationId::generate());
    // Also one that never sent a heartbeat.
    service.entomb(dead, LONG).await?;
    ensure!(service.heartbeat(dead, "{}", LONG).await? == HeartbeatAnswer::Fenced);
    accepted(&*service, alive, "{}", LONG).await
}

pub(crate) async fn a_tombstone_runs_out(under_test: &dyn UnderTest) -> Result<()> {
    let service = under_test.connect().await?;
    let incarnation = IncarnationId::generate();
    let before = Instant::now();
    service.entomb(incarnation, SHORT).await?;
    eventually("the tombstone is gone", DEADLINE, async || {
        let answer = service.heartbeat(incarnation, "{}", LONG).await?;
        Ok((answer == HeartbeatAnswer::Accepted).then_some(()))
    })
    .await?;
    let lasted = before.elapsed();
    ensure!(lasted >= SHORT, "it lasted only {lasted:?}");
    Ok(())
}

/// After a flush somebody who is missing may only have been forgotten: whoever would conclude something from it must know.
pub(crate) async fn a_service_that_forgot_says_so_and_goes_on(under_test: &dyn UnderTest) -> Result<()> {
    let service = under_test.connect().await?;
    let (seen, dead) = (IncarnationId::generate(), IncarnationId::generate());
    let begun = Instant::now();
    accepted(&*service, seen, "{}", LONG).await?;
    ensure!(service.try_lock("lock", "token", LONG).await?);
    ensure!(service.claim_key("key", LONG).await?);
    service.entomb(dead, LONG).await?;
    let known_for = eventually("its knowledge goes back", DEADLINE, async || {
        let known_for = service.heartbeats().await?.known_for;
        Ok((known_for >= Duration::from_millis(100)).then_some(known_for))
    })
    .await?;
    ensure!(known_for <= begun.elapsed() + Duration::from_millis(1));

    under_test.forget().await?;
    let forgotten = Instant::now();
    let heartbeats = service.heartbeats().await?;
    ensure!(heartbeats.stored.is_empty(), "{heartbeats:?}");
    ensure!(
        heartbeats.known_for <= forgotten.elapsed() + Duration::from_millis(1),
        "it claims to have known for {:?}",
        heartbeats.known_for
    );
    ensure!(
        !service.renew_lock("lock", "token", LONG).await?,
        "a forgotten lock was renewed"
    );
    ensure!(service.try_lock("lock", "other", LONG).await?);
    ensure!(service.claim_key("key", LONG).await?);
    accepted(&*service, dead, "{}", LONG).await?;
    accepted(&*service, seen, "again", LONG).await?;
    let again = stored(&*service, seen).await?.context("it is not there")?;
    ensure!(again.payload == "again");
    Ok(())
}
