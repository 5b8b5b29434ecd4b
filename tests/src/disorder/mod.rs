//! A cluster of real servers and processes under a mixed load, while everything breaks in a seeded sequence; and then the
//! question whether it kept its invariants, which the [`checker`](crate::checker) answers from what was written down.

mod faults;
mod hooks;
mod load;
mod member;
mod quiet;
mod report;
mod town;
mod watch;

pub use faults::Kind;
pub use quiet::run_quietly;

use crate::{
    bounds,
    checker::{self, Record, Terms, Verdict},
    site::beside_this_test,
};
use anyhow::{Context, Result, ensure};
use std::{collections::BTreeMap, env, path::PathBuf, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use town::Town;

/// Leases about a quarter as long as by default: most of a minute would otherwise be spent on waiting for each to run out.
const HEARTBEAT_MS: i64 = 700;
const LEASE_MS: i64 = 2_800;
const EXIT_MS: i64 = 4_000;
const DEAD_MS: i64 = 5_000;
const LOCK_MS: i64 = 3_000;
const MISFIRE_AFTER_MS: i64 = 5_000;
/// So long after the bound the tables are read in any case.
const PATIENCE: Duration = Duration::from_secs(30);
/// Two readings of one clock by different ways: half of the longest round trip that counts as sharp, and a scheduler's
/// slice or two.
const CLOCK_MS: i64 = 150;
/// A thread that is due to run on a busy machine.
const SLACK_MS: i64 = 1_000;

/// How a run is to be.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Decides about the sequence of faults and the load; not about how they meet.
    pub seed: u64,
    /// How long things break; longer, when not every kind of fault has come about twice by then.
    pub during: Duration,
    /// One-shot jobs a second.
    pub jobs_per_second: u32,
    /// Each recurring job of the load stands there so many times.
    pub recurring: u32,
    /// Pauses between two faults of services, in milliseconds, shortest and longest.
    pub service_pauses_ms: (i64, i64),
    /// The same between two faults of processes and their network.
    pub process_pauses_ms: (i64, i64),
    /// With fewer the run proves nothing.
    pub least_faults: usize,
    /// With fewer the run proves nothing.
    pub least_executions: usize,
}

impl Plan {
    /// For `./test`: three minutes with the unoptimised program on a slow machine.
    #[must_use]
    pub const fn short(seed: u64) -> Self {
        Self {
            seed,
            during: Duration::from_secs(120),
            jobs_per_second: 20,
            recurring: 1,
            service_pauses_ms: (3_000, 9_000),
            process_pauses_ms: (500, 5_500),
            least_faults: 26,
            least_executions: 1_500,
        }
    }

    /// For a report.
    #[must_use]
    pub const fn long(seed: u64, minutes: u32) -> Self {
        Self {
            seed,
            during: Duration::from_secs(60 * minutes as u64),
            jobs_per_second: 90,
            recurring: 2,
            service_pauses_ms: (4_000, 14_000),
            process_pauses_ms: (1_000, 7_000),
            least_faults: 2 * minutes as usize,
            least_executions: 5_000 * minutes as usize,
        }
    }
}

/// What a run left.
pub struct Outcome {
    plan: Plan,
    record: Record,
    verdict: Verdict,
    kept_in: Option<PathBuf>,
}

/// Breaks everything for a while.
///
/// # Errors
/// When the cluster cannot be run, or does not come to rest at all.
pub async fn run(plan: Plan) -> Result<Outcome> {
    let town = Arc::new(Town::build().await?);
    let stop = CancellationToken::new();
    let keeper = tokio::spawn(Arc::clone(&town).keep_running(stop.clone()));
    let watch = watch::Watch::start(town.database_url(), stop.clone());
    let hooks = hooks::Hooks::start(plan.seed).await?;

    let until = Instant::now() + plan.during;
    let enough = CancellationToken::new();
    let loading = tokio::spawn(load::run(
        town.apis()?,
        plan,
        hooks.url().to_owned(),
        enough.clone(),
    ));
    let faults = faults::run(&town, plan, until).await?;
    town.heal().await?;
    let healed_at = now_ms();
    enough.cancel();
    let load = loading.await.context("the load panicked")??;
    come_to_rest(&town.database_url()).await?;
    stop.cancel();
    keeper.await.context("the keeper panicked")??;

    let record = Record {
        terms: terms(healed_at)?,
        submissions: load.submissions,
        cancels: load.cancels,
        runs: town.ledger().all()?,
        calls: hooks.calls(),
        faults,
        lives: town.lives(),
        terms_of_office: watch.ended().await?,
        tables: checker::tables::Tables::read(&town.database_url()).await?,
    };
    let verdict = checker::check(&record)?;
    let mut outcome = Outcome {
        plan,
        record,
        verdict,
        kept_in: None,
    };
    outcome.keep_if_wanted(&town)?;
    Ok(outcome)
}

