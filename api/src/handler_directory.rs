//! Which handlers the online workers offer, as far as warnings need to know: a list that is refreshed at most once in
//! a while, so that submitting reads nothing.

use crate::input::nearest;
use isocost_common::store::{Store, workers};
use parking_lot::Mutex;
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::time::Instant;
use tracing::debug;

/// Age at which the list is read again.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// The list.
#[derive(Default)]
pub(crate) struct HandlerDirectory {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    offered: Option<Arc<BTreeSet<String>>>,
    due: Option<Instant>,
}

impl HandlerDirectory {
    /// What is offered; none when that could not be found out yet. At most one caller at a time reads the database, the
    /// others take the list as it is.
    pub(crate) async fn offered(&self, store: &Store) -> Option<Arc<BTreeSet<String>>> {
        let now = Instant::now();
        {
            let mut known = self.known.lock();
            if known.due.is_some_and(|due| now < due) {
                return known.offered.clone();
            }
            known.due = Some(now + FRESH_FOR);
        }
        let read = async {
            let mut connection = store.reader().await?;
            workers::offered_handlers(&mut connection).await
        };
        match read.await {
            Ok(handlers) => self.known.lock().offered = Some(Arc::new(handlers)),
            Err(error) => debug!(%error, "the handlers on offer could not be read; keeping the older list"),
        }
        self.known.lock().offered.clone()
    }
}

/// What to tell somebody whose handler nobody offers; none when somebody does.
#[must_use]
pub(crate) fn not_offered(handler: &str, offered: &BTreeSet<String>) -> Option<String> {
    if offered.contains(handler) {
        return None;
    }
    let hint = nearest(handler, offered.iter().map(String::as_str))
        .map(|meant| format!("; did you mean `{meant}`?"))
        .unwrap_or_default();
    Some(format!(
        "no online worker offers the handler `{handler}`, so the job waits until one does{hint}"
    ))
}
