//! Whether a process can do its job, as `/readyz` tells it: a list of named checks that its roles add to.

use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use serde::Serialize;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// A check that does not answer within this has failed.
const CHECK_LIMIT: Duration = Duration::from_secs(2);

/// What one check says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// All is well.
    Met,
    /// The job can be done, and somebody should know this.
    Noted(String),
    /// The job cannot be done, and why.
    Missing(String),
}

type Check = Arc<dyn Fn() -> BoxFuture<'static, Condition> + Send + Sync>;

/// The checks of one process. Clones share them.
#[derive(Clone, Default)]
pub struct Readiness {
    checks: Arc<Mutex<Vec<(&'static str, Check)>>>,
    stopping: Arc<AtomicBool>,
}

/// One check as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// What is needed.
    pub name: &'static str,
    /// Whether it is there.
    pub ready: bool,
    /// What is missing, or worth knowing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// All checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReadinessReport {
    /// True when nothing is missing and the process is not about to end.
    pub ready: bool,
    /// Each check, in the order in which they were added.
    pub checks: Vec<CheckReport>,
}

impl Readiness {
    /// Adds a check that is made whenever somebody asks. A later one of the same name takes its place.
    pub fn check<F>(&self, name: &'static str, check: impl Fn() -> F + Send + Sync + 'static)
    where
        F: Future<Output = Condition> + Send + 'static,
    {
        let check: Check = Arc::new(move || Box::pin(check()));
        let mut checks = self.checks.lock();
        match checks.iter_mut().find(|(known, _)| *known == name) {
            Some(known) => known.1 = check,
            None => checks.push((name, check)),
        }
    }

    /// Adds checks that are missing until somebody adds them: a process that has only begun to start is not ready.
    pub fn awaits(&self, names: &[&'static str]) {
        for name in names {
            self.check(name, || async { Condition::Missing("not started yet".into()) });
        }
    }

    /// Adds a check that says what was last said to the returned flag; until then `why` is missing.
    #[must_use]
    pub fn flag(&self, name: &'static str, why: &str) -> Flag {
        self.flagged(name, why, Condition::Missing)
    }

    /// As [`Readiness::flag`], for what the process can do its job without: that it is missing is only said.
    #[must_use]
    pub fn note(&self, name: &'static str, why: &str) -> Flag {
        self.flagged(name, why, Condition::Noted)
    }

    fn flagged(&self, name: &'static str, why: &str, without: fn(String) -> Condition) -> Flag {
        let said = Arc::new(Said {
            condition: Mutex::new(without(why.to_owned())),
            without,
        });
        let flag = Flag(Arc::clone(&said));
        self.check(name, move || {
            let condition = said.condition.lock().clone();
            async move { condition }
        });
        flag
    }

    /// The process is about to end: from now on it is not ready.
    pub fn stopping(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Makes every check, all at once, each within two seconds.
    pub async fn report(&self) -> ReadinessReport {
        let checks = self.checks.lock().clone();
        let made = checks.iter().map(|(name, check)| async {
            let condition = tokio::time::timeout(CHECK_LIMIT, check())
                .await
                .unwrap_or_else(|_| Condition::Missing(format!("no answer within {CHECK_LIMIT:?}")));
            CheckReport::new(name, condition)
        });
        let mut checks = join_all(made).await;
        if self.stopping.load(Ordering::Relaxed) {
            let ending = Condition::Missing("this process is about to end".into());
            checks.push(CheckReport::new("process", ending));
        }
        ReadinessReport {
            ready: checks.iter().all(|check| check.ready),
            checks,
        }
    }
}

impl CheckReport {
    fn new(name: &'static str, condition: Condition) -> Self {
        let (ready, message) = match condition {
            Condition::Met => (true, None),
            Condition::Noted(note) => (true, Some(note)),
            Condition::Missing(why) => (false, Some(why)),
        };
        Self { name, ready, message }
    }
}

/// What a role says about one thing that it needs.
#[derive(Debug, Clone)]
pub struct Flag(Arc<Said>);

#[derive(Debug)]
struct Said {
    condition: Mutex<Condition>,
    /// What it means when the thing is missing.
    without: fn(String) -> Condition,
}

impl Flag {
    /// It is there.
    pub fn met(&self) {
        *self.0.condition.lock() = Condition::Met;
    }

    /// It is not, and why.
    pub fn missing(&self, why: &str) {
        *self.0.condition.lock() = (self.0.without)(why.to_owned());
    }

    /// Whether it was there when the role last spoke.
    #[must_use]
    pub fn is_met(&self) -> bool {
        *self.0.condition.lock() == Condition::Met
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_is_ready_when_nothing_is_missing_and_says_what_is() {
        let readiness = Readiness::default();
        readiness.check("broker", || async {
            Condition::Noted("publishing is blocked".into())
        });
        let results = readiness.flag("results", "not consuming yet");
        let report = readiness.report().await;
        assert!(!report.ready);
        assert_eq!(report.checks[1].message.as_deref(), Some("not consuming yet"));

        results.met();
        let report = readiness.report().await;
        assert!(report.ready);
        assert_eq!(report.checks[0].message.as_deref(), Some("publishing is blocked"));

        results.missing("the consumer ended");
        assert!(!readiness.report().await.ready);
        results.met();
        readiness.stopping();
        assert!(!readiness.report().await.ready);
    }

    #[tokio::test]
    async fn what_is_awaited_is_missing_until_it_is_there() {
        let readiness = Readiness::default();
        readiness.awaits(&["results"]);
        assert!(!readiness.report().await.ready);
        readiness.flag("results", "not consuming yet").met();
        let report = readiness.report().await;
        assert!(report.ready && report.checks.len() == 1, "{report:?}");
    }

    #[tokio::test]
    async fn what_is_only_noted_is_said_and_leaves_the_process_ready() {
        let readiness = Readiness::default();
        let submissions = readiness.note("submissions", "not consumed yet");
        assert!(!submissions.is_met());
        submissions.missing("the consumer ended");
        let report = readiness.report().await;
        assert!(report.ready);
        assert_eq!(report.checks[0].message.as_deref(), Some("the consumer ended"));

        submissions.met();
        assert!(submissions.is_met());
        assert_eq!(readiness.report().await.checks[0].message, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_that_hangs_counts_as_missing() {
        let readiness = Readiness::default();
        readiness.check("database", std::future::pending);
        assert!(!readiness.report().await.ready);
    }
}
