//! The leader's side: what it asks, repeats and takes back is decided by `isocost-dispatcher`; which worker it places on
//! is left open, so that every balancer is covered.

use super::{
    cast,
    mutants::Guard,
    properties::{Found, change_row, place_is_legal},
    steps::{Fault, Setup},
    worker,
    world::{Aftermath, Ask, At, Handover, Leader, Letter, LifeState, World},
};
use isocost_common::{
    broker::PublishOutcome,
    execution::{ExecutionEvent, ExecutionStatus},
    message::{ControlAction, Marker},
    store::transitions::Change,
};
use isocost_dispatcher::{
    death::{self, Departure, NextStep, Subject, Verdict, left_behind},
    held::{Held, UNNAMED_REPORTS, is_over, is_result_overdue, must_be_published},
    in_flight::InFlight,
};
use std::{collections::HashMap, time::Duration};

const LEASE: Duration = Duration::from_millis(15_500);
const LONG: Duration = Duration::from_secs(1_000_000);

/// A leader begins its term: it reads what is owned, and publishes again what may not have left.
pub(crate) fn take_over(world: &mut World, setup: &Setup, found: &mut Found) {
    world.leader = Some(Leader {
        set: vec![None; world.executions.len()],
    });
    for life in &mut world.lives {
        life.aftermath = Aftermath::Fresh;
    }
    for number in 0..count(world) {
        let at = last(world, number);
        if setup.without == Some(Guard::SameSeq) && world.row(number).status == ExecutionStatus::Dispatched {
            place_anew(world, at, found);
            continue;
        }
        reload(world, setup, number);
    }
}

/// Without the guard: what may not have been published is given to somebody else instead.
fn place_anew(world: &mut World, at: At, found: &mut Found) {
    let mut row = world.row(at.execution);
    row.status = ExecutionStatus::Pending;
    change_row(world, at.execution, row, found);
    world.set_view(at.execution, None);
}

/// The leader ends, or stands still and finds another one in its place when it goes on.
pub(crate) fn lose_leader(world: &mut World, pauses: bool) {
    world.leader = None;
    world.former |= pauses;
    for execution in &mut world.executions {
        for handover in &mut execution.handovers {
            handover.late |= pauses && handover.letter != Letter::Done;
            handover.letter = Letter::Done;
        }
    }
}

/// True when the set differs from what the database says.
pub(crate) fn is_behind(world: &World, number: u8) -> bool {
    let Some(leader) = &world.leader else {
        return false;
    };
    let row = world.row(number);
    match leader.set[number as usize] {
        None => row.status.is_owned(),
        Some(view) => {
            !row.status.is_owned()
                || view.seq != world.executions[number as usize].seq()
                || view.status != row.status
                || view.cancel_requested != row.cancel_requested
        }
    }
}

/// Makes the set equal to the database.
pub(crate) fn reload(world: &mut World, setup: &Setup, number: u8) {
    let Some(owned) = cast::owned(world, number) else {
        return world.set_view(number, None);
    };
    let at = last(world, number);
    if let Some(view) = world.view(at) {
        let mut held = cast::held(world, at, view);
        held.follow(&owned);
        return world.set_view(number, Some(cast::view(&held)));
    }
    let held = Held::found(&owned, cast::class(), cast::later(Duration::ZERO));
    world.set_view(number, Some(cast::view(&held)));
    if must_be_published(&owned) {
        world.handover_mut(at).letter = Letter::UnderWay;
        if setup.without == Some(Guard::SameNotAfter) {
            world.placed += 1;
            world.handover_mut(at).tick = world.placed;
        }
    }
}

/// Places a pending execution: the next number, the next `not_after`.
pub(crate) fn place(world: &mut World, number: u8, life: u8, fault: Option<Fault>, found: &mut Found) {
    let event = ExecutionEvent::Placed;
    let Ok(step) = world.row(number).status.after(&event, cast::facts(world, number)) else {
        return;
    };
    place_is_legal(world, number, found);
    let mut row = world.row(number);
    row.status = step.to;
    change_row(world, number, row, found);
    world.placed += 1;
    let handover = Handover::new(life, world.placed);
    world.executions[number as usize].handovers.push(handover);
    if fault.is_none() {
        let at = last(world, number);
        let owned = cast::owned(world, number).expect("it was placed");
        let held = Held::found(&owned, cast::class(), cast::later(Duration::ZERO));
        world.set_view(number, Some(cast::view(&held)));
        world.handover_mut(at).letter = Letter::UnderWay;
    }
}

