//! Which of the required cases have a test. A test for case CR05 is a function whose name begins with `cr05_`.

use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const ALL: &str = include_str!("data/case-ids.txt");
const WITHOUT_TEST: &str = include_str!("data/cases-without-test.txt");

#[test]
fn the_list_of_cases_without_a_test_is_true() -> Result<()> {
    let mut names = Vec::new();
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("a workspace")?;
    collect_function_names(workspace, &mut names)?;
    let has_test = |id: &str| {
        let prefix = format!("{}_", id.to_lowercase());
        names.iter().any(|name| name.starts_with(&prefix))
    };
    let without: BTreeSet<&str> = ALL.lines().filter(|id| !has_test(id)).collect();
    let listed: BTreeSet<&str> = WITHOUT_TEST.lines().collect();
    println!(
        "{} of {} cases have a test",
        ALL.lines().count() - without.len(),
        ALL.lines().count()
    );
    println!(
        "without: {}",
        without.iter().copied().collect::<Vec<_>>().join(" ")
    );
    let lost: Vec<_> = without.difference(&listed).collect();
    assert!(
        lost.is_empty(),
        "these cases had a test and have none now: {lost:?}"
    );
    let won: Vec<_> = listed.difference(&without).collect();
    assert!(
        won.is_empty(),
        "now with a test: take them off data/cases-without-test.txt: {won:?}"
    );
    Ok(())
}

/// Names of the functions in all Rust files under a folder, build output left out.
fn collect_function_names(folder: &Path, names: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type()?.is_dir() {
            let is_source = !matches!(name.to_str(), Some("target" | "scratch" | ".git"));
            if is_source {
                collect_function_names(&path, names)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            let functions = text
                .split("fn ")
                .skip(1)
                .filter_map(|rest| rest.split(['(', '<']).next());
            names.extend(functions.map(str::to_owned));
        }
    }
    Ok(())
}
