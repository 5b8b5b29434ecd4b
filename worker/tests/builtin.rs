//! The built-in handlers.

mod support;

use axum::{
    Router,
    http::{HeaderMap, StatusCode},
    response::IntoResponse,
    routing::{get, post},
};
use isocost_common::{execution::Outcome, message::ControlAction, raw_json::RawJson};
use serde_json::{Value, json};
use std::time::Duration;
use support::{Running, Stage, execution, failure, result};

async fn stage_with_worker(commands: &[&str]) -> (Stage, Running) {
    let mut stage = Stage::new().await;
    stage.config.worker.commands = commands.iter().map(|program| (*program).to_owned()).collect();
    let worker = stage.start(|w| w.built_in_handlers()).await;
    (stage, worker)
}

async fn outcome_of(stage: &Stage, handler: &str, params: &Value) -> Outcome {
    let work = execution(handler, params);
    stage.dispatch(vec![work.clone()]).await;
    stage.outcome(work.claim).await
}

#[tokio::test]
async fn echo_returns_its_params_byte_for_byte() {
    let (stage, worker) = stage_with_worker(&[]).await;
    let text = r#"{"n" : 123456789012345678901234567890, "t":"日报😀"}"#;
    let mut work = execution("echo", &json!(null));
    work.params = RawJson::parse(text.into()).expect("JSON");
    stage.dispatch(vec![work.clone()]).await;
    match stage.outcome(work.claim).await {
        Outcome::Succeeded { result } => assert_eq!(result.as_str(), text),
        other => panic!("not succeeded: {other:?}"),
    }
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn fail_fails_as_often_as_it_is_asked_to() {
    let (stage, worker) = stage_with_worker(&[]).await;
    let params = json!({"times": 2, "message": "as asked"});
    for attempt in 1..=3 {
        let mut work = execution("fail", &params);
        work.attempt = attempt;
        stage.dispatch(vec![work.clone()]).await;
        let outcome = stage.outcome(work.claim).await;
        if attempt <= 2 {
            assert_eq!(
                failure(outcome),
                ("handler.failed".into(), "as asked".into(), true)
            );
        } else {
            assert_eq!(result(&outcome), json!({"attempt": 3}));
        }
    }
    let (_, _, retryable) = failure(outcome_of(&stage, "fail", &json!({"fatal": true})).await);
    assert!(!retryable);
    let (code, _, retryable) = failure(outcome_of(&stage, "fail", &json!(null)).await);
    assert!(
        retryable,
        "without params it fails as asked, not for their shape: {code}"
    );
    worker.stop().await.expect("stopped");
}

async fn server() -> String {
    let router = Router::new()
        .route(
            "/headers",
            get(|headers: HeaderMap| async move {
                let shown = |name| {
                    headers
                        .get(name)
                        .and_then(|v| v.to_str().ok())
                        .unwrap_or("")
                        .to_owned()
                };
                format!(
                    "{}|{}|{}",
                    shown("idempotency-key"),
                    shown("x-mine"),
                    shown("traceparent")
                )
            }),
        )
        .route("/mirror", post(|body: String| async move { body }))
        .route("/large", get(|| async { "x".repeat(100_000) }))
        .route("/gone", get(|| async { StatusCode::GONE }))
        .route(
            "/moved",
            get(|| async { (StatusCode::FOUND, [("location", "/mirror")]) }),
        )
        .route(
            "/busy",
            get(|| async { (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "7")]).into_response() }),
        )
        .route("/hangs", get(|| async { std::future::pending::<String>().await }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

#[tokio::test]
async fn http_calls_with_the_execution_as_idempotency_key_and_returns_the_answer() {
    let (stage, worker) = stage_with_worker(&[]).await;
    let base = server().await;
    let params = json!({"url": format!("{base}/headers"), "headers": {"X-Mine": "yes"}});
    let work = execution("http", &params);
    stage.dispatch(vec![work.clone()]).await;
    let answer = result(&stage.outcome(work.claim).await);
    assert_eq!(
        answer["body"],
        json!(format!("{}|yes|{}", work.claim.execution, support::TRACE))
    );
    assert_eq!(answer["status"], json!(200));

    let mut mirrored = execution("http", &json!(null));
    let text = format!(r#"{{"url": "{base}/mirror", "body": {{"n": 123456789012345678901234567890}}}}"#);
    mirrored.params = RawJson::parse(text).expect("JSON");
    stage.dispatch(vec![mirrored.clone()]).await;
    let answer = result(&stage.outcome(mirrored.claim).await);
    assert_eq!(answer["body"], json!(r#"{"n": 123456789012345678901234567890}"#));

    let large = result(&outcome_of(&stage, "http", &json!({"url": format!("{base}/large")})).await);
    assert_eq!(large["body"].as_str().map(str::len), Some(16 * 1024));
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn http_judges_answers_by_whether_another_attempt_can_help() {
    let (stage, worker) = stage_with_worker(&[]).await;
    let base = server().await;
    let call = |path: &str| json!({"url": format!("{base}{path}")});
    for (path, retried) in [("/gone", false), ("/moved", false), ("/busy", true)] {
        let (code, _, retryable) = failure(outcome_of(&stage, "http", &call(path)).await);
        assert_eq!(
            (code.as_str(), retryable),
            ("http.unexpected-status", retried),
            "{path}"
        );
    }
    let busy = outcome_of(&stage, "http", &call("/busy")).await;
    assert!(
        matches!(
            busy,
            Outcome::Failed {
                retry_after_ms: Some(7_000),
                ..
            }
        ),
        "{busy:?}"
    );
    let expected = json!({"url": format!("{base}/gone"), "expectedStatuses": [410]});
    assert_eq!(
        result(&outcome_of(&stage, "http", &expected).await)["status"],
        json!(410)
    );
    let nobody = json!({"url": "http://127.0.0.1:1/"});
    let (_, message, retryable) = failure(outcome_of(&stage, "http", &nobody).await);
    assert!(retryable, "{message}");
    for bad in [
        json!({"url": "ftp://x/"}),
        json!({"url": "/relative"}),
        json!({"uri": "http://x/"}),
    ] {
        let (code, _, retryable) = failure(outcome_of(&stage, "http", &bad).await);
        assert_eq!((code.as_str(), retryable), ("params.invalid", false), "{bad}");
    }
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn http_is_ended_by_the_jobs_time_limit() {
    let (stage, worker) = stage_with_worker(&[]).await;
    let base = server().await;
    let mut work = execution("http", &json!({"url": format!("{base}/hangs")}));
    work.timeout_ms = 100;
    stage.dispatch(vec![work.clone()]).await;
    assert_eq!(stage.outcome(work.claim).await, Outcome::TimedOut);
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn command_starts_listed_programs_only_and_without_a_shell() {
    let (stage, worker) = stage_with_worker(&["/bin/cat", "/bin/echo", "/bin/false"]).await;
    let params = json!({"program": "/bin/cat", "more": [1, 2]});
    let output = result(&outcome_of(&stage, "command", &params).await);
    let fed: Value = serde_json::from_str(output["stdout"].as_str().expect("text")).expect("JSON");
    assert_eq!((fed, &output["exitCode"]), (params, &json!(0)));
    let literal = json!({"program": "/bin/echo", "args": ["$HOME; ls", "*"]});
    let output = result(&outcome_of(&stage, "command", &literal).await);
    assert_eq!(output["stdout"], json!("$HOME; ls *\n"));
    let (code, _, retryable) =
        failure(outcome_of(&stage, "command", &json!({"program": "/bin/false"})).await);
    assert_eq!((code.as_str(), retryable), ("command.exit-code", true));
    let unlisted = json!({"program": "/bin/ls"});
    let (code, _, retryable) = failure(outcome_of(&stage, "command", &unlisted).await);
    assert_eq!((code.as_str(), retryable), ("command.not-allowed", false));
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn a_cancelled_command_takes_its_children_with_it() {
    let (stage, worker) = stage_with_worker(&["/bin/sh"]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let mark = folder.path().join("child");
    // The child ignores the polite signal and is killed with the group.
    let script = format!(
        "trap '' TERM; sleep 600 & echo $! > {0}.new; mv {0}.new {0}; wait",
        mark.display()
    );
    let work = execution("command", &json!({"program": "/bin/sh", "args": ["-c", script]}));
    stage.dispatch(vec![work.clone()]).await;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while !mark.exists() {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the program does not start"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let child = std::fs::read_to_string(&mark).expect("a process id");
    let cancel = ControlAction::Cancel {
        claim: work.claim,
        not_after: None,
    };
    stage.control(vec![cancel]).await;
    assert_eq!(stage.outcome(work.claim).await, Outcome::Cancelled);
    let alive = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.trim())).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    };
    while alive() {
        assert!(tokio::time::Instant::now() < deadline, "the child lives on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    worker.stop().await.expect("stopped");
}
