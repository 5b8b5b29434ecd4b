use super::*;
use isocost_common::id::ExecutionId;
use std::collections::HashSet;

const NOT_AFTER: EpochMillis = EpochMillis(1_000_000);
const BEFORE: EpochMillis = EpochMillis(999_000);
const AFTER: EpochMillis = EpochMillis(1_000_001);
const FORGETTABLE: EpochMillis = EpochMillis(1_060_001);
const LONGEST: Duration = Duration::from_secs(15);

type Table = Ownership<&'static str>;

fn table() -> Table {
    Ownership::new(LONGEST)
}

fn claim(dispatch_seq: i64) -> Claim {
    Claim {
        execution: ExecutionId::from_uuid(uuid::Uuid::from_u128(7)),
        dispatch_seq,
    }
}

fn dispatch(table: &mut Table, seq: i64) -> OnDispatch<&'static str> {
    table.on_dispatch(claim(seq), NOT_AFTER, BEFORE, Admission::Open)
}

fn running() -> Table {
    let mut table = table();
    assert_eq!(dispatch(&mut table, 1), OnDispatch::Take);
    assert_eq!(table.on_start_granted(claim(1), true, "started"), OnStart::Run);
    table
}

fn finished() -> Table {
    let mut table = running();
    assert!(table.on_finished(claim(1), "finished"));
    table
}

fn confirmed(mut table: Table) -> Table {
    table.on_confirmed(claim(1), Confirmed::Start);
    table.on_confirmed(claim(1), Confirmed::End);
    table
}

fn refused() -> Table {
    let mut table = table();
    assert_eq!(
        table.on_dispatch(claim(1), NOT_AFTER, BEFORE, Admission::Closed),
        OnDispatch::Turned(Promise::Refused)
    );
    table
}

#[test]
fn a_second_copy_of_held_or_running_work_is_dropped_without_a_word() {
    let mut held = table();
    assert_eq!(dispatch(&mut held, 1), OnDispatch::Take);
    assert_eq!(dispatch(&mut held, 1), OnDispatch::Duplicate(None));
    assert_eq!(dispatch(&mut running(), 1), OnDispatch::Duplicate(None));
}

#[test]
fn a_copy_of_finished_work_sends_the_stored_report_again_once_the_first_was_confirmed() {
    let mut table = finished();
    assert_eq!(
        dispatch(&mut table, 1),
        OnDispatch::Duplicate(None),
        "still on its way"
    );
    let mut table = confirmed(table);
    assert_eq!(
        dispatch(&mut table, 1),
        OnDispatch::Duplicate(Some(Say::Finished("finished")))
    );
    assert_eq!(table.holdings().finished, [claim(1)], "unconfirmed again");
}

#[test]
fn an_entry_of_a_higher_seq_makes_a_lower_one_a_duplicate() {
    let mut table = table();
    assert_eq!(dispatch(&mut table, 2), OnDispatch::Take);
    assert_eq!(dispatch(&mut table, 1), OnDispatch::Duplicate(None));
    assert_eq!(dispatch(&mut table, 3), OnDispatch::Take);
}

#[test]
fn the_duplicate_rule_comes_before_not_after() {
    let mut table = running();
    let late = table.on_dispatch(claim(1), NOT_AFTER, AFTER, Admission::Open);
    assert_eq!(late, OnDispatch::Duplicate(None));
}

#[test]
fn past_not_after_nothing_is_taken_and_the_answer_is_unknown() {
    let mut table = table();
    assert_eq!(
        table.on_dispatch(claim(1), NOT_AFTER, AFTER, Admission::Open),
        OnDispatch::Turned(Promise::Unknown)
    );
    assert_eq!(
        table.on_start_granted(claim(1), true, "started"),
        OnStart::Withdrawn
    );
    assert_eq!(
        dispatch(&mut self::table(), 1),
        OnDispatch::Take,
        "at or before it is taken"
    );
}

#[test]
fn not_after_comes_before_a_closed_admission() {
    assert_eq!(
        table().on_dispatch(claim(1), NOT_AFTER, AFTER, Admission::Closed),
        OnDispatch::Turned(Promise::Unknown)
    );
}

#[test]
fn refused_released_and_unknown_work_never_starts() {
    let mut released = table();
    dispatch(&mut released, 1);
    released.on_release(claim(1), Some(NOT_AFTER), BEFORE);
    let mut unknown = table();
    unknown.on_query(claim(1), Some(NOT_AFTER), AFTER);
    for mut table in [refused(), released, unknown] {
        assert_eq!(dispatch(&mut table, 1), OnDispatch::Duplicate(None));
        assert_eq!(
            table.on_start_granted(claim(1), true, "started"),
            OnStart::Withdrawn
        );
        let mut table = confirmed(table);
        assert_eq!(dispatch(&mut table, 1), OnDispatch::Duplicate(None));
    }
}

