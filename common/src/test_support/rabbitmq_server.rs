//! A RabbitMQ node of one test: private, on free ports, in a folder of its own, and to be stopped, killed and started
//! again at will.

use super::server::{Place, free_port};
use anyhow::{Context, Result, bail, ensure};
use std::{
    net::{Ipv4Addr, SocketAddr},
    process::Stdio,
    time::Duration,
};
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    time::Instant,
};

/// Where Debian keeps the plain scripts; those in the path insist on a user of their own.
const SCRIPTS: &str = "/usr/lib/rabbitmq/bin";
const START_DEADLINE: Duration = Duration::from_secs(60);
const STOP_DEADLINE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Somebody may take a port between the look and the start.
const ATTEMPTS: usize = 3;

/// A node, running or stopped. Dropping it kills it and removes what it stored.
pub struct RabbitMqServer {
    place: Place,
    port: u16,
    dist_port: u16,
    epmd_port: u16,
    /// Erlang's name service, which would otherwise be shared with every other node of the machine, and left behind.
    epmd: Child,
    node: Option<Child>,
}

impl RabbitMqServer {
    /// Starts a node and waits until it takes connections.
    ///
    /// # Errors
    /// `rabbitmq-server` is not installed, or does not start.
    pub async fn start() -> Result<Self> {
        let mut attempt = 1;
        loop {
            match Self::start_once().await {
                Err(_) if attempt < ATTEMPTS => attempt += 1,
                outcome => return outcome,
            }
        }
    }

    async fn start_once() -> Result<Self> {
        let place = Place::new()?;
        let script = place.outside(&format!("{SCRIPTS}/rabbitmq-server"));
        ensure!(
            script.exists(),
            "{} is missing: start with ./test, or apt-get install rabbitmq-server",
            script.display()
        );
        for name in ["home", "data", "log"] {
            std::fs::create_dir(place.folder().join(name))?;
        }
        std::fs::write(place.folder().join("plugins"), "[].")?;
        let [port, dist_port, epmd_port] = [free_port()?, free_port()?, free_port()?];
        std::fs::write(
            place.folder().join("rabbitmq.conf"),
            format!("listeners.tcp.1 = 127.0.0.1:{port}\n"),
        )?;
        let epmd = place
            .command("epmd", "epmd")
            .args(["-address", "127.0.0.1", "-port", &epmd_port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting epmd")?;
        let mut server = Self {
            place,
            port,
            dist_port,
            epmd_port,
            epmd,
            node: None,
        };
        server.run().await?;
        Ok(server)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// For `broker.url`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@{}/%2f", self.address())
    }

    /// Starts the node, after a stop or a kill, on the same data and port, and waits until it takes connections.
    ///
    /// # Errors
    /// It does not start; with the end of its log.
    pub async fn run(&mut self) -> Result<()> {
        ensure!(self.node.is_none(), "the node is running");
        let output = self.place.folder().join("output");
        let log = std::fs::File::create(&output)?;
        let mut node = self.script("rabbitmq-server");
        node.stdout(log.try_clone()?)
            .stderr(log)
            // The node and its helpers: one group to be killed.
            .process_group(0);
        self.node = Some(node.spawn().context("starting rabbitmq-server")?);
        let deadline = Instant::now() + START_DEADLINE;
        while TcpStream::connect(self.address()).await.is_err() {
            let exited = self.node.as_mut().and_then(|node| node.try_wait().ok().flatten());
            if exited.is_some() || Instant::now() > deadline {
                self.kill().await?;
                let output = std::fs::read_to_string(&output).unwrap_or_default();
                bail!("RabbitMQ does not start: {output}");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        // The port opens a little before the node has started whole.
        self.ctl(&["await_startup", "--timeout", "60"]).await?;
        Ok(())
    }

    /// Stops the node in good order.
    ///
    /// # Errors
    /// It does not stop.
    pub async fn stop(&mut self) -> Result<()> {
        signal("TERM", self.node.as_ref());
        let Some(mut node) = self.node.take() else {
            return Ok(());
        };
        let stopped = tokio::time::timeout(STOP_DEADLINE, node.wait()).await;
        if stopped.is_err() {
            signal("KILL", Some(&node));
            bail!("RabbitMQ did not stop within {STOP_DEADLINE:?}");
        }
        Ok(())
    }

    /// Kills the node (`kill -9`).
    ///
    /// # Errors
    /// The system's, while waiting for its end.
    pub async fn kill(&mut self) -> Result<()> {
        signal("KILL", self.node.as_ref());
        if let Some(mut node) = self.node.take() {
            node.wait().await?;
        }
        Ok(())
    }

    /// Lets the node believe that it runs out of memory, as its memory monitor would, until it is told otherwise.
    ///
    /// # Errors
    /// What `rabbitmqctl` complains of.
    pub async fn memory_alarm(&self, on: bool) -> Result<()> {
        let alarm = "{resource_limit, memory, node()}";
        let call = if on {
            format!("rabbit_alarm:set_alarm({{{alarm}, []}}).")
        } else {
            format!("rabbit_alarm:clear_alarm({alarm}).")
        };
        self.ctl(&["eval", &call]).await.map(drop)
    }

    /// Runs `rabbitmqctl` with these arguments and returns what it prints.
    ///
    /// # Errors
    /// What it complains of.
    pub async fn ctl(&self, arguments: &[&str]) -> Result<String> {
        let output = self.script("rabbitmqctl").args(arguments).output().await?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            output.status.success(),
            "rabbitmqctl {}: {text}{}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(text)
    }

    /// One of RabbitMQ's scripts, in the surroundings of this node.
    fn script(&self, name: &str) -> Command {
        let file = |name| self.place.file(name);
        let mut script = self.place.command(&format!("{SCRIPTS}/{name}"), name);
        script
            // As under systemd, the script becomes the node: what ends it ends the node.
            .env("RUNNING_UNDER_SYSTEMD", "true")
            .env("HOME", file("home"))
            .env("RABBITMQ_NODENAME", format!("isocost-{}@localhost", self.port))
            .env("RABBITMQ_NODE_PORT", self.port.to_string())
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_DIST_PORT", self.dist_port.to_string())
            .env("ERL_EPMD_PORT", self.epmd_port.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_MNESIA_BASE", file("data"))
            .env("RABBITMQ_LOG_BASE", file("log"))
            .env("RABBITMQ_PID_FILE", file("pid"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", file("plugins"))
            .env("RABBITMQ_CONFIG_FILE", file("rabbitmq.conf"))
            // Nothing of the machine's own configuration.
            .env("RABBITMQ_ADVANCED_CONFIG_FILE", file("none.config"))
            .env("RABBITMQ_CONF_ENV_FILE", file("none.conf"))
            // Light beside other tests: one scheduler, which sleeps when there is nothing to do.
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "+S 1:1 +SDcpu 1:1 +SDio 1 +sbwt none +sbwtdcpu none +sbwtdio none",
            );
        script
    }
}

impl Drop for RabbitMqServer {
    fn drop(&mut self) {
        signal("KILL", self.node.as_ref());
        // Killed with it; this only says so at once.
        let _ = self.epmd.start_kill();
    }
}

/// Sends a signal to a process and all it has started.
fn signal(name: &str, process: Option<&Child>) {
    if let Some(id) = process.and_then(Child::id) {
        let mut kill = std::process::Command::new("kill");
        kill.args(["-s", name, "--", &format!("-{id}")])
            .stderr(Stdio::null());
        // It fails when the process is gone already.
        let _ = kill.status();
    }
}
