//! What a user of a good HTTP API expects when something is wrong with the request.

use crate::served::{Answer, Served};
use anyhow::{Context, Result, ensure};
use futures_util::{StreamExt, stream};
use isocost_common::{store::Dialect, test_support::TestStore};
use reqwest::Method;
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

isocost_common::store_tests! {
    wrong_requests_get_the_status_that_names_the_fault,
    a_body_over_the_limit_is_refused_with_the_limit,
    every_answer_has_a_request_id_and_keeps_the_clients,
    ready_says_so_only_while_the_database_answers,
    a_header_that_never_ends_is_not_waited_for,
    a_database_that_somebody_keeps_locked_is_said_to_be_busy,
    requests_beyond_those_in_hand_are_refused_and_taken_again_afterwards,
}

/// Until the server hangs up; an error if it does not.
async fn hung_up(mut connection: TcpStream) -> Result<()> {
    let mut rest = Vec::new();
    let read = connection.read_to_end(&mut rest);
    // A reset is an end as well.
    let _ = tokio::time::timeout(Duration::from_secs(10), read)
        .await
        .context("the connection stays open")?;
    Ok(())
}

async fn a_header_that_never_ends_is_not_waited_for(store: &TestStore) -> Result<()> {
    let timeout_ms = 300;
    let api = Served::configured(store, |config| config.api.header_timeout_ms = timeout_ms).await?;
    let address = api.base.trim_start_matches("http://").to_owned();
    let mut streaming = api.request(Method::GET, "/openapi/events").send().await?;
    let mut half_sent = TcpStream::connect(&address).await?;
    half_sent
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: isocost\r\nX-Slow: ")
        .await?;
    let mut dripping = TcpStream::connect(&address).await?;
    dripping.write_all(b"GET /healthz HTTP/1.1\r\n").await?;
    let silent = TcpStream::connect(&address).await?;
    let from = Instant::now();
    hung_up(half_sent).await?;
    hung_up(silent).await?;
    // A byte now and then does not prolong the time.
    for _ in 0..20 {
        if dripping.write_all(b"X").await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(timeout_ms / 4)).await;
    }
    hung_up(dripping).await?;
    ensure!(
        from.elapsed() >= Duration::from_millis(timeout_ms / 2),
        "{:?}",
        from.elapsed()
    );
    // An answer that takes longer than any header may is none of its business.
    let next = tokio::time::timeout(Duration::from_millis(2 * timeout_ms), streaming.chunk()).await;
    ensure!(
        !matches!(next, Ok(Ok(None) | Err(_))),
        "the stream was cut: {next:?}"
    );
    drop(streaming);
    assert_eq!(api.get("/healthz").await?.status, 200);
    api.stop().await
}

/// Somebody else's shell or backup, which only the embedded database lets lock out everybody.
async fn a_database_that_somebody_keeps_locked_is_said_to_be_busy(store: &TestStore) -> Result<()> {
    if store.dialect() != Dialect::Sqlite {
        return Ok(());
    }
    let api = Served::on(store).await?;
    let body = json!({"jobName": "j", "jobHandler": "h", "trigger": {"type": "manual"}});
    let stranger = store.connect_again().await?;
    let lock = stranger.begin().await?;
    let from = Instant::now();
    let late = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        api.post("/openapi/jobs", &body).await
    };
    let (first, second) = tokio::try_join!(api.post("/openapi/jobs", &body), late)?;
    let took = from.elapsed();
    for answer in [first, second] {
        assert_eq!(answer.status, 503, "{}", answer.text);
        assert_eq!(answer.header("retry-after"), "1");
    }
    ensure!(took < Duration::from_millis(6_500), "{took:?}");
    drop(lock);
    stranger.close().await;
    assert_eq!(api.job_count().await?, 0);
    assert_eq!(api.post("/openapi/jobs", &body).await?.status, 202);
    api.stop().await
}

async fn wrong_requests_get_the_status_that_names_the_fault(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let typed = |kind: &str, body: &str| {
        let request = api.request(Method::POST, "/openapi/jobs");
        request
            .header("content-type", kind.to_owned())
            .body(body.to_owned())
    };
    let put = api.request(Method::PUT, "/openapi/jobs");
    let bodies = [
        (typed("application/json", "{\"jobName\":"), 400, "json.malformed"),
        (typed("application/json", ""), 400, "json.missing"),
        (typed("application/json", "[]"), 400, "json.not-an-object"),
        (typed("application/json", "\u{feff}{}"), 400, "json.malformed"),
        (typed("text/plain", "{}"), 415, "body.not-json"),
        (put, 405, "request.method-not-allowed"),
        (
            api.request(Method::GET, "/openapi/nothing"),
            404,
            "request.no-such-address",
        ),
        (
            api.request(Method::GET, "/openapi/jobs/not-an-id"),
            404,
            "request.not-found",
        ),
        (
            api.request(Method::GET, "/openapi/jobs?colour=red"),
            400,
            "parameter.unknown",
        ),
        (
            api.request(Method::GET, "/openapi/jobs?pageSize=1&pageSize=2"),
            400,
            "parameter.repeated",
        ),
    ];
    for (request, status, code) in bodies {
        let answer = Answer::of(request).await?;
        let problem = answer.json();
        assert_eq!(
            (answer.status.as_u16(), &problem["code"]),
            (status, &json!(code)),
            "{}",
            answer.text
        );
        assert_eq!(answer.header("content-type"), "application/problem+json");
        assert_eq!(problem["status"], status);
        for member in ["type", "title", "detail", "instance", "requestId"] {
            ensure!(
                problem[member].is_string(),
                "{code} lacks {member}: {}",
                answer.text
            );
        }
        if status == 405 {
            let mut allowed: Vec<_> = answer.header("allow").split(',').map(str::trim).collect();
            allowed.sort_unstable();
            assert_eq!(allowed, ["GET", "HEAD", "POST"]);
        }
    }
    assert_eq!(api.job_count().await?, 0);
    api.stop().await
}