#[test]
fn a_release_before_the_start_wins_over_the_start() {
    let mut table = table();
    dispatch(&mut table, 1);
    assert_eq!(
        table.on_release(claim(1), Some(NOT_AFTER), BEFORE),
        Some(Say::Promise(Promise::Released))
    );
    assert_eq!(
        table.on_start_granted(claim(1), true, "started"),
        OnStart::Withdrawn
    );
}

#[test]
fn a_start_before_the_release_wins_over_the_release() {
    let mut table = running();
    assert_eq!(
        table.on_release(claim(1), Some(NOT_AFTER), BEFORE),
        None,
        "started is on its way"
    );
    table.on_confirmed(claim(1), Confirmed::Start);
    assert_eq!(
        table.on_release(claim(1), Some(NOT_AFTER), BEFORE),
        Some(Say::Started("started"))
    );
    assert!(table.on_finished(claim(1), "finished"));
}

#[test]
fn nothing_starts_once_the_lease_is_over() {
    let mut table = table();
    dispatch(&mut table, 1);
    assert_eq!(
        table.on_start_granted(claim(1), false, "started"),
        OnStart::LeaseOver
    );
    assert!(table.is_held(claim(1)), "the holdings stay true");
}

#[test]
fn a_cancel_stops_what_runs_and_prevents_what_is_held() {
    assert_eq!(
        running().on_cancel(claim(1), Some(NOT_AFTER), BEFORE),
        OnCancel::Stop
    );
    let mut held = table();
    dispatch(&mut held, 1);
    assert_eq!(
        held.on_cancel(claim(1), Some(NOT_AFTER), BEFORE),
        OnCancel::Answer(Some(Say::Promise(Promise::Released)))
    );
    let mut done = confirmed(finished());
    assert_eq!(
        done.on_cancel(claim(1), Some(NOT_AFTER), BEFORE),
        OnCancel::Answer(Some(Say::Finished("finished")))
    );
}

#[test]
fn requests_about_work_never_seen_are_refused_before_not_after_and_unknown_after_it() {
    for (not_after, now, promise) in [
        (Some(NOT_AFTER), BEFORE, Promise::Refused),
        (Some(NOT_AFTER), AFTER, Promise::Unknown),
        (None, BEFORE, Promise::Unknown),
    ] {
        let said = Some(Say::Promise(promise));
        assert_eq!(table().on_release(claim(1), not_after, now), said);
        assert_eq!(table().on_query(claim(1), not_after, now), said);
        assert_eq!(
            table().on_cancel(claim(1), not_after, now),
            OnCancel::Answer(said.clone())
        );
        let mut table = table();
        table.on_query(claim(1), not_after, now);
        assert_eq!(
            dispatch(&mut table, 1),
            OnDispatch::Duplicate(None),
            "a promise stays"
        );
        assert_eq!(
            table.on_query(claim(1), not_after, now),
            None,
            "its answer is on its way"
        );
    }
}

#[test]
fn a_query_leaves_held_work_held() {
    let mut table = table();
    dispatch(&mut table, 1);
    assert_eq!(table.on_query(claim(1), Some(NOT_AFTER), BEFORE), None);
    assert_eq!(table.on_start_granted(claim(1), true, "started"), OnStart::Run);
}

#[test]
fn held_work_without_a_slot_is_refused_unless_a_release_was_first() {
    let mut table = table();
    dispatch(&mut table, 1);
    assert_eq!(table.on_refused(claim(1)), Some(Promise::Refused));
    assert_eq!(table.on_refused(claim(1)), None);
    assert_eq!(
        running().on_refused(claim(1)),
        None,
        "running work is not refused"
    );
}

#[test]
fn a_run_ends_once() {
    let mut table = running();
    assert!(table.on_finished(claim(1), "first"));
    assert!(!table.on_finished(claim(1), "second"));
    assert!(!table.on_finished(claim(2), "never started"));
}

#[test]
fn an_entry_stays_until_its_report_is_confirmed_and_a_minute_after_not_after() {
    let mut unconfirmed = finished();
    unconfirmed.on_confirmed(claim(1), Confirmed::Start);
    assert_eq!(unconfirmed.prune(FORGETTABLE), 0);
    let mut held = table();
    dispatch(&mut held, 1);
    assert_eq!(held.prune(FORGETTABLE), 0);
    assert_eq!(running().prune(FORGETTABLE), 0);
    let mut early = confirmed(finished());
    assert_eq!(early.prune(EpochMillis(FORGETTABLE.0 - 1)), 0);
    assert_eq!(early.prune(FORGETTABLE), 1);
    assert!(early.is_empty());
}

