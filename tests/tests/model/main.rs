//! The handover protocol, explored exhaustively over the product's own decisions: see `docs/reliability.md`, "The model".

mod cast;
mod environment;
mod intake;
mod leader;
mod mutants;
mod properties;
mod search;
mod steps;
mod worker;
mod world;

use search::{Explored, Until, explore};
use steps::{Fault, Setup};

/// Faults a run may have, unless `ISOCOST_MODEL_FAULTS` says otherwise.
const FAULTS: u8 = 2;

fn everything(executions: usize, faults: u8) -> Explored {
    let setup = Setup {
        executions,
        faults,
        kinds: Fault::ALL.to_vec(),
        without: None,
    };
    let explored = explore(&setup, Until::Exhausted, most_worlds());
    println!(
        "model: {executions} executions, up to {faults} faults of {} kinds: {} worlds, {} transitions, depth {}, {} goals, \
         {} overlaps with a frozen process, {:.1} s",
        setup.kinds.len(),
        explored.worlds,
        explored.transitions,
        explored.depth,
        explored.goals,
        explored.allowed_overlaps,
        explored.time.as_secs_f32()
    );
    for (broken, example) in &explored.broken {
        println!("BROKEN {broken}:\n{}", example.print());
    }
    assert!(explored.broken.is_empty(), "broken: {:?}", explored.broken.keys());
    assert!(explored.is_complete, "too many worlds");
    explored
}

fn number(variable: &str) -> Option<usize> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is not a number: {text}")),
    )
}

fn most_worlds() -> usize {
    number("ISOCOST_MODEL_WORLDS").unwrap_or(80_000_000)
}

#[test]
fn no_run_breaks_a_promise() {
    let faults = number("ISOCOST_MODEL_FAULTS").map_or(FAULTS, |faults| u8::try_from(faults).expect("few"));
    let executions = number("ISOCOST_MODEL_EXECUTIONS").unwrap_or(1);
    let explored = everything(executions, faults);
    assert!(explored.goals > 0);
    if faults > 1 {
        for fault in Fault::ALL {
            assert!(
                explored.taken.contains(&format!("{fault:?}")),
                "{fault:?} never happened"
            );
        }
        assert!(explored.allowed_overlaps > 0, "a frozen worker was never late");
    }
}

#[test]
fn without_faults_two_executions_start_once_each() {
    everything(2, 0);
}
