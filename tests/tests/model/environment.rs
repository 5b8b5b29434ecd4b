//! Taking a step: processes, the broker, time and users are here; decisions are asked of the product.

use super::{
    intake, leader,
    mutants::Guard,
    properties::Found,
    steps::{Action, Fault, Setup, Step},
    worker,
    world::{Aftermath, Ask, At, LifeState, World},
};
use isocost_common::{broker::PublishOutcome, execution::ExecutionEvent};

/// What a step leads to.
pub(crate) struct Taken {
    /// The world, in its normal form.
    pub(crate) world: World,
    /// Workers A and B have changed names.
    pub(crate) is_mirrored: bool,
    pub(crate) found: Found,
}

/// Takes a step.
pub(crate) fn take(world: &World, setup: &Setup, step: Step) -> Taken {
    let mut world = world.clone();
    let mut found = Found::default();
    if step.fault.is_some() {
        world.faults_left -= 1;
    }
    apply(&mut world, setup, step, &mut found);
    let (world, is_mirrored) = by_symmetry(normal(world, setup));
    Taken {
        world,
        is_mirrored,
        found,
    }
}

fn apply(world: &mut World, setup: &Setup, step: Step, found: &mut Found) {
    let fault = step.fault;
    match step.action {
        Action::TakeOver => leader::take_over(world, setup, found),
        Action::LeaderCrash => leader::lose_leader(world, false),
        Action::LeaderPause => leader::lose_leader(world, true),
        Action::Place { execution, life } => leader::place(world, execution, life, fault, found),
        Action::Publish(at) => publish(world, setup, at, fault, found),
        Action::PublishAgain(at) => leader::publish_again(world, at),
        Action::PublishLate(at) => {
            world.handover_mut(at).late = false;
            leader::enqueue(world, at);
        }
        Action::Reload { execution } => leader::reload(world, setup, execution),
        Action::Ask(at, ask) => leader::ask(world, at, ask, fault),
        Action::Bury { life } => leader::bury(world, life),
        Action::SendMarker { life } => leader::send_marker(world, life),
        Action::TakeMarker { life } => world.lives[life as usize].aftermath = Aftermath::ResultsIn,
        Action::LoseMarker { life } => world.lives[life as usize].aftermath = Aftermath::Fresh,
        Action::Recover(at) => leader::recover(world, setup, at, found),
        Action::FormerRecovers(at) => former_recovers(world, setup, at, found),
        Action::FormerCancels(at) => {
            world.former = false;
            world.handover_mut(at).asked.add(Ask::Cancel);
        }
        Action::Overdue(at) => leader::end_overdue(world, setup, at, found),
        Action::Deliver(at) => worker::deliver(world, setup, at),
        Action::Answer(at, ask) => {
            if fault.is_none() {
                world.handover_mut(at).asked.remove(ask);
            }
            worker::answer(world, setup, at, ask);
        }
        Action::SetKey(at) => worker::set_key(world, at, fault),
        Action::Start(at) => worker::start(world, setup, at, found),
        Action::End(at, ending) => worker::end(world, at, ending),
        Action::Refuse(at) => worker::refuse(world, at),
        Action::Confirm(at, report) => worker::confirm(world, at, report, fault),
        Action::Forget { life } => worker::forget(world, setup, life),
        Action::Bye { life } => {
            // Without a leader nobody hears it, and its silence tells.
            let is_heard = world.leader.is_some();
            let leaving = &mut world.lives[life as usize];
            leaving.said_bye = is_heard && !leaving.buried;
            leaving.buried |= is_heard;
            worker::exit(world, life);
        }
        Action::StopHandlers { life } => worker::stop_handlers(world, life),
        Action::Exit { life } | Action::Crash { life } => worker::exit(world, life),
        Action::Heal { life } => world.lives[life as usize].state = LifeState::Up,
        Action::Thaw { life } => thaw(world, setup, life),
        Action::Begin { life } => world.lives[life as usize].state = LifeState::Up,
        Action::TakeIn(at, first, second) => {
            intake::take_in(world, setup, at, [Some(first), second], fault, found);
        }
        Action::TimePasses => world.passed += 1,
        Action::Backoff { execution } => leader::change(world, execution, &ExecutionEvent::Due, found),
        Action::Lose(at) => lose(world, setup, at, found),
        Action::LoseRequest(at, ask) => world.handover_mut(at).asked.remove(ask),
        Action::Copy(at) => world.handover_mut(at).queued = true,
        Action::Cut { life } => world.lives[life as usize].state = LifeState::Cut,
        Action::Freeze { life } => world.lives[life as usize].state = LifeState::Frozen,
        Action::Drain { life } => worker::drain(world, life),
        Action::Cancel { execution } => leader::cancel(world, execution, found),
    }
}

