//! What may happen next in a world: the ordinary steps, which are always possible again once faults have stopped, and the
//! faults.
//!
//! A step that is harmless but comes earlier or later than in an ordinary run (a query before the worker could have
//! answered, a message that is slow) counts as a fault, so that fault-free continuations are the ordinary ones.

use super::{
    mutants::Guard,
    worker,
    world::{Ask, At, Ending, Letter, LifeState, Report, World},
};
use isocost_common::execution::ExecutionStatus;
use std::fmt;

/// Handovers of one execution; a run that wants more is cut off there, and counted.
pub(crate) const MOST_HANDOVERS: usize = 8;

/// What is explored.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    /// Executions that share the workers, the leader and the faults.
    pub(crate) executions: usize,
    /// Faults in one run, of any kind, in any order, at any moment.
    pub(crate) faults: u8,
    /// The kinds of them.
    pub(crate) kinds: Vec<Fault>,
    /// The guard that is removed.
    pub(crate) without: Option<Guard>,
}

/// What can go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    Crash,
    Cut,
    Freeze,
    LeaderCrash,
    LeaderPause,
    UnknownCommit,
    NackedButQueued,
    Lost,
    Duplicate,
    Slow,
    RequestLost,
    RequestTwice,
    EarlyQuery,
    Move,
    ConfirmLost,
    AckLost,
    AnnouncementLost,
    MarkerLost,
    Refusal,
    KeysAway,
    Drain,
    Failure,
    TimeLimit,
    Cancel,
    Overdue,
}

impl Fault {
    pub(crate) const ALL: [Self; 25] = [
        Self::Crash,
        Self::Cut,
        Self::Freeze,
        Self::LeaderCrash,
        Self::LeaderPause,
        Self::UnknownCommit,
        Self::NackedButQueued,
        Self::Lost,
        Self::Duplicate,
        Self::Slow,
        Self::RequestLost,
        Self::RequestTwice,
        Self::EarlyQuery,
        Self::Move,
        Self::ConfirmLost,
        Self::AckLost,
        Self::AnnouncementLost,
        Self::MarkerLost,
        Self::Refusal,
        Self::KeysAway,
        Self::Drain,
        Self::Failure,
        Self::TimeLimit,
        Self::Cancel,
        Self::Overdue,
    ];
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    // The leader.
    TakeOver,
    Place { execution: u8, life: u8 },
    Publish(At),
    PublishAgain(At),
    PublishLate(At),
    Reload { execution: u8 },
    Ask(At, Ask),
    Bury { life: u8 },
    SendMarker { life: u8 },
    TakeMarker { life: u8 },
    Recover(At),
    FormerRecovers(At),
    FormerCancels(At),
    Overdue(At),
    // Workers.
    Deliver(At),
    Answer(At, Ask),
    SetKey(At),
    Start(At),
    End(At, Ending),
    Refuse(At),
    Confirm(At, Report),
    Forget { life: u8 },
    Bye { life: u8 },
    StopHandlers { life: u8 },
    Exit { life: u8 },
    Heal { life: u8 },
    Thaw { life: u8 },
    Begin { life: u8 },
    // The intake; the second report is of the same batch.
    TakeIn(At, Report, Option<Report>),
    // Time and users.
    TimePasses,
    Backoff { execution: u8 },
    // What only faults do.
    Lose(At),
    LoseRequest(At, Ask),
    LoseMarker { life: u8 },
    Copy(At),
    Crash { life: u8 },
    Cut { life: u8 },
    Freeze { life: u8 },
    Drain { life: u8 },
    LeaderCrash,
    LeaderPause,
    Cancel { execution: u8 },
}

impl Action {
    /// The same of the other worker.
    pub(crate) fn mirrored(mut self) -> Self {
        use Action as A;
        match &mut self {
            A::Place { life, .. }
            | A::Bury { life }
            | A::SendMarker { life }
            | A::TakeMarker { life }
            | A::Forget { life }
            | A::Bye { life }
            | A::StopHandlers { life }
            | A::Exit { life }
            | A::Heal { life }
            | A::Thaw { life }
            | A::Begin { life }
            | A::LoseMarker { life }
            | A::Crash { life }
            | A::Cut { life }
            | A::Freeze { life }
            | A::Drain { life } => *life ^= 1,
            _ => {}
        }
        self
    }
}

