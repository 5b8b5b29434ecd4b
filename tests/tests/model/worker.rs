//! The worker's side: every decision is asked of the ownership table of `isocost-worker`.

use super::{
    cast,
    mutants::Guard,
    properties::{Found, start_is_legal},
    steps::{Fault, Setup},
    world::{Ask, At, Ending, LifeState, Report, Said, World, empty_table},
};
use isocost_common::time::EpochMillis;
use isocost_worker::ownership::{
    Admission, Confirmed, OnCancel, OnDispatch, OnStart, Ownership, Promise, Say,
};
use std::rc::Rc;

/// True when the life has stopped and said everything.
pub(crate) fn has_nothing_left(world: &World, life: u8) -> bool {
    let table = &world.lives[life as usize].table;
    table.is_reported()
        && world
            .all_handovers()
            .filter(|(_, handover)| handover.owner == life)
            .all(|(_, handover)| !handover.runs && !handover.starting && handover.outbox.is_empty())
}

/// True when the table would forget something now.
pub(crate) fn can_forget(world: &World, setup: &Setup, life: u8) -> bool {
    let table = &world.lives[life as usize].table;
    !table.is_empty() && Ownership::clone(table).prune(forgetting_now(world, setup)) > 0
}

fn forgetting_now(world: &World, setup: &Setup) -> EpochMillis {
    if setup.without == Some(Guard::Forgetting) {
        cast::NEVER
    } else {
        cast::now(world)
    }
}

/// True when the next heartbeat names it.
pub(crate) fn names(world: &World, at: At) -> bool {
    let claim = cast::claim(at);
    world.owner(at).table.holdings().all().any(|named| named == claim)
}

/// True when the next heartbeat says that it is held or runs, which only the owner of an execution should say.
pub(crate) fn holds(world: &World, at: At) -> bool {
    let holdings = world.owner(at).table.holdings();
    let claim = cast::claim(at);
    holdings.unstarted.contains(&claim) || holdings.running.contains(&claim)
}

fn table(world: &mut World, at: At) -> &mut Ownership<Said> {
    let owner = world.handover(at).owner;
    Rc::make_mut(&mut world.lives[owner as usize].table)
}

fn set_table(world: &mut World, at: At, table: Rc<Ownership<Said>>) {
    let owner = world.handover(at).owner;
    world.lives[owner as usize].table = table;
}

/// A copy of the dispatch message arrives.
pub(crate) fn deliver(world: &mut World, setup: &Setup, at: At) {
    let claim = cast::claim(at);
    let not_after = match setup.without {
        Some(Guard::NotAfter) => cast::NEVER,
        _ => cast::not_after(world, at),
    };
    let now = cast::now(world);
    let admission = match world.owner(at).draining {
        true => Admission::Closed,
        false => Admission::Open,
    };
    let handover = world.handover_mut(at);
    (handover.queued, handover.met) = (false, true);
    if setup.without == Some(Guard::Ownership) {
        // As if nothing had ever been written down.
        set_table(world, at, empty_table());
    }
    let before = Rc::clone(&world.owner(at).table);
    match table(world, at).on_dispatch(claim, not_after, now, admission) {
        OnDispatch::Take => {}
        OnDispatch::Turned(promise) => {
            break_promise(world, setup, at, before);
            promised(world, at, promise);
        }
        OnDispatch::Duplicate(say) => say_it(world, at, say.as_ref()),
    }
}

/// A request of the leader arrives.
pub(crate) fn answer(world: &mut World, setup: &Setup, at: At, ask: Ask) {
    let claim = cast::claim(at);
    let not_after = (ask != Ask::CancelStranger).then(|| cast::not_after(world, at));
    let now = cast::now(world);
    world.handover_mut(at).met = true;
    let before = Rc::clone(&world.owner(at).table);
    let say = match ask {
        Ask::Release => table(world, at).on_release(claim, not_after, now),
        Ask::Query => table(world, at).on_query(claim, not_after, now),
        Ask::Cancel | Ask::CancelStranger => match table(world, at).on_cancel(claim, not_after, now) {
            OnCancel::Answer(say) => say,
            OnCancel::Stop => {
                end(world, at, Ending::Cancelled);
                None
            }
        },
    };
    if matches!(say, Some(Say::Promise(_))) {
        break_promise(world, setup, at, before);
    }
    say_it(world, at, say.as_ref());
}

/// Without the guard the promise is given and not written down.
fn break_promise(world: &mut World, setup: &Setup, at: At, before: Rc<Ownership<Said>>) {
    if setup.without == Some(Guard::Promise) {
        set_table(world, at, before);
    }
}

fn say_it(world: &mut World, at: At, say: Option<&Say<Said>>) {
    match say {
        None => {}
        Some(Say::Started(_)) => world.handover_mut(at).outbox.add(Report::Started),
        Some(Say::Finished(_)) => world.handover_mut(at).outbox.add(Report::Finished),
        Some(Say::Promise(promise)) => promised(world, at, *promise),
    }
}

