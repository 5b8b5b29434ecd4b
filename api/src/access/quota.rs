use crate::problem::{Kind, Problem};
use isocost_common::{
    id::AppId,
    store::{Store, StoreError, apps::App, stats},
};
use parking_lot::Mutex;
use std::{collections::HashMap, time::Duration};
use tokio::time::Instant;

/// How long a count is believed while it leaves room.
const FRESH_FOR: Duration = Duration::from_secs(1);
/// How soon it is counted again once there is no room.
const FULL_FOR: Duration = Duration::from_millis(100);

/// How much each app may still submit, by a count that is at most a second old and what was granted since. Several API
/// processes count alike, so together they may pass a limit by what they grant within that second.
#[derive(Default)]
pub(crate) struct PendingQuotas {
    left: Mutex<HashMap<AppId, Left>>,
}

#[derive(Clone, Copy)]
struct Left {
    amount: i64,
    counted_at: Instant,
}

impl Left {
    fn is_stale(self, wanted: i64) -> bool {
        let age = self.counted_at.elapsed();
        age > FRESH_FOR || (self.amount < wanted && age > FULL_FOR)
    }
}

impl PendingQuotas {
    /// How many of `wanted` jobs the app may submit now.
    ///
    /// # Errors
    /// [`StoreError`] when it has to be counted and the database does not answer.
    pub(crate) async fn take(&self, store: &Store, app: &App, wanted: usize) -> Result<usize, StoreError> {
        let Some(most) = app.max_pending_jobs else {
            return Ok(wanted);
        };
        let wanted = i64::try_from(wanted).unwrap_or(i64::MAX);
        let known = self.left.lock().get(&app.id).copied();
        let counted = match known {
            Some(left) if !left.is_stale(wanted) => None,
            _ => {
                let waiting = stats::waiting(&mut *store.reader().await?, app.id, most).await?;
                Some(Left {
                    amount: most - waiting,
                    counted_at: Instant::now(),
                })
            }
        };
        let mut left = self.left.lock();
        if let Some(counted) = counted {
            left.insert(app.id, counted);
        }
        let granted = left.get_mut(&app.id).map_or(0, |left| {
            let granted = left.amount.clamp(0, wanted);
            left.amount -= granted;
            granted
        });
        Ok(usize::try_from(granted).unwrap_or(0))
    }
}

/// The refusal of a job that the quota has no room for.
pub(crate) fn over_quota(app: &App) -> Problem {
    let most = app.max_pending_jobs.unwrap_or_default();
    Problem::new(
        Kind::TooManyRequests,
        "quota.pending-jobs",
        format!("the app may have {most} jobs and executions waiting; let some start, or ask the operator for more"),
    )
    .retry_after(1)
}
