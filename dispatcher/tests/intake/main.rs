//! What workers report is taken in once, in order, and never held up by what cannot be.

mod site;

use isocost_common::{
    broker::{Broker, Consumer, Message, SCHEMA_VERSION_HEADER},
    execution::{ExecutionError, ExecutionStatus, Outcome},
    job::{JobStatus, RetryPolicy},
    message::{CallbackTicket, LogLevel, LogLine, LogMessage, Progress, ReportEvent, ReportMessage, kind},
    store::{handler_logs, job_log},
};
use isocost_dispatcher::intake::all_taken_in;
use site::{Site, consuming, finished, started, success};
use std::time::Duration;
use tokio::time::timeout;

#[tokio::test]
async fn a_run_is_settled_announced_and_acked() -> anyhow::Result<()> {
    let mut site = Site::start().await?;
    let row = site.dispatched(RetryPolicy::default()).await?;
    let events = vec![
        (row.claim(), started(&site.store)),
        (row.claim(), finished(&site.store, success())),
    ];
    site.report(events).await?;
    let settled = site.next_settled().await?.settled;
    assert_eq!(settled.len(), 1, "two events of one handover are one change");
    assert_eq!(
        (settled[0].claim, settled[0].status),
        (row.claim(), ExecutionStatus::Succeeded)
    );
    assert!(settled[0].cost_ms.is_some());
    assert_eq!(site.job_status(row.job).await?, JobStatus::Success);

    let mut tickets = site
        .broker
        .consume(&site.names.first_callbacks_queue(), consuming())
        .await?;
    let ticket: CallbackTicket = next(tickets.as_mut()).await?.parse()?;
    assert_eq!(ticket.attempt, 1);
    let mut reader = site.store.reader().await?;
    let steps = job_log::of_execution(&mut reader, row.id).await?;
    drop(reader);
    assert_eq!(steps.len(), 2, "both steps are shown");
    site.stop().await
}

async fn next(consumer: &mut dyn Consumer) -> anyhow::Result<Message> {
    Ok(timeout(Duration::from_secs(10), consumer.next()).await??.message)
}

#[tokio::test]
async fn a_failed_attempt_is_planned_again_after_the_pause_of_its_policy() -> anyhow::Result<()> {
    let mut site = Site::start().await?;
    let retry = RetryPolicy {
        max_attempts: 2,
        initial_ms: 30_000,
        ..RetryPolicy::default()
    };
    let row = site.dispatched(retry).await?;
    let outcome = Outcome::Failed {
        error: ExecutionError::new("handler.failed", "no"),
        retryable: true,
        retry_after_ms: None,
    };
    let before = site.store.now();
    site.report(vec![(row.claim(), finished(&site.store, outcome))])
        .await?;
    let settled = site.next_settled().await?.settled;
    assert_eq!(settled[0].status, ExecutionStatus::Scheduled);
    let planned = site.execution(row.id).await?;
    let pause = planned.not_before.since(before);
    assert!(
        (Duration::from_secs(30)..Duration::from_secs(40)).contains(&pause),
        "{pause:?}"
    );
    assert_eq!((planned.attempt, planned.finished_at), (1, None));
    assert_eq!(planned.error.expect("of the attempt").code, "handler.failed");
    assert_eq!(site.job_status(row.job).await?, JobStatus::Waiting);
    site.stop().await
}

#[tokio::test]
async fn reports_that_come_twice_or_too_late_change_nothing() -> anyhow::Result<()> {
    let mut site = Site::start().await?;
    let row = site.dispatched(RetryPolicy::default()).await?;
    let end = || (row.claim(), finished(&site.store, success()));
    let older = isocost_common::execution::Claim {
        dispatch_seq: 0,
        ..row.claim()
    };
    site.report(vec![(older, ReportEvent::Unknown)]).await?;
    site.report(vec![end()]).await?;
    site.report(vec![end(), (row.claim(), ReportEvent::Unknown)])
        .await?;
    site.report(vec![(row.claim(), started(&site.store))]).await?;
    site.next_settled().await?;
    let settled = site.execution(row.id).await?;
    // A second execution behind them all: when it is settled, they were taken in.
    let last = site.dispatched(RetryPolicy::default()).await?;
    site.report(vec![(last.claim(), finished(&site.store, success()))])
        .await?;
    site.eventually(last.id, ExecutionStatus::Succeeded).await?;
    assert_eq!(site.execution(row.id).await?, settled);
    assert_eq!(settled.status, ExecutionStatus::Succeeded);
    site.stop().await
}