/// The publishing call ends with this outcome, whatever became of the message.
pub(crate) fn published(
    world: &mut World,
    setup: &Setup,
    at: At,
    outcome: PublishOutcome,
    found: &mut Found,
) {
    let now = cast::later(LONG);
    let mut table = InFlight::default();
    let number = table.add(at, vec![cast::claim(at)]);
    match table.on_outcome(number, outcome, now) {
        Some(delivered) => {
            world.handover_mut(at).letter = Letter::Done;
            if let Some(mut view) = world.view(delivered.message) {
                view.published = true;
                world.set_view(at.execution, Some(view));
            }
        }
        None => {
            world.handover_mut(at).letter = Letter::Unconfirmed;
            if setup.without == Some(Guard::SameSeq) && world.is_current(at) {
                world.handover_mut(at).letter = Letter::Done;
                if world.row(at.execution).status == ExecutionStatus::Dispatched {
                    place_anew(world, at, found);
                }
            }
        }
    }
}

/// A message that was not confirmed goes out again, the very same, or is dropped.
pub(crate) fn publish_again(world: &mut World, at: At) {
    let now = cast::later(LONG);
    let mut table = InFlight::default();
    let number = table.add(at, vec![cast::claim(at)]);
    table.on_outcome(number, PublishOutcome::Nacked, now);
    let is_owned = |claim| {
        let view = world.view(at).map(|view| cast::held(world, at, view));
        view.is_some_and(|held| held.claim == claim && held.wants_its_message())
    };
    let again = table.due_again(now + LONG, is_owned);
    world.handover_mut(at).letter = match again.as_slice() {
        [(_, message)] if *message == at => Letter::UnderWay,
        _ => Letter::Done,
    };
}

/// A copy of the message gets into the worker's queue.
pub(crate) fn enqueue(world: &mut World, at: At) {
    let is_gone = world.owner(at).state == LifeState::Gone;
    let handover = world.handover_mut(at);
    handover.queued = !is_gone;
    handover.sent = !is_gone;
}

/// The leader asks, if its own code would.
pub(crate) fn ask(world: &mut World, at: At, ask: Ask, fault: Option<Fault>) {
    let now = cast::later(LONG);
    let claim = cast::claim(at);
    let held = world.view(at).map(|view| cast::held(world, at, view));
    let action = match (ask, held) {
        (Ask::CancelStranger, None) => {
            let standing = cast::standing(world, at.execution);
            is_over(claim, Some(&standing)).then_some(ControlAction::Cancel {
                claim,
                not_after: None,
            })
        }
        (Ask::Query, Some(mut held)) => {
            // Early: the heartbeats were made before the message arrived.
            let is_named = fault.is_none() && worker::names(world, at);
            (0..UNNAMED_REPORTS).fold(None, |_, _| held.on_heartbeat(is_named, now))
        }
        (Ask::Release, Some(mut held)) if fault == Some(Fault::Move) => held
            .waits_too_long(Duration::from_millis(250), now)
            .then(|| held.release_request(now)),
        (Ask::Release | Ask::Cancel, Some(mut held)) => held.stop_request(now),
        (_, _) => None,
    };
    let is_the_one = match action {
        Some(ControlAction::Query { claim: about, .. }) => ask == Ask::Query && about == claim,
        Some(ControlAction::Release { claim: about, .. }) => ask == Ask::Release && about == claim,
        Some(ControlAction::Cancel {
            claim: about,
            not_after,
        }) => about == claim && (ask == Ask::Cancel && not_after.is_some() || ask == Ask::CancelStranger),
        _ => false,
    };
    if is_the_one {
        world.handover_mut(at).asked.add(ask);
    }
}

/// Whether the leader's inquest finds the life dead. The arithmetic of leases comes in here: a process that is cut off
/// has ended itself before it was silent for a lease.
pub(crate) fn is_dead(world: &World, setup: &Setup, life: u8) -> bool {
    let state = world.lives[life as usize].state;
    let is_hasty = setup.without == Some(Guard::LeaseBeforeDeath)
        || (setup.without == Some(Guard::CutOffWorkerStops) && state == LifeState::Cut);
    let (silence, answers) = match state {
        _ if is_hasty => (LEASE * 3, false),
        LifeState::Up => (Duration::ZERO, true),
        LifeState::Cut | LifeState::Stopping => (LEASE - Duration::from_millis(1), false),
        LifeState::Gone => (LEASE, false),
        LifeState::Frozen => (LEASE * 3, false),
        LifeState::NotYet | LifeState::Thawed => return false,
    };
    let subject = Subject {
        worker: cast::worker(life),
        incarnation: cast::incarnation(life),
        host: "localhost".into(),
        port: 1,
        silence,
        lease: LEASE,
        successor: None,
    };
    let verdict = subject
        .after_probe(answers.then_some(subject.incarnation))
        .or_else(|| subject.after_last_heartbeat(Some(silence), LONG))
        .unwrap_or_else(|| subject.after_queue((state == LifeState::Frozen).then_some(1)));
    matches!(verdict, Verdict::Dead(_))
}

/// The life is marked dead. Whatever it runs from here on is past its lease.
pub(crate) fn bury(world: &mut World, life: u8) {
    let is_up = world.lives[life as usize].state == LifeState::Up;
    world.lives[life as usize].buried = true;
    for (_, handover) in world.of_life_mut(life) {
        handover.seen.died |= handover.seen.started && !is_up;
    }
}