#[test]
fn what_was_forgotten_is_not_taken_again_even_when_the_clock_steps_back() {
    let mut table = confirmed(finished());
    table.prune(FORGETTABLE);
    assert_eq!(dispatch(&mut table, 1), OnDispatch::Turned(Promise::Unknown));
    let mut table = confirmed(finished());
    table.prune(FORGETTABLE);
    assert_eq!(
        table.on_query(claim(1), Some(NOT_AFTER), BEFORE),
        Some(Say::Promise(Promise::Unknown))
    );
    let later = EpochMillis(NOT_AFTER.0 + 1);
    let newer = table.on_dispatch(claim(2), later, BEFORE, Admission::Open);
    assert_eq!(newer, OnDispatch::Take, "a later not_after is not past");
}

#[test]
fn a_report_asked_for_again_keeps_the_entry_until_it_is_confirmed_again() {
    let mut table = confirmed(finished());
    assert!(table.on_query(claim(1), Some(NOT_AFTER), AFTER).is_some());
    assert_eq!(table.prune(FORGETTABLE), 0);
    table.on_confirmed(claim(1), Confirmed::End);
    assert_eq!(table.prune(FORGETTABLE), 1);
}

#[test]
fn a_promise_made_without_not_after_outlasts_every_copy_of_the_message() {
    let mut table = table();
    table.on_cancel(claim(1), None, BEFORE);
    table.on_confirmed(claim(1), Confirmed::End);
    assert_eq!(table.prune(BEFORE + LONGEST + FORGET_AFTER), 0);
    assert_eq!(
        table.prune(BEFORE + LONGEST + FORGET_AFTER + Duration::from_millis(1)),
        1
    );
    assert_eq!(dispatch(&mut table, 1), OnDispatch::Turned(Promise::Unknown));
}

#[test]
fn holdings_name_every_entry_that_is_not_settled_by_its_stage() {
    let mut table = table();
    for seq in 1..=4 {
        let claim = Claim {
            execution: ExecutionId::generate(),
            dispatch_seq: seq,
        };
        table.on_dispatch(claim, NOT_AFTER, BEFORE, Admission::Open);
        if seq > 1 && seq < 4 {
            table.on_start_granted(claim, true, "started");
        }
        if seq == 3 {
            table.on_finished(claim, "finished");
        }
        if seq == 4 {
            table.on_refused(claim);
        }
    }
    let holdings = table.holdings();
    let seqs = |claims: &[Claim]| claims.iter().map(|claim| claim.dispatch_seq).collect::<Vec<_>>();
    assert_eq!(seqs(&holdings.unstarted), [1]);
    assert_eq!(seqs(&holdings.running), [2]);
    assert_eq!(seqs(&holdings.finished), [3]);
    assert_eq!(seqs(&holdings.refused), [4]);
    assert_eq!(confirmed(finished()).holdings(), Holdings::default());
}

#[test]
fn a_drain_releases_exactly_what_has_not_started() {
    let mut table = running();
    let other = Claim {
        execution: ExecutionId::generate(),
        dispatch_seq: 1,
    };
    table.on_dispatch(other, NOT_AFTER, BEFORE, Admission::Open);
    assert_eq!(table.release_unstarted(), [other]);
    assert_eq!(table.release_unstarted(), []);
    assert_eq!(table.holdings().running, [claim(1)]);
}

/// What a step sequence did to the outside, as judged by an observer of the table's answers.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
struct Witness {
    started: [bool; 3],
    promised: [bool; 3],
}

/// One step of the exhaustive walk; times are steps too, so that every interleaving with them is met.
#[derive(Debug, Clone, Copy)]
enum Step {
    Dispatch(i64, Admission),
    Refuse(i64),
    Release(i64),
    Cancel(i64),
    Query(i64),
    Start(i64),
    Finish(i64),
    Confirm(i64, Confirmed),
    Prune,
    Time(EpochMillis),
    ReleaseAll,
}

