//! What becomes a job, whose it is, and what the producer hears.

use crate::{
    cases,
    site::{Site, header, json, new_app, new_key, take},
};
use anyhow::{Result, ensure};
use isocost_common::{broker::Message, store::apps::Scope};
use serde_json::json;
use std::time::Instant;

cases! {
    a_message_becomes_a_job_and_is_answered,
    the_same_message_again_is_one_job,
    a_key_in_the_body_goes_before_the_message_id,
    a_key_in_a_header_names_the_app,
    an_answer_that_nobody_takes_is_no_error,
    the_trace_of_a_message_is_kept_and_an_invalid_one_is_none,
    two_thousand_messages_share_commits,
    lost_connections_lose_nothing_and_double_nothing,
}

const JOB: &str = r#"{"jobName": "a job", "jobHandler": "noop", "params": 123456789012345678901234567890}"#;

async fn a_message_becomes_a_job_and_is_answered(site: &Site) -> Result<()> {
    let (queue, mut answers) = site.reply_queue().await?;
    let message = Message {
        reply_to: Some(queue),
        correlation_id: Some("call-7".into()),
        ..site.message("order-1", JOB)
    };
    site.publish(vec![message]).await?;
    let answer = take(answers.as_mut()).await?;
    let body = json(&answer);
    assert_eq!(header(&answer, "x-isocost-status"), "202", "{body}");
    assert_eq!(answer.correlation_id.as_deref(), Some("call-7"));
    assert_eq!(
        (&body["status"], &body["replayed"]),
        (&json!("WAITING"), &json!(false))
    );
    let stored: (String, String, String, String) = {
        let mut reader = site.store.reader().await?;
        sqlx::query_as("select id, app_id, client_request_id, params from job_info")
            .fetch_one(&mut *reader)
            .await?
    };
    assert_eq!(json!(stored.0), body["jobId"]);
    assert_eq!(stored.1, site.app.id.to_string());
    assert_eq!(stored.2, "order-1");
    assert_eq!(stored.3, "123456789012345678901234567890");
    Ok(())
}

async fn the_same_message_again_is_one_job(site: &Site) -> Result<()> {
    let (queue, mut answers) = site.reply_queue().await?;
    let message = Message {
        reply_to: Some(queue),
        ..site.message("order-1", JOB)
    };
    site.publish(vec![message.clone()]).await?;
    let first = take(answers.as_mut()).await?;
    site.publish(vec![message]).await?;
    let second = take(answers.as_mut()).await?;
    assert_eq!(header(&first, "x-isocost-status"), "202");
    assert_eq!(header(&second, "x-isocost-status"), "200");
    let (first, second) = (json(&first), json(&second));
    assert_eq!(first["jobId"], second["jobId"]);
    assert_eq!(second["replayed"], json!(true));
    assert_eq!(site.job_count().await?, 1);
    Ok(())
}

async fn a_key_in_the_body_goes_before_the_message_id(site: &Site) -> Result<()> {
    let body = r#"{"jobName": "a", "jobHandler": "noop", "clientRequestId": "from the body"}"#;
    site.publish(vec![
        site.message("one", body),
        site.message("two", body),
        site.message("", body),
    ])
    .await?;
    site.publish(vec![site.message("last", JOB)]).await?;
    site.jobs_are(2).await?;
    let mut reader = site.store.reader().await?;
    let keys: Vec<String> =
        sqlx::query_scalar("select client_request_id from job_info order by client_request_id")
            .fetch_all(&mut *reader)
            .await?;
    assert_eq!(keys, ["from the body", "last"]);
    Ok(())
}

async fn a_key_in_a_header_names_the_app(site: &Site) -> Result<()> {
    let other = new_app(&site.store, "another app").await?;
    let key = new_key(&site.store, other.id, &[Scope::Submit]).await?;
    let mut message = site.message("order-1", JOB);
    message
        .headers
        .insert("authorization".into(), format!("Bearer {key}"));
    let without_user = Message {
        user_id: None,
        message_id: "order-2".into(),
        ..message.clone()
    };
    site.publish(vec![message, without_user]).await?;
    site.jobs_are(2).await?;
    let mut reader = site.store.reader().await?;
    let apps: Vec<String> = sqlx::query_scalar("select distinct app_id from job_info")
        .fetch_all(&mut *reader)
        .await?;
    assert_eq!(apps, [other.id.to_string()]);
    Ok(())
}

async fn an_answer_that_nobody_takes_is_no_error(site: &Site) -> Result<()> {
    let (queue, mut answers) = site.reply_queue().await?;
    let lost = Message {
        reply_to: Some("a queue that is gone".into()),
        ..site.message("order-1", JOB)
    };
    let heard = Message {
        reply_to: Some(queue),
        ..site.message("order-2", JOB)
    };
    site.publish(vec![lost, heard]).await?;
    take(answers.as_mut()).await?;
    assert_eq!(site.job_count().await?, 2);
    assert_eq!(site.ready(&site.names.dead_submissions_queue()).await?, 0);
    Ok(())
}

async fn the_trace_of_a_message_is_kept_and_an_invalid_one_is_none(site: &Site) -> Result<()> {
    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let traced = |id: &str, trace: &str| {
        let mut message = site.message(id, JOB);
        message.headers.insert("traceparent".into(), trace.into());
        message
    };
    site.publish(vec![traced("good", TRACE), traced("bad", "00-nonsense")])
        .await?;
    site.jobs_are(2).await?;
    let mut reader = site.store.reader().await?;
    let stored: Vec<Option<String>> =
        sqlx::query_scalar("select traceparent from job_info order by client_request_id desc")
            .fetch_all(&mut *reader)
            .await?;
    assert_eq!(stored, [Some(TRACE.to_owned()), None]);
    Ok(())
}

async fn two_thousand_messages_share_commits(site: &Site) -> Result<()> {
    const COUNT: usize = 2_000;
    let (queue, mut answers) = site.reply_queue().await?;
    let messages = (0..COUNT).map(|number| Message {
        reply_to: Some(queue.clone()),
        correlation_id: Some(number.to_string()),
        ..site.message(&format!("order-{number}"), JOB)
    });
    let messages = messages.collect();
    let started = Instant::now();
    site.publish(messages).await?;
    let mut answered = vec![false; COUNT];
    for _ in 0..COUNT {
        let answer = take(answers.as_mut()).await?;
        let number: usize = answer.correlation_id.as_deref().unwrap_or_default().parse()?;
        ensure!(!answered[number], "{number} was answered twice");
        answered[number] = true;
    }
    let took = started.elapsed();
    println!(
        "{COUNT} submissions published, stored and answered in {took:?}: {:.0} a second",
        COUNT as f64 / took.as_secs_f64()
    );
    assert_eq!(site.job_count().await?, COUNT as i64);
    Ok(())
}

async fn lost_connections_lose_nothing_and_double_nothing(site: &Site) -> Result<()> {
    const COUNT: i64 = 600;
    for part in 0..6 {
        let messages = (0..100).map(|number| site.message(&format!("order-{part}-{number}"), JOB));
        site.publish(messages.collect()).await?;
        site.lose_connections();
    }
    site.jobs_are(COUNT).await?;
    // All of it again: nothing is added.
    let messages = (0..100).map(|number| site.message(&format!("order-0-{number}"), JOB));
    site.publish(messages.collect()).await?;
    site.publish(vec![site.message("last", JOB)]).await?;
    site.jobs_are(COUNT + 1).await
}
