//! Who leads: one dispatcher at a time, by a lock that it keeps only as long as it gets its work done. The lock saves
//! effort; what makes a second leader harmless is the epoch in the database.

use crate::leader::{self, Leader};
use isocost_common::{
    config::LeaseConfig,
    coordination::Coordination,
    crash_point::{CrashPoint, reach},
    error_chain::chain,
    readiness::Flag,
    store::{Store, epoch},
};
use parking_lot::Mutex;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

/// The lock's name.
const LOCK: &str = "leader";
/// A leader without a full pass for this long does not deserve the lock.
const PROGRESS_LIMIT: Duration = Duration::from_secs(5);
/// Standing back after having resigned, so that somebody healthier can take the lock.
const AFTER_RESIGNING: Duration = Duration::from_secs(2);
/// How often a dispatcher that cannot ask for the lock says so.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);
/// Clocks further apart than this make every instant in the tables doubtful.
const MOST_SKEW_MS: i64 = 5_000;
const SKEW_WARNING_MS: i64 = 500;

/// One term of office: the epoch, and how long the lock is known to be ours.
#[derive(Debug)]
pub(crate) struct Tenure {
    pub(crate) epoch: i64,
    valid_until: Mutex<Instant>,
    /// When the last pass was completed, and whether one was.
    progress: Mutex<(Instant, bool)>,
}

impl Tenure {
    pub(crate) fn new(epoch: i64, valid_until: Instant) -> Self {
        Self {
            epoch,
            valid_until: Mutex::new(valid_until),
            progress: Mutex::new((Instant::now(), false)),
        }
    }

    /// False from the moment on at which somebody else could hold the lock.
    pub(crate) fn is_valid(&self) -> bool {
        Instant::now() < *self.valid_until.lock()
    }

    /// The leader has completed a pass.
    pub(crate) fn made_progress(&self) {
        *self.progress.lock() = (Instant::now(), true);
    }

    fn is_working(&self) -> bool {
        self.progress.lock().0.elapsed() < PROGRESS_LIMIT
    }

    fn has_worked(&self) -> bool {
        self.progress.lock().1
    }

    fn extend(&self, until: Instant) {
        *self.valid_until.lock() = until;
    }
}

/// Stands for leader until `shutdown`, and leads whenever it holds the lock.
pub(crate) async fn campaign(office: &leader::Office, shutdown: &CancellationToken) {
    let coordination = office.ports.coordination.as_ref();
    let poll = poll_interval(&office.leases);
    let mut complaint_at = Instant::now();
    let working = office.ports.readiness.flag("leader", "");
    working.met();
    while !shutdown.is_cancelled() {
        let token = uuid_token();
        let asked_at = Instant::now();
        let taken = coordination
            .try_lock(LOCK, &token, office.leases.lock_ttl())
            .await;
        let stand_back = match taken {
            Ok(true) => {
                let resigned = serve(office, &token, asked_at, &working, shutdown).await;
                resigned.then_some(AFTER_RESIGNING)
            }
            Ok(false) => {
                // Whatever was wrong here: another one leads.
                working.met();
                None
            }
            Err(error) => {
                if Instant::now() >= complaint_at {
                    warn!(%error, "nobody can be asked for the leader's lock: nothing new is started meanwhile");
                    complaint_at = Instant::now() + COMPLAINT_INTERVAL;
                }
                None
            }
        };
        let jitter = poll.mul_f64(rand::random_range(0.0..0.2));
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = tokio::time::sleep(stand_back.unwrap_or(poll) + jitter) => {}
        }
    }
}

/// A quarter of a second with the default TTL: a clean handover is taken up at once, for four small requests a second.
fn poll_interval(leases: &LeaseConfig) -> Duration {
    leases.lock_ttl() / 40
}

fn uuid_token() -> String {
    isocost_common::id::MessageId::generate().to_string()
}

/// One term, from the lock to its release. True when it ended because something here is not fit to lead.
async fn serve(
    office: &leader::Office,
    token: &str,
    asked_at: Instant,
    working: &Flag,
    shutdown: &CancellationToken,
) -> bool {
    let Some((end, leader)) = serve_term(office, token, asked_at, working, shutdown).await else {
        release(office, token).await;
        return true;
    };
    // First of all, so that another one leads at once while this one completes what is under way.
    release(office, token).await;
    if let Some(leader) = leader {
        leader.retire().await;
    }
    end == leader::TermEnd::Unfit
}

