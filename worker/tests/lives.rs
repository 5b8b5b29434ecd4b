//! How an incarnation ends: an orderly stop, a fencing, a lease that ran out.

mod support;

use isocost_common::{
    config::Secret,
    coordination::Coordination,
    execution::Outcome,
    message::{ControlAction, Holdings, ReportEvent},
};
use isocost_worker::{Error, JobContext, JobError, Worker};
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};
use support::{Stage, execution, result};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

async fn until_told(job: JobContext) -> Result<(), JobError> {
    job.cancelled().await;
    Err(JobError::retry("told to stop"))
}

/// Leases short enough to run out within a test, long enough for a busy machine.
fn with_short_leases(mut stage: Stage) -> Stage {
    stage.config.leases.heartbeat_ms = 100;
    stage.config.leases.worker_cancel_ms = 1_500;
    stage.config.leases.worker_exit_ms = 3_000;
    stage
}

#[tokio::test]
async fn sd02_a_stop_finishes_what_runs_gives_back_what_waits_and_says_bye_last() {
    let stage = Stage::new().await;
    let (open, starts) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicU32::new(0)));
    let (gate, count) = (Arc::clone(&open), Arc::clone(&starts));
    let worker = stage
        .start(|w| {
            w.handler("gate", move |_job: JobContext| {
                let gate = Arc::clone(&gate);
                count.fetch_add(1, Ordering::SeqCst);
                async move {
                    gate.acquire().await?.forget();
                    Ok("done")
                }
            })
        })
        .await;
    let work: Vec<_> = (0..14).map(|_| execution("gate", &json!(null))).collect();
    stage.dispatch(work.clone()).await;
    for runs in &work[..4] {
        stage.started(runs.claim).await;
    }
    worker.ask_to_stop();
    for waits in &work[4..] {
        assert_eq!(stage.verdict(waits.claim).await, ReportEvent::Released);
    }
    let late = execution("gate", &json!(null));
    stage.dispatch(vec![late.clone()]).await;
    assert!(matches!(
        stage.verdict(late.claim).await,
        ReportEvent::Refused { .. }
    ));
    open.add_permits(20);
    for runs in &work[..4] {
        assert_eq!(result(&stage.outcome(runs.claim).await), json!("done"));
    }
    let incarnation = stage.incarnation();
    worker.ended().await.expect("stopped");
    assert_eq!(starts.load(Ordering::SeqCst), 4);
    let bye = stage
        .until("the last heartbeat says bye", |seen| {
            seen.heartbeats.last().filter(|beat| beat.bye).cloned()
        })
        .await;
    assert_eq!((bye.holdings, bye.draining), (Holdings::default(), true));
    assert!(!stage.queue_exists(incarnation).await);
}

#[tokio::test]
async fn sd04_a_run_beyond_the_grace_is_reported_as_interrupted_before_the_worker_ends() {
    let mut stage = Stage::new().await;
    stage.config.worker.grace_ms = 50;
    let worker = stage.start(|w| w.handler("until-told", until_told)).await;
    let work = execution("until-told", &json!(null));
    stage.dispatch(vec![work.clone()]).await;
    stage.started(work.claim).await;
    worker.stop().await.expect("stopped");
    let reason = "the worker stopped".to_owned();
    assert_eq!(stage.outcome(work.claim).await, Outcome::Interrupted { reason });
}

#[tokio::test]
async fn sd05_heartbeats_go_on_while_a_worker_drains() {
    let stage = Stage::new().await;
    let worker = stage.start(|w| w.built_in_handlers()).await;
    let work = execution("sleep", &json!({"ms": 700}));
    stage.dispatch(vec![work.clone()]).await;
    stage.started(work.claim).await;
    worker.ask_to_stop();
    stage
        .until("three heartbeats while it drains", |seen| {
            let draining = seen.heartbeats.iter().filter(|beat| beat.draining && !beat.bye);
            (draining
                .filter(|beat| beat.holdings.running == [work.claim])
                .count()
                >= 3)
                .then_some(())
        })
        .await;
    worker.ended().await.expect("stopped");
    assert_eq!(result(&stage.outcome(work.claim).await), json!({"sleptMs": 700}));
}