fn steps() -> Vec<Step> {
    let mut steps = vec![
        Step::Prune,
        Step::ReleaseAll,
        Step::Time(BEFORE),
        Step::Time(AFTER),
        Step::Time(FORGETTABLE),
    ];
    for seq in [1, 2] {
        steps.extend([
            Step::Dispatch(seq, Admission::Open),
            Step::Dispatch(seq, Admission::Closed),
            Step::Refuse(seq),
            Step::Release(seq),
            Step::Cancel(seq),
            Step::Query(seq),
            Step::Start(seq),
            Step::Finish(seq),
            Step::Confirm(seq, Confirmed::Start),
            Step::Confirm(seq, Confirmed::End),
        ]);
    }
    steps
}

fn take(table: &mut Table, witness: &mut Witness, now: &mut EpochMillis, step: Step) {
    let at = |seq: i64| usize::try_from(seq).expect("a small seq");
    let promises = |witness: &mut Witness, seq: i64, say: Option<Say<&'static str>>| {
        if let Some(Say::Promise(_)) = say {
            assert!(
                !witness.started[at(seq)] || say == Some(Say::Promise(Promise::Unknown)),
                "started work was promised away"
            );
            witness.promised[at(seq)] = true;
        }
    };
    match step {
        Step::Dispatch(seq, admission) => match table.on_dispatch(claim(seq), NOT_AFTER, *now, admission) {
            OnDispatch::Take => {
                assert!(!witness.started[at(seq)], "started work was taken again");
                assert!(!witness.promised[at(seq)], "promised work was taken");
            }
            OnDispatch::Turned(promise) => promises(witness, seq, Some(Say::Promise(promise))),
            OnDispatch::Duplicate(say) => promises(witness, seq, say),
        },
        Step::Refuse(seq) => {
            let say = table.on_refused(claim(seq)).map(Say::Promise);
            promises(witness, seq, say);
        }
        Step::Release(seq) => {
            let say = table.on_release(claim(seq), Some(NOT_AFTER), *now);
            promises(witness, seq, say);
        }
        Step::Query(seq) => {
            let say = table.on_query(claim(seq), Some(NOT_AFTER), *now);
            promises(witness, seq, say);
        }
        Step::Cancel(seq) => match table.on_cancel(claim(seq), Some(NOT_AFTER), *now) {
            OnCancel::Stop => assert!(witness.started[at(seq)]),
            OnCancel::Answer(say) => promises(witness, seq, say),
        },
        Step::Start(seq) => {
            if table.on_start_granted(claim(seq), true, "started") == OnStart::Run {
                assert!(!witness.started[at(seq)], "one seq started twice");
                assert!(!witness.promised[at(seq)], "promised work started");
                witness.started[at(seq)] = true;
            }
        }
        Step::Finish(seq) => {
            let reported = table.on_finished(claim(seq), "finished");
            assert!(!reported || witness.started[at(seq)], "a result without a start");
        }
        Step::Confirm(seq, which) => table.on_confirmed(claim(seq), which),
        Step::Prune => {
            table.prune(*now);
        }
        Step::Time(instant) => *now = instant,
        Step::ReleaseAll => {
            for released in table.release_unstarted() {
                promises(
                    witness,
                    released.dispatch_seq,
                    Some(Say::Promise(Promise::Released)),
                );
            }
        }
    }
    assert_eq!(
        table.open.len() + table.settled.len(),
        table.entries.len(),
        "open or settled"
    );
}

#[test]
fn in_every_order_of_messages_requests_and_times_a_seq_starts_at_most_once_and_never_after_a_promise() {
    let start = (table(), Witness::default(), BEFORE);
    let mut seen: HashSet<(Table, Witness, EpochMillis)> = HashSet::from([start.clone()]);
    let mut front = vec![start];
    let steps = steps();
    while !front.is_empty() {
        let mut next = Vec::new();
        for state in &front {
            for step in &steps {
                let (mut table, mut witness, mut now) = state.clone();
                take(&mut table, &mut witness, &mut now, *step);
                let reached = (table, witness, now);
                if seen.insert(reached.clone()) {
                    next.push(reached);
                }
            }
        }
        front = next;
    }
    assert!(seen.len() > 1_000, "the walk met only {} states", seen.len());
}

#[test]
fn what_was_not_confirmed_is_left_over_with_its_newest_report() {
    assert_eq!(running().unreported(), vec![(claim(1), Say::Started("started"))]);
    assert_eq!(
        finished().unreported(),
        vec![(claim(1), Say::Finished("finished"))]
    );
    assert_eq!(
        refused().unreported(),
        vec![(claim(1), Say::Promise(Promise::Refused))]
    );
    let mut held = table();
    dispatch(&mut held, 1);
    assert_eq!(held.unreported(), vec![], "the leader gives it to somebody else");
    assert_eq!(confirmed(finished()).unreported(), vec![]);
}
