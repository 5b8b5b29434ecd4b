//! Redis behind the coordination port. One connection, made and kept by [`Link`]; every call is one round trip and ends
//! within its deadline.
//!
//! Nothing here has to survive: a server that restarts empty, is flushed or evicts keys has only forgotten, and what
//! that means is said at the port. See `docs/adr/0010-redis.md` for the keys.

mod keys;
mod link;
mod scripts;

use super::{Coordination, CoordinationError, HeartbeatAnswer, Heartbeats, StoredHeartbeat};
use crate::{config::CoordinationConfig, id::IncarnationId};
use ::redis::{Client, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, cmd, io::tcp::TcpSettings};
use async_trait::async_trait;
use keys::Keys;
use link::Link;
use scripts::Scripts;
use std::{sync::Arc, time::Duration};
use tracing::debug;

/// The longest life of a key; longer ones, which Redis might refuse, are cut to it.
const LONGEST_TTL: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The URL does not say where a Redis is.
#[derive(Debug, thiserror::Error)]
#[error(
    "coordination.url must look like redis://user:password@host:port/database, or rediss:// for TLS: {reason}"
)]
pub struct InvalidRedisUrl {
    /// What is wrong with it; without the URL itself, which holds a password.
    reason: String,
}

/// Locks, heartbeats, tombstones and start keys in Redis 6 or newer.
#[derive(Debug)]
pub struct RedisCoordination {
    link: Link,
    keys: Keys,
    scripts: Scripts,
}

impl RedisCoordination {
    /// Begins to connect in the background, and goes on with that for as long as the value lives: a server that is away
    /// is an event, not a failure. Calls wait for the connection within their deadline. Needs a runtime of tokio.
    ///
    /// # Errors
    /// [`InvalidRedisUrl`], before anything is tried.
    pub fn start(config: &CoordinationConfig) -> Result<Arc<Self>, InvalidRedisUrl> {
        let invalid = |error: ::redis::RedisError| InvalidRedisUrl {
            reason: error
                .detail()
                .map_or_else(|| error.to_string(), ToOwned::to_owned),
        };
        let info = connection_info(config.url.reveal()).map_err(invalid)?;
        let server = info.addr().to_string();
        let client = Client::open(info).map_err(invalid)?;
        Ok(Arc::new(Self {
            link: Link::start(client, server, config.command_timeout()),
            keys: Keys::new(&config.prefix),
            scripts: Scripts::new(),
        }))
    }
}

/// The third version of the protocol, because with it the client tells at once that a connection has ended; and no
/// waiting for more to send, because most commands are small and alone.
fn connection_info(url: &str) -> Result<ConnectionInfo, ::redis::RedisError> {
    let info = url.into_connection_info()?;
    let settings = info.redis_settings().clone();
    Ok(info
        .set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3))
        .set_tcp_settings(TcpSettings::default().set_nodelay(true)))
}

/// A life in milliseconds, as Redis takes it.
fn ttl_ms(ttl: Duration) -> u64 {
    u64::try_from(ttl.min(LONGEST_TTL).as_millis())
        .unwrap_or(u64::MAX)
        .max(1)
}

#[async_trait]
impl Coordination for RedisCoordination {
    async fn try_lock(&self, name: &str, token: &str, ttl: Duration) -> Result<bool, CoordinationError> {
        let mut set = cmd("SET");
        set.arg(self.keys.lock(name)).arg(token);
        set.arg("NX").arg("PX").arg(ttl_ms(ttl));
        let done: Option<String> = self.link.call(&set).await?;
        Ok(done.is_some())
    }

    async fn renew_lock(&self, name: &str, token: &str, ttl: Duration) -> Result<bool, CoordinationError> {
        let mut call = self.scripts.renew.on(&[&self.keys.lock(name)]);
        call.arg(token).arg(ttl_ms(ttl));
        self.link.run(call).await
    }

    async fn release_lock(&self, name: &str, token: &str) -> Result<bool, CoordinationError> {
        let mut call = self.scripts.release.on(&[&self.keys.lock(name)]);
        call.arg(token);
        self.link.run(call).await
    }

    async fn heartbeat(
        &self,
        incarnation: IncarnationId,
        payload: &str,
        ttl: Duration,
    ) -> Result<HeartbeatAnswer, CoordinationError> {
        let Keys { alive, since, .. } = &self.keys;
        let mut call = self.scripts.heartbeat.on(&[
            &self.keys.heartbeat(incarnation),
            &self.keys.tombstone(incarnation),
            alive,
            since,
        ]);
        call.arg(incarnation.to_string()).arg(payload).arg(ttl_ms(ttl));
        Ok(if self.link.run(call).await? {
            HeartbeatAnswer::Accepted
        } else {
            HeartbeatAnswer::Fenced
        })
    }

