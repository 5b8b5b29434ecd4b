//! Odd texts are kept, or cut where a limit says so.

use anyhow::Result;
use isocost_tests::jobs::wait_for_end;
use isocost_tests::site::Site;

#[tokio::test]
async fn db06_names_and_keys_keep_every_byte() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let api = process.api();
    let mut ids = Vec::new();
    for name in ["a", "A", "á", "日报😀"] {
        let job = serde_json::json!({
            "jobName": name, "jobHandler": "fail", "clientRequestId": name,
            "params": { "message": "mißlungen 😀" }
        });
        let id = api.submit(&job).await?;
        assert_eq!(wait_for_end(api, &id).await?["jobName"], name);
        ids.push(id);
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(
        ids.len(),
        4,
        "client request ids that differ were taken for equal"
    );
    process.stop().await
}

#[tokio::test]
async fn ap09_a_huge_error_text_is_cut_on_a_character_and_stored_once() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let api = process.api();
    let message = "😀".repeat(50_000);
    let job = serde_json::json!({
        "jobName": "long error", "jobHandler": "fail", "params": { "message": message, "fatal": true }
    });
    let id = api.submit(&job).await?;
    let job = wait_for_end(api, &id).await?;
    assert_eq!(job["status"], "FAILED");
    let stored = job["lastExecution"]["error"]["message"]
        .as_str()
        .unwrap_or_default();
    assert!(
        stored.len() < message.len() / 2,
        "{} bytes were kept",
        stored.len()
    );
    assert!(
        stored.starts_with("😀"),
        "{}",
        stored.chars().take(40).collect::<String>()
    );
    assert!(!stored.contains('\u{fffd}'), "cut inside a character");
    assert!(!stored.ends_with('😀'), "no mark says that it was cut");
    process.stop().await?;
    assert!(
        site.log()?.len() < 1024 * 1024,
        "the log took the text many times"
    );
    Ok(())
}
