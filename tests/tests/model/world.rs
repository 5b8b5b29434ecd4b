//! One state of the modelled cluster. What decides is the product's own: each worker life carries the ownership table of
//! `isocost-worker`, and rows and handovers are turned into the product's types whenever one of its functions is asked.

use isocost_common::execution::ExecutionStatus;
use isocost_worker::ownership::Ownership;
use std::rc::Rc;

/// Lives of workers: 0 and 2 are those of worker A, one after the other, 1 and 3 those of worker B.
pub(crate) const LIVES: usize = 4;

/// Everything there is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) executions: Vec<Execution>,
    pub(crate) lives: [Life; LIVES],
    /// Who leads, if anybody does.
    pub(crate) leader: Option<Leader>,
    /// A paused leader of before, which will wake up and go on where it stood.
    pub(crate) former: bool,
    /// Handovers so far. Each has the next `not_after`.
    pub(crate) placed: u8,
    /// How many of those instants have passed.
    pub(crate) passed: u8,
    /// Faults that may still happen.
    pub(crate) faults_left: u8,
}

/// One execution: its row, and everything under way about each of its handovers. The `dispatch_seq` of the row is the
/// number of handovers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Execution {
    pub(crate) row: Row,
    pub(crate) handovers: Vec<Handover>,
}

/// What the database says, as far as it is not in the last handover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    pub(crate) status: ExecutionStatus,
    pub(crate) attempt: u8,
    pub(crate) interruptions: u8,
    pub(crate) cancel_requested: bool,
}

/// One handover, wherever it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Handover {
    /// Index of the life that owns it.
    pub(crate) owner: u8,
    /// Which `not_after` is its own: see [`World::passed`].
    pub(crate) tick: u8,
    /// Its message, as the leader that placed it keeps it.
    pub(crate) letter: Letter,
    /// A former leader will still publish it.
    pub(crate) late: bool,
    /// A copy of it waits in the worker's queue.
    pub(crate) queued: bool,
    /// It was published once, so a copy may appear.
    pub(crate) sent: bool,
    /// Requests about it in the worker's control queue.
    pub(crate) asked: Asks,
    /// Its worker has heard of it.
    pub(crate) met: bool,
    /// Its start key is set.
    pub(crate) key: bool,
    /// Its worker has the key and is about to start it.
    pub(crate) starting: bool,
    /// Its handler runs.
    pub(crate) runs: bool,
    /// How its run ended.
    pub(crate) ending: Option<Ending>,
    /// Reports its worker has to send.
    pub(crate) outbox: Reports,
    /// Reports in the results queue.
    pub(crate) results: Reports,
    pub(crate) seen: Seen,
}

/// What nobody in the cluster knows, for judging it from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Seen {
    /// It was started.
    pub(crate) started: bool,
    /// The broker had its success while the execution was its worker's, which had its lease.
    pub(crate) success_confirmed: bool,
    /// Its process ended, or was frozen past its lease, in the middle of it.
    pub(crate) died: bool,
    /// Its outcome was applied.
    pub(crate) applied: bool,
}

/// Where the message of a handover stands with the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Letter {
    /// Confirmed, or dropped.
    Done,
    /// A publishing call is under way.
    UnderWay,
    /// Not confirmed: published again after a pause.
    Unconfirmed,
}

/// One life of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Life {
    pub(crate) state: LifeState,
    /// Told to stop: takes nothing new.
    pub(crate) draining: bool,
    /// Its row says that it has ended.
    pub(crate) buried: bool,
    /// It said goodbye, and the leader heard it.
    pub(crate) said_bye: bool,
    /// What the leader has done about its end.
    pub(crate) aftermath: Aftermath,
    /// Shared by all worlds in which it is the same.
    pub(crate) table: Rc<Ownership<Said>>,
}

/// How a process fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum LifeState {
    /// The life before is not over.
    NotYet,
    Up,
    /// Reaches nobody, and has a lease.
    Cut,
    /// Its lease is lost: its handlers are stopped, and it may still report.
    Stopping,
    Frozen,
    /// Woken up after it was buried.
    Thawed,
    Gone,
}

/// How far the leader is with an ended life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Aftermath {
    Fresh,
    MarkerSent,
    ResultsIn,
}

/// A report that a worker keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Said {
    Started,
    Finished(Ending),
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Ending {
    Succeeded,
    Failed,
    /// Stopped by its worker at its time limit.
    TimedOut,
    Interrupted,
    Cancelled,
}

/// The leader of the newest epoch: its set, by execution.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Leader {
    pub(crate) set: Vec<Option<View>>,
}

/// A handover as the leader sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct View {
    pub(crate) seq: u8,
    pub(crate) status: ExecutionStatus,
    pub(crate) published: bool,
    pub(crate) cancel_requested: bool,
}

/// A kind of report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Report {
    Started,
    Refused,
    Released,
    Unknown,
    Finished,
}

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Ask {
    Release,
    Query,
    Cancel,
    /// A cancel of a handover of which the leader has no row: without `not_after`.
    CancelStranger,
}

impl Report {
    pub(crate) const ALL: [Self; 5] = [
        Self::Started,
        Self::Refused,
        Self::Released,
        Self::Unknown,
        Self::Finished,
    ];
}

impl Ask {
    pub(crate) const ALL: [Self; 4] = [Self::Release, Self::Query, Self::Cancel, Self::CancelStranger];
}

