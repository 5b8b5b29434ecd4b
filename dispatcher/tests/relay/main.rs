//! Callbacks over real connections: signed, retried until they arrive, and never in each other's way.

mod site;

use axum::{
    body::{Body, Bytes},
    http::HeaderValue,
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use isocost_common::store::{
    callbacks::{
        DeliveryStatus,
        listing::{self, Redelivery},
    },
    job_log,
};
use sha2::Sha256;
use site::{Received, Receiver, SECRET, Site, status};
use std::{collections::HashSet, time::Duration};

const BODY: &str = r#"{"type":"execution.succeeded","data":{"n": 123456789012345678901234567890}}"#;

/// What a receiver computes.
fn signature(secret: &str, request: &Received) -> String {
    let key = STANDARD
        .decode(secret.trim_start_matches("whsec_"))
        .expect("base64");
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("any key");
    mac.update(request.header("webhook-id").as_bytes());
    mac.update(b".");
    mac.update(request.header("webhook-timestamp").as_bytes());
    mac.update(b".");
    mac.update(&request.body);
    format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()))
}

#[tokio::test]
async fn a_callback_arrives_once_signed_and_byte_for_byte() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let receiver = Receiver::start(|_| (axum::http::StatusCode::OK, "thanks").into_response()).await?;
    let relay = site.start();
    let tickets = site.write(&receiver.url(), BODY, 1).await?;
    // A ticket may come several times: a message is delivered at least once.
    relay.publish(&[tickets[0], tickets[0]]).await?;
    relay.publish(&tickets).await?;
    let delivered = site.eventually(DeliveryStatus::Delivered, 1).await?;
    relay.stop().await?;

    let received = receiver.received();
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].body, BODY);
    assert_eq!(received[0].header("content-type"), "application/json");
    assert_eq!(
        received[0].header("traceparent"),
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    );
    assert_eq!(received[0].header("webhook-id"), delivered[0].id.to_string());
    assert_eq!(
        received[0].header("webhook-signature"),
        signature(SECRET, &received[0])
    );
    assert_eq!(delivered[0].last_status_code, Some(200));
    let attempts = site.attempts(delivered[0].id).await?;
    assert_eq!(attempts.len(), 1);
    assert_eq!(attempts[0].response_body.as_deref(), Some("thanks"));
    let mut reader = site.store.reader().await?;
    let steps = job_log::of_execution(&mut reader, delivered[0].execution).await?;
    assert_eq!(
        steps[0].message.as_deref(),
        Some("callback delivered: HTTP 200, attempt 1")
    );
    Ok(())
}

#[tokio::test]
async fn while_secrets_are_rotated_both_sign() -> anyhow::Result<()> {
    const OTHER: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let site = Site::new().await?;
    site.add_secret(OTHER).await?;
    let receiver = Receiver::start(|_| status(204)).await?;
    let relay = site.start();
    relay
        .publish(&site.write(&receiver.url(), BODY, 1).await?)
        .await?;
    site.eventually(DeliveryStatus::Delivered, 1).await?;
    relay.stop().await?;
    let request = &receiver.received()[0];
    let signed: HashSet<&str> = request.header("webhook-signature").split(' ').collect();
    let expected = [SECRET, OTHER].map(|secret| signature(secret, request));
    assert_eq!(signed, expected.iter().map(String::as_str).collect());
    Ok(())
}

#[tokio::test]
async fn wh01_retries_go_on_across_restarts_until_it_arrives() -> anyhow::Result<()> {
    let mut site = Site::new().await?;
    site.config.relay.retry_delays_ms = vec![50, 100, 200, 400, 400, 400, 400, 400, 400];
    let receiver = Receiver::start(|number| status(if number < 5 { 500 } else { 200 })).await?;
    let tickets = site.write(&receiver.url(), BODY, 1).await?;
    // Every restart finds an empty broker: the table alone remembers.
    for seen in [1, 3] {
        let relay = site.start();
        if seen == 1 {
            relay.publish(&tickets).await?;
        }
        arrived(&receiver, seen).await?;
        relay.stop().await?;
    }
    let relay = site.start();
    let delivered = site.eventually(DeliveryStatus::Delivered, 1).await?;
    relay.stop().await?;

    let requests = receiver.received();
    assert_eq!(requests.len(), 6);
    let ids: HashSet<_> = requests.iter().map(|r| r.header("webhook-id")).collect();
    assert_eq!(ids.len(), 1);
    for pair in requests.windows(2) {
        let pause = pair[1].at - pair[0].at;
        assert!(
            pause < Duration::from_secs(3),
            "an attempt came {pause:?} after the last"
        );
    }
    let numbers: Vec<_> = site
        .attempts(delivered[0].id)
        .await?
        .iter()
        .map(|attempt| attempt.attempt)
        .collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
    Ok(())
}