/// A step, and the fault it is, if it is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Step {
    pub(crate) action: Action,
    pub(crate) fault: Option<Fault>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:?}", self.action);
        // `At { execution: 0, seq: 1 }` reads as `execution 0 #1`.
        let text = text
            .replace("At { execution: ", "execution ")
            .replace(", seq: ", " #")
            .replace(" }", "");
        let text = text.replace(" { ", " ").replace(": ", " ").replace(", None", "");
        f.write_str(&text)?;
        match self.fault {
            Some(fault) => write!(f, "   <- fault: {fault:?}"),
            None => Ok(()),
        }
    }
}

/// Collects what is possible in one world.
pub(crate) struct Possible<'a> {
    world: &'a World,
    setup: &'a Setup,
    steps: &'a mut Vec<Step>,
}

/// Writes every possible step into `steps`.
pub(crate) fn possible(world: &World, setup: &Setup, steps: &mut Vec<Step>) {
    steps.clear();
    let mut possible = Possible { world, setup, steps };
    possible.of_leaders();
    for life in 0..4 {
        possible.of_life(life);
    }
    for execution in 0..u8::try_from(world.executions.len()).expect("few executions") {
        possible.of_execution(execution);
    }
    for (at, _) in world.all_handovers() {
        possible.of_message(at);
        possible.of_worker(at);
        possible.of_reports(at);
        possible.of_requests(at);
    }
    possible.of_time();
}

