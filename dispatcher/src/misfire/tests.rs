use super::*;
use isocost_common::{
    id::{AppId, JobId},
    job::{ConcurrencyPolicy, Misfire, Selector, Window},
    raw_json::RawJson,
    schedule::CronDialect,
};

const NOON: EpochMillis = EpochMillis(1_796_040_000_000); // 2026-11-30T12:00:00Z
const MISFIRE_AFTER: Duration = Duration::from_secs(60);
const TWO_WEEKS: Duration = Duration::from_secs(14 * 86_400);

/// A job of no special kind, due at noon.
fn job() -> DueJob {
    DueJob {
        id: JobId::generate(),
        app: AppId::generate(),
        name: "a job".into(),
        handler: "noop".into(),
        params: RawJson::null(),
        traceparent: None,
        trigger: Trigger::Manual {},
        window: Window::default(),
        submitted_at: EpochMillis(0),
        due: NOON,
        priority: 5,
        timeout_ms: 600_000,
        start_deadline_ms: None,
        max_attempts: 1,
        misfire: Misfire::default(),
        concurrency: ConcurrencyPolicy::Parallel,
        slot_key: None,
        shards: 1,
        selector: Selector::new(),
        class_key: String::new(),
    }
}

fn at(job: &DueJob, due: EpochMillis) -> DueJob {
    DueJob { due, ..job.clone() }
}

fn cron(expr: &str, policy: MisfirePolicy, max_catch_up: u32) -> DueJob {
    DueJob {
        trigger: Trigger::Cron {
            expr: expr.into(),
            time_zone: "UTC".into(),
            dialect: CronDialect::Quartz,
        },
        misfire: Misfire { policy, max_catch_up },
        ..job()
    }
}

fn every_five_seconds(policy: MisfirePolicy) -> DueJob {
    cron("*/5 * * * * ?", policy, 10)
}

fn planned(job: &DueJob, late: Duration) -> FiringPlan {
    plan(&at(job, NOON - late), NOON, MISFIRE_AFTER).expect("the trigger is valid")
}

fn in_seconds(seconds: u64) -> EpochMillis {
    NOON + Duration::from_secs(seconds)
}

#[test]
fn a_firing_on_time_fires_once_and_the_next_one_is_planned() {
    let plan = planned(&every_five_seconds(MisfirePolicy::Skip), Duration::ZERO);
    assert_eq!(
        plan.firings,
        [Firing {
            scheduled: NOON,
            missed: false
        }]
    );
    assert_eq!((plan.next, plan.left_out_from), (Some(in_seconds(5)), None));
}

#[test]
fn firings_that_are_late_but_not_missed_all_fire() {
    let plan = planned(&every_five_seconds(MisfirePolicy::Skip), Duration::from_secs(60));
    assert_eq!(plan.firings.len(), 13);
    assert!(plan.firings.iter().all(|firing| !firing.missed));
    assert_eq!(plan.next, Some(in_seconds(5)));
}

#[test]
fn a_firing_is_missed_one_millisecond_after_the_limit() {
    let job = cron("0 * * * * ?", MisfirePolicy::FireOnce, 10);
    let now = NOON + MISFIRE_AFTER;
    let missed = |now| plan(&job, now, MISFIRE_AFTER).expect("valid").firings[0].missed;
    assert!(!missed(now));
    assert!(missed(now + MILLISECOND));
}

#[test]
fn cr14_two_weeks_of_missed_firings_are_skipped_in_one_step() {
    let started = std::time::Instant::now();
    let plan = planned(&every_five_seconds(MisfirePolicy::Skip), TWO_WEEKS);
    assert_eq!(plan.firings, []);
    assert_eq!(plan.next, Some(in_seconds(5)));
    assert_eq!(plan.left_out_from, Some(NOON - TWO_WEEKS));
    assert!(started.elapsed() < Duration::from_secs(1));
}

#[test]
fn fire_once_makes_one_firing_of_all_that_were_missed() {
    let plan = planned(&every_five_seconds(MisfirePolicy::FireOnce), TWO_WEEKS);
    assert_eq!(
        plan.firings,
        [Firing {
            scheduled: NOON - TWO_WEEKS,
            missed: true
        }]
    );
    assert_eq!(plan.next, Some(in_seconds(5)));
}

#[test]
fn catch_up_makes_up_for_the_newest_missed_firings_and_says_from_when_it_left_some_out() {
    let started = std::time::Instant::now();
    let plan = planned(&every_five_seconds(MisfirePolicy::CatchUp), TWO_WEEKS);
    let scheduled: Vec<_> = plan.firings.iter().map(|firing| firing.scheduled).collect();
    let expected: Vec<_> = (0..10).rev().map(|n| NOON - Duration::from_secs(5 * n)).collect();
    assert_eq!(scheduled, expected);
    assert_eq!(plan.next, Some(in_seconds(5)));
    assert_eq!(plan.left_out_from, Some(NOON - TWO_WEEKS));
    assert!(started.elapsed() < Duration::from_secs(1));
}

