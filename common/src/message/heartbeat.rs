//! Worker → dispatchers: alive, load, and what it holds.

use crate::{
    execution::Claim,
    id::{IncarnationId, WorkerId},
    job::Selector,
    time::EpochMillis,
};
use serde::{Deserialize, Serialize};

/// One heartbeat. Also the registration: the first one of an incarnation makes it known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Heartbeat {
    /// The worker.
    pub worker: WorkerId,
    /// Its incarnation.
    pub incarnation: IncarnationId,
    /// Grows by one with each heartbeat of the incarnation.
    pub report_number: u64,
    /// Where `/livez` answers.
    pub host: String,
    /// Where `/livez` answers; 0 when it does not listen.
    pub port: u16,
    /// What it offers.
    pub handlers: Vec<HandlerLoad>,
    /// Labels that selectors are matched against.
    pub labels: Selector,
    /// CPU idle, 0 to 100, over the last beat; in a container, of its own share.
    pub cpu_idle_percent: u8,
    /// Takes nothing new.
    pub draining: bool,
    /// The last one: it has stopped, holding nothing.
    pub bye: bool,
    /// The worker's clock when it was sent.
    pub sent_at: EpochMillis,
    /// What it holds.
    pub holdings: Holdings,
}

/// A handler and how busy it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HandlerLoad {
    /// Its name.
    pub name: String,
    /// Runs at once.
    pub slots: u32,
    /// Slots in use.
    pub busy: u32,
    /// Runs that were told to stop and go on regardless.
    pub stuck: u32,
}

/// What a worker holds, by stage.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Holdings {
    /// Taken, not started.
    pub unstarted: Vec<Claim>,
    /// Running.
    pub running: Vec<Claim>,
    /// Finished, the report not confirmed yet.
    pub finished: Vec<Claim>,
    /// Refused, released or unknown, the report not confirmed yet.
    pub refused: Vec<Claim>,
}

impl Holdings {
    /// Every handover it knows of.
    pub fn all(&self) -> impl Iterator<Item = Claim> {
        [&self.unstarted, &self.running, &self.finished, &self.refused]
            .into_iter()
            .flatten()
            .copied()
    }
}
