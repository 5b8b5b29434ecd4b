//! What can never be accepted lies in the dead letters with the reason, and holds nobody up.

use crate::{
    cases,
    site::{Site, header, json, new_key, take},
};
use anyhow::Result;
use isocost_common::{broker::Message, store::apps::Scope};
use serde_json::json;

cases! {
    poison_is_set_aside_with_its_reason_and_holds_nobody_up,
    a_key_with_other_content_is_refused,
    a_dead_letter_keeps_everything_but_the_secret,
    a_refusal_is_answered_with_a_problem,
    a_deleted_queue_of_dead_letters_comes_back,
}

const JOB: &str = r#"{"jobName": "a job", "jobHandler": "noop"}"#;

async fn poison_is_set_aside_with_its_reason_and_holds_nobody_up(site: &Site) -> Result<()> {
    let reader = new_key(&site.store, site.app.id, &[Scope::Read]).await?;
    let with_key = |key: &str| {
        let mut message = site.message("key", JOB);
        message.headers.insert("Authorization".into(), key.into());
        message
    };
    let stranger = Message {
        user_id: None,
        ..site.message("stranger", JOB)
    };
    let own_queue = Message {
        reply_to: Some(site.names.results_queue()),
        ..site.message("own", JOB)
    };
    let large = format!(
        r#"{{"jobName": "a", "jobHandler": "noop", "params": "{}"}}"#,
        "x".repeat(5 << 20)
    );
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let mut binary = site.message("binary", "");
    binary.body = vec![0xff, 0x00, 0xfe].into();
    let mut plain = site.message("plain", JOB);
    plain.content_type = Some("text/plain".into());
    let poison = [
        (site.message("text", "no json"), "json.malformed"),
        (binary, "json.malformed"),
        (plain, "body.not-json"),
        (site.message("empty", ""), "json.missing"),
        (site.message("array", &format!("[{JOB}]")), "json.not-an-object"),
        (site.message("deep", &deep), "json.too-deep"),
        (site.message("large", &large), "body.too-large"),
        (
            site.message("field", r#"{"jobName": "a", "jobHandler": "b", "x": 1}"#),
            "field.unknown",
        ),
        (site.message("", JOB), "key.missing"),
        (site.message("a\nline", JOB), "text.control-character"),
        (stranger, "sender.missing"),
        (with_key("Bearer isk_wrong"), "key.invalid"),
        (with_key("nonsense"), "key.missing"),
        (with_key(&format!("Bearer {reader}")), "key.scope-missing"),
        (own_queue, "reply-to.reserved"),
    ];
    let expected: Vec<&str> = poison.iter().map(|(_, code)| *code).collect();
    let poison = poison.into_iter().map(|(message, _)| message);
    let good = |number| site.message(&format!("good-{number}"), JOB);
    let mixed = poison.enumerate().flat_map(|(number, bad)| [bad, good(number)]);
    site.publish(mixed.collect()).await?;
    site.jobs_are(expected.len() as i64).await?;
    let mut dead = site.consume(&site.names.dead_submissions_queue()).await?;
    let mut codes = Vec::new();
    for _ in &expected {
        let letter = take(dead.as_mut()).await?;
        assert_ne!(header(&letter, "x-isocost-problem-detail"), "");
        codes.push(header(&letter, "x-isocost-problem").to_owned());
    }
    assert_eq!(codes, expected);
    assert_eq!(site.ready(&site.names.results_queue()).await?, 0);
    Ok(())
}

async fn a_key_with_other_content_is_refused(site: &Site) -> Result<()> {
    let other = r#"{"jobName": "another job", "jobHandler": "noop"}"#;
    site.publish(vec![site.message("order-1", JOB), site.message("order-1", other)])
        .await?;
    let mut dead = site.consume(&site.names.dead_submissions_queue()).await?;
    let letter = take(dead.as_mut()).await?;
    assert_eq!(header(&letter, "x-isocost-problem"), "key.reused");
    assert_eq!(header(&letter, "x-isocost-status"), "422");
    assert_eq!(site.job_count().await?, 1);
    Ok(())
}

async fn a_dead_letter_keeps_everything_but_the_secret(site: &Site) -> Result<()> {
    let mut message = site.message("order-1", "{}");
    message.kind = "their type".into();
    message.correlation_id = Some("call-7".into());
    message.expiration_ms = Some(60_000);
    message.reply_to = Some("nowhere".into());
    message.headers.insert("their-header".into(), "kept".into());
    message
        .headers
        .insert("authorization".into(), "Bearer isk_secret".into());
    site.publish(vec![message]).await?;
    let mut dead = site.consume(&site.names.dead_submissions_queue()).await?;
    let letter = take(dead.as_mut()).await?;
    assert_eq!(
        (letter.message_id.as_str(), letter.kind.as_str()),
        ("order-1", "their type")
    );
    assert_eq!(letter.body.as_ref(), b"{}");
    assert_eq!(letter.correlation_id.as_deref(), Some("call-7"));
    assert_eq!(header(&letter, "their-header"), "kept");
    assert_eq!(header(&letter, "x-isocost-user-id"), site.line.user);
    assert_eq!(
        (&letter.expiration_ms, &letter.reply_to, &letter.user_id),
        (&None, &None, &None)
    );
    assert!(!format!("{letter:?}").contains("isk_secret"), "{letter:?}");
    Ok(())
}

async fn a_refusal_is_answered_with_a_problem(site: &Site) -> Result<()> {
    let (queue, mut answers) = site.reply_queue().await?;
    let message = Message {
        reply_to: Some(queue),
        correlation_id: Some("call-7".into()),
        ..site.message("order-1", r#"{"jobName": "a"}"#)
    };
    site.publish(vec![message]).await?;
    let answer = take(answers.as_mut()).await?;
    let problem = json(&answer);
    assert_eq!(answer.content_type.as_deref(), Some("application/problem+json"));
    assert_eq!(header(&answer, "x-isocost-status"), "400");
    assert_eq!(answer.correlation_id.as_deref(), Some("call-7"));
    assert_eq!(problem["type"], json!("/problems/invalid-request"));
    assert_eq!(
        (&problem["status"], &problem["code"]),
        (&json!(400), &json!("field.required"))
    );
    assert_eq!(problem["errors"][0]["pointer"], json!("/jobHandler"));
    assert_eq!(problem["requestId"], json!("order-1"));
    Ok(())
}

async fn a_deleted_queue_of_dead_letters_comes_back(site: &Site) -> Result<()> {
    let queue = site.names.dead_submissions_queue();
    site.line.producer.delete_queue(&queue).await?;
    site.publish(vec![site.message("bad", "no json"), site.message("good", JOB)])
        .await?;
    site.jobs_are(1).await?;
    let mut dead =
        isocost_common::test_support::eventually("the queue is back", crate::site::SOON, async || {
            Ok(site.consume(&queue).await.ok())
        })
        .await?;
    assert_eq!(take(dead.as_mut()).await?.message_id, "bad");
    Ok(())
}
