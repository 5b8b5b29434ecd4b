//! The programs of `docs/amqp.md`, run as they are.

use crate::site::{Line, Site, rabbit_url};
use anyhow::{Context, Result, ensure};
use isocost_common::test_support::TestStore;
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Instant,
};
use tokio::process::Command;

/// Names the Python that has pika.
const PYTHON: &str = "ISOCOST_TEST_PYTHON";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_producer_submits_each_job_once() -> Result<()> {
    const COUNT: usize = 2_000;
    on_rabbit(async |site| {
        let count = COUNT.to_string();
        let started = Instant::now();
        let first = submit_py(site, &["--count", &count, "--prefix", "order"]).await?;
        println!("{COUNT} jobs by submit.py in {:?}", started.elapsed());
        let answers = answers(&first, 202)?;
        ensure!(
            answers.len() == COUNT,
            "{} of {COUNT} were answered",
            answers.len()
        );
        assert_eq!(site.job_count().await?, COUNT as i64);
        let again = submit_py(site, &["--count", "10", "--prefix", "order"]).await?;
        let replays = self::answers(&again, 200)?;
        ensure!(replays.len() == 10 && replays.is_subset(&answers), "{again}");
        assert_eq!(site.job_count().await?, COUNT as i64);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_producer_shows_what_is_refused() -> Result<()> {
    on_rabbit(async |site| {
        let refused = submit_py(site, &["--handler", "no such/name"])
            .await
            .expect_err("refused");
        let text = format!("{refused:#}");
        ensure!(
            text.contains("handler.bad-name") && text.contains("1 refused"),
            "{text}"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rust_producer_submits_each_job_once() -> Result<()> {
    const COUNT: usize = 500;
    on_rabbit(async |site| {
        let program = example("submit_amqp")?;
        let url = rabbit_url()?;
        let (count, namespace) = (COUNT.to_string(), namespace(site));
        let started = Instant::now();
        let text = run(Command::new(program).args([url.as_str(), &count, "rust", &namespace])).await?;
        println!("{COUNT} jobs by submit_amqp in {:?}", started.elapsed());
        let ids: BTreeSet<_> = text.lines().filter_map(|line| line.split_once(" 202 ")).collect();
        ensure!(ids.len() == COUNT, "{} of {COUNT}: {text}", ids.len());
        assert_eq!(site.job_count().await?, COUNT as i64);
        Ok(())
    })
    .await
}

async fn on_rabbit(test: impl AsyncFnOnce(&Site) -> Result<()>) -> Result<()> {
    TestStore::on_mysql(async |store| {
        let site = Site::start(store, Line::rabbit().await?).await?;
        test(&site).await?;
        site.stop().await
    })
    .await
}

fn namespace(site: &Site) -> String {
    let exchange = site.names.submissions_exchange();
    exchange.trim_end_matches(".submissions").to_owned()
}

async fn submit_py(site: &Site, arguments: &[&str]) -> Result<String> {
    let python = std::env::var(PYTHON).unwrap_or_else(|_| "python3".into());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/submit.py");
    let url = rabbit_url()?;
    let mut command = Command::new(python);
    command
        .arg(script)
        .args(["--url", url.as_str(), "--namespace", &namespace(site)])
        .args(arguments);
    run(&mut command).await
}

/// What a program prints; an error with everything it said when it fails.
async fn run(command: &mut Command) -> Result<String> {
    let output = command
        .kill_on_drop(true)
        .output()
        .await
        .context("starting an example")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{command:?} ended with {}: {text}{} (without pika: start with ./test, or set {PYTHON})",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(text)
}

/// The ids of the jobs in the answers, all of which must have this status.
fn answers(text: &str, status: u16) -> Result<BTreeSet<String>> {
    text.lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line)?;
            ensure!(line["status"] == json!(status), "{line}");
            let id = line["answer"]["jobId"].as_str();
            Ok(id.context("an answer without a job")?.to_owned())
        })
        .collect()
}

/// An example of this package, which `cargo test` builds beside the tests.
fn example(name: &str) -> Result<PathBuf> {
    let tests = std::env::current_exe()?;
    let built = tests
        .parent()
        .and_then(Path::parent)
        .context("the test is not in a target folder")?
        .join("examples")
        .join(name);
    ensure!(
        built.exists(),
        "{} is not built: cargo build -p isocost-api --examples",
        built.display()
    );
    Ok(built)
}
