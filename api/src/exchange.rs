//! The outermost layer of every exchange: gives the request an id, turns panics and problems into the one form of
//! error body, and counts.

use crate::problem::Problem;
use axum::{
    body::Body,
    extract::{MatchedPath, Request},
    http::{HeaderName, HeaderValue, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use isocost_common::id::MessageId;
use metrics::{counter, histogram};
use std::time::Instant;
use tracing::{Instrument, debug, error, error_span};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Wraps one request. Must be the outermost layer, so that nothing escapes it.
pub(crate) async fn wrap(request: Request, next: Next) -> Response {
    let started = Instant::now();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "unknown".to_owned(), |matched| matched.as_str().to_owned());
    let request_id = given_id(&request).unwrap_or_else(|| MessageId::generate().to_string());
    // In a task of its own, which goes on when the client hangs up: what a handler has begun with the database is then
    // brought to its end, and not dropped in the middle.
    let span = error_span!("request", id = request_id);
    let mut response = match tokio::spawn(next.run(request).instrument(span)).await {
        Ok(response) => response,
        Err(_) => {
            error!(request_id, path, "a handler panicked; see the line above");
            Problem::internal().into_response()
        }
    };
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        debug!(request_id, path, %problem, "refused");
        fill_in(&mut response, &problem, &path, &request_id);
    }
    if let Ok(value) = HeaderValue::from_str(&request_id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response.headers_mut().insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    let status = response.status().as_u16().to_string();
    counter!("isocost_api_requests_total", "route" => route.clone(), "method" => method.to_string(), "status" => status)
        .increment(1);
    histogram!("isocost_api_request_seconds", "route" => route).record(started.elapsed().as_secs_f64());
    response
}

/// The client's own id, if it can be a header and a log field.
fn given_id(request: &Request) -> Option<String> {
    let given = request.headers().get(REQUEST_ID)?.to_str().ok()?;
    let valid = (1..=128).contains(&given.len())
        && given
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    valid.then(|| given.to_owned())
}

fn fill_in(response: &mut Response, problem: &Problem, path: &str, request_id: &str) {
    match serde_json::to_vec(&problem.body(path, request_id)) {
        Ok(body) => {
            response.headers_mut().remove(header::CONTENT_LENGTH);
            response.headers_mut().insert(header::CONTENT_TYPE, PROBLEM_JSON);
            *response.body_mut() = Body::from(body);
        }
        Err(cause) => error!(request_id, %cause, "a problem could not be written"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{Router, middleware, routing::get};

    /// Its own server, because a panic must be met where requests are met.
    #[tokio::test]
    async fn a_panic_is_answered_with_a_problem_that_says_nothing_about_it() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let panicking = get(async || -> &'static str { panic!("the secret cause") });
        let router = Router::new()
            .route("/panics", panicking)
            .layer(middleware::from_fn(wrap));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("an address");
        let serving = tokio::spawn(async move { axum::serve(listener, router).await });
        let answer = reqwest::get(format!("http://{address}/panics"))
            .await
            .expect("an answer");
        assert_eq!(answer.status(), 500);
        assert_eq!(answer.headers()["content-type"], "application/problem+json");
        let body = answer.text().await.expect("a body");
        assert!(body.contains("requestId") && !body.contains("secret"), "{body}");
        serving.abort();
    }

    #[tokio::test]
    async fn a_request_goes_on_when_its_client_hangs_up() {
        let (begun, has_begun) = tokio::sync::oneshot::channel::<()>();
        let (ended, has_ended) = tokio::sync::oneshot::channel::<()>();
        let (go_on, may_go_on) = tokio::sync::oneshot::channel::<()>();
        let once = std::sync::Mutex::new(Some((begun, may_go_on, ended)));
        let once = std::sync::Arc::new(once);
        let slow = get(async move || {
            let taken = once.lock().ok().and_then(|mut once| once.take());
            if let Some((begun, may_go_on, ended)) = taken {
                let _ = begun.send(());
                let _ = may_go_on.await;
                let _ = ended.send(());
            }
        });
        let router = Router::new()
            .route("/slow", slow)
            .layer(middleware::from_fn(wrap));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("an address");
        let serving = tokio::spawn(async move { axum::serve(listener, router).await });
        let mut client = tokio::net::TcpStream::connect(address)
            .await
            .expect("a connection");
        let request = b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n";
        tokio::io::AsyncWriteExt::write_all(&mut client, request)
            .await
            .expect("sent");
        has_begun.await.expect("the handler begins");
        client.set_zero_linger().expect("an option");
        drop(client);
        // The server notices within a moment, and would drop the handler.
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        go_on.send(()).expect("the handler is still there");
        has_ended.await.expect("the handler ends");
        serving.abort();
    }
}
