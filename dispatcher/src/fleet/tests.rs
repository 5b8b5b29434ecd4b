use super::*;
use isocost_common::{
    execution::ExecutionStatus,
    job::Selector,
    message::{HandlerLoad, Holdings},
};
use std::sync::Arc;

pub(super) const BEAT: Duration = Duration::from_secs(3);
const NOBODY: [u32; 0] = [];

pub(super) fn heartbeat(worker: &str, slots: u32) -> Heartbeat {
    Heartbeat {
        worker: WorkerId::parse(worker).expect("a valid name"),
        incarnation: IncarnationId::generate(),
        report_number: 1,
        host: "localhost".into(),
        port: 0,
        handlers: vec![HandlerLoad {
            name: "noop".into(),
            slots,
            busy: 0,
            stuck: 0,
        }],
        labels: Selector::from([("zone".to_owned(), "a".to_owned())]),
        cpu_idle_percent: 90,
        draining: false,
        bye: false,
        sent_at: EpochMillis(0),
        holdings: Holdings::default(),
    }
}

fn class(handler: &str, selector: Selector) -> Class {
    Class {
        key: handler.into(),
        app: AppId::generate(),
        handler: handler.into(),
        selector,
    }
}

/// A fleet of one registered worker.
pub(super) fn fleet_of(heartbeat: &Heartbeat, now: Instant) -> Fleet {
    let mut fleet = Fleet::new(3 * BEAT);
    assert!(fleet.observe(heartbeat, now, EpochMillis(0)));
    for member in fleet.members_mut() {
        member.registered = true;
    }
    fleet
}

fn held(class: &Class, heartbeat: &Heartbeat, dispatch_seq: i64) -> Held {
    Held {
        claim: Claim {
            execution: ExecutionId::generate(),
            dispatch_seq,
        },
        worker: heartbeat.worker.clone(),
        incarnation: heartbeat.incarnation,
        class: Arc::new(class.clone()),
        status: ExecutionStatus::Dispatched,
        placed_at: EpochMillis(0),
        not_after: EpochMillis(0),
        epoch: 1,
        since: Instant::now(),
        started_at: None,
        timeout_ms: 1_000,
        cancel_requested: false,
        published: false,
        unnamed: 0,
        asked_at: None,
    }
}

fn free(fleet: &mut Fleet, class: &Class, now: Instant) -> Vec<u32> {
    fleet
        .offers(class, now)
        .into_iter()
        .map(|(_, offer)| offer.free)
        .collect()
}

#[test]
fn only_a_worker_that_offers_the_handler_and_carries_the_labels_is_a_candidate() {
    let now = Instant::now();
    let mut fleet = fleet_of(&heartbeat("a", 4), now);
    let label = |value: &str| Selector::from([("zone".to_owned(), value.to_owned())]);
    assert_eq!(free(&mut fleet, &class("noop", Selector::new()), now), [4]);
    assert_eq!(free(&mut fleet, &class("noop", label("a")), now), [4]);
    assert_eq!(free(&mut fleet, &class("noop", label("b")), now), NOBODY);
    assert_eq!(free(&mut fleet, &class("echo", Selector::new()), now), NOBODY);
}

#[test]
fn a_worker_whose_row_is_not_written_yet_is_no_candidate() {
    let now = Instant::now();
    let mut fleet = Fleet::new(3 * BEAT);
    fleet.observe(&heartbeat("a", 4), now, EpochMillis(0));
    assert_eq!(free(&mut fleet, &class("noop", Selector::new()), now), NOBODY);
}

#[test]
fn a_draining_or_silent_worker_is_no_candidate() {
    let (now, class) = (Instant::now(), class("noop", Selector::new()));
    let mut beat = heartbeat("a", 4);
    let mut fleet = fleet_of(&beat, now);
    assert_eq!(free(&mut fleet, &class, now + 3 * BEAT), NOBODY);
    (beat.report_number, beat.draining) = (2, true);
    fleet.observe(&beat, now, EpochMillis(0));
    assert_eq!(free(&mut fleet, &class, now), NOBODY);
}

#[test]
fn a_reservation_takes_room_and_gives_it_back() {
    let (now, class) = (Instant::now(), class("noop", Selector::new()));
    let beat = heartbeat("a", 1);
    let mut fleet = fleet_of(&beat, now);
    fleet.reserve(beat.incarnation, &class);
    assert_eq!(free(&mut fleet, &class, now), NOBODY);
    assert_eq!(fleet.owned_by(class.app), 1);
    fleet.unreserve(beat.incarnation, &class);
    assert_eq!(free(&mut fleet, &class, now), [1]);
    assert_eq!(fleet.owned_by(class.app), 0);
}

