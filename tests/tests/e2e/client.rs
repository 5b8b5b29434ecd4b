//! `isocost job …`: what it prints, and how it waits.

use anyhow::{Context, Result, ensure};
use isocost_tests::jobs::{LONG, cron, once, wait_for_execution, with};
use isocost_tests::site::{Process, Site};
use serde_json::json;
use std::process::{Output, Stdio};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

async fn run(process: &Process, arguments: &[&str]) -> Result<Output> {
    let output = timeout(LONG, process.client(arguments).output()).await;
    Ok(output.with_context(|| format!("isocost job {} does not end", arguments.join(" ")))??)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn of_a_job_that_repeats_the_next_execution_is_waited_for() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let id = process.api().submit(&cron("noop", "* * * * * ?")).await?;
    let ended = run(&process, &["wait", &id]).await?;
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
    ensure!(
        text(&ended.stdout).contains("SUCCEEDED"),
        "{}",
        text(&ended.stdout)
    );

    let fails = with(
        cron("fail", "* * * * * ?"),
        json!({ "params": { "message": "no luck" } }),
    );
    let id = process.api().submit(&fails).await?;
    let ended = run(&process, &["wait", &id]).await?;
    assert_eq!(ended.status.code(), Some(1), "{}", text(&ended.stderr));
    ensure!(text(&ended.stderr).contains("no luck"), "{}", text(&ended.stderr));
    process.stop().await
}

#[tokio::test]
async fn a_run_by_hand_is_waited_for_by_its_id() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let manual = with(once("noop"), json!({ "trigger": { "type": "manual" } }));
    let id = process.api().submit(&manual).await?;
    let triggered = run(&process, &["trigger", &id, "--json"]).await?;
    let triggered: serde_json::Value = serde_json::from_slice(&triggered.stdout)?;
    let execution = triggered["executionId"].as_str().context("an id")?;
    wait_for_execution(process.api(), &id, "SUCCEEDED").await?;
    let ended = run(&process, &["wait", &id, "--execution", execution]).await?;
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
    process.stop().await
}

#[tokio::test]
async fn an_interrupted_wait_says_that_the_job_goes_on() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let id = process.api().submit(&cron("noop", "0 0 0 1 1 ?")).await?;
    let mut waiting = process
        .client(&["wait", &id])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(waiting.stderr.take().context("standard error")?).lines();
    let first = timeout(LONG, lines.next_line()).await??.context("a line")?;
    ensure!(first.contains("waiting for its next execution"), "{first}");
    let number = waiting.id().context("it has ended")?.to_string();
    let sent = Command::new("kill").args(["-INT", &number]).status().await?;
    ensure!(sent.success(), "kill -INT: {sent}");
    let last = timeout(LONG, lines.next_line()).await??.context("a line")?;
    ensure!(
        last.contains("goes on") && last.contains(&format!("isocost job get {id}")),
        "{last}"
    );
    assert_eq!(timeout(LONG, waiting.wait()).await??.code(), Some(130));
    process.stop().await
}

#[tokio::test]
async fn what_was_done_is_told_in_words_and_warnings_only_if_there_are_any() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let flags = [
        "submit",
        "--name",
        "n",
        "--handler",
        "noop",
        "--delay-ms",
        "3600000",
    ];
    let submitted = text(&run(&process, &flags).await?.stdout);
    ensure!(!submitted.contains("warning"), "{submitted}");
    let id = submitted
        .lines()
        .find_map(|line| line.strip_prefix("jobId"))
        .with_context(|| submitted.clone())?
        .trim()
        .to_owned();
    for (action, word) in [
        ("pause", "paused"),
        ("resume", "no longer paused"),
        ("cancel", "cancelled"),
    ] {
        let told = text(&run(&process, &[action, &id]).await?.stdout);
        ensure!(
            told.lines().count() == 1 && told.contains(&format!("is {word}")),
            "{told}"
        );
    }
    let flags = [
        "submit",
        "--name",
        "n",
        "--handler",
        "noop",
        "--at",
        "2020-01-01T00:00:00Z",
    ];
    let submitted = text(&run(&process, &flags).await?.stdout);
    ensure!(
        submitted.contains("warning") && submitted.contains("in the past"),
        "{submitted}"
    );
    process.stop().await
}

#[tokio::test]
async fn names_cannot_turn_the_terminal_round() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let name = "invoice\u{202e}fdp.exe";
    let id = process
        .api()
        .submit(&with(once("noop"), json!({ "jobName": name })))
        .await?;
    for arguments in [&["list"][..], &["get", &id]] {
        let shown = text(&run(&process, arguments).await?.stdout);
        ensure!(shown.contains("invoice\\u{202e}fdp.exe"), "{shown}");
        ensure!(!shown.contains('\u{202e}'), "{shown}");
    }
    let for_programs = text(&run(&process, &["get", &id, "--json"]).await?.stdout);
    ensure!(for_programs.contains(name), "{for_programs}");
    process.stop().await
}
