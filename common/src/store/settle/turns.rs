//! Concurrency slots at the end of an execution: the next one in line takes the slot over, or it is given back.

use super::Ended;
use crate::{
    execution::{ExecutionEvent, ExecutionStatus},
    id::ExecutionId,
    store::{
        Row, StoreError, Tx, execute_for_keys, executions,
        job_log::{self, LogEntry},
        placeholders, row_chunks,
        transitions::Applied,
    },
    time::EpochMillis,
};
use sqlx::AssertSqlSafe;
use std::collections::BTreeMap;

/// Passes the slots on that these executions held: to the blocked execution with the lowest rank, or back.
pub(super) async fn pass_on(tx: &mut Tx, ended: &[Ended], applied: &mut Applied) -> Result<(), StoreError> {
    let mut freed: BTreeMap<&str, u32> = BTreeMap::new();
    let mut at = EpochMillis(0);
    for Ended { row, .. } in ended.iter().filter(|ended| ended.held_slot) {
        if let Some(key) = &row.slot_key {
            *freed.entry(key).or_default() += 1;
            at = at.max(row.finished_at.unwrap_or(at));
        }
    }
    // One slot of every key a round; keys with one slot, which nearly all are, need one round.
    while !freed.is_empty() {
        let keys: Vec<&str> = freed.keys().copied().collect();
        for chunk in row_chunks(&keys) {
            pass_on_one_each(tx, chunk, at, applied).await?;
        }
        freed.retain(|_, count| {
            *count -= 1;
            *count > 0
        });
    }
    Ok(())
}

async fn pass_on_one_each(
    tx: &mut Tx,
    keys: &[&str],
    at: EpochMillis,
    applied: &mut Applied,
) -> Result<(), StoreError> {
    let sql = format!(
        "select concurrency_slot.slot_key, \
         (select waiting.id from job_execution waiting \
          where waiting.slot_key = concurrency_slot.slot_key and waiting.status = {} \
            and waiting.cancel_requested_at is null \
          order by waiting.rank_time limit 1) as next_id \
         from concurrency_slot where concurrency_slot.slot_key in ({})",
        ExecutionStatus::Blocked.code(),
        placeholders(keys.len(), 0)
    );
    let mut query = sqlx::query(AssertSqlSafe(sql));
    for key in keys {
        query = query.bind((*key).to_owned());
    }
    let (mut next, mut unclaimed) = (Vec::new(), Vec::new());
    for row in query.fetch_all(&mut **tx).await? {
        let row = Row(&row);
        match row.opt_parsed::<ExecutionId>("next_id")? {
            Some(id) => next.push(id),
            None => unclaimed.push(row.text("slot_key")?),
        }
    }
    give_back(tx, &unclaimed).await?;
    unblock(tx, &next, at, applied).await
}

async fn give_back(tx: &mut Tx, keys: &[String]) -> Result<(), StoreError> {
    execute_for_keys(tx, keys, |list| {
        sqlx::query(AssertSqlSafe(format!(
            "update concurrency_slot set holders = holders - 1 where holders > 0 and slot_key in ({list})"
        )))
    })
    .await
}

async fn unblock(
    tx: &mut Tx,
    ids: &[ExecutionId],
    at: EpochMillis,
    applied: &mut Applied,
) -> Result<(), StoreError> {
    if ids.is_empty() {
        return Ok(());
    }
    let lock = tx.dialect().for_update();
    let blocked = executions::get_many(tx, ids, lock).await?;
    let mut log = Vec::with_capacity(blocked.len());
    for row in &blocked {
        let step = row
            .status
            .after(&ExecutionEvent::SlotFree, row.facts())
            .map_err(|illegal| StoreError::Corrupt(illegal.to_string()))?;
        log.push(LogEntry {
            job: row.job,
            execution: Some(row.id),
            attempt: step.attempt,
            dispatch_seq: row.dispatch_seq,
            from: Some(row.status),
            to: Some(step.to),
            worker: None,
            message: Some("its concurrency slot is free".into()),
            at,
        });
    }
    let ids: Vec<ExecutionId> = blocked.iter().map(|row| row.id).collect();
    execute_for_keys(tx, &ids, |list| {
        let sql = format!(
            "update job_execution set status = {}, due_at = coalesce(due_at, ?) where status = {} and id in ({list})",
            ExecutionStatus::Pending.code(),
            ExecutionStatus::Blocked.code()
        );
        sqlx::query(AssertSqlSafe(sql)).bind(at.0)
    })
    .await?;
    applied.due_at(at);
    job_log::append(tx, &log).await
}
