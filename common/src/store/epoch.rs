//! The fencing row: which dispatcher leads. Every transaction of a leader share-locks it first.

use super::{Connection, Row, Store, StoreError, Tx};
use crate::time::EpochMillis;
use sqlx::AssertSqlSafe;

/// Begins a new epoch for `holder` and returns it. From its commit on, no transaction of an older leader commits.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn begin(store: &Store, holder: &str) -> Result<i64, StoreError> {
    let now = store.now();
    store
        .transact(|| async {
            let mut tx = store.begin().await?;
            let sql = format!(
                "select epoch from leader_epoch where id = 1{}",
                tx.dialect().for_update()
            );
            let row = sqlx::query(AssertSqlSafe(sql)).fetch_one(&mut *tx).await?;
            let epoch = Row(&row).int("epoch")? + 1;
            sqlx::query("update leader_epoch set epoch = ?, holder = ?, taken_at = ? where id = 1")
                .bind(epoch)
                .bind(holder)
                .bind(now.0)
                .execute(&mut *tx)
                .await?;
            tx.commit().await?;
            Ok(epoch)
        })
        .await
}

/// Holds the fencing row shared until the end of the transaction, if it still shows `mine`.
///
/// # Errors
/// [`StoreError::StaleEpoch`] when a newer leader has begun; the transaction must be dropped.
pub async fn guard(tx: &mut Tx, mine: i64) -> Result<(), StoreError> {
    let sql = format!(
        "select epoch from leader_epoch where id = 1{}",
        tx.dialect().for_share()
    );
    let row = sqlx::query(AssertSqlSafe(sql)).fetch_one(&mut **tx).await?;
    let current = Row(&row).int("epoch")?;
    if current == mine {
        Ok(())
    } else {
        Err(StoreError::StaleEpoch { mine, current })
    }
}

/// Notes that a leader is at work now. Not fenced: it is for telling users, and nothing is decided by it.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn note_presence(store: &Store) -> Result<(), StoreError> {
    let now = store.now();
    store
        .transact(|| async {
            let mut tx = store.begin().await?;
            sqlx::query("update leader_presence set seen_at = ? where id = 1")
                .bind(now.0)
                .execute(&mut *tx)
                .await?;
            tx.commit().await
        })
        .await
}

/// When a leader was last at work; none when there never was one.
///
/// # Errors
/// [`StoreError`] of the database.
pub async fn last_presence(connection: &mut Connection) -> Result<Option<EpochMillis>, StoreError> {
    let seen_at: i64 = sqlx::query_scalar("select seen_at from leader_presence where id = 1")
        .fetch_one(&mut *connection)
        .await?;
    Ok((seen_at > 0).then_some(EpochMillis(seen_at)))
}
