//! `concurrency_slot`: how many executions hold a concurrency key. Written only under its row lock.

use super::{BulkUpdate, Row, StoreError, Tx, placeholders, row_chunks};
use crate::id::{AppId, JobId};
use sqlx::AssertSqlSafe;
use std::collections::BTreeMap;

/// The key under which the executions of one job take turns.
#[must_use]
pub fn job_key(job: JobId) -> String {
    format!("job:{job}")
}

/// The key under which executions of several jobs of an app take turns.
#[must_use]
pub fn shared_key(app: AppId, concurrency_key: &str) -> String {
    // Never ends in a blank, which MySQL passes over when it compares: `a` and `a ` are two keys.
    format!("key:{app}:{concurrency_key};")
}

/// Slots of many keys under their row locks: taken in memory, written once. Locked before any job or execution is.
#[derive(Debug, Default)]
pub struct LockedSlots {
    slots: BTreeMap<String, LockedSlot>,
}

#[derive(Debug, Clone, Copy)]
struct LockedSlot {
    stored: i64,
    held: i64,
    limit: i64,
}

impl LockedSlots {
    /// Locks the slots of these keys, in their order; those that do not exist yet are made. Each has the limit given from
    /// now on.
    ///
    /// # Errors
    /// [`StoreError`] of the database.
    pub async fn lock(tx: &mut Tx, wanted: &BTreeMap<String, i64>) -> Result<Self, StoreError> {
        let mut slots = BTreeMap::new();
        let wanted: Vec<_> = wanted.iter().collect();
        for chunk in row_chunks(&wanted) {
            // An upsert locks exclusively at once. One that ignores what exists would lock shared first, and two of them
            // would deadlock as soon as both go on to write.
            let insert = format!(
                "insert into concurrency_slot (slot_key, holders, slot_limit) values {}{}",
                vec!["(?, 0, ?)"; chunk.len()].join(", "),
                tx.dialect().on_conflict_update(&["slot_key"], &["slot_limit"])
            );
            let mut query = sqlx::query(AssertSqlSafe(insert));
            for (key, limit) in chunk {
                query = query.bind((*key).clone()).bind(**limit);
            }
            query.execute(&mut **tx).await?;
            let select = format!(
                "select slot_key, holders, slot_limit from concurrency_slot where slot_key in ({})",
                placeholders(chunk.len(), 0)
            );
            let mut query = sqlx::query(AssertSqlSafe(select));
            for (key, _) in chunk {
                query = query.bind((*key).clone());
            }
            for row in query.fetch_all(&mut **tx).await? {
                let row = Row(&row);
                let held = row.int("holders")?;
                let slot = LockedSlot {
                    stored: held,
                    held,
                    limit: row.int("slot_limit")?,
                };
                slots.insert(row.text("slot_key")?, slot);
            }
        }
        Ok(Self { slots })
    }

    /// True when these slots are locked here.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.slots.contains_key(key)
    }

    /// True when somebody holds a slot of this key.
    #[must_use]
    pub fn any_held(&self, key: &str) -> bool {
        self.slots.get(key).is_some_and(|slot| slot.held > 0)
    }

    /// Takes one slot; false when all are held.
    pub fn take(&mut self, key: &str) -> bool {
        let Some(slot) = self.slots.get_mut(key) else {
            return false;
        };
        let free = slot.held < slot.limit;
        slot.held += i64::from(free);
        free
    }

    /// Writes what was taken.
    ///
    /// # Errors
    /// [`StoreError`] of the database.
    pub async fn write(&self, tx: &mut Tx) -> Result<(), StoreError> {
        let taken: Vec<_> = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.held != slot.stored)
            .collect();
        let dialect = tx.dialect();
        BulkUpdate {
            table: "concurrency_slot",
            columns: &["slot_key", "holders"],
            set: "",
            set_values: &[],
            guard: "1 = 1",
        }
        .execute(tx, dialect, &taken, |query, (key, slot)| {
            query.bind((*key).clone()).bind(slot.held)
        })
        .await?;
        Ok(())
    }
}
