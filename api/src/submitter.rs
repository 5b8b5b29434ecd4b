//! Concurrent submissions share a commit. One task takes what has gathered, stores it in one transaction and answers
//! each; while it commits, the next group gathers. A request that is dropped changes nothing about its submission.

use isocost_common::store::{
    Dialect, Store, StoreError,
    jobs::JobRow,
    submission::{Admission, admit},
};
use metrics::{counter, histogram};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::{JoinError, JoinSet},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::error;

/// Requests that may wait for their turn, and the jobs they bring. Beyond, the API answers that it is busy.
const QUEUE: usize = 4_096;
const QUEUED_JOBS: usize = 20_000;
/// Jobs stored in one transaction, unless a single request brings more.
const GROUP: usize = 500;
/// Transactions under way at once on a database server, which makes several of them durable with one flush.
const SERVER_COMMITS: usize = 3;
/// How long a group waits for requests that are known to be on their way.
const LINGER: Duration = Duration::from_millis(2);

/// A submission that has waited this long for its turn is not stored any more: the database is stuck, and an answer in
/// time is worth more than the attempt.
const LONGEST_WAIT: Duration = Duration::from_millis(2_500);
/// While those whose turn it is have waited for longer, nobody else joins the queue: the answer would be the same, later.
const LONG_WAIT: Duration = Duration::from_millis(1_000);

/// Why a submission got no answer from the database.
#[derive(Debug, Clone)]
pub(crate) enum SubmitError {
    /// Too many submissions wait already, or the API is about to end.
    Busy,
    /// The group could not be made durable.
    Store(Arc<StoreError>),
}

struct Ticket {
    jobs: Vec<JobRow>,
    handed_in: Instant,
    turn: Arc<Turn>,
    reply: oneshot::Sender<Result<Vec<Admission>, SubmitError>>,
    waiting: Waiting,
}

/// Whoever takes it first decides: the committer stores the jobs, or the request gives up.
#[derive(Default)]
struct Turn(AtomicBool);

impl Turn {
    /// True for the first.
    fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

/// Jobs that wait for their turn or are being stored.
struct Waiting {
    jobs: usize,
    all: Arc<AtomicUsize>,
}

impl Waiting {
    /// None when there are too many already. A request that comes alone is always taken.
    fn join(all: &Arc<AtomicUsize>, jobs: usize) -> Option<Self> {
        let before = all.fetch_add(jobs, Ordering::AcqRel);
        let joined = Self {
            jobs,
            all: Arc::clone(all),
        };
        (before == 0 || before + jobs <= QUEUED_JOBS).then_some(joined)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.all.fetch_sub(self.jobs, Ordering::AcqRel);
    }
}

/// Where requests hand their jobs in.
pub(crate) struct Submitter {
    queue: mpsc::Sender<Ticket>,
    arriving: Arc<AtomicUsize>,
    waiting: Arc<AtomicUsize>,
    slow: Arc<AtomicBool>,
}

/// The task that stores them.
pub(crate) struct Committing {
    store: Store,
    queue: mpsc::Receiver<Ticket>,
    arriving: Arc<AtomicUsize>,
    /// The last whose turn it was had waited for long.
    slow: Arc<AtomicBool>,
}

/// Counts a request that is about to hand a job in, until it has or gives up.
pub(crate) struct Arrival(Arc<AtomicUsize>);

impl Drop for Arrival {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Submitter {
    pub(crate) fn new(store: Store) -> (Self, Committing) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let arriving = Arc::new(AtomicUsize::new(0));
        let slow = Arc::new(AtomicBool::new(false));
        let submitter = Self {
            queue: sender,
            arriving: Arc::clone(&arriving),
            waiting: Arc::default(),
            slow: Arc::clone(&slow),
        };
        let committing = Committing {
            store,
            queue: receiver,
            arriving,
            slow,
        };
        (submitter, committing)
    }

    /// Announces a submission, so that a group may wait a moment for it.
    pub(crate) fn announce(&self) -> Arrival {
        self.arriving.fetch_add(1, Ordering::Relaxed);
        Arrival(Arc::clone(&self.arriving))
    }

    /// False when a submission would be refused now: known before anything is done for it.
    pub(crate) fn has_room(&self) -> bool {
        let waiting = self.waiting.load(Ordering::Acquire);
        waiting == 0 || (waiting < QUEUED_JOBS && !self.slow.load(Ordering::Relaxed))
    }

