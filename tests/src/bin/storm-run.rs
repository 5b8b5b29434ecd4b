//! Breaks a cluster in every way for some minutes and says whether it kept its promises:
//! `storm-run [SEED | regressions] [MINUTES]`.

use anyhow::{Context, Result};
use isocost_tests::disorder::{self, Plan};
use std::env;

const REGRESSIONS: &str = include_str!("../../tests/e2e/data/storm-seeds.txt");
const MINUTES: u32 = 10;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let minutes = match arguments.get(1) {
        Some(minutes) => minutes
            .parse()
            .with_context(|| format!("{minutes} are no minutes"))?,
        None => MINUTES,
    };
    match arguments.first().map(String::as_str) {
        Some("regressions") => {
            for (seed, minutes) in regressions()? {
                storm(seed, minutes).await?;
            }
            Ok(())
        }
        Some(seed) => {
            let seed = seed.parse().with_context(|| format!("{seed} is no seed"))?;
            storm(seed, minutes).await
        }
        None => storm(u64::from(rand::random::<u32>()), minutes).await,
    }
}

async fn storm(seed: u64, minutes: u32) -> Result<()> {
    println!("seed {seed}, {minutes} minutes");
    let outcome = disorder::run(Plan::long(seed, minutes)).await?;
    println!("{}", outcome.report());
    outcome.judge()
}

/// The seeds that ever failed, with their minutes.
fn regressions() -> Result<Vec<(u64, u32)>> {
    let lines = REGRESSIONS.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.split(' ');
            let seed = words.next().context("no seed")?.parse()?;
            let minutes = words.next().context("no minutes")?.parse()?;
            Ok((seed, minutes))
        })
        .collect()
}
