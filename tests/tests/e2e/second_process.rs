//! What the program says when it cannot start.

use anyhow::{Context, Result};
use isocost_tests::jobs::{once, wait_for_end};
use isocost_tests::site::Site;
use std::net::TcpListener;
use std::process::Output;
use std::time::Duration;
use tokio::process::Command;
use tokio::time::timeout;

/// Runs a program that must end by itself, with an error.
async fn refused(mut command: Command) -> Result<String> {
    let ended = timeout(Duration::from_secs(20), command.output()).await;
    let Output { status, stderr, .. } = ended.context("it goes on running")??;
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    Ok(said)
}

#[tokio::test]
async fn a_second_process_on_one_data_folder_refuses_and_the_first_goes_on() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let mut second = Command::new(site.command().as_std().get_program());
    second
        .args(["standalone", "--listen", "127.0.0.1:0", "--data"])
        .arg(site.data());
    let said = refused(second).await?;
    assert!(said.contains(&site.data().display().to_string()), "{said}");
    assert!(
        said.contains("another process") || said.contains("in use"),
        "{said}"
    );

    let job = process.api().submit(&once("noop")).await?;
    wait_for_end(process.api(), &job).await?;
    process.stop().await
}

#[tokio::test]
async fn a_taken_port_is_named_with_a_way_out() -> Result<()> {
    let site = Site::new()?;
    let _taken = TcpListener::bind(("127.0.0.1", site.port()))?;
    let said = refused(site.command()).await?;
    assert!(said.contains(&site.port().to_string()), "{said}");
    assert!(said.contains("--listen"), "{said}");
    Ok(())
}

#[tokio::test]
async fn a_wrong_setting_is_named_before_anything_starts() -> Result<()> {
    let site = Site::new()?.with("ISOCOST__WORKER__SLOTS", "0");
    let mut command = site.command();
    let ended = timeout(Duration::from_secs(20), command.output())
        .await
        .context("it goes on running")??;
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(2), "{said}");
    assert!(said.contains("worker.slots"), "{said}");
    assert!(!site.data().exists(), "the data folder was made");
    Ok(())
}