    /// Hands jobs in and waits until they are durable. Dropping the future does not take them back.
    ///
    /// # Errors
    /// [`SubmitError`]; after [`SubmitError::Store`] some of the jobs may be stored.
    pub(crate) async fn submit(
        &self,
        jobs: Vec<JobRow>,
        arrival: Arrival,
    ) -> Result<Vec<Admission>, SubmitError> {
        let (reply, mut answer) = oneshot::channel();
        let turn = Arc::<Turn>::default();
        let handed_in = Instant::now();
        {
            let waiting = Waiting::join(&self.waiting, jobs.len()).ok_or(SubmitError::Busy)?;
            let is_first = waiting.all.load(Ordering::Acquire) == jobs.len();
            if self.slow.load(Ordering::Relaxed) && !is_first {
                return Err(SubmitError::Busy);
            }
            let ticket = Ticket {
                jobs,
                handed_in,
                turn: Arc::clone(&turn),
                reply,
                waiting,
            };
            self.queue.try_send(ticket).map_err(|_| SubmitError::Busy)?;
        }
        drop(arrival);
        let answered = match tokio::time::timeout_at(handed_in + LONGEST_WAIT, &mut answer).await {
            Ok(answered) => answered,
            Err(_) if turn.take() => return Err(SubmitError::Busy),
            // Being stored: from here on only the database knows.
            Err(_) => answer.await,
        };
        answered.unwrap_or(Err(SubmitError::Busy))
    }
}

impl Committing {
    /// Stores groups until `stop`, then what is still in the queue.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let at_once = match self.store.dialect() {
            // One writer at a time: more would only queue.
            Dialect::Sqlite => 1,
            Dialect::MySql => SERVER_COMMITS,
        };
        let mut commits = JoinSet::new();
        while let Some(first) = self.next(&stop).await {
            let group = self.gather(first).await;
            commits.spawn(commit(self.store.clone(), group));
            while commits.len() >= at_once {
                finished(commits.join_next().await);
            }
        }
        while !commits.is_empty() {
            finished(commits.join_next().await);
        }
    }

    async fn next(&mut self, stop: &CancellationToken) -> Option<Ticket> {
        if self.queue.is_empty() {
            self.slow.store(false, Ordering::Relaxed);
        }
        tokio::select! {
            biased;
            ticket = self.queue.recv() => ticket,
            () = stop.cancelled() => {
                self.queue.close();
                self.queue.recv().await
            }
        }
    }

    /// Takes what is there, and waits a little while more is known to come.
    async fn gather(&mut self, first: Ticket) -> Vec<Ticket> {
        let is_slow = first.handed_in.elapsed() > LONG_WAIT;
        self.slow.store(is_slow, Ordering::Relaxed);
        let mut jobs = first.jobs.len();
        let mut group = vec![first];
        let deadline = Instant::now() + LINGER;
        while jobs < GROUP {
            let next = match self.queue.try_recv() {
                Ok(ticket) => ticket,
                Err(_) if self.arriving.load(Ordering::Relaxed) == 0 => break,
                Err(_) => match tokio::time::timeout_at(deadline, self.queue.recv()).await {
                    Ok(Some(ticket)) => ticket,
                    Ok(None) | Err(_) => break,
                },
            };
            jobs += next.jobs.len();
            group.push(next);
        }
        group
    }
}

/// A commit that panicked has dropped its replies, and its clients were told to try again.
fn finished(commit: Option<Result<(), JoinError>>) {
    if let Some(Err(panic)) = commit {
        error!(%panic, "storing a group of submissions panicked");
    }
}

async fn commit(store: Store, group: Vec<Ticket>) {
    let started = Instant::now();
    let mut jobs = Vec::new();
    let mut replies = Vec::with_capacity(group.len());
    for ticket in group {
        if !ticket.turn.take() {
            // Its request has given up.
            continue;
        }
        replies.push((ticket.jobs.len(), ticket.reply, ticket.waiting));
        jobs.extend(ticket.jobs);
    }
    if jobs.is_empty() {
        return;
    }
    let outcome = admit(&store, &jobs).await.map_err(Arc::new);
    histogram!("isocost_api_commit_seconds").record(started.elapsed().as_secs_f64());
    counter!("isocost_api_commits_total").increment(1);
    counter!("isocost_api_committed_submissions_total").increment(jobs.len() as u64);
    match outcome {
        Ok(admissions) => {
            let mut admissions = admissions.into_iter();
            for (count, reply, _waiting) in replies {
                // A dropped receiver is a client that went away; its job is stored all the same.
                let _ = reply.send(Ok(admissions.by_ref().take(count).collect()));
            }
        }
        Err(error) => {
            for (_, reply, _waiting) in replies {
                let _ = reply.send(Err(SubmitError::Store(Arc::clone(&error))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_jobs_that_wait_are_bounded_and_a_request_that_comes_alone_is_taken() {
        let all = Arc::default();
        let alone = Waiting::join(&all, QUEUED_JOBS + 1);
        assert!(alone.is_some());
        assert!(Waiting::join(&all, 1).is_none());
        drop(alone);
        let most = Waiting::join(&all, QUEUED_JOBS);
        assert!(most.is_some());
        assert!(Waiting::join(&all, 1).is_none());
        assert_eq!(
            all.load(Ordering::Acquire),
            QUEUED_JOBS,
            "who is refused does not wait"
        );
    }
}
