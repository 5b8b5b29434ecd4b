//! Who may call what. The table of routes is the OpenAPI document, which is made from the router's own list.

use crate::served::{Answer, Served, new_app, new_key};
use anyhow::{Context, Result, ensure};
use isocost_common::{
    id::AppId,
    store::apps::{self, Scope},
    test_support::TestStore,
};
use reqwest::Method;
use serde_json::{Value, json};

isocost_common::store_tests! {
    ap01_no_route_works_without_a_key_but_the_public_ones,
    ap01_a_key_without_the_scope_is_refused_by_every_route,
    ap01_objects_of_another_app_do_not_exist,
    a_revoked_key_stops_working_here_at_once,
    the_webhook_secret_of_a_new_app_is_shown_once,
    an_app_over_its_rate_is_told_when_to_come_back,
}

const PUBLIC: [&str; 4] = ["/healthz", "/readyz", "/metrics", "/problems/{name}"];

/// Method, path and needed scope of every route.
fn routes() -> Result<Vec<(Method, String, Option<String>)>> {
    let document = isocost_api::openapi();
    let mut routes = Vec::new();
    for (path, item) in document["paths"].as_object().context("paths")? {
        for (method, operation) in item.as_object().context("operations")? {
            let Ok(method) = method.to_uppercase().parse::<Method>() else {
                continue;
            };
            let scope = operation["security"][0]["key"][0].as_str().map(str::to_owned);
            routes.push((method, path.clone(), scope));
        }
    }
    ensure!(routes.len() > 30, "only {} routes were found", routes.len());
    Ok(routes)
}

/// A path with an id that is nobody's.
fn filled(path: &str) -> String {
    let nobody = "01939c5e-7e2a-7000-8000-000000000000";
    path.replace("{id}", nobody)
        .replace("{keyId}", nobody)
        .replace("{secretId}", nobody)
        .replace("{name}", "not-found")
}

async fn ap01_no_route_works_without_a_key_but_the_public_ones(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    for (method, path, scope) in routes()? {
        let path_called = filled(&path);
        let without = Answer::of(api.without_key(method.clone(), &path_called)).await?;
        if PUBLIC.contains(&path.as_str()) {
            assert_eq!(without.status, 200, "{method} {path}: {}", without.text);
            continue;
        }
        ensure!(scope.is_some(), "{method} {path} names no scope");
        let wrong = Answer::of(api.with_key(method.clone(), &path_called, "isk_wrong")).await?;
        for answer in [without, wrong] {
            assert_eq!(answer.status, 401, "{method} {path}: {}", answer.text);
            ensure!(
                answer.header("www-authenticate").starts_with("Bearer"),
                "{method} {path}"
            );
            assert_eq!(answer.header("content-type"), "application/problem+json");
        }
    }
    for open in ["/openapi.json", "/openapi-3.0.json", "/docs/"] {
        assert_eq!(
            Answer::of(api.without_key(Method::GET, open)).await?.status,
            200,
            "{open}"
        );
    }
    api.stop().await
}

async fn ap01_a_key_without_the_scope_is_refused_by_every_route(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let submitter = new_key(store, api.app, &[Scope::Submit]).await?;
    let reader = new_key(store, api.app, &[Scope::Read]).await?;
    for (method, path, scope) in routes()? {
        let Some(scope) = scope else { continue };
        let (key, allowed) = if scope == "submit" {
            (&reader, &submitter)
        } else {
            (&submitter, &reader)
        };
        let refused = Answer::of(api.with_key(method.clone(), &filled(&path), key)).await?;
        assert_eq!(refused.status, 403, "{method} {path}: {}", refused.text);
        ensure!(
            refused.text.contains(&format!("`{scope}`")),
            "{method} {path}: {}",
            refused.text
        );
        if matches!(scope.as_str(), "submit" | "read") && path != "/openapi/events" {
            let let_through = Answer::of(api.with_key(method.clone(), &filled(&path), allowed)).await?;
            ensure!(
                !matches!(let_through.status.as_u16(), 401 | 403),
                "{method} {path}: {}",
                let_through.text
            );
        }
    }
    api.stop().await
}

