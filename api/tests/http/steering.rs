use crate::served::{Answer, Served};
use anyhow::{Context, Result, ensure};
use isocost_common::test_support::TestStore;
use reqwest::Method;
use serde_json::{Value, json};

isocost_common::store_tests! {
    cr04_a_run_by_hand_leaves_the_schedule_alone,
    du08_a_run_by_hand_respects_discard,
    a_serial_job_lets_the_second_run_wait_for_the_first,
    a_run_with_a_key_is_made_once,
    a_retry_makes_a_new_execution_once,
    cancelling_a_job_ends_what_has_not_started,
    a_paused_job_resumes_with_its_next_firing,
    a_patch_needs_the_current_version,
    a_patch_changes_only_what_it_names,
    a_job_is_deleted_only_when_nothing_of_it_is_open,
    bulk_does_to_all_that_match_and_counts_first,
    settings_are_kept_and_checked,
    steering_is_audited,
}

async fn submit(api: &Served, body: Value) -> Result<String> {
    let answer = api.post("/openapi/jobs", &body).await?;
    assert_eq!(answer.status, 202, "{}", answer.text);
    Ok(answer.json()["jobId"].as_str().context("an id")?.to_owned())
}

fn job(more: &Value) -> Value {
    let mut body = json!({"jobName": "j", "jobHandler": "h", "trigger": {"type": "manual"}});
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    body
}

async fn act(api: &Served, path: &str) -> Result<Answer> {
    Answer::of(api.request(Method::POST, path)).await
}

async fn show(api: &Served, job: &str) -> Result<Value> {
    Ok(api.get(&format!("/openapi/jobs/{job}")).await?.json())
}

async fn patch(api: &Served, job: &str, etag: Option<&str>, body: &str) -> Result<Answer> {
    let request = api
        .request(Method::PATCH, &format!("/openapi/jobs/{job}"))
        .header("content-type", "application/merge-patch+json")
        .body(body.to_owned());
    Answer::of(match etag {
        Some(etag) => request.header("if-match", etag),
        None => request,
    })
    .await
}

async fn cr04_a_run_by_hand_leaves_the_schedule_alone(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let id = submit(
        &api,
        job(&json!({"trigger": {"type": "cron", "expr": "0 0 3 * * ?"}})),
    )
    .await?;
    let before = show(&api, &id).await?["nextTriggerTime"].clone();
    let run = act(&api, &format!("/openapi/jobs/{id}/trigger")).await?;
    assert_eq!(run.status, 202, "{}", run.text);
    let after = show(&api, &id).await?;
    assert_eq!(after["nextTriggerTime"], before);
    assert_eq!(after["lastExecution"]["executionId"], run.json()["executionId"]);
    assert_eq!(after["counts"], json!({"PENDING": 1}));
    api.stop().await
}

async fn du08_a_run_by_hand_respects_discard(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let id = submit(&api, job(&json!({"concurrency": "discard"}))).await?;
    let path = format!("/openapi/jobs/{id}/trigger");
    let first = act(&api, &path).await?;
    assert_eq!(first.status, 202, "{}", first.text);
    let second = act(&api, &path).await?;
    assert_eq!(
        (second.status.as_u16(), &second.json()["code"]),
        (409, &json!("concurrency.discarded"))
    );
    assert_eq!(show(&api, &id).await?["counts"], json!({"PENDING": 1}));
    let first = first.json()["executionId"].as_str().context("an id")?.to_owned();
    act(&api, &format!("/openapi/executions/{first}/cancel")).await?;
    assert_eq!(act(&api, &path).await?.status, 202, "the slot was not given back");
    api.stop().await
}

