//! What is written is read back, byte for byte.

use anyhow::{Context, Result, ensure};
use isocost_common::{
    execution::{ExecutionError, ExecutionStatus},
    id::{AppId, ExecutionId, IncarnationId, JobId, WorkerId},
    job::{
        Backoff, ConcurrencyPolicy, JobStatus, Misfire, MisfirePolicy, ParentOutcome, RetryPolicy, Trigger,
    },
    raw_json::RawJson,
    schedule::CronDialect,
    store::{
        CHUNK, StoreError,
        executions::{self, ExecutionRow, TriggerKind},
        job_log::{self, LogEntry},
        jobs::{self, JobRow},
    },
    store_tests,
    test_support::{
        TestStore,
        given::{self, PLANNED},
    },
    time::EpochMillis,
};
use std::{collections::BTreeMap, time::Duration};

store_tests! {
    a_job_with_every_field_is_read_as_written,
    a_job_with_only_what_it_must_have_is_read_as_written,
    every_trigger_is_read_as_written,
    texts_keep_every_byte,
    numbers_in_json_keep_every_digit,
    a_client_request_id_is_unique_by_its_bytes,
    a_client_request_id_belongs_to_its_app,
    many_jobs_come_back_by_id,
    an_execution_with_every_field_is_read_as_written,
    an_execution_with_only_what_it_must_have_is_read_as_written,
    an_execution_in_each_state_is_read_as_written,
    a_firing_exists_once,
    executions_of_many_chunks_come_back_in_order_of_ids,
    the_log_keeps_its_order_within_one_instant,
    a_long_log_message_is_cut_at_a_character,
}

/// Everything that a careless column type, encoding or collation would change.
const DIFFICULT: &str =
    "  \u{1F680}\u{1F469}\u{200D}\u{1F4BB} ünïcødé 汉字 \u{0} 'quote' \"double\" \\back\\slash %_ ?:$ tail  ";

