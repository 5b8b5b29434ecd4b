//! Workers that are cut off and go on living: from Redis, from RabbitMQ, from both; by proxies that lose every byte, and,
//! as root, by network namespaces whose cables are pulled. What is merely cut off never runs beside anybody.

use super::frozen::{LEASE, applied_once, life_beside_a_later_run, now_ms, with_leases_of_seconds};
use super::{all_succeed, ledger};
use anyhow::{Context, Result, ensure};
use isocost_tests::api::{Api, text};
use isocost_tests::bounds;
use isocost_tests::cluster::{Cluster, Cut, Process, Role, Uplink};
use isocost_tests::jobs::{wait_for_execution, with};
use serde_json::json;
use std::time::Duration;
use tokio::time::sleep;

/// As in the configuration of the leases.
const CANCEL: Duration = Duration::from_millis(3_000);
const CUT_FOR: Duration = Duration::from_millis(2 * 4_100);
/// It lasts longer than the cut.
const RUN_MS: u64 = 14_000;
/// The worst: a connection that nobody told of its end looks alive for three leases.
const ALL_DONE: Duration = Duration::from_secs(90);

/// A worker behind an uplink of its own, with a run in its hands.
struct CutOff {
    name: String,
    cut: Cut,
    uplink: Uplink,
    worker: Process,
    job: String,
    cut_ms: i64,
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_merely_cut_off_never_runs_beside_anybody() -> Result<()> {
    let cluster = with_leases_of_seconds(Cluster::new().await?);
    let _dispatcher = cluster.start(Role::Dispatcher, "dispatcher").await?;
    let api_process = cluster.start(Role::Api, "api").await?;
    let api = cluster.api(&api_process)?;
    let mut cases = Vec::new();
    for cut in [Cut::Redis, Cut::RabbitMq, Cut::Both] {
        let proxies = Uplink::by_proxies(cluster.servers()).await?;
        cases.push(CutOff::start(&cluster, &api, "proxies", cut, proxies).await?);
        match Uplink::by_namespace(cluster.servers()).await? {
            Some(cables) => cases.push(CutOff::start(&cluster, &api, "cables", cut, cables).await?),
            None => println!("no network namespaces here: {cut:?} is cut by proxies alone"),
        }
    }
    // Whatever is taken back may run here.
    let labels: Vec<String> = cases
        .iter()
        .map(|case| format!("{} = \"yes\"", case.name))
        .collect();
    let labels = format!("{{ {} }}", labels.join(", "));
    let more = [("ISOCOST__WORKER__LABELS", labels.as_str())];
    let _spare = cluster.start_with(Role::LedgerWorker, "spare", &more).await?;
    for case in &mut cases {
        case.cut_ms = now_ms();
        case.uplink.cut(case.cut).await?;
    }
    sleep(CUT_FOR).await;
    for case in &cases {
        case.uplink.heal(case.cut).await?;
    }
    for case in &mut cases {
        let outcome = case.ends_well(&cluster, &api).await;
        outcome.with_context(|| format!("{} cut from {:?}", case.name, case.cut))?;
    }
    Ok(())
}

impl CutOff {
    async fn start(cluster: &Cluster, api: &Api, by: &str, cut: Cut, uplink: Uplink) -> Result<Self> {
        let name = format!("{by}-{cut:?}").to_lowercase();
        let labels = format!("{{ {name} = \"yes\" }}");
        let worker = cluster
            .start_behind(&uplink, &name, &[("ISOCOST__WORKER__LABELS", &labels)])
            .await?;
        let params = json!({ "ms": RUN_MS, "thenMs": 1_000, "tickMs": 20 });
        let job = with(
            ledger(0),
            json!({ "params": params, "selector": { name.as_str(): "yes" } }),
        );
        let job = api.submit(&job).await?;
        wait_for_execution(api, &job, "RUNNING").await?;
        Ok(Self {
            name,
            cut,
            uplink,
            worker,
            job,
            cut_ms: 0,
        })
    }

    async fn ends_well(&mut self, cluster: &Cluster, api: &Api) -> Result<()> {
        all_succeed(api, std::slice::from_ref(&self.job), ALL_DONE).await?;
        let execution = applied_once(api, &self.job).await?;
        let beside = life_beside_a_later_run(cluster, &execution)?;
        ensure!(
            u64::try_from(beside.len())? <= bounds::count("cut-off-overlap")?,
            "it ran beside a later run: {beside:?}"
        );
        let attempts = execution["attempt"].as_u64().context("an attempt")?;
        if self.cut == Cut::Both {
            self.let_go_in_time(cluster, &text(&execution, "executionId")?)?;
        } else {
            ensure!(
                attempts == bounds::count("cut-off-from-one")?,
                "{attempts} attempts"
            );
        }
        println!("{}: {attempts} attempts", self.name);
        // It lives: as it was, or as a new incarnation.
        self.worker.wait_until_ready().await
    }

    /// The first run stopped while its lease still had some life in it, and the second began in time.
    fn let_go_in_time(&self, cluster: &Cluster, execution: &str) -> Result<()> {
        let ticks = cluster.ledger().ticks()?.remove(execution).context("no tick")?;
        let last = ticks
            .iter()
            .filter(|tick| tick.attempt == 1)
            .map(|tick| tick.at_ms)
            .max();
        let stopped = last.context("it never ran")? - self.cut_ms;
        let runs = cluster.ledger().details()?.remove(execution).context("no run")?;
        let again = runs.get(1).context("it did not run again")?.at_ms - self.cut_ms;
        println!(
            "{}: stopped {stopped} ms after the cut, ran again after {again} ms",
            self.name
        );
        let within =
            |took: i64, bound: Duration| u128::try_from(took).is_ok_and(|took| took <= bound.as_millis());
        let stop_bound = CANCEL + bounds::time_on_a_busy_machine("cut-off-stops")?;
        ensure!(within(stopped, stop_bound), "it went on for {stopped} ms");
        let again_bound = 3 * LEASE + bounds::time_on_a_busy_machine("cut-off-runs-again")?;
        ensure!(within(again, again_bound), "it ran again after {again} ms only");
        Ok(())
    }
}