async fn ap01_objects_of_another_app_do_not_exist(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let job = api
        .post(
            "/openapi/jobs",
            &json!({"jobName": "mine", "jobHandler": "noop", "trigger": {"type": "manual"}}),
        )
        .await?;
    let job = job.json()["jobId"].as_str().context("a job")?.to_owned();
    let run = api
        .post(&format!("/openapi/jobs/{job}/trigger"), &json!({}))
        .await?;
    let execution = run.json()["executionId"]
        .as_str()
        .context("an execution")?
        .to_owned();
    let other = new_app(store, "other").await?;
    let stranger = new_key(store, other, &Scope::ALL).await?;
    for (method, path, _) in routes()? {
        let id = match path.as_str() {
            _ if !path.contains("{id}") => continue,
            _ if path.starts_with("/openapi/jobs/") => &job,
            _ if path.starts_with("/openapi/executions/") => &execution,
            _ => continue,
        };
        let request = api.with_key(method.clone(), &path.replace("{id}", id), &stranger);
        let request = if method == Method::PATCH {
            request
                .header("if-match", "*")
                .header("content-type", "application/json")
                .body("{}")
        } else {
            request
        };
        let answer = Answer::of(request).await?;
        assert_eq!(answer.status, 404, "{method} {path}: {}", answer.text);
    }
    for list in ["/openapi/jobs", "/openapi/executions"] {
        let answer = Answer::of(api.with_key(Method::GET, list, &stranger)).await?;
        assert_eq!(answer.json()["items"], json!([]), "{list}");
    }
    let untouched = api.get(&format!("/openapi/jobs/{job}")).await?.json();
    assert_eq!(
        (&untouched["status"], &untouched["version"]),
        (&json!("WAITING"), &json!(1))
    );
    api.stop().await
}

async fn a_revoked_key_stops_working_here_at_once(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let keys = format!("/openapi/apps/{}/keys", api.app);
    let made = api
        .post(&keys, &json!({"name": "short-lived", "scopes": ["read"]}))
        .await?;
    assert_eq!(made.status, 201, "{}", made.text);
    let made = made.json();
    let text = made["key"].as_str().context("the key's text")?;
    assert_eq!(
        Answer::of(api.with_key(Method::GET, "/openapi/jobs", text))
            .await?
            .status,
        200
    );
    let listed = api.get(&keys).await?;
    ensure!(!listed.text.contains(text), "the list shows the key's text");
    let revoked = Answer::of(api.request(
        Method::DELETE,
        &format!("{keys}/{}", made["keyId"].as_str().unwrap_or_default()),
    ))
    .await?;
    assert_eq!(revoked.status, 204, "{}", revoked.text);
    assert_eq!(
        Answer::of(api.with_key(Method::GET, "/openapi/jobs", text))
            .await?
            .status,
        401
    );
    api.stop().await
}

async fn the_webhook_secret_of_a_new_app_is_shown_once(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let made = api.post("/openapi/apps", &json!({"name": "billing"})).await?;
    assert_eq!(made.status, 201, "{}", made.text);
    let app: AppId = made.json()["appId"].as_str().context("an id")?.parse()?;
    let stored = apps::list_webhook_secrets(&mut *store.reader().await?, app).await?;
    assert_eq!(stored.len(), 1);
    assert_eq!(made.json()["webhookSecret"], json!(stored[0].secret));
    for path in [
        "/openapi/apps".to_owned(),
        format!("/openapi/apps/{app}/webhook-secrets"),
    ] {
        let listed = api.get(&path).await?;
        ensure!(!listed.text.contains("whsec_"), "{path}: {}", listed.text);
    }
    api.stop().await
}

async fn an_app_over_its_rate_is_told_when_to_come_back(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let made = api
        .post("/openapi/apps", &json!({"name": "slow", "rateLimitPerSecond": 2}))
        .await?;
    assert_eq!(made.status, 201, "{}", made.text);
    let app: Value = made.json()["appId"].clone();
    let key = new_key(store, app.as_str().context("an app")?.parse()?, &[Scope::Read]).await?;
    let mut limited = None;
    for _ in 0..20 {
        let answer = Answer::of(api.with_key(Method::GET, "/openapi/jobs", &key)).await?;
        ensure!(
            answer.header("ratelimit-policy").contains("q=2"),
            "{:?}",
            answer.headers
        );
        if answer.status == 429 {
            limited = Some(answer);
            break;
        }
    }
    let limited = limited.context("twenty calls went through at two a second")?;
    assert_eq!(limited.header("retry-after"), "1");
    assert_eq!(limited.json()["code"], "rate.exceeded");
    assert_eq!(
        api.get("/openapi/jobs").await?.status,
        200,
        "another app is not limited"
    );
    api.stop().await
}