/// Whatever happened: a lock that is no longer ours is left alone by the token.
async fn release(office: &leader::Office, token: &str) {
    if let Err(error) = office.ports.coordination.release_lock(LOCK, token).await {
        warn!(%error, "releasing the leader's lock");
    }
}

/// One term. None when it did not begin.
async fn serve_term(
    office: &leader::Office,
    token: &str,
    asked_at: Instant,
    working: &Flag,
    shutdown: &CancellationToken,
) -> Option<(leader::TermEnd, Option<Leader>)> {
    let store = &office.ports.store;
    if !clocks_agree(store).await {
        return None;
    }
    let epoch = match epoch::begin(store, &office.process).await {
        Ok(epoch) => {
            reach(CrashPoint::EpochBegun);
            epoch
        }
        Err(failure) => {
            error!(error = %chain(&failure), "beginning an epoch");
            return None;
        }
    };
    let tenure = Arc::new(Tenure::new(epoch, asked_at + office.leases.lock_ttl()));
    info!(epoch, process = office.process, "leading");
    metrics::gauge!("isocost_leader").set(1.0);
    metrics::gauge!("isocost_leader_epoch").set(epoch as f64);
    let term = shutdown.child_token();
    let lead = async {
        let ended = match Leader::take_over(office, Arc::clone(&tenure), &term).await {
            Ok(mut leader) => (leader.lead(&term).await, Some(leader)),
            Err(failure) => {
                error!(error = %chain(&failure), epoch, "taking over");
                (leader::TermEnd::Unfit, None)
            }
        };
        term.cancel();
        ended
    };
    let keep = keep_lock(
        office.ports.coordination.as_ref(),
        &office.leases,
        token,
        &tenure,
        working,
        &term,
    );
    let (ended, ()) = tokio::join!(lead, keep);
    metrics::gauge!("isocost_leader").set(0.0);
    info!(epoch, end = ?ended.0, "no longer leading");
    Some(ended)
}

/// True when clocks that differ by so much can be led by.
pub(crate) const fn is_small(offset_ms: i64) -> bool {
    offset_ms.abs() <= MOST_SKEW_MS
}

/// True when the database's clock and this machine's are close enough to lead by.
async fn clocks_agree(store: &Store) -> bool {
    match store.measure_clock().await {
        Ok(offset_ms) if !is_small(offset_ms) => {
            error!(
                offset_ms,
                "the clocks of the database and of this machine are too far apart to lead"
            );
            false
        }
        Ok(offset_ms) => {
            if offset_ms.abs() > SKEW_WARNING_MS {
                warn!(offset_ms, "the clocks of the database and of this machine differ");
            }
            true
        }
        Err(failure) => {
            warn!(error = %chain(&failure), "measuring the database's clock");
            false
        }
    }
}

/// Renews the lock while the leader makes progress; ends the term when the lock is lost, or in doubt for too long.
async fn keep_lock(
    coordination: &dyn Coordination,
    leases: &LeaseConfig,
    token: &str,
    tenure: &Tenure,
    working: &Flag,
    term: &CancellationToken,
) {
    let interval = leases.lock_ttl() / 5;
    loop {
        tokio::select! {
            () = term.cancelled() => return,
            () = tokio::time::sleep(interval) => {}
        }
        if !tenure.is_working() {
            warn!(
                epoch = tenure.epoch,
                "the leader makes no progress: its lock is not renewed"
            );
            working.missing("the leader makes no progress; its log says what fails");
        } else {
            if tenure.has_worked() {
                working.met();
            }
            let asked_at = Instant::now();
            match coordination.renew_lock(LOCK, token, leases.lock_ttl()).await {
                Ok(true) => tenure.extend(asked_at + leases.lock_ttl()),
                Ok(false) => {
                    warn!(epoch = tenure.epoch, "the leader's lock is lost");
                    tenure.extend(Instant::now());
                    return term.cancel();
                }
                Err(error) => warn!(%error, "renewing the leader's lock"),
            }
        }
        if !tenure.is_valid() {
            warn!(epoch = tenure.epoch, "the leader's lock may be somebody else's");
            return term.cancel();
        }
    }
}