fn publish(world: &mut World, setup: &Setup, at: At, fault: Option<Fault>, found: &mut Found) {
    let outcome = match fault {
        Some(_) => PublishOutcome::Nacked,
        None if world.owner(at).state == LifeState::Gone => PublishOutcome::Returned,
        None => PublishOutcome::Confirmed,
    };
    leader::enqueue(world, at);
    leader::published(world, setup, at, outcome, found);
}

/// The broker confirmed it and loses it, or its worker's queue is deleted.
fn lose(world: &mut World, setup: &Setup, at: At, found: &mut Found) {
    if world.handover(at).queued {
        world.handover_mut(at).queued = false;
    } else {
        leader::published(world, setup, at, PublishOutcome::Confirmed, found);
    }
}

/// A process that stood still goes on. Once buried it has no lease, and only what it was in the middle of happens.
fn thaw(world: &mut World, setup: &Setup, life: u8) {
    let is_past_its_lease =
        world.lives[life as usize].buried && setup.without != Some(Guard::ThawedWorkerStops);
    world.lives[life as usize].state = if is_past_its_lease {
        LifeState::Thawed
    } else {
        LifeState::Up
    };
}

/// Without the epoch, a leader that was paused goes on with what it had decided before: a worker that lives is buried.
fn former_recovers(world: &mut World, setup: &Setup, at: At, found: &mut Found) {
    world.former = false;
    let life = world.handover(at).owner;
    leader::bury(world, life);
    leader::recover(world, setup, at, found);
}

/// Merges worlds that differ in nothing that can matter again.
fn normal(mut world: World, setup: &Setup) -> World {
    let keeps_stale = matches!(setup.without, Some(Guard::DispatchSeq | Guard::TerminalIsFinal));
    if !keeps_stale {
        intake::drop_stale(&mut world);
    }
    for life in 0..4 {
        let is_done =
            world.lives[life as usize].aftermath != Aftermath::Fresh && !leader::holds_of(&world, life);
        if is_done {
            world.lives[life as usize].aftermath = Aftermath::Fresh;
        }
    }
    for execution in &mut world.executions {
        for handover in &mut execution.handovers {
            if world.lives[handover.owner as usize].state == LifeState::Gone && world.leader.is_none() {
                handover.late = false;
            }
        }
    }
    skip_idle_time(&mut world);
    world
}

/// A `not_after` of which nobody is left to take notice passes at once.
fn skip_idle_time(world: &mut World) {
    while world.passed < world.placed {
        let next = world.passed + 1;
        let is_heeded = world.all_handovers().any(|(_, handover)| {
            handover.tick == next && world.lives[handover.owner as usize].state != LifeState::Gone
        });
        if is_heeded {
            return;
        }
        world.passed = next;
    }
}

/// Workers A and B are alike: of the two worlds that differ in their names only, one is kept.
fn by_symmetry(world: World) -> (World, bool) {
    let mut other = world.clone();
    other.lives.swap(0, 1);
    other.lives.swap(2, 3);
    for execution in &mut other.executions {
        for handover in &mut execution.handovers {
            handover.owner ^= 1;
        }
    }
    if key(&other) < key(&world) {
        (other, true)
    } else {
        (world, false)
    }
}

type Key = (Vec<u8>, [(LifeState, bool, bool, bool, Aftermath); 4]);

fn key(world: &World) -> Key {
    let owners = world
        .all_handovers()
        .map(|(_, handover)| handover.owner)
        .collect();
    let lives = [0, 1, 2, 3].map(|life: usize| {
        let life = &world.lives[life];
        (
            life.state,
            life.draining,
            life.buried,
            life.said_bye,
            life.aftermath,
        )
    });
    (owners, lives)
}