/// How a run is judged of which the tables are read now.
fn terms(healed_at: i64) -> Result<Terms> {
    Ok(Terms {
        healed_at,
        bound_ms: i64::try_from(bounds::time("storm")?.as_millis())?,
        looked_at: now_ms(),
        heartbeat_ms: HEARTBEAT_MS,
        lease_ms: LEASE_MS,
        clock_ms: CLOCK_MS,
        slack_ms: SLACK_MS,
    })
}

/// Waits until nothing is open any more; when that does not come about, the checker says what is.
async fn come_to_rest(database: &str) -> Result<()> {
    let patience = bounds::time("storm")? + PATIENCE;
    let deadline = Instant::now() + patience;
    loop {
        let open = watch::open_work(database).await;
        match open {
            Ok(0) => return Ok(()),
            Ok(open) if Instant::now() > deadline => {
                eprintln!("{open} rows are still open after {patience:?}");
                return Ok(());
            }
            Err(error) if Instant::now() > deadline => return Err(error.context("after all had healed")),
            _ => sleep(Duration::from_millis(250)).await,
        }
    }
}

impl Outcome {
    /// The report, for people.
    #[must_use]
    pub fn report(&self) -> String {
        report::text(self)
    }

    /// Whether every invariant held, and enough happened for that to mean something.
    ///
    /// # Errors
    /// What did not hold.
    pub fn judge(&self) -> Result<()> {
        let kept = self.kept_in.as_ref().map_or_else(String::new, |folder| {
            format!("; the record is in {}", folder.display())
        });
        ensure!(
            self.verdict.breaches.is_empty(),
            "seed {}: {} breaches{kept}\n{}",
            self.plan.seed,
            self.verdict.breaches.len(),
            self.verdict.summary()
        );
        let counts = self.faults_by_kind();
        let rare = Kind::ALL
            .iter()
            .find(|kind| counts.get(kind.name()).copied().unwrap_or(0) < 2);
        ensure!(rare.is_none(), "too few faults of the kind {rare:?}: {counts:?}");
        let (faults, executions) = (self.record.faults.len(), self.verdict.figures.executions);
        ensure!(
            faults >= self.plan.least_faults && executions >= self.plan.least_executions,
            "{faults} faults and {executions} executions prove too little"
        );
        Ok(())
    }

    fn faults_by_kind(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for fault in &self.record.faults {
            *counts.entry(fault.kind.as_str()).or_default() += 1;
        }
        counts
    }

    /// Keeps the record of a run that failed, or where `ISOCOST_STORM_RECORD` names a folder.
    fn keep_if_wanted(&mut self, town: &Town) -> Result<()> {
        let wanted = env::var_os("ISOCOST_STORM_RECORD").map(PathBuf::from);
        if wanted.is_none() && self.verdict.breaches.is_empty() {
            return Ok(());
        }
        // Not among temporary files: `./test` takes its own away when it ends.
        let by_seed = || beside_this_test("storm-records").join(self.plan.seed.to_string());
        let folder = wanted.unwrap_or_else(by_seed);
        self.record.save(&folder)?;
        town.copy_logs(&folder)?;
        self.kept_in = Some(folder);
        Ok(())
    }
}

/// Milliseconds since the Unix epoch.
fn now_ms() -> i64 {
    chrono::Utc::now().timestamp_millis()
}