/// True when the leader's set has handovers of the life.
pub(crate) fn holds_of(world: &World, life: u8) -> bool {
    world
        .all_handovers()
        .any(|(at, handover)| handover.owner == life && world.view(at).is_some())
}

/// What is done about an ended life, as far as it goes: its tombstone, and the marker through the results.
pub(crate) fn send_marker(world: &mut World, life: u8) {
    let now = cast::later(Duration::ZERO);
    let mut aftermath = death::Aftermath::default();
    loop {
        match aftermath.next_step(now) {
            NextStep::Entomb => aftermath.entombed = true,
            NextStep::SendMarker => aftermath.marker_sent(Marker::generate(), now),
            NextStep::Wait => break world.lives[life as usize].aftermath = Aftermath::MarkerSent,
            NextStep::Recover => break world.lives[life as usize].aftermath = Aftermath::ResultsIn,
        }
    }
}

/// True when what the ended life held may go to others.
pub(crate) fn may_recover(world: &World, setup: &Setup, at: At) -> bool {
    let life = world.owner(at);
    if !life.buried {
        return false;
    }
    if setup.without == Some(Guard::ResultsBeforeRecovery) {
        return true;
    }
    let (now, marker) = (cast::later(Duration::ZERO), Marker::generate());
    let mut aftermath = death::Aftermath::default();
    if life.aftermath != Aftermath::Fresh {
        aftermath.entombed = true;
        aftermath.marker_sent(marker, now);
    }
    if life.aftermath == Aftermath::ResultsIn {
        aftermath.taken_in(marker);
    }
    aftermath.next_step(now) == NextStep::Recover
}

/// Its worker is gone: what that means for the row, if it is still that worker's.
pub(crate) fn recover(world: &mut World, setup: &Setup, at: At, found: &mut Found) {
    let incarnation = cast::incarnation(world.handover(at).owner);
    let rows = vec![cast::row(world, at.execution)];
    let departure = if world.owner(at).said_bye && setup.without != Some(Guard::GoodbyeIsNoDeath) {
        Departure::Goodbye
    } else {
        Departure::Death
    };
    let changes = left_behind(
        rows,
        Some(incarnation),
        departure,
        cast::now(world),
        &HashMap::new(),
    );
    for change in &changes {
        apply(world, at.execution, change, found);
    }
    world.set_view(at.execution, None);
}

/// Writes a change as the store does.
pub(crate) fn apply(world: &mut World, number: u8, change: &Change, found: &mut Found) {
    let after = change.after();
    let mut row = world.row(number);
    row.status = after.status;
    row.attempt = u8::try_from(after.attempt).expect("few attempts");
    row.interruptions = u8::try_from(after.interruptions).expect("few interruptions");
    change_row(world, number, row, found);
}

/// Applies an event that is no report.
pub(crate) fn change(world: &mut World, number: u8, event: &ExecutionEvent<'_>, found: &mut Found) {
    let before = cast::row(world, number);
    let Ok(step) = before.status.after(event, before.facts()) else {
        return;
    };
    let change = Change {
        before,
        step,
        at: cast::now(world),
        started_at: None,
        not_before: None,
        result: None,
        error: None,
        message: None,
    };
    apply(world, number, &change, found);
}

/// The result is overdue: the leader ends the run in the database.
pub(crate) fn end_overdue(world: &mut World, setup: &Setup, at: At, found: &mut Found) {
    let row = cast::row(world, at.execution);
    let now = cast::now(world);
    if !is_result_overdue(
        row.started_at,
        Duration::from_secs(60),
        cast::LONG_AGO,
        now + LONG,
    ) {
        return;
    }
    if setup.without == Some(Guard::OverdueIsFinal) {
        let mut row = world.row(at.execution);
        row.status = ExecutionStatus::Scheduled;
        change_row(world, at.execution, row, found);
    } else {
        change(world, at.execution, &ExecutionEvent::ResultOverdue, found);
    }
    world.set_view(at.execution, None);
}

/// A user asks for a cancel: at once where nobody holds it, else through the leader.
pub(crate) fn cancel(world: &mut World, number: u8, found: &mut Found) {
    let row = cast::row(world, number);
    match row.status.after(&ExecutionEvent::CancelRequested, row.facts()) {
        Ok(_) if row.status.is_owned() => {
            world.executions[number as usize].row.cancel_requested = true;
            let at = last(world, number);
            if let Some(mut view) = world.view(at) {
                view.cancel_requested = true;
                world.set_view(number, Some(view));
            }
        }
        Ok(_) => {
            world.executions[number as usize].row.cancel_requested = true;
            change(world, number, &ExecutionEvent::CancelRequested, found);
        }
        Err(_) => {}
    }
}

pub(crate) fn count(world: &World) -> u8 {
    u8::try_from(world.executions.len()).expect("few executions")
}

/// The last handover of an execution.
pub(crate) fn last(world: &World, number: u8) -> At {
    At {
        execution: number,
        seq: world.executions[number as usize].seq(),
    }
}
