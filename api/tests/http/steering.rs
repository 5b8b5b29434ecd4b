use crate::served::{Answer, Served};
use anyhow::{Context, Result, ensure};
use isocost_common::{
    execution::ExecutionStatus,
    id::IncarnationId,
    message::HandlerLoad,
    store::{
        epoch, jobs, steering,
        workers::{self, WorkerRow, WorkerStatus},
    },
    test_support::{TestStore, eventually, given},
};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::Duration;

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
    a_job_that_runs_shows_that_it_is_being_deleted,
    a_waiting_job_says_what_it_waits_for,
    a_schedule_is_not_taken_out_by_a_patch,
    a_job_whose_window_is_over_can_still_be_renamed,
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
    let run = async |params: &str| {
        let body = format!(r#"{{"clientRequestId": "with params", "params": {params}}}"#);
        api.post_text(&format!("/openapi/jobs/{id}/trigger"), &body).await
    };
    let first = run(r#"{"a": 1, "b": [2]}"#).await?.json();
    let spelled_otherwise = run(r#"{ "b":[ 2 ], "a":1 }"#).await?.json();
    assert_eq!(spelled_otherwise["executionIds"], first["executionIds"]);
    for other in [r#"{"a": 2, "b": [2]}"#, "null", "[]"] {
        let answer = run(other).await?;
        assert_eq!(
            (answer.status.as_u16(), &answer.json()["code"]),
            (422, &json!("key.reused")),
            "{other}"
        );
    }
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

async fn a_job_that_runs_shows_that_it_is_being_deleted(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let body = job(&json!({"clientRequestId": "once only"}));
    let id = submit(&api, body.clone()).await?;
    let row = jobs::get(&mut *store.reader().await?, id.parse()?).await?;
    let running = given::execution(&row.context("the job")?, ExecutionStatus::Running);
    given::insert(store, &[], std::slice::from_ref(&running)).await?;
    let path = format!("/openapi/jobs/{id}");
    assert_eq!(show(&api, &id).await?.get("deleting"), None);
    let delete = Answer::of(api.request(Method::DELETE, &format!("{path}?cancel=true"))).await?;
    assert_eq!(delete.status, 202, "{}", delete.text);
    let shown = show(&api, &id).await?;
    assert_eq!(
        (&shown["deleting"], &shown["status"]),
        (&json!(true), &json!("CANCELLED"))
    );
    let again = Answer::of(api.request(Method::DELETE, &path)).await?;
    assert_eq!(again.status, 202, "{}", again.text);
    let steps = api
        .get(&format!("/openapi/executions/{}", running.id))
        .await?
        .json()["steps"]
        .clone();
    let last = steps
        .as_array()
        .and_then(|steps| steps.last())
        .context("a step")?;
    assert_eq!(last["step"], "CANCEL_REQUESTED", "{steps}");

    sqlx::query("update job_execution set status = 8, finished_at = 1")
        .execute(&mut *store.reader().await?)
        .await?;
    assert_eq!(steering::finish_deletions(store).await?, 1);
    assert_eq!(api.get(&path).await?.status, 404);
    let replay = api.post("/openapi/jobs", &body).await?;
    assert_eq!(
        (replay.status.as_u16(), &replay.json()["code"]),
        (409, &json!("job.deleted"))
    );
    assert_eq!(api.job_count().await?, 0);
    api.stop().await
}

/// Waits, because what is known of the fleet may be a second old.
async fn until_it_waits_for(api: &Served, job: &str, reason: &str) -> Result<()> {
    eventually(reason, Duration::from_secs(5), async || {
        let shown = show(api, job).await?;
        let told = shown["waitingReason"].as_str().unwrap_or_default();
        Ok(told.contains(reason).then_some(()))
    })
    .await
}

async fn a_waiting_job_says_what_it_waits_for(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let id = submit(&api, job(&json!({}))).await?;
    act(&api, &format!("/openapi/jobs/{id}/trigger")).await?;
    until_it_waits_for(&api, &id, "no dispatcher has led").await?;
    epoch::note_presence(store).await?;
    until_it_waits_for(&api, &id, "no online worker offers").await?;
    let worker = WorkerRow {
        worker: given::worker(),
        incarnation: IncarnationId::generate(),
        host: "127.0.0.1".into(),
        port: 1,
        handlers: vec![HandlerLoad {
            name: "h".into(),
            slots: 1,
            busy: 1,
            stuck: 0,
        }],
        labels: Default::default(),
        status: WorkerStatus::Online,
        drain_requested: false,
        active: 1,
        cpu_idle_percent: 50,
        mean_cost_ms: 0,
        registered_at: store.now(),
        last_heartbeat: store.now(),
    };
    let mut tx = store.begin().await?;
    workers::save(&mut tx, &[worker]).await?;
    tx.commit().await?;
    until_it_waits_for(&api, &id, "has room").await?;
    let maintenance = async |on: bool| {
        let request = api
            .request(Method::PUT, "/openapi/settings")
            .json(&json!({ "maintenance": on }));
        Answer::of(request).await
    };
    maintenance(true).await?;
    until_it_waits_for(&api, &id, "maintenance mode").await?;
    maintenance(false).await?;
    epoch::note_presence(store).await?;
    act(&api, &format!("/openapi/workers/{}/drain", given::worker())).await?;
    let shown = api.get("/openapi/workers").await?.json();
    assert_eq!(shown["items"][0]["status"], "DRAINING", "{shown}");
    until_it_waits_for(&api, &id, "is draining").await?;
    api.stop().await
}

async fn a_schedule_is_not_taken_out_by_a_patch(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let id = submit(
        &api,
        job(&json!({"trigger": {"type": "cron", "expr": "0 0 3 * * ?"}})),
    )
    .await?;
    let answer = patch(&api, &id, Some("*"), r#"{"trigger": null}"#).await?;
    assert_eq!(
        (answer.status.as_u16(), &answer.json()["errors"][0]["pointer"]),
        (400, &json!("/trigger"))
    );
    assert_eq!(show(&api, &id).await?["trigger"]["type"], "cron");
    api.stop().await
}

async fn a_job_whose_window_is_over_can_still_be_renamed(store: &TestStore) -> Result<()> {
    let api = Served::on(store).await?;
    let id = submit(&api, job(&json!({"endAt": "2099-01-01T00:00:00Z"}))).await?;
    sqlx::query("update job_info set end_at = 1000")
        .execute(&mut *store.reader().await?)
        .await?;
    let renamed = patch(&api, &id, Some("*"), r#"{"jobName": "over"}"#).await?;
    assert_eq!(renamed.status, 200, "{}", renamed.text);
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
