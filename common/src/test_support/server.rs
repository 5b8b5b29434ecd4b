//! A server process that belongs to one test.

use super::freeze;
use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs::File,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    sync::Mutex,
    time::Instant,
};

/// Names a folder with another Debian in it, from which private servers are then taken: see `tests/matrix.sh`.
const OTHER_SYSTEM: &str = "ISOCOST_TEST_CHROOT";

const READY_WITHIN: Duration = Duration::from_secs(60);
const STOPPED_WITHIN: Duration = Duration::from_secs(30);

/// Where a private server's programs and files are: here, or in a folder with another system.
pub(super) struct Place {
    root: Option<PathBuf>,
    folder: TempDir,
}

impl Place {
    pub(super) fn new() -> anyhow::Result<Self> {
        let root = std::env::var_os(OTHER_SYSTEM).map(PathBuf::from);
        let folder = match &root {
            Some(root) => tempfile::tempdir_in(root.join("tmp")),
            None => tempfile::tempdir(),
        };
        Ok(Self {
            root,
            folder: folder.context("making a folder for a server")?,
        })
    }

    /// The folder of this server, as we see it.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A file of this server, as the server sees it.
    pub(super) fn file(&self, name: &str) -> String {
        let file = self.folder.path().join(name);
        let seen = match &self.root {
            Some(root) => Path::new("/").join(file.strip_prefix(root).unwrap_or(&file)),
            None => file,
        };
        seen.display().to_string()
    }

    pub(super) fn has(&self, program: &str) -> bool {
        let folders = [
            "usr/local/sbin",
            "usr/local/bin",
            "usr/sbin",
            "usr/bin",
            "sbin",
            "bin",
        ];
        folders
            .iter()
            .any(|folder| self.outside(&format!("/{folder}/{program}")).exists())
    }

    /// An absolute path of the server's system, as we see it.
    pub(super) fn outside(&self, path: &str) -> PathBuf {
        let root = self.root.as_deref().unwrap_or(Path::new("/"));
        root.join(path.trim_start_matches('/'))
    }

    /// Runs `program`, seen as `name` by itself.
    pub(super) fn command(&self, program: &str, name: &str) -> Command {
        let mut command = match &self.root {
            Some(root) => {
                let mut command = Command::new("chroot");
                // The shell, because only it starts a program under another name.
                command.arg(root).args(["/bin/bash", "-c"]);
                // Ours is not there.
                command.env_remove("TMPDIR");
                command.arg(format!(r#"exec -a {name} {program} "$@""#)).arg(name);
                command
            }
            None => {
                let mut command = Command::new(program);
                command.arg0(name);
                // What it dumps when it is killed.
                command.current_dir(self.folder());
                command
            }
        };
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin:/usr/bin:/sbin:/bin"));
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }
}

/// A server that can be stopped, killed and started again on the same port and data.
pub(super) struct Server {
    pub(super) place: Place,
    pub(super) port: u16,
    process: Mutex<Option<Child>>,
}

impl Server {
    pub(super) fn new(place: Place) -> anyhow::Result<Self> {
        Ok(Self {
            place,
            port: free_port()?,
            process: Mutex::new(None),
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Starts it and waits until `ready` stands in what it prints.
    pub(super) async fn start(&self, mut command: Command, ready: &str) -> anyhow::Result<()> {
        let mut process = self.process.lock().await;
        ensure!(process.is_none(), "the server runs already");
        let log_path = self.place.folder().join("log");
        let log = File::create(&log_path).context("creating the log of a server")?;
        let mut child = command
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting a server: run ./test, which installs what is missing")?;
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            let said = std::fs::read_to_string(&log_path).unwrap_or_default();
            if said.contains(ready) {
                break;
            }
            let ended = child.try_wait()?.is_some();
            ensure!(
                !ended && Instant::now() < deadline,
                "a server does not start:\n{said}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        *process = Some(child);
        Ok(())
    }

    /// Ends it as an operator does, and waits for its end.
    pub(super) async fn stop(&self) -> anyhow::Result<()> {
        self.end(Signal::TERM).await
    }

    /// Ends it as a crash does.
    pub(super) async fn kill(&self) -> anyhow::Result<()> {
        self.end(Signal::KILL).await
    }

    /// Lets it stand still.
    pub(super) async fn freeze(&self) -> anyhow::Result<()> {
        let process = self.process.lock().await;
        freeze(pid(process.as_ref().context("the server does not run")?)?).await
    }

    /// Sends a signal that does not end it.
    pub(super) async fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let process = self.process.lock().await;
        kill_process(pid(process.as_ref().context("the server does not run")?)?, signal)?;
        Ok(())
    }

    async fn end(&self, signal: Signal) -> anyhow::Result<()> {
        let mut child = self
            .process
            .lock()
            .await
            .take()
            .context("the server does not run")?;
        kill_process(pid(&child)?, signal)?;
        tokio::time::timeout(STOPPED_WITHIN, child.wait())
            .await
            .context("a server does not stop")??;
        Ok(())
    }
}

fn pid(child: &Child) -> anyhow::Result<Pid> {
    let raw = child.id().context("the server has ended")?;
    Pid::from_raw(i32::try_from(raw)?).context("no process")
}

/// A port that nobody uses now, from below the range of outgoing connections: it is still free after a restart.
pub(super) fn free_port() -> anyhow::Result<u16> {
    for _ in 0..1_000 {
        let port = rand::random_range(20_000..32_000);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    anyhow::bail!("no port is free")
}
