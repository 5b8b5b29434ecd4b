//! What a user of a good HTTP API expects when something is wrong with the request.

use crate::served::{Answer, Served};
use anyhow::{Result, ensure};
use isocost_common::test_support::TestStore;
use reqwest::Method;
use serde_json::json;

isocost_common::store_tests! {
    wrong_requests_get_the_status_that_names_the_fault,
    a_body_over_the_limit_is_refused_with_the_limit,
    every_answer_has_a_request_id_and_keeps_the_clients,
    ready_says_so_only_while_the_database_answers,
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
    let chunks = futures_util::stream::iter((0..20).map(|_| Ok::<_, std::io::Error>(vec![b' '; 1_024])));
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
