//! A MariaDB, or in the matrix a MySQL, that belongs to one test: for what cannot be done to a shared one.

use super::server::{Place, Server};
use crate::store::StoreOptions;
use anyhow::{Context, ensure};
use rustix::process::Signal;
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor};
use std::{net::SocketAddr, time::Duration};

const PASSWORD: &str = "private";

/// A running server on a port of its own, with an empty database `isocost`. Its data survives [`MariadbServer::restart`].
pub struct MariadbServer {
    server: Server,
    options: Vec<String>,
    is_mysql: bool,
}

impl MariadbServer {
    /// Starts one with more command line options.
    ///
    /// # Errors
    /// Why it does not run; when there is no such program, that `./test` installs it.
    pub async fn start(options: &[&str]) -> anyhow::Result<Self> {
        let place = Place::new()?;
        let this = Self {
            is_mysql: !place.has("mariadbd"),
            options: options.iter().map(|&option| option.to_owned()).collect(),
            server: Server::new(place)?,
        };
        this.install().await?;
        this.restart().await?;
        Ok(this)
    }

    /// True for MySQL.
    #[must_use]
    pub const fn is_mysql(&self) -> bool {
        self.is_mysql
    }

    async fn install(&self) -> anyhow::Result<()> {
        let place = &self.server.place;
        // Not the system's: at its start a server removes what looks like files of its own there, and others have theirs.
        std::fs::create_dir(place.folder().join("tmp")).context("making a folder")?;
        let mut command = if self.is_mysql {
            let mut command = place.command("mysqld", "mysqld");
            command.args(["--no-defaults", "--initialize-insecure", "--user=root"]);
            command
        } else {
            let mut command = place.command("mariadb-install-db", "mariadb-install-db");
            command.args(["--no-defaults", "--skip-test-db", &format!("--user={}", user())]);
            command
        };
        command.arg(format!("--datadir={}", place.file("data")));
        command.arg(format!("--tmpdir={}", place.file("tmp")));
        let output = command
            .output()
            .await
            .context("making a database: run ./test, which installs what is missing")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "a database cannot be made: {said}");
        let users = format!(
            "create database if not exists isocost;
             create user if not exists isocost@'127.0.0.1' identified by '{PASSWORD}';
             grant all on isocost.* to isocost@'127.0.0.1';
             create user if not exists admin@'127.0.0.1' identified by '{PASSWORD}';
             grant all on *.* to admin@'127.0.0.1' with grant option;\n"
        );
        std::fs::write(
            place.folder().join("users.sql"),
            users.replace("\n             ", "\n"),
        )?;
        Ok(())
    }

    /// Starts it again on the same port and data, after [`MariadbServer::stop`] or [`MariadbServer::kill`].
    ///
    /// # Errors
    /// Why it does not run.
    pub async fn restart(&self) -> anyhow::Result<()> {
        let place = &self.server.place;
        let program = if self.is_mysql { "mysqld" } else { "mariadbd" };
        let mut command = place.command(program, program);
        command.arg("--no-defaults").arg(format!("--user={}", user()));
        command.arg(format!("--datadir={}", place.file("data")));
        command.arg(format!("--tmpdir={}", place.file("tmp")));
        command.arg(format!("--socket={}", place.file("socket")));
        command.arg(format!("--pid-file={}", place.file("pid")));
        command.arg(format!("--init-file={}", place.file("users.sql")));
        command.arg(format!("--port={}", self.server.port));
        command.args([
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--secure-file-priv=",
        ]);
        command.args(["--innodb-buffer-pool-size=64M", "--skip-log-bin"]);
        if self.is_mysql {
            command.arg("--mysqlx=OFF");
        }
        command.args(&self.options);
        self.server.start(command, "ready for connections").await
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// How to reach its database at `address`, which may be a proxy's; few connections, and little patience.
    #[must_use]
    pub fn options_at(&self, address: SocketAddr) -> StoreOptions {
        StoreOptions {
            max_connections: 4,
            acquire_timeout: Duration::from_secs(2),
            ..StoreOptions::new(&format!("mysql://isocost:{PASSWORD}@{address}/isocost"))
        }
    }

    /// How to reach its database.
    #[must_use]
    pub fn options(&self) -> StoreOptions {
        self.options_at(self.address())
    }

    /// Executes a statement as an administrator, past every limit of the database's own user.
    ///
    /// # Errors
    /// What the server says.
    pub async fn execute(&self, statement: &str) -> anyhow::Result<()> {
        sqlx::any::install_default_drivers();
        let url = format!("mysql://admin:{PASSWORD}@{}/isocost", self.address());
        let mut admin = AnyConnection::connect(&url).await?;
        admin.execute(AssertSqlSafe(statement)).await?;
        admin.close().await?;
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
    /// As [`MariadbServer::stop`].
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

    /// Lets it go on after [`MariadbServer::freeze`].
    ///
    /// # Errors
    /// That it does not run.
    pub async fn thaw(&self) -> anyhow::Result<()> {
        self.server.signal(Signal::CONT).await
    }
}

/// Whoever runs the tests: the server refuses to run as root unless it is told to.
fn user() -> &'static str {
    if rustix::process::geteuid().is_root() {
        "root"
    } else {
        // Ignored with a warning for everybody else.
        "mysql"
    }
}
