//! Runs: their context, their limits, and the ways they end.

mod support;

use isocost_common::{
    execution::Outcome,
    message::{ControlAction, LogLevel},
    raw_json::RawJson,
};
use isocost_worker::{JobContext, JobError};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use support::{Stage, execution, failure, result};
use tokio::sync::Semaphore;

/// Runs until it is told to stop, and then says how it ends.
async fn until_told(job: JobContext) -> Result<Value, JobError> {
    job.cancelled().await;
    match job.params::<String>()?.as_str() {
        "finishes" => Ok(json!("finished anyway")),
        "panics" => panic!("told to stop"),
        _ => Err(JobError::retry("told to stop")),
    }
}

async fn never_ends(_job: JobContext) -> Result<(), JobError> {
    std::future::pending().await
}

#[tokio::test]
async fn a_cancel_stops_a_run_which_ends_as_cancelled() {
    let stage = Stage::new().await;
    let worker = stage.start(|w| w.handler("until-told", until_told)).await;
    for (how, expected) in [
        ("errs", Outcome::Cancelled),
        ("panics", Outcome::Cancelled),
        (
            "finishes",
            Outcome::Succeeded {
                result: RawJson::from_value(&"finished anyway").expect("JSON"),
            },
        ),
    ] {
        let work = execution("until-told", &json!(how));
        stage.dispatch(vec![work.clone()]).await;
        stage.started(work.claim).await;
        let cancel = ControlAction::Cancel {
            claim: work.claim,
            not_after: Some(work.not_after),
        };
        stage.control(vec![cancel.clone(), cancel]).await;
        assert_eq!(stage.outcome(work.claim).await, expected, "{how}");
    }
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn a_run_is_stopped_at_its_time_limit_and_work_that_was_done_counts() {
    let stage = Stage::new().await;
    let worker = stage.start(|w| w.handler("until-told", until_told)).await;
    let mut slow = execution("until-told", &json!("errs"));
    slow.timeout_ms = 50;
    let mut done = execution("until-told", &json!("finishes"));
    done.timeout_ms = 50;
    stage.dispatch(vec![slow.clone(), done.clone()]).await;
    assert_eq!(stage.outcome(slow.claim).await, Outcome::TimedOut);
    assert_eq!(result(&stage.outcome(done.claim).await), json!("finished anyway"));
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn a_handler_that_takes_no_notice_is_dropped_after_a_grace_and_its_slot_is_free_again() {
    let stage = Stage::new().await;
    let worker = stage
        .start(|w| w.handler("never-ends", never_ends).concurrency("never-ends", 1))
        .await;
    for _ in 0..2 {
        let mut work = execution("never-ends", &json!(null));
        work.timeout_ms = 20;
        stage.dispatch(vec![work.clone()]).await;
        assert_eq!(stage.outcome(work.claim).await, Outcome::TimedOut);
    }
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn a_panic_is_one_failed_attempt_and_nothing_else() {
    async fn panics(job: JobContext) -> Result<(), JobError> {
        assert_eq!(job.attempt(), 2, "the first attempt fails");
        Ok(())
    }
    let stage = Stage::new().await;
    let worker = stage
        .start(|w| w.handler("panics", panics).concurrency("panics", 1))
        .await;
    let first = execution("panics", &json!(null));
    stage.dispatch(vec![first.clone()]).await;
    let (code, message, retryable) = failure(stage.outcome(first.claim).await);
    assert_eq!((code.as_str(), retryable), ("handler.panicked", true));
    assert!(message.contains("the first attempt fails"), "{message}");
    let mut second = execution("panics", &json!(null));
    second.attempt = 2;
    stage.dispatch(vec![second.clone()]).await;
    assert_eq!(result(&stage.outcome(second.claim).await), json!(null));
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn params_of_another_shape_fail_the_job_without_a_retry() {
    #[derive(Deserialize)]
    struct Params {
        pages: u32,
    }
    let stage = Stage::new().await;
    let worker = stage
        .start(|w| {
            w.handler("pages", |job: JobContext| async move {
                let params: Params = job.params()?;
                Ok(params.pages)
            })
        })
        .await;
    let (good, bad) = (
        execution("pages", &json!({"pages": 3})),
        execution("pages", &json!({"pages": "three"})),
    );
    stage.dispatch(vec![good.clone(), bad.clone()]).await;
    assert_eq!(result(&stage.outcome(good.claim).await), json!(3));
    let (code, message, retryable) = failure(stage.outcome(bad.claim).await);
    assert_eq!((code.as_str(), retryable), ("params.invalid", false), "{message}");
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn a_result_beyond_the_limit_fails_the_job_without_a_retry() {
    let mut stage = Stage::new().await;
    stage.config.worker.max_result_bytes = 256;
    let worker = stage
        .start(|w| {
            w.handler(
                "text",
                |job: JobContext| async move { Ok("x".repeat(job.params()?)) },
            )
        })
        .await;
    let (fits, exceeds) = (execution("text", &json!(254)), execution("text", &json!(255)));
    stage.dispatch(vec![fits.clone(), exceeds.clone()]).await;
    assert!(matches!(
        stage.outcome(fits.claim).await,
        Outcome::Succeeded { .. }
    ));
    let (code, message, retryable) = failure(stage.outcome(exceeds.claim).await);
    assert_eq!((code.as_str(), retryable), ("result.too-large", false));
    assert!(message.contains("256"), "the limit is named: {message}");
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn ap09_an_overlong_error_is_cut_before_it_travels() {
    let stage = Stage::new().await;
    let worker = stage
        .start(|w| {
            w.handler("wordy", |_job: JobContext| async {
                Err::<(), _>(JobError::retry("😀".repeat(1 << 18)))
            })
        })
        .await;
    let work = execution("wordy", &json!(null));
    stage.dispatch(vec![work.clone()]).await;
    let (_, message, _) = failure(stage.outcome(work.claim).await);
    assert!(message.len() <= 8 * 1024, "{} bytes", message.len());
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn a_handler_is_told_what_it_runs() {
    let stage = Stage::new().await;
    let worker = stage
        .start(|w| {
            w.handler("describe", |job: JobContext| async move {
                Ok(json!({
                    "execution": job.execution_id(), "job": job.job_id(), "name": job.job_name(),
                    "attempt": job.attempt(), "shard": job.shard(), "shards": job.shards(),
                    "scheduled": job.scheduled_time(), "key": job.idempotency_key(),
                }))
            })
        })
        .await;
    let mut work = execution("describe", &json!(null));
    (work.attempt, work.shard, work.shards) = (4, 2, 3);
    stage.dispatch(vec![work.clone()]).await;
    let expected = json!({
        "execution": work.claim.execution, "job": work.job, "name": "a job",
        "attempt": 4, "shard": 2, "shards": 3,
        "scheduled": work.scheduled_time, "key": work.claim.execution.to_string(),
    });
    assert_eq!(result(&stage.outcome(work.claim).await), expected);
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn what_a_handler_says_arrives_numbered_while_it_runs() {
    let stage = Stage::new().await;
    let open = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&open);
    let worker = stage
        .start(|w| {
            w.handler("talks", move |job: JobContext| {
                let gate = Arc::clone(&gate);
                async move {
                    job.log("one").await;
                    job.warn("two").await;
                    job.error("three").await;
                    job.progress(10, "begun").await;
                    job.progress(40, "rendered").await;
                    gate.acquire().await?.forget();
                    Ok(())
                }
            })
        })
        .await;
    let work = execution("talks", &json!(null));
    stage.dispatch(vec![work.clone()]).await;
    let lines = stage
        .until("three lines arrive before the end", |seen| {
            let lines: Vec<_> = seen.logs.iter().flat_map(|log| log.lines.clone()).collect();
            (lines.len() == 3).then_some(lines)
        })
        .await;
    let told: Vec<_> = lines
        .iter()
        .map(|l| (l.line, l.level, l.message.as_str()))
        .collect();
    let expected = [
        (1, LogLevel::Info, "one"),
        (2, LogLevel::Warn, "two"),
        (3, LogLevel::Error, "three"),
    ];
    assert_eq!(told, expected);
    let progress = stage
        .until("progress arrives", |seen| {
            seen.logs.iter().flat_map(|log| log.progress.clone()).next_back()
        })
        .await;
    assert_eq!((progress.percent, progress.message.as_str()), (40, "rendered"));
    open.add_permits(1);
    stage.outcome(work.claim).await;
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn a_handler_that_is_full_holds_up_no_other() {
    let stage = Stage::new().await;
    let worker = stage
        .start(|w| {
            w.handler("never-ends", never_ends)
                .concurrency("never-ends", 1)
                .built_in_handlers()
        })
        .await;
    let slow: Vec<_> = (0..20).map(|_| execution("never-ends", &json!(null))).collect();
    let quick = execution("noop", &json!(null));
    stage.dispatch(slow.clone()).await;
    stage.dispatch(vec![quick.clone()]).await;
    assert_eq!(result(&stage.outcome(quick.claim).await), json!(null));
    let cancel = ControlAction::Cancel {
        claim: slow[0].claim,
        not_after: None,
    };
    stage.control(vec![cancel]).await;
    stage.outcome(slow[0].claim).await;
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn a_handler_that_blocks_its_thread_keeps_its_slot_and_shows_as_stuck() {
    let stage = Stage::new().await;
    let free = Arc::new(AtomicBool::new(false));
    let freed = Arc::clone(&free);
    let worker = stage
        .start(|w| {
            w.handler("blocks", move |_job: JobContext| {
                let freed = Arc::clone(&freed);
                async move {
                    while !freed.load(Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    Ok(())
                }
            })
            .concurrency("blocks", 1)
        })
        .await;
    let mut work = execution("blocks", &json!(null));
    work.timeout_ms = 20;
    stage.dispatch(vec![work.clone()]).await;
    let load = stage
        .until("the heartbeat counts it as stuck", |seen| {
            let load = seen.heartbeats.last()?.handlers.first()?;
            (load.stuck == 1).then(|| load.clone())
        })
        .await;
    assert_eq!(load.busy, 1);
    free.store(true, Ordering::SeqCst);
    assert_eq!(result(&stage.outcome(work.claim).await), json!(null));
    worker.stop().await.expect("stopped");
}
