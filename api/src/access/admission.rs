use crate::problem::{Kind, Problem};
use isocost_common::config::ApiConfig;
use metrics::counter;
use std::{num::NonZeroUsize, sync::Arc, time::Duration};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// How much is in hand at once: requests, and the bytes of their bodies. What comes beyond is refused before anything is
/// done for it, so that under any load the process stays small and what it has accepted is answered soon. A queue in
/// front would only make everybody wait until nobody listens any more.
pub(crate) struct Admission {
    requests: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    large_work: Semaphore,
}

/// How long a large piece of work waits for its turn.
const LARGE_WORK_WAITS: Duration = Duration::from_secs(1);

/// A request in hand; dropped, it makes room for another.
#[must_use]
pub(crate) struct InHand(#[expect(dead_code, reason = "held until it is dropped")] OwnedSemaphorePermit);

/// The bytes of a body, for as long as its request needs them.
#[derive(Debug, Default)]
pub(crate) struct HeldBytes(Option<OwnedSemaphorePermit>);

impl Admission {
    pub(crate) fn new(config: &ApiConfig) -> Self {
        let bytes = config.max_held_bytes.min(Semaphore::MAX_PERMITS);
        Self {
            requests: Arc::new(Semaphore::new(config.max_requests)),
            bytes: Arc::new(Semaphore::new(bytes)),
            large_work: Semaphore::new(processors_less_one()),
        }
    }

    /// Waits for a turn at something that takes a processor for long, such as reading a thousand jobs. Without turns, all
    /// such requests of an overload would be worked on at once, and all be late; and everybody else with them.
    ///
    /// # Errors
    /// [`Problem`] 503 when it does not come soon.
    pub(crate) async fn turn(&self) -> Result<SemaphorePermit<'_>, Problem> {
        let turn = tokio::time::timeout(LARGE_WORK_WAITS, self.large_work.acquire()).await;
        turn.ok()
            .and_then(Result::ok)
            .ok_or_else(|| busy("large requests"))
    }

    /// Takes a request in hand.
    ///
    /// # Errors
    /// [`Problem`] 503 when too many are.
    pub(crate) fn enter(&self) -> Result<InHand, Problem> {
        let permit = Arc::clone(&self.requests).try_acquire_owned();
        permit.map(InHand).map_err(|_| busy("requests"))
    }

    /// Adds `count` bytes to those of a body.
    ///
    /// # Errors
    /// [`Problem`] 503 when the bodies in hand are too large together.
    pub(crate) fn hold(&self, held: &mut HeldBytes, count: usize) -> Result<(), Problem> {
        let count = u32::try_from(count).map_err(|_| busy("bytes"))?;
        let more = Arc::clone(&self.bytes)
            .try_acquire_many_owned(count)
            .map_err(|_| busy("bytes"))?;
        match &mut held.0 {
            Some(permit) => permit.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }
}

/// One is left for everybody else.
fn processors_less_one() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    processors.saturating_sub(1).max(1)
}

/// More than can be answered soon: more `of` what is scarce, as the metric names it.
pub(crate) fn busy(of: &'static str) -> Problem {
    counter!("isocost_api_refused_busy_total", "of" => of).increment(1);
    Problem::new(
        Kind::Unavailable,
        "api.busy",
        "more is asked for than can be done just now; send it again with the same key, and slower",
    )
    .retry_after(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(max_requests: usize, max_held_bytes: usize) -> Admission {
        Admission::new(&ApiConfig {
            max_requests,
            max_held_bytes,
            ..ApiConfig::default()
        })
    }

    #[test]
    fn a_request_that_is_done_makes_room_for_the_next() {
        let admission = of(2, 0);
        let first = admission.enter();
        let second = admission.enter();
        assert!(first.is_ok() && second.is_ok());
        assert!(
            admission
                .enter()
                .is_err_and(|problem| problem.code() == "api.busy")
        );
        drop(first);
        assert!(admission.enter().is_ok());
    }

    #[test]
    fn bodies_share_their_bytes() {
        let admission = of(1, 100);
        let (mut one, mut other) = (HeldBytes::default(), HeldBytes::default());
        assert!(admission.hold(&mut one, 40).is_ok());
        assert!(admission.hold(&mut one, 40).is_ok());
        assert!(admission.hold(&mut other, 21).is_err());
        assert!(admission.hold(&mut other, 20).is_ok());
        drop(one);
        assert!(admission.hold(&mut other, 80).is_ok());
    }
}
