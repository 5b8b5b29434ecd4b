//! The OpenAPI document says what is served.

use crate::served::{Answer, Served};
use anyhow::{Context, Result, ensure};
use isocost_api::schema::{SubmitBatch, SubmitJob};
use isocost_common::test_support::TestStore;
use reqwest::Method;
use serde_json::{Value, json};

isocost_common::store_tests! {
    every_example_of_a_submission_is_accepted,
    the_fields_of_the_schema_are_the_fields_that_are_read,
    every_type_of_problem_has_a_page,
}

#[test]
fn six_named_triggers_are_told_apart_by_a_string_type() -> Result<()> {
    let document = isocost_api::openapi();
    let trigger = &document["components"]["schemas"]["Trigger"];
    let mapping = trigger["discriminator"]["mapping"]
        .as_object()
        .context("a mapping")?;
    assert_eq!(trigger["discriminator"]["propertyName"], "type");
    assert_eq!(mapping.len(), 6);
    for (word, target) in mapping {
        let name = target
            .as_str()
            .and_then(|path| path.rsplit('/').next())
            .context("a target")?;
        let schema = &document["components"]["schemas"][name];
        let kind = &schema["properties"]["type"];
        assert_eq!(kind["type"], "string", "{name}");
        assert_eq!(kind["enum"], json!([word]), "{name}");
        let example = schema["example"].clone();
        assert_eq!(example["type"], json!(word), "{name}");
    }
    Ok(())
}

#[test]
fn every_operation_has_a_name_of_its_own() -> Result<()> {
    let document = isocost_api::openapi();
    let mut names = Vec::new();
    visit(&document, &mut |value| {
        names.extend(
            value
                .get("operationId")
                .and_then(Value::as_str)
                .map(str::to_owned),
        );
    });
    let mut distinct = names.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), names.len(), "{names:?}");
    Ok(())
}

#[test]
fn examples_are_what_their_schemas_say() -> Result<()> {
    let document = isocost_api::openapi();
    let example = document["components"]["schemas"]["SubmitJob"]["example"].clone();
    let job: SubmitJob = serde_json::from_value(example.clone())?;
    assert_eq!(serde_json::to_value(&job)?, example);
    let _: SubmitBatch = serde_json::from_value(json!({ "jobs": [example] }))?;
    Ok(())
}

#[test]
fn every_reference_leads_somewhere() -> Result<()> {
    let document = isocost_api::openapi();
    let mut broken = Vec::new();
    visit(&document, &mut |value| {
        if let Some(target) = value.get("$ref").and_then(Value::as_str) {
            let place = target.trim_start_matches('#');
            if document.pointer(place).is_none() {
                broken.push(target.to_owned());
            }
        }
    });
    assert_eq!(broken, Vec::<String>::new());
    Ok(())
}

fn visit(value: &Value, look: &mut impl FnMut(&Value)) {
    look(value);
    match value {
        Value::Object(members) => members.values().for_each(|member| visit(member, look)),
        Value::Array(items) => items.iter().for_each(|item| visit(item, look)),
        _ => {}
    }
}

async fn every_example_of_a_submission_is_accepted(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let document = isocost_api::openapi();
    let schemas = &document["components"]["schemas"];
    let whole = api
        .post("/openapi/validate", &schemas["SubmitJob"]["example"])
        .await?;
    assert_eq!(whole.status, 200, "{}", whole.text);
    let parent = api
        .post(
            "/openapi/jobs",
            &json!({"jobName": "p", "jobHandler": "h", "trigger": {"type": "manual"}}),
        )
        .await?;
    let mapping = schemas["Trigger"]["discriminator"]["mapping"]
        .as_object()
        .context("a mapping")?;
    for target in mapping.values() {
        let name = target
            .as_str()
            .and_then(|path| path.rsplit('/').next())
            .context("a target")?;
        let mut trigger = schemas[name]["example"].clone();
        if trigger.get("jobId").is_some() {
            trigger["jobId"] = parent.json()["jobId"].clone();
        }
        let answer = api
            .post(
                "/openapi/validate",
                &json!({"jobName": "j", "jobHandler": "h", "trigger": trigger}),
            )
            .await?;
        assert_eq!(answer.status, 200, "{name}: {}", answer.text);
    }
    assert_eq!(api.job_count().await?, 1, "validating stored something");
    api.stop().await
}

async fn the_fields_of_the_schema_are_the_fields_that_are_read(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let document = isocost_api::openapi();
    let properties = document["components"]["schemas"]["SubmitJob"]["properties"]
        .as_object()
        .context("properties")?;
    let refused = api
        .post(
            "/openapi/validate",
            &json!({"jobName": "j", "jobHandler": "h", "zzzzzzzzzzzz": 1}),
        )
        .await?;
    let message = refused.json()["errors"][0]["message"]
        .as_str()
        .context("a message")?
        .to_owned();
    let known = message.split("known are ").nth(1).context("the known fields")?;
    let mut read: Vec<_> = known.split(", ").collect();
    let mut documented: Vec<_> = properties.keys().map(String::as_str).collect();
    // What belongs to the short form is read only where it may stand.
    read.sort_unstable();
    documented.sort_unstable();
    assert_eq!(read, documented);
    api.stop().await
}

async fn every_type_of_problem_has_a_page(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    for provoke in ["/openapi/jobs?status=x", "/openapi/jobs/nothing", "/nowhere"] {
        let problem = api.get(provoke).await?.json();
        let page = problem["type"].as_str().context("a type")?;
        let page = Answer::of(api.without_key(Method::GET, page)).await?;
        assert_eq!(page.status, 200);
        ensure!(
            page.header("content-type").starts_with("text/html"),
            "{:?}",
            page.headers
        );
    }
    assert_eq!(api.get("/problems/none-such").await?.status, 404);
    api.stop().await
}
