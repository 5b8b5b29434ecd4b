//! A Redis that belongs to one test: for what cannot be done to a shared one.

use super::server::{Place, Server};
use crate::config::{CoordinationConfig, Secret};
use rustix::process::Signal;
use std::net::SocketAddr;

const PASSWORD: &str = "private";

/// A running server on a port of its own, without persistence: it restarts empty.
pub struct RedisServer {
    server: Server,
}

impl RedisServer {
    /// Starts one.
    ///
    /// # Errors
    /// Why it does not run; when there is no such program, that `./test` installs it.
    pub async fn start() -> anyhow::Result<Self> {
        let server = Server::new(Place::new()?)?;
        let this = Self { server };
        this.restart().await?;
        Ok(this)
    }

    /// Starts it again, empty, on the same port, after [`RedisServer::stop`] or [`RedisServer::kill`].
    ///
    /// # Errors
    /// Why it does not run.
    pub async fn restart(&self) -> anyhow::Result<()> {
        let place = &self.server.place;
        // The two programs are one file. A package with the first starts a service, one with the second does not.
        let program = if place.has("redis-server") {
            "redis-server"
        } else {
            "redis-check-rdb"
        };
        let mut command = place.command(program, "redis-server");
        command.args(["--port", &self.server.port.to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--appendonly", "no", "--requirepass", PASSWORD]);
        command.args(["--dir", &place.file("")]);
        self.server.start(command, "Ready to accept connections").await
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// How to reach it at `address`, which may be a proxy's.
    #[must_use]
    pub fn config_at(&self, address: SocketAddr) -> CoordinationConfig {
        CoordinationConfig {
            url: Secret::new(&format!("redis://:{PASSWORD}@{address}/0")),
            ..CoordinationConfig::default()
        }
    }

    /// How to reach it.
    #[must_use]
    pub fn config(&self) -> CoordinationConfig {
        self.config_at(self.address())
    }

    /// Forgets everything that it keeps.
    ///
    /// # Errors
    /// What the server says.
    pub async fn flush(&self) -> anyhow::Result<()> {
        let client = redis::Client::open(self.config().url.reveal())?;
        let mut admin = client.get_multiplexed_async_connection().await?;
        redis::cmd("FLUSHALL").query_async::<()>(&mut admin).await?;
        Ok(())
    }

    /// Ends it as an operator does.
    ///
    /// # Errors
    /// That it does not run, or does not end.
    pub async fn stop(&self) -> anyhow::Result<()> {
        self.server.stop().await
    }

    /// Ends it as a crash does.
    ///
    /// # Errors
    /// As [`RedisServer::stop`].
    pub async fn kill(&self) -> anyhow::Result<()> {
        self.server.kill().await
    }

    /// Freezes it: connections stay open, nothing answers.
    ///
    /// # Errors
    /// That it does not run.
    pub async fn freeze(&self) -> anyhow::Result<()> {
        self.server.freeze().await
    }

    /// Lets it go on after [`RedisServer::freeze`].
    ///
    /// # Errors
    /// That it does not run.
    pub async fn thaw(&self) -> anyhow::Result<()> {
        self.server.signal(Signal::CONT).await
    }
}
