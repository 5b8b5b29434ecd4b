//! One connection that is kept up: opened in the background, watched, replaced when it is lost.
//!
//! lapin's own recovery stays off: it keeps one connection object over many sockets, so that an acknowledgement of the
//! old socket could reach the new one. Here each socket has a [`Session`] of its own, and what belongs to a session ends
//! with it.

use super::{
    control::Control,
    dial::{Dial, Line},
    health::{Health, Part},
};
use crate::broker::BrokerError;
use backon::{BackoffBuilder, ExponentialBuilder};
use futures_util::StreamExt;
use lapin::{Connection, Event};
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// For so long after a connection was lost, or the start, operations wait for the next one; later they are refused at
/// once.
pub(super) const GRACE: Duration = Duration::from_secs(3);
/// Longest wait for a connection's end in good order.
const FAREWELL: Duration = Duration::from_secs(2);
/// How often a session is looked at, besides its events.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A session that lived so long starts the pauses anew.
const SETTLED: Duration = Duration::from_secs(10);

/// What a connection is for. Two, because a broker in alarm stops reading from connections that publish: consuming and
/// acknowledging go on over the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Publish,
    Consume,
}

impl Purpose {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Consume => "consume",
        }
    }
}

/// One connection's life.
pub(super) struct Session {
    pub(super) connection: Connection,
    line: Line,
    /// The broker takes no publications.
    blocked: watch::Sender<bool>,
}

impl Session {
    pub(super) fn blocked(&self) -> watch::Receiver<bool> {
        self.blocked.subscribe()
    }

    pub(super) fn is_up(&self) -> bool {
        self.connection.status().connected()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Whoever held it longest: nothing of it may live on.
        self.line.cut();
    }
}

/// How a link stands.
#[derive(Clone)]
pub(super) enum Standing {
    Up(Arc<Session>),
    Down {
        since: Instant,
        reason: String,
    },
    /// For good.
    Closed,
}

pub(super) struct Link {
    purpose: Purpose,
    dial: Arc<Dial>,
    health: Arc<Health>,
    standing: watch::Sender<Standing>,
}

impl Link {
    pub(super) fn new(purpose: Purpose, dial: Arc<Dial>, health: Arc<Health>) -> Self {
        let (standing, _) = watch::channel(Standing::Down {
            since: Instant::now(),
            reason: "not connected yet".into(),
        });
        Self {
            purpose,
            dial,
            health,
            standing,
        }
    }

    /// Follows how it stands.
    pub(super) fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    /// The present session, or the next one if it comes within the grace.
    pub(super) async fn session(&self) -> Result<Arc<Session>, BrokerError> {
        let mut standing = self.standing.subscribe();
        loop {
            let now = standing.borrow_and_update().clone();
            let (since, reason) = match now {
                Standing::Up(session) => return Ok(session),
                Standing::Closed => return Err(BrokerError::Unavailable("the connection is closed".into())),
                Standing::Down { since, reason } => (since, reason),
            };
            if tokio::time::timeout_at(since + GRACE, standing.changed())
                .await
                .is_err()
            {
                return Err(BrokerError::Unavailable(reason));
            }
        }
    }

