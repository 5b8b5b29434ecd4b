//! The report of a run.

use super::{Kind, Outcome};
use crate::{
    checker::{Cause, Duplicate},
    figures::percentile,
};
use std::fmt::Write;

/// For people: what was done, what came of it.
pub(super) fn text(outcome: &Outcome) -> String {
    let figures = &outcome.verdict.figures;
    let counts = outcome.faults_by_kind();
    let mut text = String::new();
    let mut line = |words: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{words}");
    };
    let faults = &outcome.record.faults;
    let lasted = faults.iter().map(|fault| fault.to).max().unwrap_or(0)
        - faults.iter().map(|fault| fault.from).min().unwrap_or(0);
    line(format!(
        "seed {}: {} faults in {} s",
        outcome.plan.seed,
        faults.len(),
        lasted / 1_000
    ));
    for kind in Kind::ALL {
        let times = figures.recovery.get(kind.name()).map_or(&[][..], Vec::as_slice);
        let given_on = figures
            .given_on
            .get(kind.name())
            .map_or_else(String::new, |times| {
                format!(
                    "; what it held was given to others after {} ms, {} ms",
                    percentile(times, 0.5),
                    percentile(times, 1.0)
                )
            });
        line(format!(
            "  {:>3} × {:<39} what became due meanwhile had begun {} ms (median), {} ms (longest) after its end{given_on}",
            counts.get(kind.name()).copied().unwrap_or(0),
            kind.name(),
            percentile(times, 0.5),
            percentile(times, 1.0)
        ));
    }
    line(format!(
        "{} jobs, {} executions {:?}, {} runs",
        outcome.record.tables.jobs.len(),
        figures.executions,
        figures.by_status,
        figures.runs
    ));
    line(format!(
        "{} leaders, {} incarnations of workers, {} processes",
        figures.leaders,
        figures.incarnations,
        outcome.record.lives.len()
    ));
    line(format!(
        "{} callbacks arrived in {} calls",
        figures.deliveries, figures.calls
    ));
    line(format!(
        "runs beyond the first: {}",
        duplicates(&outcome.verdict.duplicates)
    ));
    line(format!(
        "from the due time to the first run: median {} ms, p99 {} ms, longest {} ms",
        percentile(&figures.lateness, 0.5),
        percentile(&figures.lateness, 0.99),
        percentile(&figures.lateness, 1.0)
    ));
    line(format!(
        "after the last fault everything due had ended within {} ms",
        figures.settled_after
    ));
    line(match outcome.verdict.breaches.len() {
        0 => "I1 to I10 held: nothing lost, nothing applied twice".to_owned(),
        count => format!("{count} breaches\n{}", outcome.verdict.summary()),
    });
    text
}

fn duplicates(duplicates: &[Duplicate]) -> String {
    let count = |cause: Cause| {
        duplicates
            .iter()
            .filter(|duplicate| duplicate.cause == cause)
            .count()
    };
    format!(
        "{}: {} where a process died, {} where one was frozen past its lease, {} where one was cut off past it, {} without a \
         reason; in {} of them the first had ended and its report was lost with its worker",
        duplicates.len(),
        count(Cause::Died),
        count(Cause::Frozen),
        count(Cause::CutOff),
        count(Cause::Nothing),
        duplicates.iter().filter(|duplicate| duplicate.was_over).count()
    )
}
