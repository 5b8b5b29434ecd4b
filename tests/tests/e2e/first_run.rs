//! What somebody sees who starts the program for the first time.

use anyhow::{Context, Result, ensure};
use isocost_tests::api::items;
use isocost_tests::jobs::{LONG, once, wait_for_end};
use isocost_tests::patience::eventually;
use isocost_tests::site::{Site, isocost};
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use tokio::process::Command;

#[tokio::test]
async fn the_printed_curl_line_submits_a_job_when_it_is_pasted() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let output = process.output()?;
    let curl = curl_command(&output).with_context(|| format!("no curl command in:\n{output}"))?;
    let pasted = Command::new("sh").arg("-c").arg(&curl).output().await?;
    let answer = String::from_utf8_lossy(&pasted.stdout).into_owned();
    let answer: serde_json::Value =
        serde_json::from_str(&answer).with_context(|| format!("{curl}\nanswered: {answer}"))?;
    let job = answer["jobId"]
        .as_str()
        .with_context(|| format!("no jobId in {answer}"))?;
    let job = wait_for_end(process.api(), job).await?;
    assert_eq!(job["status"], "SUCCESS", "{job}");
    process.stop().await
}

/// From `curl` to the end of its line, and of the lines that go on behind a backslash.
fn curl_command(output: &str) -> Option<String> {
    let mut lines = output
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("curl "));
    let mut command = String::new();
    loop {
        let line = lines.next()?;
        command += line;
        command.push('\n');
        if !line.ends_with('\\') {
            return Some(command);
        }
    }
}

#[tokio::test]
async fn the_admin_key_is_for_its_owner_only_and_stays_the_same() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let key = process.api().key().to_owned();
    let file = site.data().join("admin.key");
    assert_eq!(fs::metadata(&file)?.permissions().mode() & 0o777, 0o600);
    process.stop().await?;

    let process = site.start().await?;
    assert_eq!(process.api().key(), key);
    process.api().submit(&once("noop")).await?;
    process.stop().await
}

#[tokio::test]
async fn a_key_whose_file_is_gone_is_revoked() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let mut former = vec![process.api().key().to_owned()];
    process.stop().await?;
    for _ in 0..2 {
        fs::remove_file(site.data().join("admin.key"))?;
        let process = site.start().await?;
        process.api().submit(&once("noop")).await?;
        for key in &former {
            let answer = reqwest::Client::new()
                .get(format!("{}/openapi/jobs", site.base_url()))
                .bearer_auth(key)
                .send()
                .await?;
            assert_eq!(answer.status(), 401);
        }
        former.push(process.api().key().to_owned());
        process.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_key_file_that_others_can_read_is_closed_and_that_is_said() -> Result<()> {
    let site = Site::new()?;
    site.start().await?.stop().await?;
    let file = site.data().join("admin.key");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644))?;
    let process = site.start().await?;
    assert_eq!(fs::metadata(&file)?.permissions().mode() & 0o777, 0o600);
    let output = process.output()?;
    assert!(output.contains("open to other users"), "{output}");
    process.stop().await
}

#[tokio::test]
async fn nothing_but_the_public_pages_answers_without_a_key() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let get = async |path: &str| reqwest::get(format!("{}{path}", site.base_url())).await;
    for public in ["/healthz", "/readyz", "/openapi.json", "/docs"] {
        assert!(get(public).await?.status().is_success(), "{public}");
    }
    for closed in [
        "/openapi/jobs",
        "/openapi/executions",
        "/openapi/workers",
        "/openapi/apps",
    ] {
        let answer = get(closed).await?;
        assert_eq!(answer.status(), 401, "{closed}");
        assert!(answer.headers().contains_key("www-authenticate"), "{closed}");
    }
    process.stop().await
}

#[tokio::test]
async fn the_key_is_not_in_the_log() -> Result<()> {
    let site = Site::new()?.with("ISOCOST__TELEMETRY__LOG", "debug");
    let process = site.start().await?;
    let job = process.api().submit(&once("noop")).await?;
    wait_for_end(process.api(), &job).await?;
    let key = process.api().key().to_owned();
    process.stop().await?;
    assert!(!site.log()?.contains(&key));
    Ok(())
}

#[tokio::test]
async fn the_webhook_secret_is_shown_at_the_first_start_only() -> Result<()> {
    let site = Site::new()?;
    for starts_before in 0..2 {
        let process = site.start().await?;
        let output = process.output()?;
        assert_eq!(
            output.contains("webhook secret whsec_"),
            starts_before == 0,
            "{output}"
        );
        process.stop().await?;
    }
    assert!(!site.log()?.contains("whsec_"));
    Ok(())
}

#[tokio::test]
async fn migrate_shows_the_first_key_and_webhook_secret_once() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let migrate = async |database: &str, flags: &[&str]| {
        let output = Command::new(isocost())
            .arg("migrate")
            .args(flags)
            .env("ISOCOST__STORE__URL", format!("sqlite:{database}"))
            .current_dir(folder.path())
            .output()
            .await?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?)
    };
    let first = migrate("printed.db", &[]).await?;
    ensure!(first.contains("isk_") && first.contains("whsec_"), "{first}");
    let second = migrate("printed.db", &[]).await?;
    ensure!(!second.contains("isk_") && !second.contains("whsec_"), "{second}");

    let flags = ["--admin-key-file=key", "--webhook-secret-file=secret"];
    let written = migrate("written.db", &flags).await?;
    ensure!(
        !written.contains("isk_") && !written.contains("whsec_"),
        "{written}"
    );
    for (file, start) in [("key", "isk_"), ("secret", "whsec_")] {
        let file = folder.path().join(file);
        assert_eq!(fs::metadata(&file)?.permissions().mode() & 0o777, 0o600);
        ensure!(
            fs::read_to_string(&file)?.starts_with(start),
            "{}",
            file.display()
        );
    }
    Ok(())
}

#[tokio::test]
async fn every_start_of_the_demo_shows_the_same_job_that_repeats() -> Result<()> {
    let site = Site::new()?.with_flag("--demo");
    let started = async || {
        let process = site.start().await?;
        let api = process.api();
        let jobs = eventually("the demo has submitted its last job", LONG, async || {
            let last = items(api.get("/openapi/jobs?name=nap").await?.success()?)?;
            let submitted = process.output()?.matches("  nap ").count() > 0;
            let repeating = items(api.get("/openapi/jobs?name=every-5").await?.success()?)?;
            Ok((submitted && !last.is_empty()).then_some(repeating))
        })
        .await?;
        anyhow::Ok((process, jobs))
    };
    let (process, first) = started().await?;
    assert_eq!(first.len(), 1, "{first:?}");
    process.stop().await?;

    let (process, second) = started().await?;
    assert_eq!(second.len(), 1, "{second:?}");
    assert_eq!(second[0]["jobId"], first[0]["jobId"]);
    let id = first[0]["jobId"].as_str().context("an id")?;
    let cancel = format!("/openapi/jobs/{id}/cancel");
    process.api().post(&cancel, &json!({})).await?.success()?;
    process.stop().await?;

    for _ in 0..2 {
        let (process, jobs) = started().await?;
        assert_eq!(jobs.len(), 2, "one ended, one in its place: {jobs:?}");
        process.stop().await?;
    }
    Ok(())
}
