//! Everything breaks for two minutes: seeded faults on every service and role under a mixed load, and then the checker.
//! `./test storm-run [SEED] [MINUTES]` is the same for longer and with the optimised program.

use anyhow::Result;
use isocost_tests::disorder::{self, Plan};

/// Faults and load that were fine so often that a failure is news. Seeds that ever failed: `data/storm-seeds.txt`.
const SEED: u64 = 1;

#[tokio::test(flavor = "multi_thread")]
async fn every_invariant_holds_while_everything_breaks() -> Result<()> {
    let seed = std::env::var("ISOCOST_TEST_SEED").map_or(Ok(SEED), |text| text.parse())?;
    println!("ISOCOST_TEST_SEED={seed}");
    let outcome = disorder::run(Plan::short(seed)).await?;
    println!("{}", outcome.report());
    outcome.judge()
}
