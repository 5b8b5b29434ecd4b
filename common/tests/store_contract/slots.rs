//! Concurrency slots: never more holders than the limit, whoever comes at once.

use anyhow::{Result, ensure};
use isocost_common::{
    id::{AppId, JobId},
    store::{Store, StoreError, slots, slots::LockedSlots},
    store_tests,
    test_support::TestStore,
};
use std::collections::{BTreeMap, BTreeSet};

store_tests! {
    a_slot_is_taken_up_to_its_limit,
    many_takers_at_once_never_pass_the_limit,
    takers_of_several_keys_do_not_block_each_other_for_ever,
    what_is_not_written_is_not_taken,
    a_new_limit_counts_from_its_first_use,
    keys_that_look_alike_are_different,
}

/// Takes one place of each key in a transaction of its own; returns the keys that had one.
async fn take(store: &Store, limits: &[(String, i64)]) -> Result<Vec<String>, StoreError> {
    let wanted: BTreeMap<String, i64> = limits.iter().cloned().collect();
    store
        .transact(|| async {
            let mut tx = store.begin().await?;
            let mut slots = LockedSlots::lock(&mut tx, &wanted).await?;
            let taken: Vec<String> = wanted.keys().filter(|key| slots.take(key)).cloned().collect();
            slots.write(&mut tx).await?;
            tx.commit().await?;
            Ok(taken)
        })
        .await
}

async fn holders(store: &Store, key: &str) -> Result<i64> {
    let mut reader = store.reader().await?;
    let holders = sqlx::query_scalar("select holders from concurrency_slot where slot_key = ?")
        .bind(key.to_owned())
        .fetch_one(&mut *reader)
        .await?;
    Ok(holders)
}

fn one_key(limit: i64) -> [(String, i64); 1] {
    [(slots::job_key(JobId::generate()), limit)]
}

async fn a_slot_is_taken_up_to_its_limit(store: &TestStore) -> Result<()> {
    let key = one_key(2);
    ensure!(take(store, &key).await?.len() == 1);
    ensure!(take(store, &key).await?.len() == 1);
    ensure!(take(store, &key).await?.is_empty());
    ensure!(holders(store, &key[0].0).await? == 2);
    Ok(())
}

async fn many_takers_at_once_never_pass_the_limit(store: &TestStore) -> Result<()> {
    const TAKERS: usize = 32;
    let key = one_key(3);
    let mut takers = tokio::task::JoinSet::new();
    for _ in 0..TAKERS {
        let (store, key) = ((**store).clone(), key.clone());
        takers.spawn(async move { take(&store, &key).await });
    }
    let mut taken = 0;
    while let Some(taker) = takers.join_next().await {
        taken += taker??.len();
    }
    ensure!(taken == 3, "{taken} of {TAKERS} got one of 3");
    ensure!(holders(store, &key[0].0).await? == 3);
    Ok(())
}

async fn takers_of_several_keys_do_not_block_each_other_for_ever(store: &TestStore) -> Result<()> {
    const TAKERS: usize = 16;
    let keys: Vec<_> = (0..6).flat_map(|_| one_key(1_000)).collect();
    let mut takers = tokio::task::JoinSet::new();
    for number in 0..TAKERS {
        let store = (**store).clone();
        // Each another part, in another order.
        let mut mine = keys.clone();
        mine.rotate_left(number % keys.len());
        mine.truncate(4);
        takers.spawn(async move { take(&store, &mine).await });
    }
    while let Some(taker) = takers.join_next().await {
        ensure!(taker??.len() == 4);
    }
    let mut all = 0;
    for (key, _) in &keys {
        all += holders(store, key).await?;
    }
    ensure!(all == 4 * TAKERS as i64, "{all} are held");
    Ok(())
}

async fn what_is_not_written_is_not_taken(store: &TestStore) -> Result<()> {
    let key = one_key(1);
    let wanted = BTreeMap::from(key.clone());
    let mut tx = store.begin().await?;
    let mut slots = LockedSlots::lock(&mut tx, &wanted).await?;
    ensure!(slots.contains(&key[0].0) && !slots.any_held(&key[0].0));
    ensure!(slots.take(&key[0].0) && slots.any_held(&key[0].0));
    slots.write(&mut tx).await?;
    drop(tx);
    ensure!(take(store, &key).await?.len() == 1);
    Ok(())
}

async fn a_new_limit_counts_from_its_first_use(store: &TestStore) -> Result<()> {
    let [(key, _)] = one_key(1);
    let with_limit = |limit: i64| [(key.clone(), limit)];
    ensure!(take(store, &with_limit(1)).await?.len() == 1);
    ensure!(take(store, &with_limit(1)).await?.is_empty());
    ensure!(take(store, &with_limit(2)).await?.len() == 1);
    ensure!(take(store, &with_limit(1)).await?.is_empty());
    Ok(())
}

async fn keys_that_look_alike_are_different(store: &TestStore) -> Result<()> {
    let (app, other) = (AppId::generate(), AppId::generate());
    let names = ["a", "A", "á", "a ", "a;", "", " "];
    let mut keys: Vec<_> = names
        .iter()
        .map(|name| (slots::shared_key(app, name), 1))
        .collect();
    keys.push((slots::shared_key(other, "a"), 1));
    ensure!(keys.iter().collect::<BTreeSet<_>>().len() == keys.len());
    ensure!(take(store, &keys).await?.len() == keys.len());
    for key in keys {
        ensure!(
            take(store, std::slice::from_ref(&key)).await?.is_empty(),
            "{key:?} was free"
        );
    }
    Ok(())
}
