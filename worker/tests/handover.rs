//! Taking over, giving back, and never twice.

mod support;

use futures_util::future::BoxFuture;
use isocost_common::{
    coordination::Coordination,
    execution::Outcome,
    message::{ControlAction, ReportEvent},
};
use isocost_worker::{JobContext, JobError};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use support::{Stage, execution, result};
use tokio::sync::Semaphore;

/// A handler that counts its starts and ends when the test opens the gate.
#[derive(Clone)]
struct Gate {
    starts: Arc<AtomicU32>,
    open: Arc<Semaphore>,
}

impl Gate {
    fn closed() -> Self {
        Self {
            starts: Arc::default(),
            open: Arc::new(Semaphore::new(0)),
        }
    }

    fn handler(&self) -> impl Fn(JobContext) -> BoxFuture<'static, Result<Value, JobError>> + use<> {
        let gate = self.clone();
        move |_job| {
            let gate = gate.clone();
            Box::pin(async move {
                gate.starts.fetch_add(1, Ordering::SeqCst);
                gate.open.acquire().await?.forget();
                Ok(json!("through"))
            })
        }
    }

    fn let_through(&self, runs: usize) {
        self.open.add_permits(runs);
    }

    fn starts(&self) -> u32 {
        self.starts.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn copies_of_a_dispatch_run_once_whenever_they_arrive() {
    let stage = Stage::new().await;
    let gate = Gate::closed();
    let worker = stage.start(|w| w.handler("gate", gate.handler())).await;
    let work = execution("gate", &json!(null));
    stage.dispatch(vec![work.clone(), work.clone()]).await;
    stage.started(work.claim).await;
    stage.dispatch(vec![work.clone()]).await;
    gate.let_through(10);
    assert_eq!(result(&stage.outcome(work.claim).await), json!("through"));

    stage.dispatch(vec![work.clone()]).await;
    stage
        .until("the stored report comes again", |seen| {
            let finished = |event: &ReportEvent| matches!(event, ReportEvent::Finished { .. });
            let reports = seen
                .reports
                .iter()
                .filter(|r| r.claim == work.claim && finished(&r.event));
            (reports.count() == 2).then_some(())
        })
        .await;
    assert_eq!(gate.starts(), 1);
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn what_the_broker_delivers_again_after_a_lost_connection_runs_once() {
    let stage = Stage::new().await;
    let gate = Gate::closed();
    let worker = stage
        .start(|w| w.handler("gate", gate.handler()).concurrency("gate", 1))
        .await;
    let work: Vec<_> = (0..3).map(|_| execution("gate", &json!(null))).collect();
    stage.dispatch(work.clone()).await;
    stage.started(work[0].claim).await;
    stage.broker.disconnect();
    gate.let_through(3);
    for work in &work {
        assert_eq!(result(&stage.outcome(work.claim).await), json!("through"));
    }
    assert_eq!(gate.starts(), 3);
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn work_without_a_free_slot_is_refused_after_a_short_wait() {
    let mut stage = Stage::new().await;
    stage.config.leases.slot_wait_ms = 50;
    let gate = Gate::closed();
    let worker = stage
        .start(|w| w.handler("gate", gate.handler()).concurrency("gate", 1))
        .await;
    let (first, second) = (execution("gate", &json!(null)), execution("gate", &json!(null)));
    stage.dispatch(vec![first.clone()]).await;
    stage.started(first.claim).await;
    stage.dispatch(vec![second.clone()]).await;
    assert_eq!(
        stage.verdict(second.claim).await,
        ReportEvent::Refused {
            reason: "no free slot".into()
        }
    );
    gate.let_through(2);
    stage.outcome(first.claim).await;
    worker.stop().await.expect("stopped");
    assert_eq!(gate.starts(), 1, "the refused one never starts");
}

#[tokio::test]
async fn work_that_waits_gets_the_next_free_slot() {
    let stage = Stage::new().await;
    let gate = Gate::closed();
    let worker = stage
        .start(|w| w.handler("gate", gate.handler()).concurrency("gate", 1))
        .await;
    let work: Vec<_> = (0..3).map(|_| execution("gate", &json!(null))).collect();
    stage.dispatch(work.clone()).await;
    stage.started(work[0].claim).await;
    gate.let_through(3);
    for work in &work {
        stage.outcome(work.claim).await;
    }
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn handlers_it_does_not_offer_and_messages_past_their_time_are_turned_away() {
    let stage = Stage::new().await;
    let worker = stage.start(|w| w.built_in_handlers()).await;
    let stranger = execution("no-such-handler", &json!(null));
    let mut late = execution("noop", &json!(null));
    late.not_after = late.placed_at - Duration::from_secs(1);
    let command = execution("command", &json!({"program": "/bin/true"}));
    stage
        .dispatch(vec![stranger.clone(), late.clone(), command.clone()])
        .await;
    assert!(matches!(
        stage.verdict(stranger.claim).await,
        ReportEvent::Refused { .. }
    ));
    assert_eq!(stage.verdict(late.claim).await, ReportEvent::Unknown);
    let off_by_default = stage.verdict(command.claim).await;
    assert!(
        matches!(off_by_default, ReportEvent::Refused { .. }),
        "{off_by_default:?}"
    );
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn a_taken_start_key_refuses_the_start() {
    let stage = Stage::new().await;
    let worker = stage.start(|w| w.built_in_handlers()).await;
    let work = execution("noop", &json!(null));
    let key = format!("start:{}:{}:0:1", work.job, work.scheduled_time.as_millis());
    stage
        .coordination
        .claim_key(&key, Duration::from_secs(60))
        .await
        .expect("claimed");
    stage.dispatch(vec![work.clone()]).await;
    assert!(matches!(
        stage.verdict(work.claim).await,
        ReportEvent::Refused { .. }
    ));
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn a_release_gives_back_what_waits_and_not_what_runs() {
    let stage = Stage::new().await;
    let gate = Gate::closed();
    let worker = stage
        .start(|w| w.handler("gate", gate.handler()).concurrency("gate", 1))
        .await;
    let (runs, waits) = (execution("gate", &json!(null)), execution("gate", &json!(null)));
    stage.dispatch(vec![runs.clone(), waits.clone()]).await;
    stage.started(runs.claim).await;
    let release = |work: &isocost_common::message::DispatchedExecution| ControlAction::Release {
        claim: work.claim,
        not_after: Some(work.not_after),
    };
    stage.control(vec![release(&runs), release(&waits)]).await;
    assert_eq!(stage.verdict(waits.claim).await, ReportEvent::Released);
    stage.dispatch(vec![waits.clone()]).await;
    gate.let_through(5);
    assert_eq!(result(&stage.outcome(runs.claim).await), json!("through"));
    worker.stop().await.expect("stopped");
    assert_eq!(gate.starts(), 1, "released work never starts");
}

#[tokio::test]
async fn a_query_or_cancel_for_work_that_never_came_keeps_it_from_starting() {
    let stage = Stage::new().await;
    let gate = Gate::closed();
    let worker = stage.start(|w| w.handler("gate", gate.handler())).await;
    let (asked, cancelled) = (execution("gate", &json!(null)), execution("gate", &json!(null)));
    let query = ControlAction::Query {
        claim: asked.claim,
        not_after: Some(asked.not_after),
    };
    let cancel = ControlAction::Cancel {
        claim: cancelled.claim,
        not_after: None,
    };
    stage.control(vec![query, cancel]).await;
    assert!(matches!(
        stage.verdict(asked.claim).await,
        ReportEvent::Refused { .. }
    ));
    assert_eq!(stage.verdict(cancelled.claim).await, ReportEvent::Unknown);
    let after = execution("gate", &json!(null));
    stage.dispatch(vec![asked, cancelled, after.clone()]).await;
    gate.let_through(3);
    stage.outcome(after.claim).await;
    assert_eq!(gate.starts(), 1);
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn a_drain_on_request_gives_back_and_refuses_until_it_is_undone() {
    let stage = Stage::new().await;
    let gate = Gate::closed();
    let worker = stage
        .start(|w| w.handler("gate", gate.handler()).concurrency("gate", 1))
        .await;
    let (runs, waits) = (execution("gate", &json!(null)), execution("gate", &json!(null)));
    stage.dispatch(vec![runs.clone(), waits.clone()]).await;
    stage.started(runs.claim).await;
    stage.control(vec![ControlAction::Drain]).await;
    assert_eq!(stage.verdict(waits.claim).await, ReportEvent::Released);
    stage
        .until("the heartbeat says that it drains", |seen| {
            seen.heartbeats.last().filter(|beat| beat.draining).map(|_| ())
        })
        .await;
    let turned = execution("gate", &json!(null));
    stage.dispatch(vec![turned.clone()]).await;
    assert!(matches!(
        stage.verdict(turned.claim).await,
        ReportEvent::Refused { .. }
    ));

    stage.control(vec![ControlAction::Undrain]).await;
    stage
        .until("the heartbeat says that it takes work", |seen| {
            seen.heartbeats.last().filter(|beat| !beat.draining).map(|_| ())
        })
        .await;
    gate.let_through(2);
    let again = execution("gate", &json!(null));
    stage.dispatch(vec![again.clone()]).await;
    assert!(matches!(
        stage.outcome(again.claim).await,
        Outcome::Succeeded { .. }
    ));
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn a_message_that_cannot_be_read_does_not_stop_the_next() {
    let stage = Stage::new().await;
    let worker = stage.start(|w| w.built_in_handlers()).await;
    stage.dispatch_text("{\"executions\": 7}").await;
    let work = execution("noop", &json!(null));
    stage.dispatch(vec![work.clone()]).await;
    assert_eq!(result(&stage.outcome(work.claim).await), json!(null));
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn work_of_a_newer_version_is_not_started_and_is_placed_elsewhere_when_asked_for() {
    let stage = Stage::new().await;
    let gate = Gate::closed();
    let worker = stage.start(|w| w.handler("gate", gate.handler())).await;
    let (newer, known) = (execution("gate", &json!(null)), execution("gate", &json!(null)));
    stage.dispatch_of_version("2", vec![newer.clone()]).await;
    stage.dispatch(vec![known.clone()]).await;
    stage.started(known.claim).await;
    // As a leader does that finds it in no holdings.
    let query = ControlAction::Query {
        claim: newer.claim,
        not_after: Some(newer.not_after),
    };
    stage.control(vec![query]).await;
    assert!(matches!(
        stage.verdict(newer.claim).await,
        ReportEvent::Refused { .. }
    ));
    gate.let_through(2);
    stage.outcome(known.claim).await;
    assert_eq!(gate.starts(), 1);
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn a_queue_of_results_that_was_deleted_is_declared_by_whoever_has_one_to_report() {
    let stage = Stage::new().await;
    let worker = stage.start(|w| w.built_in_handlers()).await;
    stage.delete_results_queue().await;
    let work = execution("noop", &json!(null));
    stage.dispatch(vec![work.clone()]).await;
    assert_eq!(result(&stage.outcome(work.claim).await), json!(null));
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn heartbeats_name_what_is_held_by_stage_and_the_load() {
    let stage = Stage::new().await;
    let gate = Gate::closed();
    let worker = stage
        .start(|w| w.handler("gate", gate.handler()).concurrency("gate", 1))
        .await;
    let (runs, waits) = (execution("gate", &json!(null)), execution("gate", &json!(null)));
    stage.dispatch(vec![runs.clone(), waits.clone()]).await;
    let beat = stage
        .until("a heartbeat names both", |seen| {
            let beat = seen.heartbeats.last()?;
            let held = beat.holdings.running == [runs.claim] && beat.holdings.unstarted == [waits.claim];
            held.then(|| beat.clone())
        })
        .await;
    assert_eq!((beat.handlers[0].slots, beat.handlers[0].busy), (1, 1));
    assert!(beat.report_number > 1 && beat.port > 0 && !beat.bye);
    gate.let_through(2);
    stage.outcome(waits.claim).await;
    stage
        .until("nothing is held once all is confirmed", |seen| {
            let beat = seen.heartbeats.last()?;
            (beat.holdings.all().count() == 0).then_some(())
        })
        .await;
    worker.stop().await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_runs_are_reported_in_few_messages() {
    let mut stage = Stage::new().await;
    stage.config.worker.slots = 64;
    stage.config.leases.slot_wait_ms = 10_000;
    let worker = stage.start(|w| w.built_in_handlers()).await;
    let work: Vec<_> = (0..1_000).map(|_| execution("noop", &json!(null))).collect();
    for some in work.chunks(100) {
        stage.dispatch(some.to_vec()).await;
    }
    stage
        .until("every run is reported", |seen| {
            let finished = |event: &ReportEvent| matches!(event, ReportEvent::Finished { .. });
            let ends = seen.reports.iter().filter(|report| finished(&report.event));
            (ends.count() == work.len()).then_some(())
        })
        .await;
    let messages = stage.now(|seen| seen.report_messages);
    assert!(messages <= 100, "{messages} messages for 2,000 reports");
    worker.stop().await.expect("stopped");
}