#[tokio::test]
async fn a_refused_execution_waits_again_and_the_leader_is_told() -> anyhow::Result<()> {
    let mut site = Site::start().await?;
    let row = site.dispatched(RetryPolicy::default()).await?;
    let reason = "no free slot".to_owned();
    site.report(vec![(row.claim(), ReportEvent::Refused { reason })])
        .await?;
    let settled = site.next_settled().await?.settled;
    assert_eq!(
        (settled[0].status, settled[0].refused),
        (ExecutionStatus::Pending, true)
    );
    let mut reader = site.store.reader().await?;
    let steps = job_log::of_execution(&mut reader, row.id).await?;
    drop(reader);
    assert_eq!(
        steps[0].message.as_deref(),
        Some("refused by the worker: no free slot")
    );
    site.stop().await
}

#[tokio::test]
async fn a_report_that_cannot_be_taken_in_is_set_aside_alone() -> anyhow::Result<()> {
    let site = Site::start().await?;
    let mut rows = Vec::new();
    for _ in 0..5 {
        rows.push(site.dispatched(RetryPolicy::default()).await?);
    }
    let spoil = format!(
        "update job_execution set trigger_kind = 99 where id = '{}'",
        rows[2].id
    );
    site.execute(&spoil).await?;
    let mut dead = site
        .broker
        .consume(&site.names.dead_results_queue(), consuming())
        .await?;
    for row in &rows {
        site.report(vec![(row.claim(), finished(&site.store, success()))])
            .await?;
    }
    let letter = next(dead.as_mut()).await?;
    let why = letter.headers.get("x-isocost-problem-detail");
    assert!(
        why.is_some_and(|why| why.contains("trigger_kind = 99")),
        "{why:?}"
    );
    let set_aside: ReportMessage = letter.parse()?;
    assert_eq!(set_aside.reports[0].claim, rows[2].claim());
    for row in rows.iter().filter(|row| row.id != rows[2].id) {
        site.eventually(row.id, ExecutionStatus::Succeeded).await?;
    }
    let mut reader = site.store.reader().await?;
    let steps = job_log::of_execution(&mut reader, rows[2].id).await?;
    drop(reader);
    let said = steps[0].message.clone().unwrap_or_default();
    assert!(
        said.starts_with("a report of its worker could not be taken in"),
        "{said}"
    );
    site.stop().await
}