#[test]
fn the_end_of_an_older_handover_does_not_free_the_newer_one() {
    let (now, class) = (Instant::now(), class("noop", Selector::new()));
    let beat = heartbeat("a", 2);
    let mut fleet = fleet_of(&beat, now);
    let held = held(&class, &beat, 2);
    let claim = held.claim;
    fleet.hold(held, now);
    let older = Claim {
        dispatch_seq: 1,
        ..claim
    };
    assert!(fleet.let_go(older).is_none());
    assert_eq!(free(&mut fleet, &class, now), [1]);
    assert!(fleet.let_go(claim).is_some());
    assert!(fleet.let_go(claim).is_none());
    assert_eq!(free(&mut fleet, &class, now), [2]);
}

#[test]
fn a_slot_whose_run_does_not_stop_is_not_free() {
    let (now, class) = (Instant::now(), class("noop", Selector::new()));
    let mut beat = heartbeat("a", 4);
    beat.handlers[0].stuck = 3;
    assert_eq!(free(&mut fleet_of(&beat, now), &class, now), [1]);
}

#[test]
fn a_worker_that_refused_is_left_out_for_a_growing_while() {
    let (now, class) = (Instant::now(), class("noop", Selector::new()));
    let beat = heartbeat("a", 4);
    let mut fleet = fleet_of(&beat, now);
    let ms = Duration::from_millis;
    fleet.refused(beat.incarnation, "noop", now);
    // One that was under way at the same time does not count twice.
    fleet.refused(beat.incarnation, "noop", now);
    assert_eq!(free(&mut fleet, &class, now + ms(99)), NOBODY);
    assert_eq!(free(&mut fleet, &class, now + ms(100)), [4]);
    fleet.refused(beat.incarnation, "noop", now + ms(100));
    assert_eq!(free(&mut fleet, &class, now + ms(299)), NOBODY);
    assert_eq!(free(&mut fleet, &class, now + ms(300)), [4]);
    assert_eq!(fleet.next_retry(now), Some(now + ms(300)));
    fleet.accepted(beat.incarnation, "noop");
    fleet.refused(beat.incarnation, "noop", now + ms(400));
    assert_eq!(free(&mut fleet, &class, now + ms(500)), [4]);
}

#[test]
fn an_older_heartbeat_changes_nothing() {
    let now = Instant::now();
    let mut beat = heartbeat("a", 4);
    beat.report_number = 2;
    let mut fleet = fleet_of(&beat, now);
    beat.report_number = 1;
    assert!(!fleet.observe(&beat, now, EpochMillis(0)));
}

#[test]
fn an_ended_incarnation_is_kept_until_it_owns_nothing() {
    let (now, class) = (Instant::now(), class("noop", Selector::new()));
    let beat = heartbeat("a", 4);
    let mut fleet = fleet_of(&beat, now);
    let held = held(&class, &beat, 1);
    let claim = held.claim;
    fleet.hold(held, now);
    fleet.end(&beat.worker, beat.incarnation, WorkerStatus::Dead, now);
    assert_eq!(free(&mut fleet, &class, now), NOBODY);
    fleet.forget_ended();
    assert_eq!(fleet.members().count(), 1);
    fleet.let_go(claim);
    fleet.forget_ended();
    assert_eq!(fleet.members().count(), 0);
}

#[test]
fn nothing_queues_behind_busy_slots_once_a_run_in_them_has_turned_out_long() {
    let (now, class) = (Instant::now(), class("noop", Selector::new()));
    let beat = heartbeat("a", 1);
    let mut fleet = fleet_of(&beat, now);
    for _ in 0..20 {
        fleet.record_cost(beat.incarnation, "noop", 5, now);
    }
    let running = Held {
        status: ExecutionStatus::Running,
        started_at: Some(EpochMillis(1_000)),
        ..held(&class, &beat, 1)
    };
    fleet.hold(running, now);
    fleet.age_runs(EpochMillis(1_050));
    assert!(!fleet.offers(&class, now).is_empty());
    fleet.age_runs(EpochMillis(1_101));
    assert!(fleet.offers(&class, now).is_empty());
}
