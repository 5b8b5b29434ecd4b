//! A cluster on this machine: private servers, and real processes of every role.

mod process;
mod servers;
mod uplink;

pub use process::{Process, Role};
pub use servers::{RabbitMq, Servers};
pub use uplink::{Cut, Uplink};

use crate::{
    api::Api,
    ledger::Ledger,
    port::free_port,
    site::{beside_this_test, install_tls_provider, isocost},
};
use anyhow::{Context, Result, ensure};
use sqlx::{Connection, MySqlConnection};
use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};
use tempfile::TempDir;
use tokio::process::Command;

/// The servers of a cluster, its configuration and the files its processes leave.
pub struct Cluster {
    servers: Arc<Servers>,
    folder: TempDir,
    environment: Vec<(String, String)>,
}

impl Cluster {
    /// Starts the servers and makes the tables. With `ISOCOST_TEST_KEEP` set, its folder stays after the test.
    ///
    /// # Errors
    /// When one does not start.
    pub async fn new() -> Result<Self> {
        let cluster = Self::without_tables().await?;
        cluster.migrate().await?;
        Ok(cluster)
    }

    /// Starts the servers only.
    ///
    /// # Errors
    /// When one does not start.
    pub async fn without_tables() -> Result<Self> {
        Self::on_database(&[]).await
    }

    /// Starts the servers only, the database with more command line options.
    ///
    /// # Errors
    /// When one does not start.
    pub async fn on_database(options: &[&str]) -> Result<Self> {
        install_tls_provider();
        Self::on(Arc::new(Servers::start(options).await?))
    }

    /// Another cluster on the same servers, with its own database and names, and its tables.
    ///
    /// # Errors
    /// When the database cannot be made.
    pub async fn beside(&self, name: &str) -> Result<Self> {
        let mariadb = &self.servers.mariadb;
        mariadb.execute(&format!("create database {name}")).await?;
        let grant = format!("grant all on {name}.* to isocost@'127.0.0.1'");
        mariadb.execute(&grant).await?;
        let url = mariadb.options().url;
        let (server, _) = url.rsplit_once('/').context("a URL with a database")?;
        let other = Self::on(Arc::clone(&self.servers))?
            .with("ISOCOST__STORE__URL", &format!("{server}/{name}"))
            .with("ISOCOST__BROKER__NAMESPACE", name)
            .with("ISOCOST__COORDINATION__PREFIX", name);
        other.migrate().await?;
        Ok(other)
    }