async fn arrived(receiver: &Receiver, count: usize) -> anyhow::Result<()> {
    let waited = tokio::time::timeout(Duration::from_secs(10), async {
        while receiver.received().len() < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    Ok(waited.await?)
}

#[tokio::test]
async fn wh07_wh09_a_pause_is_kept_and_each_attempt_has_its_own_time_and_signature() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let receiver = Receiver::start(|number| {
        let mut response = status(if number == 0 { 429 } else { 200 });
        if number == 0 {
            response
                .headers_mut()
                .insert("retry-after", HeaderValue::from_static("2"));
        }
        response
    })
    .await?;
    let relay = site.start();
    relay
        .publish(&site.write(&receiver.url(), BODY, 1).await?)
        .await?;
    site.eventually(DeliveryStatus::Delivered, 1).await?;
    relay.stop().await?;
    let requests = receiver.received();
    assert_eq!(requests.len(), 2);
    assert!(requests[1].at - requests[0].at >= Duration::from_secs(2));
    assert_eq!(requests[0].header("webhook-id"), requests[1].header("webhook-id"));
    assert_ne!(
        requests[0].header("webhook-timestamp"),
        requests[1].header("webhook-timestamp")
    );
    for request in &requests {
        assert_eq!(request.header("webhook-signature"), signature(SECRET, request));
    }
    Ok(())
}

/// Accepts connections, reads and never answers.
async fn silent() -> anyhow::Result<std::net::SocketAddr> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            held.push(connection);
        }
    });
    Ok(address)
}

#[tokio::test]
async fn wh03_receivers_that_never_answer_delay_nobody_else() -> anyhow::Result<()> {
    let mut site = Site::new().await?;
    site.config.relay.in_flight = 16;
    site.config.relay.retry_delays_ms = vec![60_000];
    let endless = Receiver::start(|_| {
        let body =
            futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; 4_096])));
        Response::new(Body::from_stream(body))
    })
    .await?;
    let healthy = Receiver::start(|_| status(200)).await?;
    let relay = site.start();
    let slow = [silent().await?, silent().await?];
    for address in slow {
        relay
            .publish(&site.write(&format!("http://{address}/hook"), BODY, 60).await?)
            .await?;
    }
    relay.publish(&site.write(&endless.url(), BODY, 1).await?).await?;
    relay
        .publish(&site.write(&healthy.url(), BODY, 79).await?)
        .await?;
    let delivered = site.eventually(DeliveryStatus::Delivered, 80).await?;
    for delivery in delivered.iter().filter(|d| d.url == healthy.url()) {
        let finished_at = delivery.finished_at.expect("delivered");
        let latency = finished_at.since(delivery.created_at);
        assert!(
            latency < Duration::from_secs(1),
            "a healthy callback took {latency:?}"
        );
    }
    let of_endless = delivered
        .iter()
        .find(|delivery| delivery.url == endless.url())
        .expect("delivered");
    let attempts = site.attempts(of_endless.id).await?;
    assert_eq!(
        attempts[0].response_body.as_ref().map(String::len),
        Some(16 * 1024)
    );
    relay.stop().await?;
    let waiting = site.deliveries(DeliveryStatus::Pending).await?;
    assert_eq!(waiting.len(), 120, "what was not begun is given back");
    Ok(())
}

#[tokio::test]
async fn an_attempt_ends_at_its_deadline_and_the_delivery_with_its_last_attempt() -> anyhow::Result<()> {
    let mut site = Site::new().await?;
    site.config.relay.timeout_ms = 200;
    site.config.relay.retry_delays_ms = vec![50];
    let relay = site.start();
    let url = format!("http://{}/hook", silent().await?);
    relay.publish(&site.write(&url, BODY, 1).await?).await?;
    let ended = site.eventually(DeliveryStatus::Exhausted, 1).await?;
    assert_eq!(ended[0].attempt, 2);
    assert_eq!(ended[0].last_error.as_deref(), Some("no answer within 200 ms"));
    relay.stop().await?;
    Ok(())
}