async fn a_body_over_the_limit_is_refused_with_the_limit(store: &TestStore) -> Result<()> {
    let api = Served::configured(store, |config| {
        config.api.max_body_bytes = 8_192;
        config.api.max_params_bytes = 4_096;
    })
    .await?;
    let with_params =
        |bytes: usize| json!({"jobName": "j", "jobHandler": "h", "params": "x".repeat(bytes - 2)});
    let answer = api.post("/openapi/jobs", &with_params(9_000)).await?;
    assert_eq!(
        (answer.status.as_u16(), &answer.json()["code"]),
        (413, &json!("body.too-large"))
    );
    ensure!(answer.text.contains("8192"), "{}", answer.text);
    // Announced by no length, found while reading.
    let chunks = stream::iter((0..20).map(|_| Ok::<_, std::io::Error>(vec![b' '; 1_024])));
    let streamed = api
        .request(Method::POST, "/openapi/jobs")
        .header("content-type", "application/json")
        .body(reqwest::Body::wrap_stream(chunks));
    assert_eq!(Answer::of(streamed).await?.status, 413);
    let answer = api.post("/openapi/jobs", &with_params(4_097)).await?;
    assert_eq!(
        (answer.status.as_u16(), &answer.json()["code"]),
        (400, &json!("params.too-large"))
    );
    let answer = api.post("/openapi/jobs", &with_params(4_096)).await?;
    assert_eq!(answer.status, 202, "{}", answer.text);
    api.stop().await
}

async fn every_answer_has_a_request_id_and_keeps_the_clients(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let given = api
        .request(Method::GET, "/openapi/nothing")
        .header("x-request-id", "mine-1");
    let answer = Answer::of(given).await?;
    assert_eq!(
        (answer.header("x-request-id"), &answer.json()["requestId"]),
        ("mine-1", &json!("mine-1"))
    );
    let unusable = api
        .request(Method::GET, "/healthz")
        .header("x-request-id", "no spaces");
    let answer = Answer::of(unusable).await?;
    ensure!(answer.header("x-request-id").len() == 36, "{:?}", answer.headers);
    api.stop().await
}

async fn ready_says_so_only_while_the_database_answers(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let ready = api.get("/readyz").await?;
    assert_eq!(
        (ready.status.as_u16(), &ready.json()["database"]),
        (200, &json!(true))
    );
    store.close().await;
    assert_eq!(api.get("/healthz").await?.status, 200);
    let away = api.get("/readyz").await?;
    assert_eq!(
        (away.status.as_u16(), away.header("retry-after")),
        (503, "1"),
        "{}",
        away.text
    );
    let refused = api
        .post("/openapi/jobs", &json!({"jobName": "j", "jobHandler": "h"}))
        .await?;
    assert_eq!(
        (refused.status.as_u16(), refused.header("retry-after")),
        (503, "1"),
        "{}",
        refused.text
    );
    api.stop().await
}

async fn requests_beyond_those_in_hand_are_refused_and_taken_again_afterwards(
    store: &TestStore,
) -> Result<()> {
    let api = Served::configured(store, |config| config.api.max_requests = 1).await?;
    // Neither body is complete before one of the two requests was answered.
    let (complete, completed) = tokio::sync::watch::channel(());
    let mut requests = JoinSet::new();
    for _ in 0..2 {
        let mut completed = completed.clone();
        let body = stream::once(async { Ok::<_, std::io::Error>("{") }).chain(stream::once(async move {
            let _ = completed.changed().await;
            Ok("}")
        }));
        let request = api
            .request(Method::POST, "/openapi/jobs")
            .header("content-type", "application/json")
            .body(reqwest::Body::wrap_stream(body));
        requests.spawn(Answer::of(request));
    }
    let first = tokio::time::timeout(Duration::from_secs(20), requests.join_next());
    let refused = first.await?.context("two requests")??.context("an answer")?;
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert_eq!(refused.json()["code"], "api.busy");
    assert_eq!(refused.header("retry-after"), "1");
    drop(complete);
    let taken = requests.join_next().await.context("two requests")???;
    assert_eq!(taken.status, 400, "{}", taken.text);
    let next = Answer::of(api.request(Method::GET, "/openapi/jobs")).await?;
    assert_eq!(next.status, 200, "{}", next.text);
    api.stop().await
}