    fn on(servers: Arc<Servers>) -> Result<Self> {
        let mut folder = tempfile::Builder::new().prefix("isocost-cluster.").tempdir()?;
        if env::var_os("ISOCOST_TEST_KEEP").is_some() {
            folder.disable_cleanup(true);
            eprintln!("the logs are in {}", folder.path().display());
        }
        let environment = servers
            .environment()
            .into_iter()
            .chain(
                [
                    ("ISOCOST__RELAY__ALLOWED_NETWORKS", r#"["127.0.0.0/8"]"#),
                    ("ISOCOST__WORKER__LISTEN", "127.0.0.1:0"),
                    ("ISOCOST__WORKER__ADVERTISE", "127.0.0.1"),
                ]
                .map(|(name, value)| (name, value.to_owned())),
            )
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        Ok(Self {
            servers,
            folder,
            environment,
        })
    }

    /// With a configuration key for every process that starts from now on, such as `ISOCOST__LEASES__HEARTBEAT_MS`.
    #[must_use]
    pub fn with(mut self, variable: &str, value: &str) -> Self {
        self.environment.push((variable.to_owned(), value.to_owned()));
        self
    }

    /// With leases a sixth as long as by default, so that a death is noticed within three seconds.
    #[must_use]
    pub fn with_short_leases(self) -> Self {
        self.with("ISOCOST__LEASES__HEARTBEAT_MS", "500")
            .with("ISOCOST__COORDINATION__COMMAND_TIMEOUT_MS", "500")
            .with("ISOCOST__LEASES__WORKER_CANCEL_MS", "1700")
            .with("ISOCOST__LEASES__WORKER_EXIT_MS", "2500")
            .with("ISOCOST__LEASES__DEAD_AFTER_MS", "2600")
            .with("ISOCOST__LEASES__LOCK_TTL_MS", "2000")
    }

    /// The servers behind it.
    #[must_use]
    pub fn servers(&self) -> &Servers {
        &self.servers
    }

    /// `isocost migrate`, which writes the admin key.
    ///
    /// # Errors
    /// When it fails.
    pub async fn migrate(&self) -> Result<()> {
        let key_file = self.key_file();
        let arguments = ["migrate", "--admin-key-file"].map(Into::into);
        let (success, said) = self
            .run(arguments.into_iter().chain([key_file.into_os_string()]))
            .await?;
        ensure!(success, "isocost migrate: {said}");
        Ok(())
    }

    /// Runs a command of the program to its end: whether it succeeded, and what it printed.
    ///
    /// # Errors
    /// When it cannot be started.
    pub async fn run(
        &self,
        arguments: impl IntoIterator<Item = std::ffi::OsString>,
    ) -> Result<(bool, String)> {
        let output = Command::new(isocost())
            .args(arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .context("starting the program; is it built? `./test` does that")?;
        let said = [output.stdout, output.stderr].concat();
        Ok((
            output.status.success(),
            String::from_utf8_lossy(&said).into_owned(),
        ))
    }

    /// Starts a process of a role and waits until it is ready. `name` is that of the worker, and of its log.
    ///
    /// # Errors
    /// When it ends, or is not ready in time; with the end of its log.
    pub async fn start(&self, role: Role, name: &str) -> Result<Process> {
        self.start_with(role, name, &[]).await
    }

    /// As [`Cluster::start`], with more configuration for this process.
    ///
    /// # Errors
    /// As [`Cluster::start`].
    pub async fn start_with(&self, role: Role, name: &str, more: &[(&str, &str)]) -> Result<Process> {
        let mut process = self.spawn(role, name, more)?;
        process.wait_until_ready().await?;
        Ok(process)
    }

    /// Starts a process of a role and does not wait.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(&self, role: Role, name: &str, more: &[(&str, &str)]) -> Result<Process> {
        self.spawn_in(None, role, name, more)
    }

    /// Starts a worker that reaches Redis and RabbitMQ by an uplink, and waits until it is ready.
    ///
    /// # Errors
    /// As [`Cluster::start`].
    pub async fn start_behind(&self, uplink: &Uplink, name: &str, more: &[(&str, &str)]) -> Result<Process> {
        let mut environment = uplink.environment();
        environment.extend(more);
        let mut process = self.spawn_in(uplink.namespace(), Role::LedgerWorker, name, &environment)?;
        process.wait_until_ready().await?;
        Ok(process)
    }

    fn spawn_in(
        &self,
        namespace: Option<(&str, Ipv4Addr)>,
        role: Role,
        name: &str,
        more: &[(&str, &str)],
    ) -> Result<Process> {
        let mut environment = self.environment.clone();
        environment.extend(
            more.iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        );
        let mut set = |name: &str, value: String| environment.push((name.to_owned(), value));
        set(
            "ISOCOST_LEDGER_FILE",
            self.folder.path().join("ledger").display().to_string(),
        );
        let (port, health_port) = (free_port(), free_port());
        let here = namespace.map_or(Ipv4Addr::LOCALHOST, |(_, address)| address);
        let health = SocketAddr::from((here, health_port));
        set("ISOCOST__TELEMETRY__LISTEN", health.to_string());
        set("ISOCOST__API__LISTEN", format!("127.0.0.1:{port}"));
        set("ISOCOST__WORKER__ID", name.to_owned());
        let program = match role {
            Role::LedgerWorker => beside_this_test("worker-with-ledger"),
            _ => isocost(),
        };
        Process::spawn(process::Plan {
            program,
            namespace: namespace.map(|(name, _)| name.to_owned()),
            arguments: role.arguments(),
            environment,
            log: self.folder.path().join(format!("{name}.log")),
            api_port: role.has_api().then_some(port),
            health,
        })
    }

    /// A number from the database, behind the product's back.
    ///
    /// # Errors
    /// When the statement fails.
    pub async fn count(&self, sql: &'static str) -> Result<i64> {
        let named = |(name, _): &&(String, String)| name == "ISOCOST__STORE__URL";
        let (_, url) = self.environment.iter().rfind(named).context("no database")?;
        let mut connection = MySqlConnection::connect(url).await?;
        let count = sqlx::query_scalar(sql).fetch_one(&mut connection).await?;
        connection.close().await?;
        Ok(count)
    }

    /// A client of an API process, as the administrator.
    ///
    /// # Errors
    /// When the process is no API.
    pub fn api(&self, process: &Process) -> Result<Api> {
        let key = fs::read_to_string(self.key_file()).context("reading the admin key")?;
        Api::new(&process.api_url()?, key.trim())
    }

    /// What jobs of the handler `ledger` wrote, on all workers and in all their lives.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        Ledger::at(self.folder.path().join("ledger"))
    }

    /// Where its processes leave their logs.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn key_file(&self) -> PathBuf {
        self.folder.path().join("admin.key")
    }
}
