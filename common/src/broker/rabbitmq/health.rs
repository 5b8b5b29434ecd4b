//! The broker's health as the two connections see it together.

use super::link::Purpose;
use crate::broker::BrokerHealth;
use parking_lot::Mutex;
use tokio::sync::watch;

/// What one connection says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Down(String),
    Up,
    /// The broker takes no publications, in its words.
    Blocked(String),
}

pub(super) struct Health {
    parts: Mutex<[Part; 2]>,
    announced: watch::Sender<BrokerHealth>,
}

impl Health {
    pub(super) fn new() -> Self {
        const CONNECTING: &str = "not connected yet";
        let (announced, _) = watch::channel(BrokerHealth::Down(CONNECTING.into()));
        Self {
            parts: Mutex::new([Part::Down(CONNECTING.into()), Part::Down(CONNECTING.into())]),
            announced,
        }
    }

    pub(super) fn follow(&self) -> watch::Receiver<BrokerHealth> {
        self.announced.subscribe()
    }

    /// Takes a connection's word; true when it is news.
    pub(super) fn set(&self, purpose: Purpose, part: Part) -> bool {
        let mut parts = self.parts.lock();
        if parts[purpose as usize] == part {
            return false;
        }
        parts[purpose as usize] = part;
        let health = match &*parts {
            [Part::Down(reason), _] | [_, Part::Down(reason)] => BrokerHealth::Down(reason.clone()),
            [Part::Blocked(reason), _] | [_, Part::Blocked(reason)] => BrokerHealth::Blocked(reason.clone()),
            [Part::Up, Part::Up] => BrokerHealth::Ready,
        };
        // Under the lock, so that the last word is the last one announced.
        self.announced.send_if_modified(|announced| {
            let differs = *announced != health;
            if differs {
                *announced = health;
            }
            differs
        });
        true
    }
}