fn promised(world: &mut World, at: At, promise: Promise) {
    world.handover_mut(at).outbox.add(match promise {
        Promise::Refused => Report::Refused,
        Promise::Released => Report::Released,
        Promise::Unknown => Report::Unknown,
    });
}

/// It found no slot in time.
pub(crate) fn refuse(world: &mut World, at: At) {
    if let Some(promise) = table(world, at).on_refused(cast::claim(at)) {
        promised(world, at, promise);
    }
}

/// A slot is free: the start key is claimed, or its service is away.
pub(crate) fn set_key(world: &mut World, at: At, fault: Option<Fault>) {
    let handover = world.handover_mut(at);
    if fault == Some(Fault::KeysAway) {
        handover.starting = true;
    } else if handover.key {
        refuse(world, at);
    } else {
        (handover.key, handover.starting) = (true, true);
    }
}

/// The one step in which held work becomes running.
pub(crate) fn start(world: &mut World, setup: &Setup, at: At, found: &mut Found) {
    // One that was frozen looked at its lease before.
    let lease_valid = world.owner(at).state != LifeState::Stopping;
    world.handover_mut(at).starting = false;
    let answer = table(world, at).on_start_granted(cast::claim(at), lease_valid, Said::Started);
    let is_unasked = setup.without == Some(Guard::HeldAtStart) && answer == OnStart::Withdrawn;
    if answer != OnStart::Run && !is_unasked {
        return;
    }
    start_is_legal(world, setup, at, found);
    let is_thawed = world.owner(at).state == LifeState::Thawed;
    let handover = world.handover_mut(at);
    handover.seen.started = true;
    handover.seen.died |= is_thawed;
    handover.runs = true;
    handover.ending = None;
    handover.outbox.add(Report::Started);
}

/// Its handler returns.
pub(crate) fn end(world: &mut World, at: At, ending: Ending) {
    world.handover_mut(at).runs = false;
    if table(world, at).on_finished(cast::claim(at), Said::Finished(ending)) {
        let handover = world.handover_mut(at);
        handover.ending = Some(ending);
        handover.outbox.add(Report::Finished);
    }
}

/// The broker has the report, and its worker knows unless the confirm is lost.
pub(crate) fn confirm(world: &mut World, at: At, report: Report, fault: Option<Fault>) {
    // What one says that is past its lease may come too late.
    let counts = world.is_current(at) && world.owner(at).state != LifeState::Thawed;
    let handover = world.handover_mut(at);
    handover.results.add(report);
    let is_success = report == Report::Finished && handover.ending == Some(Ending::Succeeded);
    handover.seen.success_confirmed |= is_success && counts;
    if fault.is_some() {
        return;
    }
    handover.outbox.remove(report);
    let which = match report {
        Report::Started => Confirmed::Start,
        _ => Confirmed::End,
    };
    table(world, at).on_confirmed(cast::claim(at), which);
}

/// Entries whose time is over go.
pub(crate) fn forget(world: &mut World, setup: &Setup, life: u8) {
    let now = forgetting_now(world, setup);
    let table = &mut world.lives[life as usize].table;
    Rc::make_mut(table).prune(now);
    if setup.without == Some(Guard::Forgetting) && table.is_empty() {
        // Nor does it remember up to when it has forgotten.
        *table = empty_table();
    }
}

/// It is told to stop: what has not started goes back.
pub(crate) fn drain(world: &mut World, life: u8) {
    world.lives[life as usize].draining = true;
    let released = Rc::make_mut(&mut world.lives[life as usize].table).release_unstarted();
    for (at, handover) in world.of_life_mut(life) {
        if released.contains(&cast::claim(at)) {
            handover.outbox.add(Report::Released);
        }
    }
}

/// Its lease is lost: every handler is stopped.
pub(crate) fn stop_handlers(world: &mut World, life: u8) {
    world.lives[life as usize].state = LifeState::Stopping;
    let running: Vec<At> = world
        .of_life_mut(life)
        .filter(|(_, handover)| handover.runs)
        .map(|(at, _)| at)
        .collect();
    for at in running {
        end(world, at, Ending::Interrupted);
    }
}

/// The process is gone, with everything it had not said.
pub(crate) fn exit(world: &mut World, life: u8) {
    for (_, handover) in world.of_life_mut(life) {
        let is_in_the_middle =
            handover.runs || handover.outbox.has(Report::Finished) || is_running_unfinished(handover);
        handover.seen.died |= is_in_the_middle;
        handover.queued = false;
        handover.sent = false;
        handover.late = false;
        handover.met = false;
        handover.key = false;
        handover.starting = false;
        handover.runs = false;
        handover.asked.clear();
        handover.outbox.clear();
    }
    let life = &mut world.lives[life as usize];
    life.state = LifeState::Gone;
    life.draining = false;
    life.table = empty_table();
}

fn is_running_unfinished(handover: &super::world::Handover) -> bool {
    handover.seen.started && handover.ending.is_none()
}
