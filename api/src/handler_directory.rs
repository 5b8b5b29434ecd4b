//! Which handlers the workers offer, and whether anything is started at all, as far as warnings and reasons need to know:
//! refreshed at most once in a while, so that submitting reads nothing.

use crate::input::nearest;
use isocost_common::{
    store::{Store, StoreError, epoch, settings, workers},
    time::EpochMillis,
};
use parking_lot::Mutex;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;
use tracing::debug;

/// Age at which the list is read again.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// A leader shows itself every two seconds, and a clean handover is much faster than this.
const LEADERLESS_AFTER: Duration = Duration::from_secs(10);
/// Workers beat every second by default, and the leader writes that down every two.
const UNHEARD_AFTER: Duration = Duration::from_secs(10);

/// The list.
#[derive(Default)]
pub(crate) struct HandlerDirectory {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    known: Option<Arc<Known>>,
    due: Option<Instant>,
}

/// What is known of the fleet.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Handlers of online workers.
    pub(crate) offered: BTreeSet<String>,
    /// Handlers of workers that are being drained.
    pub(crate) draining: BTreeSet<String>,
    /// Nothing is claimed or placed.
    pub(crate) maintenance: bool,
    /// When a worker that offers the handler was last heard of.
    heard_at: BTreeMap<String, EpochMillis>,
    /// When a dispatcher last led.
    leader_seen: Option<EpochMillis>,
}

impl Known {
    /// Why nothing at all is started now; none when something is.
    pub(crate) fn standstill(&self, now: EpochMillis) -> Option<String> {
        if self.maintenance {
            let quiet = "maintenance mode is on, so nothing is started; it is ended by PUT /openapi/settings";
            return Some(quiet.into());
        }
        let remedy = "so nothing is started; see that a dispatcher runs and that it reaches Redis: its log and its \
                      /readyz say what is missing";
        match self.leader_seen {
            None => Some(format!("no dispatcher has led yet, {remedy}")),
            Some(seen) if seen + LEADERLESS_AFTER < now => {
                Some(format!("no dispatcher has led since {seen}, {remedy}"))
            }
            Some(_) => None,
        }
    }
}

impl Known {
    /// Says so when no worker that offers the handler was heard of lately: then none is given anything.
    pub(crate) fn unheard(&self, handler: &str, beat: Duration, now: EpochMillis) -> Option<String> {
        let last = *self.heard_at.get(handler)?;
        (last + UNHEARD_AFTER.max(beat * 5) < now).then(|| {
            format!(
                "no worker that offers the handler was heard of since {last}; see that the workers run and reach RabbitMQ: \
                 their logs and their /readyz say what is missing"
            )
        })
    }
}

impl HandlerDirectory {
    /// What is known; none when that could not be found out yet. At most one caller at a time reads the database, the
    /// others take it as it is.
    pub(crate) async fn known(&self, store: &Store) -> Option<Arc<Known>> {
        let now = Instant::now();
        {
            let mut kept = self.kept.lock();
            if kept.due.is_some_and(|due| now < due) {
                return kept.known.clone();
            }
            kept.due = Some(now + FRESH_FOR);
        }
        match read(store).await {
            Ok(known) => self.kept.lock().known = Some(Arc::new(known)),
            Err(error) => debug!(%error, "the handlers on offer could not be read; keeping the older list"),
        }
        self.kept.lock().known.clone()
    }
}

async fn read(store: &Store) -> Result<Known, StoreError> {
    let mut connection = store.reader().await?;
    let handlers = workers::offered_handlers(&mut connection).await?;
    let settings = settings::all(&mut connection).await?;
    Ok(Known {
        offered: handlers.online,
        draining: handlers.draining,
        heard_at: handlers.heard_at,
        maintenance: settings::is_maintenance(&settings),
        leader_seen: epoch::last_presence(&mut connection).await?,
    })
}

/// What to tell somebody whose handler nobody offers; none when somebody does.
#[must_use]
pub(crate) fn not_offered(handler: &str, known: &Known) -> Option<String> {
    if known.offered.contains(handler) {
        return None;
    }
    if known.draining.contains(handler) {
        return Some(format!(
            "every worker that offers the handler `{handler}` is draining, so the job waits until one takes work again \
             or another one starts"
        ));
    }
    let names = known.offered.iter().chain(&known.draining);
    let hint = nearest(handler, names.map(String::as_str))
        .map(|meant| format!("; did you mean `{meant}`?"))
        .unwrap_or_default();
    Some(format!(
        "no online worker offers the handler `{handler}`, so the job waits until one does{hint}"
    ))
}
