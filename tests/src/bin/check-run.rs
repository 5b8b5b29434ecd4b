//! Judges a run by its record: `check-run FOLDER`. A storm that failed leaves one and says where.

use anyhow::{Context, ensure};
use isocost_tests::checker::{Record, check};
use std::env;

fn main() -> anyhow::Result<()> {
    let folder = env::args_os().nth(1).context("usage: check-run FOLDER")?;
    let verdict = check(&Record::load(folder.as_ref())?)?;
    println!("{:#?}", verdict.figures.by_status);
    for duplicate in &verdict.duplicates {
        println!("{duplicate:?}");
    }
    ensure!(verdict.breaches.is_empty(), "{}", verdict.summary());
    println!("I1 to I10 hold");
    Ok(())
}