    async fn heartbeats(&self) -> Result<Heartbeats, CoordinationError> {
        let Keys { alive, since, .. } = &self.keys;
        let mut call = self.scripts.list.on(&[alive, since]);
        call.arg(self.keys.heartbeat_prefix());
        let (now_ms, known_for_ms, names, values): (i64, u64, Vec<String>, Vec<Option<Vec<u8>>>) =
            self.link.run(call).await?;
        let stored = names.iter().zip(values).filter_map(|(name, value)| {
            // None: it ran out in this very moment, or was evicted.
            let found = read_heartbeat(name, &value?, now_ms);
            if found.is_none() {
                debug!(incarnation = name, "unreadable heartbeat in Redis");
            }
            found
        });
        Ok(Heartbeats {
            known_for: Duration::from_millis(known_for_ms),
            stored: stored.collect(),
        })
    }

    async fn entomb(&self, incarnation: IncarnationId, ttl: Duration) -> Result<(), CoordinationError> {
        let mut call = self.scripts.entomb.on(&[
            &self.keys.heartbeat(incarnation),
            &self.keys.tombstone(incarnation),
            &self.keys.alive,
        ]);
        call.arg(incarnation.to_string()).arg(ttl_ms(ttl));
        self.link.run(call).await
    }

    async fn claim_key(&self, key: &str, ttl: Duration) -> Result<bool, CoordinationError> {
        let mut set = cmd("SET");
        set.arg(self.keys.key(key)).arg(1);
        set.arg("NX").arg("PX").arg(ttl_ms(ttl));
        let done: Option<String> = self.link.call(&set).await?;
        Ok(done.is_some())
    }

    async fn free_key(&self, key: &str) -> Result<(), CoordinationError> {
        let mut delete = cmd("DEL");
        delete.arg(self.keys.key(key));
        self.link.call(&delete).await
    }

    async fn ping(&self) -> Result<(), CoordinationError> {
        self.link.call(&cmd("PING")).await
    }
}

/// A stored heartbeat is its arrival in milliseconds, a colon, and what it said.
fn read_heartbeat(name: &str, value: &[u8], now_ms: i64) -> Option<StoredHeartbeat> {
    let (arrived_ms, payload) = std::str::from_utf8(value).ok()?.split_once(':')?;
    let age_ms = now_ms.saturating_sub(arrived_ms.parse().ok()?);
    Some(StoredHeartbeat {
        incarnation: name.parse().ok()?,
        // Negative when the server's clock was set back.
        age: Duration::from_millis(u64::try_from(age_ms).unwrap_or(0)),
        payload: payload.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    fn start(url: &str) -> Result<Arc<RedisCoordination>, InvalidRedisUrl> {
        RedisCoordination::start(&CoordinationConfig {
            url: Secret::new(url),
            ..CoordinationConfig::default()
        })
    }

    #[tokio::test]
    async fn a_wrong_url_is_refused_without_repeating_its_password() {
        for url in [
            "",
            "127.0.0.1:6379",
            "http://:hunter2@localhost",
            "redis://:hunter2@localhost:notaport",
            "redis://:hunter2@localhost/three",
        ] {
            let refused = start(url).map(|_| ()).expect_err(url).to_string();
            assert!(refused.contains("coordination.url"), "{refused}");
            assert!(!refused.contains("hunter2"), "{refused}");
        }
        for url in ["redis://localhost", "rediss://user:p%40ss@redis.example:7000/2"] {
            assert!(start(url).is_ok(), "{url}");
        }
    }

    #[test]
    fn lives_are_what_redis_takes() {
        assert_eq!(ttl_ms(Duration::ZERO), 1);
        assert_eq!(ttl_ms(Duration::from_micros(1_500)), 1);
        assert_eq!(ttl_ms(Duration::from_secs(3)), 3_000);
        assert_eq!(ttl_ms(Duration::MAX), 315_360_000_000);
    }

    #[test]
    fn a_heartbeat_is_read_back() -> Result<(), crate::id::InvalidId> {
        let name = IncarnationId::generate().to_string();
        let read = read_heartbeat(&name, br#"1000:{"a":1}"#, 1_250);
        let expected = StoredHeartbeat {
            incarnation: name.parse()?,
            age: Duration::from_millis(250),
            payload: r#"{"a":1}"#.into(),
        };
        assert_eq!(read, Some(expected));
        let set_back = read_heartbeat(&name, b"1000:", 400).map(|beat| beat.age);
        assert_eq!(set_back, Some(Duration::ZERO));
        for (name, value) in [
            ("x", &b"1:"[..]),
            (&name, b"x:"),
            (&name, b"1"),
            (&name, b"1:\xff"),
        ] {
            assert_eq!(read_heartbeat(name, value, 5), None);
        }
        Ok(())
    }
}
