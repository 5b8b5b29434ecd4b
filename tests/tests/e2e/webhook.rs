//! Webhooks as their receiver sees them.

use anyhow::{Context, Result};
use isocost_tests::api::{Api, items, text};
use isocost_tests::jobs::{LONG, once, wait_for_end, with};
use isocost_tests::patience::eventually;
use isocost_tests::receiver::{Receiver, Reply};
use isocost_tests::signature::is_signed_by;
use isocost_tests::site::Site;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::time::Duration;

fn impatient_site() -> Result<Site> {
    Ok(Site::new()?.with("ISOCOST__RELAY__RETRY_DELAYS_MS", "[1000, 1000, 1000, 1000]"))
}

/// A new webhook secret of the only app.
async fn new_secret(api: &Api) -> Result<String> {
    let apps = items(api.get("/openapi/apps").await?.success()?)?;
    let app = text(apps.first().context("an app")?, "appId")?;
    let secret = api
        .post(&format!("/openapi/apps/{app}/webhook-secrets"), &json!({}))
        .await?
        .success()?;
    text(&secret, "secret")
}

async fn submit_with_callback(api: &Api, handler: &str, receiver: &Receiver) -> Result<String> {
    api.submit(&with(
        once(handler),
        json!({ "callbackUrl": receiver.url(), "clientRequestId": receiver.url() }),
    ))
    .await
}

#[tokio::test]
async fn a_receiver_can_check_who_sent_it_and_what() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let api = process.api();
    let secret = new_secret(api).await?;
    let receiver = Receiver::start([]).await?;
    let job = submit_with_callback(api, "echo", &receiver).await?;
    let hits = receiver.wait_for(1, LONG).await?;
    assert!(is_signed_by(&hits[0], &secret)?, "{:?}", hits[0].headers);
    let mut forged = hits[0].clone();
    forged.body = "{}".into();
    assert!(!is_signed_by(&forged, &secret)?);

    let body: Value = serde_json::from_slice(&hits[0].body)?;
    assert_eq!(body["type"], "execution.succeeded");
    assert_eq!(body["data"]["jobId"], job);
    assert_eq!(body["data"]["clientRequestId"], receiver.url());
    assert_eq!(body["data"]["status"], "SUCCEEDED");
    assert_eq!(body["data"]["attempt"], 1);
    process.stop().await
}

#[tokio::test]
async fn wh09_every_attempt_has_the_same_id_and_a_signature_of_its_own() -> Result<()> {
    let site = impatient_site()?;
    let process = site.start().await?;
    let api = process.api();
    let secret = new_secret(api).await?;
    let receiver = Receiver::start([Reply::status(500), Reply::status(503)]).await?;
    submit_with_callback(api, "noop", &receiver).await?;
    let hits = receiver.wait_for(3, LONG).await?;
    let mut ids = HashSet::new();
    let mut times = HashSet::new();
    for hit in &hits {
        assert!(is_signed_by(hit, &secret)?);
        ids.insert(hit.header("webhook-id")?);
        times.insert(hit.header("webhook-timestamp")?);
        assert_eq!(hit.body, hits[0].body);
    }
    assert_eq!((hits.len(), ids.len()), (3, 1), "{ids:?}");
    assert_eq!(
        times.len(),
        3,
        "an attempt carries the time of another: {times:?}"
    );
    process.stop().await
}

#[tokio::test]
async fn wh07_a_receiver_that_asks_for_a_pause_gets_it() -> Result<()> {
    let site = Site::new()?.with("ISOCOST__RELAY__RETRY_DELAYS_MS", "[100, 100, 100]");
    let process = site.start().await?;
    let asked = Reply::status(429).retry_after("2");
    let nonsense = Reply::status(503).retry_after("banana");
    let receiver = Receiver::start([asked, nonsense]).await?;
    submit_with_callback(process.api(), "noop", &receiver).await?;
    let hits = receiver.wait_for(3, LONG).await?;
    let pause = |n: usize| hits[n + 1].at - hits[n].at;
    assert!(
        pause(0) >= Duration::from_millis(1_900),
        "called after {:?}",
        pause(0)
    );
    assert!(
        pause(1) < Duration::from_millis(1_900),
        "a bad value counted: {:?}",
        pause(1)
    );
    process.stop().await
}

#[tokio::test]
async fn a_callback_in_the_middle_of_an_attempt_at_a_crash_is_sent_again_at_once_after_it() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let receiver = Receiver::start([Reply::silence()]).await?;
    submit_with_callback(process.api(), "noop", &receiver).await?;
    receiver.wait_for(1, LONG).await?;
    process.kill().await?;

    let process = site.start().await?;
    // Sooner than the lease of the attempt would have run out.
    let hits = receiver.wait_for(2, Duration::from_secs(20)).await?;
    assert_eq!(hits[0].header("webhook-id")?, hits[1].header("webhook-id")?);
    process.stop().await
}

#[tokio::test]
async fn a_callback_that_was_not_delivered_at_a_crash_is_delivered_after_it() -> Result<()> {
    let site = impatient_site()?;
    let process = site.start().await?;
    let receiver = Receiver::start([Reply::status(500)]).await?;
    let job = submit_with_callback(process.api(), "noop", &receiver).await?;
    wait_for_end(process.api(), &job).await?;
    receiver.wait_for(1, LONG).await?;
    process.kill().await?;

    let process = site.start().await?;
    let hits = receiver.wait_for(2, LONG).await?;
    assert_eq!(hits[0].header("webhook-id")?, hits[1].header("webhook-id")?);
    eventually("the delivery is shown as delivered", LONG, async || {
        let deliveries = process
            .api()
            .get(&format!("/openapi/callbacks?jobId={job}"))
            .await?
            .success()?;
        let is_delivered = |delivery: &Value| delivery["status"] == "DELIVERED";
        Ok(items(deliveries)?.iter().all(is_delivered).then_some(()))
    })
    .await?;
    process.stop().await
}

#[tokio::test]
async fn a_receiver_that_never_answers_does_not_hold_up_another() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let api = process.api();
    // Takes connections and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let silent_url = format!("http://{}/", silent.local_addr()?);
    let jobs = vec![with(once("noop"), json!({ "callbackUrl": silent_url })); 50];
    api.submit_batch(&jobs).await?;
    let receiver = Receiver::start([]).await?;
    let from = std::time::Instant::now();
    submit_with_callback(api, "noop", &receiver).await?;
    receiver.wait_for(1, LONG).await?;
    assert!(
        from.elapsed() < Duration::from_secs(5),
        "held up for {:?}",
        from.elapsed()
    );
    process.stop().await
}
