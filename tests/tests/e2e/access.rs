//! Who may call what, and what odd callers get.

use anyhow::{Context, Result};
use isocost_tests::api::{Api, items};
use isocost_tests::jobs::{once, with};
use isocost_tests::site::Site;
use reqwest::Method;
use serde_json::json;

/// Routes that the contract opens to everybody, and the metrics, which hold no user's data.
fn is_public(path: &str) -> bool {
    let public = [
        "/healthz",
        "/readyz",
        "/metrics",
        "/openapi.json",
        "/openapi-3.0.json",
        "/docs",
    ];
    public.contains(&path) || path.starts_with("/problems/")
}

/// Every method of every path in the served document, with an id that nothing has.
async fn routes(api: &Api) -> Result<Vec<(Method, String)>> {
    let document = api.get("/openapi.json").await?.success()?;
    let paths = document["paths"].as_object().context("no paths")?;
    let mut routes = Vec::new();
    for (path, item) in paths {
        let path = path
            .split('/')
            .map(|part| {
                if part.starts_with('{') {
                    "01900000-0000-7000-8000-000000000000"
                } else {
                    part
                }
            })
            .collect::<Vec<_>>()
            .join("/");
        for method in ["get", "put", "post", "patch", "delete"] {
            if item.get(method).is_some() {
                routes.push((
                    Method::from_bytes(method.to_uppercase().as_bytes())?,
                    path.clone(),
                ));
            }
        }
    }
    Ok(routes)
}

#[tokio::test]
async fn ap01_every_route_of_the_document_but_the_public_ones_needs_a_valid_key() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let wrong = Api::new(&site.base_url(), "iso_0123456789abcdef")?;
    let nobody = reqwest::Client::new();
    let routes = routes(process.api()).await?;
    assert!(routes.len() > 10, "{routes:?}");
    for (method, path) in routes.into_iter().filter(|(_, path)| !is_public(path)) {
        let without = nobody
            .request(method.clone(), format!("{}{path}", site.base_url()))
            .send()
            .await?;
        assert_eq!(without.status(), 401, "{method} {path} without a key");
        let answer = wrong.call(method.clone(), &path, Some("{}".to_owned())).await?;
        assert_eq!(
            answer.status, 401,
            "{method} {path} with a wrong key: {}",
            answer.text
        );
        assert_eq!(
            answer.headers["content-type"], "application/problem+json",
            "{method} {path}"
        );
    }
    process.stop().await
}

#[tokio::test]
async fn ap02_filters_are_values_and_never_sql() -> Result<()> {
    let site = Site::new()?;
    let process = site.start().await?;
    let api = process.api();
    for name in ["100%", "a_b", "plain"] {
        api.submit(&with(once("noop"), json!({ "jobName": name })))
            .await?;
    }
    for bad in [
        "status=id%3BDROP%20TABLE%20job_info",
        "pageToken=../../x",
        "pageSize=-1",
        "pageSize=100000",
        "pageSize=abc",
        "unknown=1",
    ] {
        let answer = api.get(&format!("/openapi/jobs?{bad}")).await?;
        assert_eq!(answer.status, 400, "{bad}: {}", answer.text);
        let text = answer.text.to_lowercase();
        assert!(
            !text.contains("sqlite") && !text.contains("syntax error"),
            "{bad}: {text}"
        );
    }
    for (name, expected) in [
        ("%25", vec!["100%"]),
        ("_", vec!["a_b"]),
        ("'%20OR%201%3D1%20--%20", vec![]),
    ] {
        let jobs = items(api.get(&format!("/openapi/jobs?name={name}")).await?.success()?)?;
        let names: Vec<_> = jobs.iter().filter_map(|job| job["jobName"].as_str()).collect();
        assert_eq!(names, expected, "name={name}");
    }
    assert_eq!(items(api.get("/openapi/jobs").await?.success()?)?.len(), 3);
    process.stop().await
}