async fn a_serial_job_lets_the_second_run_wait_for_the_first(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let id = submit(&api, job(&json!({"concurrency": "serial"}))).await?;
    let path = format!("/openapi/jobs/{id}/trigger");
    let first = act(&api, &path).await?.json();
    let second = act(&api, &path).await?.json();
    assert_eq!(
        (first.get("waitingReason"), second["waitingReason"].is_string()),
        (None, true)
    );
    let execution = |run: &Value| run["executionId"].as_str().unwrap_or_default().to_owned();
    act(&api, &format!("/openapi/executions/{}/cancel", execution(&first))).await?;
    let steps = api
        .get(&format!("/openapi/executions/{}", execution(&second)))
        .await?
        .json()["steps"]
        .clone();
    let words: Vec<_> = steps
        .as_array()
        .context("steps")?
        .iter()
        .filter_map(|step| step["step"].as_str())
        .collect();
    assert_eq!(words.last(), Some(&"PENDING"), "{words:?}");
    api.stop().await
}

async fn a_run_with_a_key_is_made_once(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let id = submit(&api, job(&json!({"shards": 3}))).await?;
    let body = json!({"clientRequestId": "again"});
    let first = api
        .post(&format!("/openapi/jobs/{id}/trigger"), &body)
        .await?
        .json();
    let second = api
        .post(&format!("/openapi/jobs/{id}/trigger"), &body)
        .await?
        .json();
    assert_eq!(first["executionIds"].as_array().map(Vec::len), Some(3));
    assert_eq!(
        (&second["executionIds"], &second["replayed"]),
        (&first["executionIds"], &json!(true))
    );
    api.stop().await
}

async fn a_retry_makes_a_new_execution_once(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let id = submit(&api, job(&json!({}))).await?;
    let run = act(&api, &format!("/openapi/jobs/{id}/trigger")).await?.json();
    let execution = run["executionId"].as_str().context("an id")?.to_owned();
    let retry = format!("/openapi/executions/{execution}/retry");
    let open = act(&api, &retry).await?;
    assert_eq!(
        (open.status.as_u16(), &open.json()["code"]),
        (409, &json!("execution.open"))
    );
    act(&api, &format!("/openapi/executions/{execution}/cancel")).await?;
    let first = act(&api, &retry).await?;
    assert_eq!(first.status, 202, "{}", first.text);
    assert_ne!(first.json()["executionId"], json!(execution));
    assert_eq!(
        act(&api, &retry).await?.json()["executionId"],
        first.json()["executionId"]
    );
    assert_eq!(
        act(&api, &format!("/openapi/executions/{execution}/cancel"))
            .await?
            .status,
        200
    );
    api.stop().await
}

async fn cancelling_a_job_ends_what_has_not_started(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let id = submit(&api, job(&json!({"trigger": {"type": "fixedRate", "everyMs": 3_600_000}, "startAt": "2099-01-01T00:00:00Z"}))).await?;
    act(&api, &format!("/openapi/jobs/{id}/trigger")).await?;
    for _ in 0..2 {
        let answer = act(&api, &format!("/openapi/jobs/{id}/cancel")).await?;
        assert_eq!(
            (answer.status.as_u16(), &answer.json()["status"]),
            (200, &json!("CANCELLED")),
            "{}",
            answer.text
        );
    }
    let shown = show(&api, &id).await?;
    assert_eq!(
        (shown.get("nextTriggerTime"), &shown["counts"]),
        (None, &json!({"CANCELLED": 1}))
    );
    for (action, code) in [("pause", "job.wrong-status"), ("trigger", "job.cancelled")] {
        let refused = act(&api, &format!("/openapi/jobs/{id}/{action}")).await?;
        assert_eq!(
            (refused.status.as_u16(), &refused.json()["code"]),
            (409, &json!(code))
        );
    }
    api.stop().await
}

