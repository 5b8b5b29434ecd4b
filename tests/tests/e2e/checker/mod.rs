//! The checker of runs refuses a good record that was spoilt in one place, for the invariant of that place.

mod mutants;
mod spoiling;

use anyhow::{Context, Result, ensure};
use isocost_tests::checker::{Breach, Record, check};
use isocost_tests::disorder;
use mutants::MUTANTS;

#[tokio::test(flavor = "multi_thread")]
async fn a_good_record_is_accepted_and_every_mutant_of_it_refused() -> Result<()> {
    let good = disorder::run_quietly(7).await?;
    let breaches = check(&good)?.breaches;
    ensure!(breaches.is_empty(), "a run without faults: {breaches:#?}");
    kept_whole_by_a_folder(&good)?;
    let mut wrong = Vec::new();
    for mutant in &MUTANTS {
        let mut record = good.clone();
        (mutant.spoil)(&mut record).with_context(|| mutant.name.to_owned())?;
        let named = |breach: &Breach| Some(breach.invariant) == mutant.breaks;
        let breaches = check(&record)?.breaches;
        if breaches.iter().any(named) != mutant.breaks.is_some()
            || (mutant.breaks.is_none() && !breaches.is_empty())
        {
            let first: Vec<String> = breaches.iter().take(3).map(ToString::to_string).collect();
            wrong.push(format!(
                "{}: {:?}, and found {first:?}",
                mutant.name, mutant.breaks
            ));
        }
    }
    println!(
        "{} executions, {} runs, {} calls; {} mutants",
        good.tables.executions.len(),
        good.runs.len(),
        good.calls.len(),
        MUTANTS.len()
    );
    ensure!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

fn kept_whole_by_a_folder(record: &Record) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("isocost-record-{}", std::process::id()));
    record.save(&folder)?;
    let again = Record::load(&folder)?;
    std::fs::remove_dir_all(&folder)?;
    ensure!(again.terms == record.terms && again.runs.len() == record.runs.len());
    ensure!(
        check(&again)?.breaches.is_empty(),
        "it says something else when it is read again"
    );
    Ok(())
}