#[test]
fn catch_up_makes_up_for_all_when_there_are_few() {
    let job = cron("0 0 * * * ?", MisfirePolicy::CatchUp, 10);
    let plan = planned(&job, Duration::from_secs(3 * 3_600));
    assert_eq!(plan.firings.len(), 4);
    assert!(plan.firings.iter().all(|firing| firing.missed));
    assert_eq!(plan.left_out_from, None);
}

#[test]
fn a_one_shot_and_a_fixed_delay_fire_however_late_they_are() {
    let once = Trigger::Once { at: NOON - TWO_WEEKS };
    for trigger in [once, Trigger::FixedDelay { every_ms: 1_000 }] {
        let job = DueJob {
            trigger,
            ..every_five_seconds(MisfirePolicy::Skip)
        };
        let plan = planned(&job, TWO_WEEKS);
        assert_eq!(
            plan.firings,
            [Firing {
                scheduled: NOON - TWO_WEEKS,
                missed: true
            }]
        );
        assert_eq!(plan.next, None);
    }
}

#[test]
fn du03_a_schedule_with_one_instant_has_no_next_one() {
    let job = cron("0 0 12 30 11 ? 2026", MisfirePolicy::FireOnce, 10);
    let plan = planned(&job, Duration::ZERO);
    assert_eq!((plan.firings.len(), plan.next), (1, None));
}

#[test]
fn nothing_fires_after_the_end_of_the_window() {
    let job = DueJob {
        window: Window {
            start_at: None,
            end_at: Some(in_seconds(4)),
        },
        ..every_five_seconds(MisfirePolicy::FireOnce)
    };
    assert_eq!(planned(&job, Duration::ZERO).next, None);
}

#[test]
fn one_claim_makes_a_bounded_number_of_firings_and_leaves_the_rest_due() {
    let job = DueJob {
        trigger: Trigger::FixedRate {
            every_ms: 1,
            anchor: NOON - TWO_WEEKS,
        },
        ..every_five_seconds(MisfirePolicy::Skip)
    };
    let plan = planned(&job, Duration::from_secs(1));
    assert_eq!(plan.firings.len(), MOST_FIRINGS);
    assert_eq!(plan.next, Some(NOON - Duration::from_millis(900)));
}

#[test]
fn cr13_a_trigger_that_cannot_be_evaluated_is_an_error_and_not_a_panic() {
    let unknown_zone = DueJob {
        trigger: Trigger::Cron {
            expr: "0 0 12 * * ?".into(),
            time_zone: "Mars/Olympus".into(),
            dialect: CronDialect::Quartz,
        },
        ..job()
    };
    for job in [unknown_zone, cron("", MisfirePolicy::Skip, 1)] {
        assert!(plan(&job, NOON, MISFIRE_AFTER).is_err());
    }
}

#[test]
fn cr02_a_planned_local_time_that_does_not_exist_moves_and_does_not_panic() {
    let job = DueJob {
        trigger: Trigger::Cron {
            expr: "0 2 * * *".into(),
            time_zone: "America/New_York".into(),
            dialect: CronDialect::Unix,
        },
        ..job()
    };
    let before = EpochMillis::parse_rfc3339("2025-03-08T02:00:00-05:00").expect("an instant");
    let next = plan(&at(&job, before), before, MISFIRE_AFTER)
        .expect("valid")
        .next;
    assert_eq!(next, EpochMillis::parse_rfc3339("2025-03-09T03:00:00-04:00").ok());
}

/// The planner's clock runs in steps of a second, with the job's row as it would stand in the table.
#[test]
fn du09_a_single_planned_instant_is_planned_once() {
    let instant = |text: &str| EpochMillis::parse_rfc3339(text).expect("an instant");
    let job = cron("15 6 10 18 8 ? 2030-2030", MisfirePolicy::FireOnce, 10);
    let submitted = instant("2030-08-18T10:00:00.000Z");
    let mut next = job
        .trigger
        .first_firing(submitted, job.window)
        .expect("it can be evaluated");
    let mut fired = Vec::new();
    let mut now = instant("2030-08-18T10:06:09.000Z");
    while now <= instant("2030-08-18T10:06:20.000Z") {
        // Two looks at every instant, as two leaders would take.
        for _ in 0..2 {
            if let Some(due) = next.filter(|due| *due <= now) {
                let plan = plan(&at(&job, due), now, MISFIRE_AFTER).expect("it can be evaluated");
                fired.extend(plan.firings.iter().map(|firing| firing.scheduled));
                next = plan.next;
            }
        }
        now = now + Duration::from_secs(1);
    }
    assert_eq!(fired, [instant("2030-08-18T10:06:15.000Z")]);
    assert_eq!(next, None);
}