async fn a_paused_job_resumes_with_its_next_firing(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let id = submit(
        &api,
        job(&json!({"trigger": {"type": "cron", "expr": "0 0 3 * * ?"}})),
    )
    .await?;
    let next = show(&api, &id).await?["nextTriggerTime"].clone();
    let paused = act(&api, &format!("/openapi/jobs/{id}/pause")).await?.json();
    assert_eq!(
        (&paused["status"], paused["waitingReason"].is_string()),
        (&json!("PAUSED"), true)
    );
    let resumed = act(&api, &format!("/openapi/jobs/{id}/resume")).await?.json();
    assert_eq!(
        (&resumed["status"], &resumed["nextTriggerTime"]),
        (&json!("WAITING"), &next)
    );
    api.stop().await
}

async fn a_patch_needs_the_current_version(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let id = submit(&api, job(&json!({}))).await?;
    let missing = patch(&api, &id, None, r#"{"priority":1}"#).await?;
    assert_eq!(
        (missing.status.as_u16(), &missing.json()["code"]),
        (428, &json!("if-match.missing"))
    );
    let etag = api
        .get(&format!("/openapi/jobs/{id}"))
        .await?
        .header("etag")
        .to_owned();
    let changed = patch(&api, &id, Some(&etag), r#"{"priority":1}"#).await?;
    assert_eq!(
        (changed.status.as_u16(), &changed.json()["priority"]),
        (200, &json!(1)),
        "{}",
        changed.text
    );
    assert_ne!(changed.header("etag"), etag);
    let late = patch(&api, &id, Some(&etag), r#"{"priority":2}"#).await?;
    assert_eq!(
        (late.status.as_u16(), &late.json()["code"]),
        (412, &json!("job.changed"))
    );
    for (body, pointer) in [
        (r#"{"priority":10}"#, "/priority"),
        (r#"{"clientRequestId":"x"}"#, "/clientRequestId"),
        (r#"{"jobName":null}"#, "/jobName"),
        (r#"{"prio":1}"#, "/prio"),
    ] {
        let refused = patch(&api, &id, Some("*"), body).await?;
        assert_eq!(
            (refused.status.as_u16(), &refused.json()["errors"][0]["pointer"]),
            (400, &json!(pointer)),
            "{body}"
        );
    }
    assert_eq!(show(&api, &id).await?["version"], 2);
    api.stop().await
}

async fn a_patch_changes_only_what_it_names(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let body = r#"{"jobName":"j","jobHandler":"h","params":{"big":123456789012345678901234567890,"a":1},
                   "trigger":{"type":"fixedRate","everyMs":3600000},"labels":{"team":"a","zone":"b"},
                   "startAt":"2099-01-01T00:00:00Z","concurrencyKey":"k"}"#;
    let id = api.post_text("/openapi/jobs", body).await?.json()["jobId"]
        .as_str()
        .context("an id")?
        .to_owned();
    let before = show(&api, &id).await?;
    let answer = patch(
        &api,
        &id,
        Some("*"),
        r#"{"params":{"a":2},"labels":{"team":null},"concurrencyKey":null}"#,
    )
    .await?;
    assert_eq!(answer.status, 200, "{}", answer.text);
    ensure!(
        answer.text.contains("123456789012345678901234567890"),
        "{}",
        answer.text
    );
    let after = answer.json();
    assert_eq!(
        (&after["params"]["a"], &after["labels"]),
        (&json!(2), &json!({"zone": "b"}))
    );
    assert_eq!(after.get("concurrencyKey"), None);
    assert_eq!(
        (&after["trigger"], &after["nextTriggerTime"]),
        (&before["trigger"], &before["nextTriggerTime"])
    );
    let found = api.get("/openapi/jobs?label=team:a").await?.json();
    assert_eq!(found["items"], json!([]));
    let trigger = r#"{"trigger":{"type":"cron","expr":"0 0 3 * * ?"},"startAt":null}"#;
    let replanned = patch(&api, &id, Some("*"), trigger).await?.json();
    assert_eq!(replanned["trigger"]["type"], "cron");
    assert_ne!(replanned["nextTriggerTime"], before["nextTriggerTime"]);
    api.stop().await
}

async fn a_job_is_deleted_only_when_nothing_of_it_is_open(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let id = submit(&api, job(&json!({"labels": {"a": "b"}}))).await?;
    let run = act(&api, &format!("/openapi/jobs/{id}/trigger")).await?.json();
    let delete = |query: &str| api.request(Method::DELETE, &format!("/openapi/jobs/{id}{query}"));
    let open = Answer::of(delete("")).await?;
    assert_eq!(
        (open.status.as_u16(), &open.json()["code"]),
        (409, &json!("job.open"))
    );
    let deleted = Answer::of(delete("?cancel=true")).await?;
    assert_eq!(deleted.status, 204, "{}", deleted.text);
    assert_eq!(api.get(&format!("/openapi/jobs/{id}")).await?.status, 404);
    let execution = run["executionId"].as_str().context("an id")?;
    let kept = api.get(&format!("/openapi/executions/{execution}")).await?;
    assert_eq!(kept.json()["status"], "CANCELLED", "history went with the job");
    api.stop().await
}

async fn bulk_does_to_all_that_match_and_counts_first(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    for handler in ["x", "x", "y"] {
        submit(&api, job(&json!({"jobHandler": handler}))).await?;
    }
    let all = api
        .post("/openapi/jobs/bulk", &json!({"action": "cancel", "filter": {}}))
        .await?;
    assert_eq!(all.json()["errors"][0]["code"], "filter.empty");
    let mut body = json!({"action": "pause", "filter": {"handler": "x"}, "dryRun": true});
    let counted = api.post("/openapi/jobs/bulk", &body).await?.json();
    assert_eq!((&counted["matched"], &counted["done"]), (&json!(2), &json!(0)));
    body["dryRun"] = json!(false);
    let done = api.post("/openapi/jobs/bulk", &body).await?.json();
    assert_eq!((&done["matched"], &done["done"]), (&json!(2), &json!(2)));
    let waiting = api.get("/openapi/jobs?status=WAITING").await?.json();
    assert_eq!(waiting["items"].as_array().map(Vec::len), Some(1));
    api.stop().await
}

async fn settings_are_kept_and_checked(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let put = |body: Value| {
        let request = api.request(Method::PUT, "/openapi/settings");
        Answer::of(
            request
                .header("content-type", "application/json")
                .body(body.to_string()),
        )
    };
    let before = api.get("/openapi/settings").await?.json();
    assert_eq!(
        (&before["balancer"]["strategy"], &before["maintenance"]),
        (&json!("equal_cost"), &json!(false))
    );
    let answer =
        put(json!({"balancer": {"strategy": "random", "weights": {"cpu": 0.5}}, "maintenance": true}))
            .await?;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let after = api.get("/openapi/settings").await?.json();
    assert_eq!(
        after["balancer"],
        json!({"strategy": "random", "weights": {"active": 10.0, "cost": 1.0, "cpu": 0.5}})
    );
    assert_eq!(after["maintenance"], true);
    let bad = put(json!({"balancer": {"strategy": "fastest", "weights": {"cpu": -1}}})).await?;
    assert_eq!(
        (bad.status.as_u16(), bad.json()["errors"].as_array().map(Vec::len)),
        (400, Some(2)),
        "{}",
        bad.text
    );
    api.stop().await
}

async fn steering_is_audited(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let id = submit(&api, job(&json!({}))).await?;
    for action in ["pause", "resume", "trigger", "cancel"] {
        ensure!(
            act(&api, &format!("/openapi/jobs/{id}/{action}"))
                .await?
                .status
                .is_success(),
            "{action}"
        );
    }
    let mut connection = store.reader().await?;
    let actions: Vec<String> = sqlx::query_scalar("select action from audit where object = ? order by seq")
        .bind(id)
        .fetch_all(&mut *connection)
        .await?;
    assert_eq!(actions, ["job.pause", "job.resume", "job.trigger", "job.cancel"]);
    drop(connection);
    api.stop().await
}