macro_rules! set_of {
    ($name:ident, $member:ident) => {
        /// A set of them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub(crate) struct $name(u8);

        impl $name {
            pub(crate) fn add(&mut self, member: $member) {
                self.0 |= 1 << member as u8;
            }

            pub(crate) fn remove(&mut self, member: $member) {
                self.0 &= !(1 << member as u8);
            }

            pub(crate) fn has(self, member: $member) -> bool {
                self.0 >> member as u8 & 1 == 1
            }

            pub(crate) fn clear(&mut self) {
                self.0 = 0;
            }

            pub(crate) fn members(self) -> impl Iterator<Item = $member> {
                $member::ALL
                    .into_iter()
                    .filter(move |member| self.has(*member))
            }
        }
    };
}

set_of!(Reports, Report);
set_of!(Asks, Ask);

impl Reports {
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl World {
    /// All is well, and the executions are due.
    pub(crate) fn new(executions: usize, faults: u8) -> Self {
        let life = |state| Life {
            state,
            draining: false,
            buried: false,
            said_bye: false,
            aftermath: Aftermath::Fresh,
            table: empty_table(),
        };
        Self {
            executions: vec![
                Execution {
                    row: Row {
                        status: ExecutionStatus::Pending,
                        attempt: 0,
                        interruptions: 0,
                        cancel_requested: false,
                    },
                    handovers: Vec::new(),
                };
                executions
            ],
            lives: [
                life(LifeState::Up),
                life(LifeState::Up),
                life(LifeState::NotYet),
                life(LifeState::NotYet),
            ],
            leader: Some(Leader {
                set: vec![None; executions],
            }),
            former: false,
            placed: 0,
            passed: 0,
            faults_left: faults,
        }
    }

    pub(crate) fn handover(&self, at: At) -> &Handover {
        &self.executions[at.execution as usize].handovers[at.seq as usize - 1]
    }

    pub(crate) fn handover_mut(&mut self, at: At) -> &mut Handover {
        &mut self.executions[at.execution as usize].handovers[at.seq as usize - 1]
    }

    pub(crate) fn owner(&self, at: At) -> &Life {
        &self.lives[self.handover(at).owner as usize]
    }

    pub(crate) fn row(&self, execution: u8) -> Row {
        self.executions[execution as usize].row
    }

    /// Every handover of every execution.
    pub(crate) fn all_handovers(&self) -> impl Iterator<Item = (At, &Handover)> {
        self.executions.iter().zip(0..).flat_map(|(execution, number)| {
            execution.handovers.iter().zip(1..).map(move |(handover, seq)| {
                let at = At {
                    execution: number,
                    seq,
                };
                (at, handover)
            })
        })
    }

    /// The handovers of one life.
    pub(crate) fn of_life_mut(&mut self, life: u8) -> impl Iterator<Item = (At, &mut Handover)> {
        self.executions
            .iter_mut()
            .zip(0..)
            .flat_map(|(execution, number)| {
                execution
                    .handovers
                    .iter_mut()
                    .zip(1..)
                    .map(move |(handover, seq)| {
                        let at = At {
                            execution: number,
                            seq,
                        };
                        (at, handover)
                    })
            })
            .filter(move |(_, handover)| handover.owner == life)
    }

    /// True when the database assigns the execution by exactly this handover.
    pub(crate) fn is_current(&self, at: At) -> bool {
        let execution = &self.executions[at.execution as usize];
        execution.handovers.len() == at.seq as usize && execution.row.status.is_owned()
    }

    /// The leader's view of exactly this handover.
    pub(crate) fn view(&self, at: At) -> Option<View> {
        let view = self.leader.as_ref()?.set[at.execution as usize];
        view.filter(|view| view.seq == at.seq)
    }

    pub(crate) fn set_view(&mut self, execution: u8, view: Option<View>) {
        if let Some(leader) = &mut self.leader {
            leader.set[execution as usize] = view;
        }
    }

    /// The end to be reached: nothing is open and nothing runs, but in a process that stands still.
    pub(crate) fn is_goal(&self) -> bool {
        self.executions
            .iter()
            .all(|execution| execution.row.status.is_terminal())
            && self.all_handovers().all(|(_, handover)| {
                !handover.runs || self.lives[handover.owner as usize].state == LifeState::Frozen
            })
    }

    /// No worker is left at all: not a fault of the protocol.
    pub(crate) fn has_no_worker(&self) -> bool {
        self.lives.iter().all(|life| life.state == LifeState::Gone)
    }
}

impl Execution {
    pub(crate) fn seq(&self) -> u8 {
        u8::try_from(self.handovers.len()).expect("few handovers")
    }
}

/// Names a handover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct At {
    pub(crate) execution: u8,
    pub(crate) seq: u8,
}

impl Handover {
    /// Committed, and about to be published.
    pub(crate) fn new(owner: u8, tick: u8) -> Self {
        Self {
            owner,
            tick,
            letter: Letter::Done,
            late: false,
            queued: false,
            sent: false,
            asked: Asks::default(),
            met: false,
            key: false,
            starting: false,
            runs: false,
            ending: None,
            outbox: Reports::default(),
            results: Reports::default(),
            seen: Seen::default(),
        }
    }

    /// Nothing of it is on its way to the intake.
    pub(crate) fn is_quiet(&self) -> bool {
        self.outbox.is_empty() && self.results.is_empty()
    }
}

/// The table of a new life.
pub(crate) fn empty_table() -> Rc<Ownership<Said>> {
    Rc::new(Ownership::new(super::cast::NOT_AFTER))
}
