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

/// Longest host name or address, in characters: what its column holds.
pub const MAX_HOST_CHARS: usize = 255;
/// Most bytes of the labels as JSON, and of the handlers: what a column of text holds.
pub const MAX_TEXT_BYTES: usize = 65_535;
/// Most slots of all handlers together.
const MAX_CAPACITY: u64 = i32::MAX as u64;

/// A heartbeat that no row of the workers' table can hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// [`MAX_HOST_CHARS`].
    #[error("its address has more than {MAX_HOST_CHARS} characters (worker.advertise)")]
    Host,
    /// [`MAX_TEXT_BYTES`].
    #[error("its labels have more than {MAX_TEXT_BYTES} bytes as JSON (worker.labels)")]
    Labels,
    /// [`MAX_TEXT_BYTES`].
    #[error(
        "it offers too many handlers: with their slots they have more than {MAX_TEXT_BYTES} bytes as JSON"
    )]
    Handlers,
    /// More than fit the column.
    #[error("its handlers have more than {MAX_CAPACITY} slots together (worker.slots, worker.handler_slots)")]
    Slots,
}

impl Heartbeat {
    /// Checks that it fits the table, whatever its numbers may grow to.
    ///
    /// # Errors
    /// [`Unfit`] names what does not fit.
    pub fn check(&self) -> Result<(), Unfit> {
        check_labels(&self.labels)?;
        let slots: u64 = self.handlers.iter().map(|handler| u64::from(handler.slots)).sum();
        let busiest: Vec<HandlerLoad> = self
            .handlers
            .iter()
            .map(|handler| HandlerLoad {
                busy: u32::MAX,
                stuck: u32::MAX,
                ..handler.clone()
            })
            .collect();
        if self.host.chars().count() > MAX_HOST_CHARS {
            Err(Unfit::Host)
        } else if slots > MAX_CAPACITY {
            Err(Unfit::Slots)
        } else if json_bytes(&busiest) > MAX_TEXT_BYTES {
            Err(Unfit::Handlers)
        } else {
            Ok(())
        }
    }
}

/// Checks that labels fit the table.
///
/// # Errors
/// [`Unfit::Labels`].
pub fn check_labels(labels: &Selector) -> Result<(), Unfit> {
    if json_bytes(labels) > MAX_TEXT_BYTES {
        return Err(Unfit::Labels);
    }
    Ok(())
}

fn json_bytes(value: &impl Serialize) -> usize {
    serde_json::to_string(value).map_or(usize::MAX, |text| text.len())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn heartbeat() -> Heartbeat {
        Heartbeat {
            worker: WorkerId::parse("w1").expect("valid"),
            incarnation: IncarnationId::generate(),
            report_number: 1,
            host: "h".repeat(MAX_HOST_CHARS),
            port: 1,
            handlers: vec![load("echo", 10_000)],
            labels: Selector::new(),
            cpu_idle_percent: 100,
            draining: false,
            bye: false,
            sent_at: EpochMillis(0),
            holdings: Holdings::default(),
        }
    }

    fn load(name: &str, slots: u32) -> HandlerLoad {
        HandlerLoad {
            name: name.into(),
            slots,
            busy: 0,
            stuck: 0,
        }
    }

    #[test]
    fn what_does_not_fit_the_table_is_named() {
        let with = |change: fn(&mut Heartbeat)| {
            let mut heartbeat = heartbeat();
            change(&mut heartbeat);
            heartbeat.check()
        };
        assert_eq!(with(|_| ()), Ok(()));
        assert_eq!(with(|beat| beat.host.push('h')), Err(Unfit::Host));
        let labels = with(|beat| {
            beat.labels.insert("zone".into(), "x".repeat(MAX_TEXT_BYTES));
        });
        assert_eq!(labels, Err(Unfit::Labels));
        assert_eq!(
            with(|beat| beat.handlers.push(load("more", u32::MAX))),
            Err(Unfit::Slots)
        );
        let many = with(|beat| beat.handlers = vec![load(&"x".repeat(255), 1); 250]);
        assert_eq!(many, Err(Unfit::Handlers));
    }
}
