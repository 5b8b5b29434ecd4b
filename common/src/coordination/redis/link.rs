//! The connection, and who makes a new one. The client library multiplexes calls over one connection but does not
//! replace it after a call without an answer, and then every later call would wait in vain as well. So each call has a
//! deadline, and a call that meets it, or an error of the connection, drops the connection; the supervisor makes the
//! next one.

use super::{super::CoordinationError, scripts::ScriptCall};
use ::redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, FromRedisValue, PushInfo, PushKind, RedisError,
    ServerErrorKind, Value, aio::MultiplexedConnection, cmd, from_redis_value,
};
use metrics::gauge;
use rand::random_range;
use std::{
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, info, warn};

/// A connection that nobody uses is tried this often, so that one which leads nowhere is found before it is needed.
const TRY_EVERY: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The way to the server. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Link {
    state: Arc<watch::Sender<State>>,
    patience: Duration,
    _supervisor: AbortOnDropHandle<()>,
}

#[derive(Debug)]
enum State {
    Up {
        connection: MultiplexedConnection,
        /// Which one it is: who has lost an older one must not drop this one.
        number: u64,
    },
    Down {
        since: Instant,
        reason: String,
    },
}

/// Why a call has no answer.
enum Failure {
    /// The server does not know the script.
    UnknownScript,
    Other(CoordinationError),
}

impl Link {
    pub(super) fn start(client: Client, server: String, patience: Duration) -> Self {
        let state = Arc::new(watch::Sender::new(State::Down {
            since: Instant::now(),
            reason: format!("not connected to Redis at {server} yet"),
        }));
        let supervisor = Supervisor {
            client,
            server,
            patience,
            state: Arc::downgrade(&state),
        };
        Self {
            state,
            patience,
            _supervisor: AbortOnDropHandle::new(tokio::spawn(supervisor.run())),
        }
    }

    /// Sends one command. Its answer, or an error, comes within the deadline.
    pub(super) async fn call<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, CoordinationError> {
        let deadline = Instant::now() + self.patience;
        match self.query(command, deadline).await {
            Ok(answer) => Ok(answer),
            Err(Failure::Other(error)) => Err(error),
            Err(Failure::UnknownScript) => Err(CoordinationError("Redis does not know a script".into())),
        }
    }

    /// Runs a script: one round trip, or two when the server does not know it.
    pub(super) async fn run<T: FromRedisValue>(&self, call: ScriptCall<'_>) -> Result<T, CoordinationError> {
        let deadline = Instant::now() + self.patience;
        match self.query(&call.by_hash(), deadline).await {
            Ok(answer) => return Ok(answer),
            Err(Failure::Other(error)) => return Err(error),
            Err(Failure::UnknownScript) => {}
        }
        match self.query(&call.by_text(), deadline).await {
            Ok(answer) => Ok(answer),
            Err(Failure::Other(error)) => Err(error),
            Err(Failure::UnknownScript) => Err(CoordinationError("Redis does not keep scripts".into())),
        }
    }

    async fn query<T: FromRedisValue>(&self, command: &Cmd, deadline: Instant) -> Result<T, Failure> {
        let (mut connection, number) = self.connection(deadline).await.map_err(Failure::Other)?;
        let other = |message: String| Failure::Other(CoordinationError(message));
        let answer = timeout_at(deadline, command.query_async::<Value>(&mut connection)).await;
        match answer {
            Ok(Ok(answer)) => from_redis_value(answer)
                .map_err(|error| other(format!("an unexpected answer of Redis: {error}"))),
            Ok(Err(error)) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                Err(Failure::UnknownScript)
            }
            Ok(Err(error)) => {
                if ends_connection(&error) {
                    lose(&self.state, number, error.to_string());
                }
                Err(other(error.to_string()))
            }
            Err(_) => {
                let reason = format!("no answer of Redis within {:?}", self.patience);
                lose(&self.state, number, reason.clone());
                Err(other(reason))
            }
        }
    }

    /// The connection; while there is none, calls wait for the next one. But only at the beginning of an outage: one that
    /// lasts longer than a call may would else cost every caller that time.
    async fn connection(&self, deadline: Instant) -> Result<(MultiplexedConnection, u64), CoordinationError> {
        let mut state = self.state.subscribe();
        loop {
            let until = match &*state.borrow_and_update() {
                State::Up { connection, number } => return Ok((connection.clone(), *number)),
                State::Down { since, reason } => {
                    let until = deadline.min(*since + self.patience);
                    if until <= Instant::now() {
                        return Err(CoordinationError(reason.clone()));
                    }
                    until
                }
            };
            // Elapsed or changed: the loop looks again.
            drop(timeout_at(until, state.changed()).await);
        }
    }
}

