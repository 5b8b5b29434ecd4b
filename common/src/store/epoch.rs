//! The fencing row: which dispatcher leads. Every transaction of a leader share-locks it first.

use super::{Row, Store, StoreError, Tx};
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