fn every_field() -> Result<JobRow> {
    Ok(JobRow {
        name: "夜間バッチ \u{1F319}".into(),
        handler: "Handler-É".into(),
        params: RawJson::parse(r#"{"z": 1, "a": [1.0, 1.50, 1e400], "b": "\u0000"}"#.into())?,
        trigger: Trigger::Cron {
            expr: "0 30 2 ? * MON-FRI".into(),
            time_zone: "Europe/Berlin".into(),
            dialect: CronDialect::Quartz,
        },
        start_at: Some(EpochMillis(1)),
        end_at: Some(EpochMillis(253_402_300_799_999)),
        next_trigger_time: Some(PLANNED),
        status: JobStatus::Invalid,
        invalid_reason: Some("the zone is gone".into()),
        version: i64::MAX,
        definition_version: 7,
        client_request_id: Some("order-\u{1F4E6}-17 ".into()),
        content_hash: "c".repeat(64),
        callback_url: Some("https://example.test/hook?x=%20&y=ü".into()),
        priority: 9,
        timeout_ms: 86_400_000,
        start_deadline_ms: Some(5_000),
        retry: RetryPolicy {
            max_attempts: 100,
            backoff: Backoff::Fixed,
            initial_ms: 250,
            max_ms: 90_000,
        },
        misfire: Misfire {
            policy: MisfirePolicy::CatchUp,
            max_catch_up: 1_000,
        },
        concurrency: ConcurrencyPolicy::Discard,
        concurrency_key: Some("tenant/ß".into()),
        shards: 16,
        selector: BTreeMap::from([("zone".into(), "eu".into()), ("gpu".into(), "yes".into())]),
        labels: BTreeMap::from([("team".into(), "zahlung ü".into()), ("a".into(), String::new())]),
        updated_at: PLANNED + Duration::from_millis(1),
        ..given::job()
    })
}

async fn round_trip(store: &TestStore, row: &JobRow) -> Result<JobRow> {
    given::insert(store, std::slice::from_ref(row), &[]).await?;
    let mut reader = store.reader().await?;
    jobs::get(&mut reader, row.id).await?.context("the job is gone")
}

async fn a_job_with_every_field_is_read_as_written(store: &TestStore) -> Result<()> {
    let written = every_field()?;
    assert_eq!(round_trip(store, &written).await?, written);
    let labels: Vec<(String, String)> = {
        let mut reader = store.reader().await?;
        sqlx::query_as("select label_key, label_value from job_label where job_id = ? order by label_key")
            .bind(written.id.to_string())
            .fetch_all(&mut *reader)
            .await?
    };
    assert_eq!(labels, written.labels.into_iter().collect::<Vec<_>>());
    Ok(())
}

async fn a_job_with_only_what_it_must_have_is_read_as_written(store: &TestStore) -> Result<()> {
    let written = given::job_with(Trigger::Manual {});
    assert_eq!(round_trip(store, &written).await?, written);
    Ok(())
}

async fn every_trigger_is_read_as_written(store: &TestStore) -> Result<()> {
    let triggers = [
        Trigger::Once { at: EpochMillis(0) },
        Trigger::Cron {
            expr: "*/5 * * * *".into(),
            time_zone: "Pacific/Kiritimati".into(),
            dialect: CronDialect::Unix,
        },
        Trigger::FixedRate {
            every_ms: 1,
            anchor: PLANNED,
        },
        Trigger::FixedDelay { every_ms: 3_600_000 },
        Trigger::Manual {},
        Trigger::After {
            job_id: JobId::generate(),
            on: ParentOutcome::Failure,
        },
    ];
    for trigger in triggers {
        let written = given::job_with(trigger);
        assert_eq!(round_trip(store, &written).await?, written);
    }
    Ok(())
}

async fn texts_keep_every_byte(store: &TestStore) -> Result<()> {
    let job = given::job();
    given::insert(store, std::slice::from_ref(&job), &[]).await?;
    for text in [
        DIFFICULT,
        "",
        " ",
        "\n",
        "trailing \t",
        "ﬁ",
        "a\u{301}",
        "\u{10FFFF}",
    ] {
        let written = ExecutionRow {
            trigger_key: ExecutionId::generate().to_string(),
            error: Some(ExecutionError {
                code: "e".into(),
                message: text.into(),
            }),
            progress_message: Some(text.into()),
            ..given::execution(&job, ExecutionStatus::Failed)
        };
        given::insert(store, &[], std::slice::from_ref(&written)).await?;
        let mut reader = store.reader().await?;
        let read = executions::get(&mut reader, written.id).await?.context("gone")?;
        ensure!(
            read == written,
            "{text:?} came back as {:?}",
            read.progress_message
        );
    }
    Ok(())
}

async fn numbers_in_json_keep_every_digit(store: &TestStore) -> Result<()> {
    let text = r#"{"id":123456789012345678901234567890,"price":0.1000000000000000055511151231257827,"big":1E+400,"zero":-0.0}"#;
    let written = JobRow {
        params: RawJson::parse(text.into())?,
        ..given::job()
    };
    assert_eq!(round_trip(store, &written).await?.params.as_str(), text);
    Ok(())
}

async fn a_client_request_id_is_unique_by_its_bytes(store: &TestStore) -> Result<()> {
    let app = AppId::generate();
    let with_id = |id: &str| JobRow {
        app,
        client_request_id: Some(id.into()),
        ..given::job()
    };
    // Different for us, the same for one collation or another.
    let ids = ["a", "A", "á", "a ", "a\u{301}", "ﬀ", "ff", "ß", "ss", "", " "];
    let jobs: Vec<_> = ids.iter().map(|id| with_id(id)).collect();
    given::insert(store, &jobs, &[]).await?;
    for id in ids {
        let again = given::insert(store, &[with_id(id)], &[]).await;
        ensure!(
            matches!(again, Err(StoreError::Duplicate(_))),
            "{id:?} a second time: {again:?}"
        );
    }
    // Without one, any number.
    let anonymous = || JobRow { app, ..given::job() };
    given::insert(store, &[anonymous(), anonymous()], &[]).await?;
    Ok(())
}

async fn a_client_request_id_belongs_to_its_app(store: &TestStore) -> Result<()> {
    let with_id = || JobRow {
        client_request_id: Some("order-17".into()),
        ..given::job()
    };
    given::insert(store, &[with_id(), with_id()], &[]).await?;
    Ok(())
}

async fn many_jobs_come_back_by_id(store: &TestStore) -> Result<()> {
    let jobs: Vec<_> = (0..2 * CHUNK + 17)
        .map(|number| JobRow {
            name: format!("job {number}"),
            labels: BTreeMap::from([("number".into(), number.to_string())]),
            ..given::job()
        })
        .collect();
    given::insert(store, &jobs, &[]).await?;
    let mut reader = store.reader().await?;
    for job in [&jobs[0], &jobs[CHUNK], &jobs[2 * CHUNK + 16]] {
        assert_eq!(jobs::get(&mut reader, job.id).await?.as_ref(), Some(job));
    }
    assert_eq!(jobs::get(&mut reader, JobId::generate()).await?, None);
    Ok(())
}

async fn an_execution_with_every_field_is_read_as_written(store: &TestStore) -> Result<()> {
    let job = every_field()?;
    let written = ExecutionRow {
        scheduled_time: EpochMillis(253_402_300_799_999),
        shard: 15,
        trigger_key: "parent:\u{1F680}".into(),
        trigger_kind: TriggerKind::Parent,
        rank_time: i64::MIN,
        attempt: 3,
        interruptions: 2,
        max_attempts: 100,
        dispatch_seq: i64::MAX,
        worker: Some(WorkerId::parse("Worker_1.eu-west")?),
        incarnation: Some(IncarnationId::generate()),
        epoch: Some(i64::MAX),
        not_after: Some(EpochMillis(5)),
        slot_key: Some("key:x:ü".into()),
        params: Some(RawJson::parse(r#"["own",  12345678901234567890]"#.into())?),
        due_at: Some(EpochMillis(1)),
        dispatched_at: Some(EpochMillis(2)),
        started_at: Some(EpochMillis(3)),
        finished_at: Some(EpochMillis(4)),
        start_deadline_at: Some(EpochMillis(6)),
        cancel_requested_at: Some(EpochMillis(7)),
        progress_percent: Some(100),
        progress_message: Some("half \u{1F317}".into()),
        result: Some(RawJson::parse("1.0".into())?),
        error: Some(ExecutionError {
            code: "handler.failed".into(),
            message: DIFFICULT.into(),
        }),
        ..given::execution(&job, ExecutionStatus::Running)
    };
    let ended = ExecutionRow {
        id: ExecutionId::generate(),
        shard: 14,
        status: ExecutionStatus::Lost,
        ..written.clone()
    };
    given::insert(store, &[job], &[written.clone(), ended.clone()]).await?;
    let mut reader = store.reader().await?;
    assert_eq!(executions::get(&mut reader, written.id).await?, Some(written));
    // Their indexes are of what waits or runs.
    let without_slot = ExecutionRow {
        slot_key: None,
        start_deadline_at: None,
        ..ended
    };
    assert_eq!(
        executions::get(&mut reader, without_slot.id).await?,
        Some(without_slot)
    );
    Ok(())
}

async fn an_execution_with_only_what_it_must_have_is_read_as_written(store: &TestStore) -> Result<()> {
    let job = given::job();
    let written = ExecutionRow {
        due_at: None,
        slot_key: None,
        ..given::execution(&job, ExecutionStatus::Scheduled)
    };
    given::insert(store, &[job], std::slice::from_ref(&written)).await?;
    let mut reader = store.reader().await?;
    assert_eq!(executions::get(&mut reader, written.id).await?, Some(written));
    assert_eq!(executions::get(&mut reader, ExecutionId::generate()).await?, None);
    Ok(())
}

async fn an_execution_in_each_state_is_read_as_written(store: &TestStore) -> Result<()> {
    let job = given::job();
    let written = ExecutionStatus::ALL.map(|status| ExecutionRow {
        trigger_key: status.name().into(),
        ..given::execution(&job, status)
    });
    given::insert(store, &[job], &written).await?;
    let ids = written.each_ref().map(|row| row.id);
    let mut reader = store.reader().await?;
    assert_eq!(executions::get_many(&mut reader, &ids, "").await?, written);
    Ok(())
}

async fn a_firing_exists_once(store: &TestStore) -> Result<()> {
    let job = given::job();
    let first = given::execution(&job, ExecutionStatus::Pending);
    given::insert(store, std::slice::from_ref(&job), std::slice::from_ref(&first)).await?;
    let like_first = |change: fn(&mut ExecutionRow)| {
        let mut row = ExecutionRow {
            id: ExecutionId::generate(),
            ..first.clone()
        };
        change(&mut row);
        row
    };
    let again = given::insert(store, &[], &[like_first(|_| ())]).await;
    ensure!(matches!(again, Err(StoreError::Duplicate(_))), "{again:?}");
    let others = [
        like_first(|row| row.shard = 1),
        like_first(|row| row.scheduled_time = row.scheduled_time + Duration::from_millis(1)),
        like_first(|row| row.trigger_key = "retry:a".into()),
        like_first(|row| row.trigger_key = "retry:A".into()),
        like_first(|row| row.job = JobId::generate()),
    ];
    given::insert(store, &[], &others).await?;
    Ok(())
}

async fn executions_of_many_chunks_come_back_in_order_of_ids(store: &TestStore) -> Result<()> {
    let job = given::job();
    let written: Vec<_> = (0..u32::try_from(2 * CHUNK + 3)?)
        .map(|shard| ExecutionRow {
            shard,
            ..given::execution(&job, ExecutionStatus::Pending)
        })
        .collect();
    given::insert(store, &[job], &written).await?;
    let mut ids: Vec<_> = written.iter().map(|row| row.id).rev().collect();
    // Asked twice and not there: each row once, the unknown left out.
    ids.extend([written[5].id, ExecutionId::generate()]);
    let mut reader = store.reader().await?;
    let read = executions::get_many(&mut reader, &ids, "").await?;
    ensure!(
        read == written,
        "{} rows came back, not these {}",
        read.len(),
        written.len()
    );
    Ok(())
}

async fn the_log_keeps_its_order_within_one_instant(store: &TestStore) -> Result<()> {
    let job = given::job();
    let execution = given::execution(&job, ExecutionStatus::Running);
    given::insert(
        store,
        std::slice::from_ref(&job),
        std::slice::from_ref(&execution),
    )
    .await?;
    let entry = |execution: Option<ExecutionId>, number: u32| LogEntry {
        job: job.id,
        execution,
        attempt: number,
        dispatch_seq: 1,
        from: Some(ExecutionStatus::Dispatched),
        to: number.is_multiple_of(2).then_some(ExecutionStatus::Running),
        worker: number.is_multiple_of(3).then(given::worker),
        message: Some(format!("step {number} \u{1F680}")),
        at: PLANNED,
    };
    let count = u32::try_from(CHUNK + 50)?;
    let written: Vec<_> = (0..count)
        .map(|number| entry(Some(execution.id), number))
        .collect();
    let of_job = entry(None, 0);
    store
        .transact(|| async {
            let mut tx = store.begin().await?;
            job_log::append(&mut tx, std::slice::from_ref(&of_job)).await?;
            job_log::append(&mut tx, &written).await?;
            tx.commit().await
        })
        .await?;
    let mut reader = store.reader().await?;
    assert_eq!(job_log::of_execution(&mut reader, execution.id).await?, written);
    Ok(())
}

async fn a_long_log_message_is_cut_at_a_character(store: &TestStore) -> Result<()> {
    let job = given::job();
    let execution = ExecutionId::generate();
    let entry = LogEntry {
        job: job.id,
        execution: Some(execution),
        attempt: 0,
        dispatch_seq: 0,
        from: None,
        to: None,
        worker: None,
        message: Some("\u{1F680}".repeat(1_000)),
        at: PLANNED,
    };
    store
        .transact(|| async {
            let mut tx = store.begin().await?;
            job_log::append(&mut tx, std::slice::from_ref(&entry)).await?;
            tx.commit().await
        })
        .await?;
    let mut reader = store.reader().await?;
    let log = job_log::of_execution(&mut reader, execution).await?;
    let message = log[0].message.as_deref().context("no message")?;
    ensure!(
        message.starts_with('\u{1F680}') && message.len() <= 1_024,
        "{} bytes",
        message.len()
    );
    Ok(())
}