#[tokio::test]
async fn a_fenced_worker_stops_its_handlers_and_comes_back_holding_nothing() {
    let stage = Stage::new().await;
    let worker = stage
        .start(|w| w.handler("until-told", until_told).built_in_handlers())
        .await;
    let work = execution("until-told", &json!(null));
    stage.dispatch(vec![work.clone()]).await;
    stage.started(work.claim).await;
    let old = stage.incarnation();
    stage
        .coordination
        .entomb(old, Duration::from_secs(60))
        .await
        .expect("entombed");
    stage.next_incarnation(old).await;
    let held = stage.now(|seen| seen.heartbeats.last().map(|beat| beat.holdings.clone()));
    assert_eq!(held, Some(Holdings::default()));
    assert!(
        !stage.queue_exists(old).await,
        "nobody can hand work to the old one"
    );
    let next = execution("noop", &json!(null));
    stage.dispatch(vec![next.clone()]).await;
    assert_eq!(result(&stage.outcome(next.claim).await), json!(null));
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn with_both_services_away_a_worker_stops_its_handlers_and_comes_back_as_another() {
    let stage = with_short_leases(Stage::new().await);
    let told = Arc::new(AtomicBool::new(false));
    let heard = Arc::clone(&told);
    let worker = stage
        .start(|w| {
            w.handler("until-told", move |job: JobContext| {
                let heard = Arc::clone(&heard);
                async move {
                    job.cancelled().await;
                    heard.store(true, Ordering::SeqCst);
                    Ok(())
                }
            })
        })
        .await;
    let work = execution("until-told", &json!(null));
    stage.dispatch(vec![work.clone()]).await;
    stage.started(work.claim).await;
    let old = stage.incarnation();
    stage.coordination.unplug();
    stage.broker.begin_outage();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while !told.load(Ordering::SeqCst) {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the handler was not told to stop"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stage.broker.end_outage();
    stage.coordination.plug_in();
    stage.next_incarnation(old).await;
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn the_loss_of_one_service_kills_no_job() {
    let stage = with_short_leases(Stage::new().await);
    let worker = stage.start(|w| w.built_in_handlers()).await;
    let first = stage.incarnation();
    for lose_the_broker in [true, false] {
        let work = execution("sleep", &json!({"ms": 2_500}));
        stage.dispatch(vec![work.clone()]).await;
        stage.started(work.claim).await;
        if lose_the_broker {
            stage.broker.begin_outage();
            tokio::time::sleep(Duration::from_millis(2_000)).await;
            stage.broker.end_outage();
        } else {
            stage.coordination.unplug();
        }
        assert_eq!(
            result(&stage.outcome(work.claim).await),
            json!({"sleptMs": 2_500})
        );
    }
    let unguarded = execution("noop", &json!(null));
    stage.dispatch(vec![unguarded.clone()]).await;
    assert_eq!(
        result(&stage.outcome(unguarded.claim).await),
        json!(null),
        "starts without its start key"
    );
    assert_eq!(stage.incarnation(), first);
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn a_fenced_worker_whose_handler_takes_no_notice_ends_the_process() {
    let stage = with_short_leases(Stage::new().await);
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
        })
        .await;
    let work = execution("blocks", &json!(null));
    stage.dispatch(vec![work.clone()]).await;
    stage.started(work.claim).await;
    let old = stage.incarnation();
    stage
        .coordination
        .entomb(old, Duration::from_secs(60))
        .await
        .expect("entombed");
    let ended = worker.ended().await;
    free.store(true, Ordering::SeqCst);
    match ended {
        Err(Error::HandlersStillRunning(handlers)) => assert_eq!(handlers, ["blocks"]),
        other => panic!("it went on: {other:?}"),
    }
}

#[tokio::test]
async fn the_probe_names_the_incarnation_and_readiness_needs_a_consumer_and_a_lease() {
    let stage = Stage::new().await;
    let worker = stage.start(|w| w.built_in_handlers()).await;
    let work = execution("noop", &json!(null));
    stage.dispatch(vec![work.clone()]).await;
    stage.outcome(work.claim).await;
    let port = stage
        .now(|seen| seen.heartbeats.last().map(|beat| beat.port))
        .expect("a port");
    let base = format!("http://127.0.0.1:{port}");
    let client = client();
    let alive = client
        .get(format!("{base}/livez"))
        .send()
        .await
        .expect("answered");
    let said: serde_json::Value = alive.json().await.expect("JSON");
    assert_eq!(
        said,
        json!({"worker": "w1", "incarnation": stage.incarnation().to_string()})
    );
    let ready = client
        .get(format!("{base}/readyz"))
        .send()
        .await
        .expect("answered");
    assert_eq!(ready.status(), 200);
    worker.stop().await.expect("stopped");
}

fn client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().expect("a client")
}

#[tokio::test]
async fn a_worker_that_cannot_work_says_why_at_start() {
    let stage = Stage::new().await;
    let shutdown = CancellationToken::new();
    let mut nowhere = stage.config.clone();
    nowhere.broker.url = Secret::new("http://127.0.0.1/");
    let without_a_broker = Worker::builder(nowhere)
        .built_in_handlers()
        .run(shutdown.clone())
        .await;
    assert!(
        matches!(without_a_broker, Err(Error::Config(_))),
        "{without_a_broker:?}"
    );
    let without_handlers = Worker::builder(stage.config.clone()).run(shutdown.clone()).await;
    assert!(matches!(without_handlers, Err(Error::NoHandlers)));
    let bad_name = Worker::builder(stage.config.clone())
        .handler("no spaces", until_told)
        .run(shutdown)
        .await;
    assert!(matches!(bad_name, Err(Error::Handler { .. })), "{bad_name:?}");
}

#[tokio::test]
async fn a_worker_that_stops_does_not_take_work_again_on_request() {
    let stage = Stage::new().await;
    let worker = stage.start(|w| w.built_in_handlers()).await;
    let work = execution("sleep", &json!({"ms": 300}));
    stage.dispatch(vec![work.clone()]).await;
    stage.started(work.claim).await;
    worker.ask_to_stop();
    stage
        .until("it drains", |seen| {
            seen.heartbeats.last().filter(|beat| beat.draining).map(|_| ())
        })
        .await;
    stage.control(vec![ControlAction::Undrain]).await;
    let late = execution("noop", &json!(null));
    stage.dispatch(vec![late.clone()]).await;
    assert!(matches!(
        stage.verdict(late.claim).await,
        ReportEvent::Refused { .. }
    ));
    worker.ended().await.expect("stopped");
}