/// Only rows that are to blame are given up. A table that is away stands for every error that nobody thought of.
#[tokio::test]
async fn a_report_waits_for_as_long_as_the_database_cannot_write_it() -> anyhow::Result<()> {
    let site = Site::start().await?;
    let rows = [
        site.dispatched(RetryPolicy::default()).await?,
        site.dispatched(RetryPolicy::default()).await?,
    ];
    site.execute("alter table callback_delivery rename to moved")
        .await?;
    for row in &rows {
        site.report(vec![(row.claim(), finished(&site.store, success()))])
            .await?;
    }
    let told = async {
        loop {
            let report = site.readiness.report().await;
            let results = report.checks.iter().find(|check| check.name == "results");
            if let Some(check) = results.filter(|check| !check.ready) {
                return check.message.clone().unwrap_or_default();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let said = timeout(Duration::from_secs(20), told).await?;
    assert!(said.contains("callback_delivery"), "{said}");
    assert_eq!(site.ready(&site.names.dead_results_queue()).await?, 0);

    site.execute("alter table moved rename to callback_delivery")
        .await?;
    for row in &rows {
        site.eventually(row.id, ExecutionStatus::Succeeded).await?;
    }
    let report = site.readiness.report().await;
    assert!(report.ready, "{report:?}");
    site.stop().await
}

#[tokio::test]
async fn a_message_that_cannot_be_read_goes_to_the_dead_letters() -> anyhow::Result<()> {
    let site = Site::start().await?;
    let mut dead = site
        .broker
        .consume(&site.names.dead_results_queue(), consuming())
        .await?;
    let unreadable = Message::json(kind::REPORT, &"no report");
    let id = unreadable.message_id.clone();
    site.publish(
        site.names.results_exchange(),
        site.names.results_queue(),
        unreadable,
    )
    .await?;
    assert_eq!(next(dead.as_mut()).await?.message_id, id);
    site.stop().await
}

#[tokio::test]
async fn a_report_of_a_newer_version_waits_in_order_for_a_program_that_can_read_it() -> anyhow::Result<()> {
    let site = Site::start().await?;
    let before = site.dispatched(RetryPolicy::default()).await?;
    let after = site.dispatched(RetryPolicy::default()).await?;
    site.report(vec![(before.claim(), finished(&site.store, success()))])
        .await?;
    let mut newer = Message::json(kind::REPORT, &"in a shape of the future");
    let id = newer.message_id.clone();
    newer.headers.insert(SCHEMA_VERSION_HEADER.into(), "2".into());
    site.publish(site.names.results_exchange(), site.names.results_queue(), newer)
        .await?;
    site.report(vec![(after.claim(), finished(&site.store, success()))])
        .await?;
    site.eventually(before.id, ExecutionStatus::Succeeded).await?;

    // A newer dispatcher, next in line for the queue.
    let mut newer_program = site
        .broker
        .consume(&site.names.results_queue(), consuming())
        .await?;
    assert_eq!(next(newer_program.as_mut()).await?.message_id, id);
    let reports = next(newer_program.as_mut())
        .await?
        .parse::<ReportMessage>()?
        .reports;
    assert_eq!(reports[0].claim, after.claim());
    assert_eq!(
        site.execution(after.id).await?.status,
        ExecutionStatus::Dispatched,
        "a report was taken in before an earlier one"
    );
    assert_eq!(site.ready(&site.names.dead_results_queue()).await?, 0);
    site.stop().await
}

#[tokio::test]
async fn a_broker_that_restarts_costs_no_report() -> anyhow::Result<()> {
    let site = Site::start().await?;
    let mut rows = Vec::new();
    for round in 0..20 {
        let row = site.dispatched(RetryPolicy::default()).await?;
        site.report(vec![(row.claim(), finished(&site.store, success()))])
            .await?;
        if round % 5 == 0 {
            site.broker.disconnect_all();
        }
        rows.push(row);
    }
    for row in rows {
        site.eventually(row.id, ExecutionStatus::Succeeded).await?;
    }
    assert_eq!(site.ready(&site.names.results_queue()).await?, 0);
    site.stop().await
}

#[tokio::test]
async fn lines_are_stored_once_and_progress_of_an_older_handover_is_dropped() -> anyhow::Result<()> {
    let site = Site::start().await?;
    let row = site.dispatched(RetryPolicy::default()).await?;
    let line = |number, message: &str| LogLine {
        execution: row.id,
        attempt: 1,
        line: number,
        at: site.store.now(),
        level: LogLevel::Info,
        message: message.into(),
    };
    let progress = |dispatch_seq, percent| Progress {
        execution: row.id,
        dispatch_seq,
        percent,
        message: "half".into(),
    };
    let first = LogMessage {
        lines: vec![line(1, "one"), line(2, "two")],
        progress: vec![progress(1, 20), progress(1, 50)],
    };
    let again = LogMessage {
        lines: vec![line(2, "two again"), line(3, "three")],
        progress: vec![progress(0, 99)],
    };
    for message in [&first, &again] {
        site.publish(
            site.names.logs_exchange(),
            site.names.logs_queue(),
            Message::json(kind::LOG, message),
        )
        .await?;
    }
    let lines = tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            let mut reader = site.store.reader().await?;
            let lines = handler_logs::lines_after(&mut reader, row.id, 0, 100).await?;
            if lines.len() == 3 {
                return anyhow::Ok(lines);
            }
            drop(reader);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await??;
    let texts: Vec<_> = lines.iter().map(|line| line.message.as_str()).collect();
    assert_eq!(texts, ["one", "two", "three"]);
    let mut reader = site.store.reader().await?;
    let later = handler_logs::lines_after(&mut reader, row.id, lines[1].seq, 100).await?;
    drop(reader);
    assert_eq!(later.len(), 1);
    assert_eq!(site.execution(row.id).await?.progress_percent, Some(50));
    site.stop().await
}

#[tokio::test]
async fn what_the_intake_holds_is_waited_for() -> anyhow::Result<()> {
    let site = Site::start().await?;
    let row = site.dispatched(RetryPolicy::default()).await?;
    let writer = site.store.begin().await?;
    site.report(vec![(row.claim(), finished(&site.store, success()))])
        .await?;
    let mut flush = Box::pin(all_taken_in(site.broker.as_ref(), &site.names));
    assert!(
        timeout(Duration::from_millis(300), &mut flush).await.is_err(),
        "nothing can be committed yet"
    );
    assert_eq!(site.ready(&site.names.results_queue()).await?, 0, "it is in hand");
    drop(writer);
    timeout(Duration::from_secs(10), flush).await??;
    assert_eq!(site.execution(row.id).await?.status, ExecutionStatus::Succeeded);
    site.stop().await
}
