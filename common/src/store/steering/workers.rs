use super::{SteerError, rerun};
use crate::{
    id::WorkerId,
    store::{
        Row, Store,
        audit::{self, AuditEntry},
    },
};
use sqlx::AssertSqlSafe;

/// Asks for a worker to be drained, or to take work again. The leader tells it.
///
/// # Errors
/// [`SteerError::NotFound`] when no incarnation of it is alive.
pub async fn set_drain(
    store: &Store,
    worker: &WorkerId,
    drain: bool,
    by: &AuditEntry,
) -> Result<(), SteerError> {
    rerun(async || {
        let mut tx = store.begin().await?;
        let alive =
            sqlx::query("select count(*) as alive from worker_node where worker_id = ? and status in (0, 1)")
                .bind(worker.as_str().to_owned())
                .fetch_one(&mut *tx)
                .await?;
        if Row(&alive).int("alive")? == 0 {
            return Err(SteerError::NotFound);
        }
        // A drain counts at once; that it takes work again is for the worker to say.
        let status = if drain { "1" } else { "status" };
        let sql = format!(
            "update worker_node set drain_requested = ?, status = {status} where worker_id = ? and status in (0, 1)"
        );
        sqlx::query(AssertSqlSafe(sql))
            .bind(i64::from(drain))
            .bind(worker.as_str().to_owned())
            .execute(&mut *tx)
            .await?;
        audit::append(&mut tx, by).await?;
        tx.commit().await?;
        Ok(())
    })
    .await
}
