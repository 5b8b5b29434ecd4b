//! Params and results travel byte for byte.

use anyhow::Result;
use isocost_tests::jobs::wait_for_end;
use isocost_tests::receiver::Receiver;
use isocost_tests::site::Site;
use reqwest::Method;
use std::time::Duration;

/// Digits that no floating-point number keeps, and a form that no printer would choose.
const PARAMS: &str = r#"{"whole": 123456789012345678901234567890, "part":0.10000000000000000000000000000000000001,"e": 1.50E+3 , "text":"日报😀 👨‍👩‍👧"}"#;

#[tokio::test]
async fn long_numbers_arrive_unchanged_at_handler_result_and_webhook() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let api = process.api();
    let receiver = Receiver::start([]).await?;
    let body = format!(
        r#"{{"jobName": "digits", "jobHandler": "echo", "params": {PARAMS}, "callbackUrl": "{}"}}"#,
        receiver.url()
    );
    let accepted = api.call(Method::POST, "/openapi/jobs", Some(body)).await?;
    assert_eq!(accepted.status, 202, "{}", accepted.text);
    let job = accepted.json()["jobId"].as_str().unwrap_or_default().to_owned();
    wait_for_end(api, &job).await?;

    let shown = api.get(&format!("/openapi/jobs/{job}")).await?;
    assert!(
        shown.text.contains(&format!("\"params\":{PARAMS}")),
        "{}",
        shown.text
    );
    assert!(
        shown.text.contains(&format!("\"result\":{PARAMS}")),
        "{}",
        shown.text
    );

    let execution = api.executions(&job).await?[0]["executionId"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let shown = api.get(&format!("/openapi/executions/{execution}")).await?;
    assert!(
        shown.text.contains(&format!("\"result\":{PARAMS}")),
        "{}",
        shown.text
    );

    let hits = receiver.wait_for(1, Duration::from_secs(10)).await?;
    let sent = std::str::from_utf8(&hits[0].body)?;
    assert!(sent.contains(&format!("\"result\":{PARAMS}")), "{sent}");
    process.stop().await
}
