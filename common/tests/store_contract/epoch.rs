//! The fencing row: no write of an old leader after the first of a new one.

use anyhow::{Result, ensure};
use isocost_common::{
    execution::ExecutionStatus,
    store::{StoreError, epoch, executions},
    store_tests,
    test_support::{TestStore, given},
};
use std::{collections::BTreeSet, time::Duration};

store_tests! {
    epochs_grow_by_one,
    the_guard_lets_the_current_leader_pass,
    the_guard_refuses_an_older_leader,
    a_refused_transaction_leaves_nothing_behind,
    a_new_epoch_waits_for_open_transactions_of_the_old_leader,
    transactions_of_one_leader_do_not_wait_for_each_other,
    concurrent_leaders_get_different_epochs,
    a_leader_at_work_can_be_seen,
}

async fn epochs_grow_by_one(store: &TestStore) -> Result<()> {
    for expected in 1..=5 {
        ensure!(epoch::begin(store, &format!("dispatcher-{expected}")).await? == expected);
    }
    let mut reader = store.reader().await?;
    let holder: String = sqlx::query_scalar("select holder from leader_epoch")
        .fetch_one(&mut *reader)
        .await?;
    ensure!(holder == "dispatcher-5");
    Ok(())
}

async fn the_guard_lets_the_current_leader_pass(store: &TestStore) -> Result<()> {
    let mine = epoch::begin(store, "me").await?;
    store
        .transact(|| async {
            let mut tx = store.begin().await?;
            epoch::guard(&mut tx, mine).await?;
            tx.commit().await
        })
        .await?;
    store
        .transact(|| async {
            let mut tx = store.begin().await?;
            epoch::guard(&mut tx, mine).await?;
            tx.commit().await
        })
        .await?;
    Ok(())
}

async fn the_guard_refuses_an_older_leader(store: &TestStore) -> Result<()> {
    let old = epoch::begin(store, "old").await?;
    let new = epoch::begin(store, "new").await?;
    let refused = store
        .transact(|| async {
            let mut tx = store.begin().await?;
            epoch::guard(&mut tx, old).await?;
            tx.commit().await
        })
        .await;
    ensure!(
        matches!(refused, Err(StoreError::StaleEpoch { mine, current }) if mine == old && current == new),
        "{refused:?}"
    );
    Ok(())
}

async fn a_refused_transaction_leaves_nothing_behind(store: &TestStore) -> Result<()> {
    let old = epoch::begin(store, "old").await?;
    epoch::begin(store, "new").await?;
    let row = given::execution(&given::job(), ExecutionStatus::Pending);
    let refused = store
        .transact(|| async {
            let mut tx = store.begin().await?;
            executions::insert_many(&mut tx, std::slice::from_ref(&row)).await?;
            epoch::guard(&mut tx, old).await?;
            tx.commit().await
        })
        .await;
    ensure!(refused.is_err());
    // The same connection is used again, and the row is not there.
    let mut tx = store.begin().await?;
    ensure!(executions::get(&mut tx, row.id).await?.is_none());
    Ok(())
}

async fn a_new_epoch_waits_for_open_transactions_of_the_old_leader(store: &TestStore) -> Result<()> {
    let old = epoch::begin(store, "old").await?;
    let row = given::execution(&given::job(), ExecutionStatus::Pending);
    let mut tx = store.begin().await?;
    epoch::guard(&mut tx, old).await?;

    let new_leader = {
        let (store, id) = ((**store).clone(), row.id);
        tokio::spawn(async move {
            let new = epoch::begin(&store, "new").await?;
            let mut reader = store.reader().await?;
            let seen = executions::get(&mut reader, id).await?.is_some();
            anyhow::Ok((new, seen))
        })
    };
    // Long enough for a takeover that does not wait to be over.
    tokio::time::sleep(Duration::from_millis(300)).await;
    executions::insert_many(&mut tx, std::slice::from_ref(&row)).await?;
    ensure!(
        !new_leader.is_finished(),
        "the new epoch began under an open transaction of the old one"
    );
    tx.commit().await?;

    let (new, seen) = new_leader.await??;
    ensure!(new == old + 1);
    ensure!(seen, "the new leader does not see the last write of the old one");
    Ok(())
}

async fn transactions_of_one_leader_do_not_wait_for_each_other(store: &TestStore) -> Result<()> {
    let mine = epoch::begin(store, "me").await?;
    if store.dialect() == isocost_common::store::Dialect::Sqlite {
        // One writer at a time: what is promised is that the second simply follows the first.
        for _ in 0..2 {
            store
                .transact(|| async {
                    let mut tx = store.begin().await?;
                    epoch::guard(&mut tx, mine).await?;
                    tx.commit().await
                })
                .await?;
        }
        return Ok(());
    }
    let mut first = store.begin().await?;
    epoch::guard(&mut first, mine).await?;
    let mut second = store.begin().await?;
    epoch::guard(&mut second, mine).await?;
    second.commit().await?;
    first.commit().await?;
    Ok(())
}

async fn concurrent_leaders_get_different_epochs(store: &TestStore) -> Result<()> {
    const LEADERS: usize = 8;
    let mut leaders = tokio::task::JoinSet::new();
    for number in 0..LEADERS {
        let store = (**store).clone();
        leaders.spawn(async move { epoch::begin(&store, &format!("leader-{number}")).await });
    }
    let mut epochs = BTreeSet::new();
    while let Some(epoch) = leaders.join_next().await {
        epochs.insert(epoch??);
    }
    ensure!(epochs == (1..=LEADERS as i64).collect(), "{epochs:?}");
    Ok(())
}

async fn a_leader_at_work_can_be_seen(store: &TestStore) -> Result<()> {
    let mut reader = store.reader().await?;
    ensure!(epoch::last_presence(&mut reader).await?.is_none());
    let before = store.now();
    epoch::note_presence(store).await?;
    let seen = epoch::last_presence(&mut reader).await?;
    ensure!(seen.is_some_and(|seen| seen >= before), "{seen:?}");
    Ok(())
}