/// Drops connection `number`, unless it is gone already.
fn lose(state: &watch::Sender<State>, number: u64, reason: String) {
    state.send_if_modified(|state| {
        let is_it = matches!(state, State::Up { number: current, .. } if *current == number);
        if is_it {
            *state = State::Down {
                since: Instant::now(),
                reason,
            };
        }
        is_it
    });
}

/// Whether a new connection might help: an answer of the server is none of that kind, but a server that was demoted to a
/// replica is not the one we want any more.
fn ends_connection(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(kind) => matches!(kind, ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown),
        ErrorKind::Extension | ErrorKind::UnexpectedReturnType => false,
        _ => true,
    }
}

/// Keeps the link up. Holds its state weakly, so that nobody needs it once the link is gone.
struct Supervisor {
    client: Client,
    server: String,
    patience: Duration,
    state: Weak<watch::Sender<State>>,
}

impl Supervisor {
    async fn run(self) {
        for number in 0.. {
            let Some(connection) = self.connect(number).await else {
                return;
            };
            info!(server = self.server, "connected to Redis");
            gauge!("isocost_redis_connected").set(1.0);
            let ended = self.watch_over(connection, number).await;
            gauge!("isocost_redis_connected").set(0.0);
            let Some(reason) = ended else { return };
            warn!(server = self.server, reason, "the connection to Redis is lost");
        }
    }

    /// Tries until there is a connection; none when nobody wants one any more.
    async fn connect(&self, number: u64) -> Option<MultiplexedConnection> {
        let mut pause = FIRST_PAUSE;
        loop {
            let failed = match self.connect_once(number).await {
                Ok(connection) => return Some(connection),
                Err(error) => self.explain(&error),
            };
            if pause == FIRST_PAUSE {
                warn!(reason = failed, "no connection to Redis; trying again");
            } else {
                debug!(reason = failed, "still no connection to Redis");
            }
            let state = self.state.upgrade()?;
            state.send_modify(|state| {
                if let State::Down { reason, .. } = state {
                    *reason = failed;
                }
            });
            drop(state);
            tokio::time::sleep(pause.mul_f64(random_range(0.5..1.5))).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn connect_once(&self, number: u64) -> Result<MultiplexedConnection, RedisError> {
        let state = Weak::clone(&self.state);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.patience))
            // Each call has its own deadline.
            .set_response_timeout(None)
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection
                    && let Some(state) = state.upgrade()
                {
                    lose(&state, number, "the connection to Redis was closed".into());
                }
                Ok::<_, std::convert::Infallible>(())
            });
        self.client
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }

    /// Hands the connection to the callers and waits until one of them, or a trial of ours, has lost it. Returns why; none
    /// when nobody wants one any more.
    async fn watch_over(&self, connection: MultiplexedConnection, number: u64) -> Option<String> {
        let mut changes = {
            let state = self.state.upgrade()?;
            state.send_replace(State::Up {
                connection: connection.clone(),
                number,
            });
            state.subscribe()
        };
        let mut connection = connection;
        loop {
            if let State::Down { reason, .. } = &*changes.borrow_and_update() {
                return Some(reason.clone());
            }
            let next_trial = Instant::now() + TRY_EVERY;
            match timeout_at(next_trial, changes.changed()).await {
                Ok(Ok(())) => continue,
                Ok(Err(_)) => return None,
                Err(_) => {}
            }
            let deadline = Instant::now() + self.patience;
            let trial = timeout_at(deadline, cmd("PING").query_async::<()>(&mut connection)).await;
            let reason = match trial {
                Ok(Ok(())) => continue,
                Ok(Err(error)) if !ends_connection(&error) => continue,
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer of Redis within {:?}", self.patience),
            };
            lose(&*self.state.upgrade()?, number, reason);
        }
    }

    /// What went wrong, with what a user can do about it.
    fn explain(&self, error: &RedisError) -> String {
        let server = &self.server;
        match (error.kind(), error.code()) {
            (ErrorKind::AuthenticationFailed, _) | (_, Some("WRONGPASS" | "NOAUTH")) => {
                format!("Redis at {server} refuses the user or password in coordination.url: {error}")
            }
            (ErrorKind::RESP3NotSupported, _) => {
                format!("Redis at {server} is too old: version 6 or newer is needed")
            }
            _ => format!("connecting to Redis at {server}: {error}"),
        }
    }
}