    /// Keeps the connection up until `shutdown`. `control` restores the topology of each new session before it is given
    /// out.
    pub(super) async fn keep_up(&self, control: Option<&Control>, shutdown: &CancellationToken) {
        let mut pauses = pauses();
        let mut connected_before = false;
        while !shutdown.is_cancelled() {
            let opened_at = Instant::now();
            let reason = tokio::select! {
                () = shutdown.cancelled() => break,
                opened = self.open(control) => match opened {
                    Ok(session) => {
                        self.count_session(std::mem::replace(&mut connected_before, true));
                        self.live(session, control, shutdown).await
                    }
                    Err(reason) => reason,
                },
            };
            if shutdown.is_cancelled() {
                break;
            }
            self.go_down(&reason);
            if opened_at.elapsed() > SETTLED {
                pauses = self::pauses();
            }
            let pause = pauses.next().unwrap_or_default();
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.health
            .set(self.purpose, Part::Down("the connection is closed".into()));
        let last = self.standing.send_replace(Standing::Closed);
        if let Standing::Up(session) = last {
            self.gauge(0.0);
            let farewell = session.connection.close(200, "closing".into());
            let _ = tokio::time::timeout(FAREWELL, farewell).await;
            session.line.cut();
        }
    }

    async fn open(&self, control: Option<&Control>) -> Result<Arc<Session>, String> {
        let (connection, line) = self.dial.open(self.purpose).await?;
        let session = Arc::new(Session {
            connection,
            line,
            blocked: watch::channel(false).0,
        });
        if let Some(control) = control {
            control.restore(&session).await?;
        }
        Ok(session)
    }

    /// Watches a session to its end, and says why it ended.
    async fn live(
        &self,
        session: Arc<Session>,
        control: Option<&Control>,
        shutdown: &CancellationToken,
    ) -> String {
        let mut events = std::pin::pin!(session.connection.events_listener());
        self.standing.send_replace(Standing::Up(Arc::clone(&session)));
        // After the session is there: who sees the broker ready can use it.
        self.health.set(self.purpose, Part::Up);
        self.gauge(1.0);
        let mut look = tokio::time::interval(LOOK_EVERY);
        let mut reason = "the connection was lost".to_owned();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return reason,
                event = events.next() => match event {
                    Some(Event::ConnectionBlocked(why)) => self.set_blocked(&session, Some(why)),
                    Some(Event::ConnectionUnblocked) => self.set_blocked(&session, None),
                    // Errors of channels come here too.
                    Some(Event::Error(error)) => if !session.is_up() {
                        reason = super::error::text(&error);
                    },
                    Some(_) => {}
                    None => return reason,
                },
                _ = look.tick() => if let Some(control) = control && session.is_up() {
                    control.keep_up(&session).await;
                },
            }
            if !session.is_up() {
                session.line.cut();
                return reason;
            }
        }
    }

    fn set_blocked(&self, session: &Session, why: Option<String>) {
        session.blocked.send_replace(why.is_some());
        match why {
            Some(why) => {
                warn!(%why, "RabbitMQ takes no publications for now");
                self.health.set(self.purpose, Part::Blocked(why));
            }
            None => {
                info!("RabbitMQ takes publications again");
                self.health.set(self.purpose, Part::Up);
            }
        }
    }

    fn go_down(&self, reason: &str) {
        let mut was_up = false;
        self.standing.send_modify(|standing| match standing {
            // The first failure counts, or the grace would never end.
            Standing::Down { reason: old, .. } => reason.clone_into(old),
            Standing::Up(_) | Standing::Closed => {
                was_up = true;
                *standing = Standing::Down {
                    since: Instant::now(),
                    reason: reason.to_owned(),
                };
            }
        });
        self.gauge(0.0);
        let part = Part::Down(reason.to_owned());
        // Each reason once: an outage may last hours.
        if self.health.set(self.purpose, part) || was_up {
            let (purpose, address) = (self.purpose.word(), self.dial.address());
            warn!(
                purpose,
                reason, "no connection to RabbitMQ at {address}; trying again"
            );
        }
    }

    fn count_session(&self, connected_before: bool) {
        let (purpose, address) = (self.purpose.word(), self.dial.address());
        info!(purpose, "connected to RabbitMQ at {address}");
        if connected_before {
            metrics::counter!("isocost_broker_reconnects_total", "purpose" => purpose).increment(1);
        }
    }

    fn gauge(&self, value: f64) {
        metrics::gauge!("isocost_broker_connections", "purpose" => self.purpose.word()).set(value);
    }
}

fn pauses() -> impl Iterator<Item = Duration> {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(Duration::from_secs(1))
        .without_max_times()
        .with_jitter()
        .build()
}
