//! The bounds that `docs/reliability.md` promises. Tests take their limits from there, so that the page and the program
//! cannot part.
//!
//! A row is `` | `id` fault | what the user sees | bound | test | ``: the bound is a number, with `ms`, `s` or `min` when
//! it is a time, and a word or two after it; the test is the name of the function that holds the program to it.

use anyhow::{Context, Result, bail, ensure};
use std::time::Duration;

const PAGE: &str = include_str!("../../docs/reliability.md");
/// The row that says how much a busy machine is given.
const ALLOWANCE: &str = "allowance";

/// A row of the page.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row<'a> {
    id: &'a str,
    bound: &'a str,
    /// The names of test functions, without their modules.
    tests: Vec<&'a str>,
}

/// A time that is promised, as it stands on the page.
///
/// # Errors
/// When there is no such row, or its bound is no time.
pub fn time(id: &str) -> Result<Duration> {
    let bound = row(id)?.bound;
    duration(bound).with_context(|| format!("the bound of `{id}` is no time: `{bound}`"))
}

/// A time that is promised, and what a busy machine is given on top: the limit for a measurement.
///
/// # Errors
/// As [`time`].
pub fn time_on_a_busy_machine(id: &str) -> Result<Duration> {
    Ok(time(id)? + time(ALLOWANCE)?)
}

/// A count that is promised, such as runs or percent.
///
/// # Errors
/// When there is no such row, or its bound is no whole number.
pub fn count(id: &str) -> Result<u64> {
    let bound = row(id)?.bound;
    let number = bound.split(' ').next().unwrap_or_default().replace(',', "");
    number
        .parse()
        .with_context(|| format!("the bound of `{id}` is no count: `{bound}`"))
}

fn row(id: &str) -> Result<Row<'static>> {
    let found = rows(PAGE)?.into_iter().find(|row| row.id == id);
    found.with_context(|| format!("docs/reliability.md has no row `{id}`"))
}

/// Every row of every table whose head says so.
fn rows(page: &str) -> Result<Vec<Row<'_>>> {
    let (mut rows, mut within) = (Vec::<Row<'_>>::new(), false);
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", fault, _, bound, test, ""] = cells[..] else {
            within = false;
            continue;
        };
        if (fault, bound, test) == ("fault", "bound", "test") {
            within = true;
        } else if within && !fault.starts_with("---") {
            let quoted = |text| code(text).with_context(|| format!("neither id nor test in `{line}`"));
            let id = quoted(fault)?[0];
            ensure!(rows.iter().all(|row| row.id != id), "two rows `{id}`");
            let tests = quoted(test)?
                .into_iter()
                .map(|name| name.rsplit("::").next().unwrap_or(name))
                .collect();
            rows.push(Row { id, bound, tests });
        }
    }
    Ok(rows)
}

/// What stands between backticks; none is none at all.
fn code(text: &str) -> Option<Vec<&str>> {
    let quoted: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
    (!quoted.is_empty()).then_some(quoted)
}

fn duration(text: &str) -> Result<Duration> {
    let mut words = text.split(' ');
    let (number, unit) = (words.next().unwrap_or_default(), words.next());
    let number: f64 = number.replace(',', "").parse()?;
    let seconds = match unit {
        Some("ms") => number / 1_000.0,
        Some("s") => number,
        Some("min") => number * 60.0,
        _ => bail!("ms, s or min?"),
    };
    Ok(Duration::try_from_secs_f64(seconds)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path};

    #[test]
    fn a_bound_is_a_number_with_its_unit() -> Result<()> {
        assert_eq!(duration("250 ms")?, Duration::from_millis(250));
        assert_eq!(duration("2.5 s after the heal")?, Duration::from_millis(2_500));
        assert_eq!(duration("3 min")?, Duration::from_secs(180));
        assert!(duration("3").is_err() && duration("soon").is_err() && duration("-1 s").is_err());
        Ok(())
    }

    #[test]
    fn a_row_names_its_bound_and_its_tests() -> Result<()> {
        let page = "| fault | what the user sees | bound | test |\n| --- | --- | --- | --- |\n\
                    | `a` it dies | nothing | 2 runs | `cluster::first`, `second` |\n\n| other | table |\n";
        let expected = Row {
            id: "a",
            bound: "2 runs",
            tests: vec!["first", "second"],
        };
        assert_eq!(rows(page)?, [expected]);
        let twice = format!("{page}{page}");
        assert!(rows(&twice).is_err(), "an id stands twice");
        let nameless = page.replace("`a` it", "it");
        assert!(rows(&nameless).is_err(), "a row without an id");
        Ok(())
    }

    /// A row without its test is a wish; a bound that no test reads is one as well.
    #[test]
    fn every_row_has_a_test_that_reads_its_bound() -> Result<()> {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut sources = String::new();
        for krate in ["api", "common", "dispatcher", "src", "tests", "worker"] {
            read_all(&workspace.join(krate), &mut sources)?;
        }
        let rows = rows(PAGE)?;
        ensure!(!rows.is_empty(), "the page has no rows");
        for row in rows {
            ensure!(
                duration(row.bound).is_ok() || count(row.id).is_ok(),
                "the bound of `{}` is no number: `{}`",
                row.id,
                row.bound
            );
            let reads = format!("(\"{}\")", row.id);
            ensure!(
                row.id == ALLOWANCE || sources.contains(&reads),
                "nobody reads the bound of `{}`",
                row.id
            );
            for test in row.tests {
                let has = sources.contains(&format!("fn {test}("));
                ensure!(has, "`{}` names a test that is not there: {test}", row.id);
            }
        }
        Ok(())
    }

    fn read_all(folder: &Path, sources: &mut String) -> Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                read_all(&path, sources)?;
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push_str(&fs::read_to_string(&path)?);
            }
        }
        Ok(())
    }
}