impl Possible<'_> {
    fn step(&mut self, action: Action) {
        self.steps.push(Step { action, fault: None });
    }

    fn fault(&mut self, fault: Fault, action: Action) {
        if self.world.faults_left > 0 && self.setup.kinds.contains(&fault) {
            self.steps.push(Step {
                action,
                fault: Some(fault),
            });
        }
    }

    /// Ordinary when `is_ordinary`, else the fault.
    fn step_or(&mut self, is_ordinary: bool, fault: Fault, action: Action) {
        if is_ordinary {
            self.step(action);
        } else {
            self.fault(fault, action);
        }
    }

    fn is_without(&self, guard: Guard) -> bool {
        self.setup.without == Some(guard)
    }

    fn of_leaders(&mut self) {
        if self.world.leader.is_none() {
            self.step(Action::TakeOver);
        } else {
            self.fault(Fault::LeaderCrash, Action::LeaderCrash);
            self.fault(Fault::LeaderPause, Action::LeaderPause);
        }
    }

    fn of_life(&mut self, number: u8) {
        use LifeState as S;
        let life = &self.world.lives[number as usize];
        let before = &self.world.lives[number as usize % 2];
        match life.state {
            S::NotYet => {
                if before.state == S::Gone {
                    self.step(Action::Begin { life: number });
                }
                return;
            }
            S::Up => {
                self.fault(Fault::Crash, Action::Crash { life: number });
                self.fault(Fault::Cut, Action::Cut { life: number });
                self.fault(Fault::Freeze, Action::Freeze { life: number });
                if !life.draining {
                    self.fault(Fault::Drain, Action::Drain { life: number });
                } else if worker::has_nothing_left(self.world, number) {
                    self.step(Action::Bye { life: number });
                }
                if worker::can_forget(self.world, self.setup, number) {
                    self.step(Action::Forget { life: number });
                }
            }
            S::Cut => {
                self.fault(Fault::Freeze, Action::Freeze { life: number });
                if !life.buried {
                    self.step(Action::Heal { life: number });
                }
                if !self.is_without(Guard::CutOffWorkerStops) {
                    self.step(Action::StopHandlers { life: number });
                }
            }
            S::Stopping | S::Thawed => self.step(Action::Exit { life: number }),
            S::Frozen => self.step(Action::Thaw { life: number }),
            S::Gone => {}
        }
        if self.world.leader.is_none() {
            return;
        }
        if !life.buried {
            if super::leader::is_dead(self.world, self.setup, number) {
                self.step(Action::Bury { life: number });
            }
        } else if life.aftermath == super::world::Aftermath::Fresh
            && super::leader::holds_of(self.world, number)
        {
            self.step(Action::SendMarker { life: number });
        }
        if life.aftermath == super::world::Aftermath::MarkerSent {
            let mut handovers = self.world.all_handovers();
            if handovers.all(|(_, handover)| handover.owner != number || handover.results.is_empty()) {
                drop(handovers);
                self.step(Action::TakeMarker { life: number });
            }
            self.fault(Fault::MarkerLost, Action::LoseMarker { life: number });
        }
    }

    fn of_execution(&mut self, number: u8) {
        let execution = &self.world.executions[number as usize];
        let row = execution.row;
        if row.status == ExecutionStatus::Scheduled {
            self.step(Action::Backoff { execution: number });
        }
        if !row.status.is_terminal() && !row.cancel_requested {
            self.fault(Fault::Cancel, Action::Cancel { execution: number });
        }
        if self.world.leader.is_none() {
            return;
        }
        if row.status == ExecutionStatus::Pending && execution.handovers.len() < MOST_HANDOVERS {
            for (life, number_of_life) in self.world.lives.iter().zip(0..) {
                if life.state != LifeState::NotYet && !life.buried && !life.draining {
                    let place = Action::Place {
                        execution: number,
                        life: number_of_life,
                    };
                    self.step(place);
                    self.fault(Fault::UnknownCommit, place);
                }
            }
        }
        if super::leader::is_behind(self.world, number) {
            self.step(Action::Reload { execution: number });
        }
    }

    fn of_message(&mut self, at: At) {
        let handover = self.world.handover(at);
        let life = self.world.owner(at);
        let is_gone = life.state == LifeState::Gone;
        if self.world.leader.is_some() {
            match handover.letter {
                Letter::UnderWay => {
                    self.step(Action::Publish(at));
                    if !is_gone {
                        self.fault(Fault::NackedButQueued, Action::Publish(at));
                        self.fault(Fault::Lost, Action::Lose(at));
                    }
                }
                Letter::Unconfirmed => self.step(Action::PublishAgain(at)),
                Letter::Done => {}
            }
        }
        if is_gone {
            return;
        }
        if handover.late {
            self.step(Action::PublishLate(at));
        }
        if handover.queued {
            if life.state == LifeState::Up {
                self.step(Action::Deliver(at));
            }
            if handover.letter != Letter::UnderWay {
                self.fault(Fault::Lost, Action::Lose(at));
            }
        } else if handover.sent {
            self.fault(Fault::Duplicate, Action::Copy(at));
        }
    }

    fn of_worker(&mut self, at: At) {
        use LifeState as S;
        let handover = self.world.handover(at);
        let life = self.world.owner(at);
        let is_held = life.table.is_held(super::cast::claim(at));
        if is_held && !handover.starting && matches!(life.state, S::Up | S::Cut) {
            self.step(Action::SetKey(at));
            self.fault(Fault::KeysAway, Action::SetKey(at));
            self.fault(Fault::Refusal, Action::Refuse(at));
        }
        let can_act = matches!(life.state, S::Up | S::Cut | S::Thawed);
        if handover.starting && (can_act || life.state == S::Stopping) {
            self.step(Action::Start(at));
        }
        if handover.runs && can_act {
            self.step(Action::End(at, Ending::Succeeded));
            self.fault(Fault::Failure, Action::End(at, Ending::Failed));
            self.fault(Fault::TimeLimit, Action::End(at, Ending::TimedOut));
            if life.draining {
                self.step(Action::End(at, Ending::Interrupted));
            }
        }
    }

    fn of_reports(&mut self, at: At) {
        use LifeState as S;
        let handover = self.world.handover(at);
        if matches!(self.world.owner(at).state, S::Up | S::Stopping | S::Thawed) {
            for report in handover.outbox.members() {
                self.step(Action::Confirm(at, report));
                self.fault(Fault::ConfirmLost, Action::Confirm(at, report));
            }
        }
        for first in handover.results.members() {
            // *Unknown* stands behind everything that was confirmed before it.
            let is_in_front = |report| {
                report != Report::Unknown
                    || !(handover.results.has(Report::Started) || handover.results.has(Report::Finished))
            };
            if is_in_front(first) {
                let alone = Action::TakeIn(at, first, None);
                self.step(alone);
                self.fault(Fault::AckLost, alone);
                self.fault(Fault::AnnouncementLost, alone);
            }
            for second in handover.results.members().filter(|second| *second != first) {
                let ordered = first != Report::Unknown;
                if ordered {
                    self.step(Action::TakeIn(at, first, Some(second)));
                }
            }
        }
    }

    fn of_requests(&mut self, at: At) {
        use LifeState as S;
        let handover = self.world.handover(at);
        let life = self.world.owner(at);
        for ask in handover.asked.members() {
            if matches!(life.state, S::Up | S::Thawed) {
                self.step(Action::Answer(at, ask));
                self.fault(Fault::RequestTwice, Action::Answer(at, ask));
            }
            self.fault(Fault::RequestLost, Action::LoseRequest(at, ask));
        }
        if self.world.view(at).is_some() && super::leader::may_recover(self.world, self.setup, at) {
            self.step(Action::Recover(at));
        }
        if life.state == S::Gone {
            return;
        }
        if self.world.leader.is_some() {
            self.of_asking(at);
        }
        if self.world.former && self.world.is_current(at) {
            if self.is_without(Guard::Epoch) && life.state == S::Up {
                self.step(Action::FormerRecovers(at));
            }
            if self.is_without(Guard::DatabaseBeforeCancel) && life.state == S::Up && handover.met {
                self.step(Action::FormerCancels(at));
            }
        }
    }

    fn of_asking(&mut self, at: At) {
        let world = self.world;
        let handover = world.handover(at);
        let life = world.owner(at);
        let is_up = life.state == LifeState::Up;
        if let Some(view) = world.view(at) {
            let holdings = worker::names(world, at);
            if !self.is_without(Guard::HoldingsAndQuery) && !handover.asked.has(Ask::Query) && view.published
            {
                let under_way = handover.queued || handover.letter != Letter::Done;
                let is_ordinary = !holdings && !under_way && handover.is_quiet() && is_up;
                self.step_or(is_ordinary, Fault::EarlyQuery, Action::Ask(at, Ask::Query));
            }
            if view.cancel_requested {
                let ask = match view.status {
                    ExecutionStatus::Running => Ask::Cancel,
                    _ => Ask::Release,
                };
                let is_ending = handover.outbox.members().chain(handover.results.members());
                let is_ending = is_ending.into_iter().any(|report| report != Report::Started);
                if !handover.asked.has(ask) && !is_ending && is_up {
                    self.step(Action::Ask(at, ask));
                }
            } else if view.status == ExecutionStatus::Dispatched
                && view.published
                && !handover.asked.has(Ask::Release)
            {
                self.fault(Fault::Move, Action::Ask(at, Ask::Release));
            }
            if view.status == ExecutionStatus::Running && world.is_current(at) {
                self.fault(Fault::Overdue, Action::Overdue(at));
            }
        } else if is_up && !handover.asked.has(Ask::CancelStranger) && worker::holds(world, at) {
            self.step(Action::Ask(at, Ask::CancelStranger));
        }
    }

    fn of_time(&mut self) {
        let next = self.world.passed + 1;
        let mut handovers = self.world.all_handovers();
        let Some((at, handover)) = handovers.find(|(_, handover)| handover.tick == next) else {
            return;
        };
        drop(handovers);
        let under_way = handover.queued || handover.late || handover.letter != Letter::Done;
        let is_dispatched =
            self.world.is_current(at) && self.world.row(at.execution).status == ExecutionStatus::Dispatched;
        let is_ordinary = !is_dispatched || (!under_way && handover.met);
        self.step_or(is_ordinary, Fault::Slow, Action::TimePasses);
    }
}