#[tokio::test]
async fn wh10_an_internal_address_is_never_dialled_and_never_told() -> anyhow::Result<()> {
    let mut site = Site::new().await?;
    site.config.relay.allowed_networks = Vec::new();
    site.config.relay.retry_delays_ms = Vec::new();
    let receiver = Receiver::start(|_| status(200)).await?;
    let port = receiver.address.port();
    let relay = site.start();
    let hosts = [
        "127.0.0.1",
        "localhost",
        "2130706433",
        "0.0.0.0",
        "[::ffff:127.0.0.1]",
    ];
    for host in hosts {
        let url = format!("http://{host}:{port}/hook");
        relay.publish(&site.write(&url, BODY, 1).await?).await?;
    }
    let ended = site.eventually(DeliveryStatus::Exhausted, hosts.len()).await?;
    relay.stop().await?;
    assert!(receiver.received().is_empty());
    for delivery in ended {
        assert_eq!(
            delivery.last_error.as_deref(),
            Some("the address of the callback URL is not allowed"),
            "{}",
            delivery.url
        );
    }
    Ok(())
}

#[tokio::test]
async fn gone_ends_it_and_what_ended_can_be_delivered_again() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let receiver = Receiver::start(|number| status(if number == 0 { 410 } else { 200 })).await?;
    let relay = site.start();
    relay
        .publish(&site.write(&receiver.url(), BODY, 1).await?)
        .await?;
    let gone = site.eventually(DeliveryStatus::Gone, 1).await?;
    let now = site.store.now();
    let which = Redelivery::Range {
        from: gone[0].created_at,
        to: now,
    };
    let mut tx = site.store.begin().await?;
    let tickets = listing::redeliver(&mut tx, Some(site.app), &which, now).await?;
    tx.commit().await?;
    assert_eq!((tickets.len(), tickets[0].attempt), (1, 2));
    relay.publish(&tickets).await?;
    let delivered = site.eventually(DeliveryStatus::Delivered, 1).await?;
    relay.stop().await?;
    assert_eq!(delivered[0].attempt, 2);
    assert_eq!(receiver.received().len(), 2);
    Ok(())
}

#[tokio::test]
async fn a_delivery_without_a_ticket_is_found_by_the_sweep() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let receiver = Receiver::start(|_| status(200)).await?;
    site.write(&receiver.url(), BODY, 300).await?;
    let relay = site.start();
    site.eventually(DeliveryStatus::Delivered, 300).await?;
    relay.stop().await?;
    assert_eq!(receiver.received().len(), 300);
    Ok(())
}

#[tokio::test]
async fn an_attempt_cut_short_by_a_crash_is_repeated_when_its_lease_is_over() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let receiver = Receiver::start(|_| status(200)).await?;
    let tickets = site.write(&receiver.url(), BODY, 1).await?;
    let mut tx = site.store.begin().await?;
    sqlx::query("update callback_delivery set status = 1, attempt = 1, leased_until = ? where id = ?")
        .bind(site.store.now().0 - 1)
        .bind(tickets[0].delivery.to_string())
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    let relay = site.start();
    let delivered = site.eventually(DeliveryStatus::Delivered, 1).await?;
    relay.stop().await?;
    assert_eq!(delivered[0].attempt, 2);
    let attempts = site.attempts(delivered[0].id).await?;
    assert_eq!(
        attempts[0].error.as_deref(),
        Some("the relay stopped during this attempt")
    );
    Ok(())
}

#[tokio::test]
async fn two_relays_on_one_table_post_each_delivery_once() -> anyhow::Result<()> {
    let site = Site::new().await?;
    let receiver = Receiver::start(|_| status(200)).await?;
    let tickets = site.write(&receiver.url(), BODY, 400).await?;
    let (one, other) = (site.start(), site.start());
    one.publish(&tickets).await?;
    other.publish(&tickets).await?;
    site.eventually(DeliveryStatus::Delivered, 400).await?;
    one.stop().await?;
    other.stop().await?;
    let requests = receiver.received();
    let ids: HashSet<_> = requests
        .iter()
        .map(|r| r.header("webhook-id").to_owned())
        .collect();
    assert_eq!((requests.len(), ids.len()), (400, 400));
    Ok(())
}
