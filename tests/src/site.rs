//! A standalone installation: what stays when its process dies, and one life of that process.

use crate::{api::Api, ledger::Ledger, patience::eventually, port::free_port};
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Once;
use std::{env, time::Duration};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// Longest time from the start of the program to its first answer; a build server may be slow.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Longest orderly stop: the worker's grace, and some more.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// Data folder, port and environment of a standalone installation, and the ledger of its jobs.
pub struct Site {
    folder: TempDir,
    port: u16,
    environment: Vec<(String, String)>,
    with_ledger: bool,
    flags: Vec<String>,
}

impl Site {
    /// A new, empty one. With `ISOCOST_TEST_KEEP` set, its folder stays after the test, to be looked at.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn new() -> Result<Self> {
        install_tls_provider();
        let mut folder = tempfile::Builder::new().prefix("isocost-site.").tempdir()?;
        if env::var_os("ISOCOST_TEST_KEEP").is_some() {
            folder.disable_cleanup(true);
        }
        Ok(Self {
            folder,
            port: free_port(),
            environment: Vec::new(),
            with_ledger: false,
            flags: Vec::new(),
        })
    }

    /// A new one, of a program that also offers the handler `ledger`.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn with_ledger() -> Result<Self> {
        Ok(Self {
            with_ledger: true,
            ..Self::new()?
        })
    }

    /// With a configuration key, such as `ISOCOST__RELAY__TIMEOUT_MS`.
    #[must_use]
    pub fn with(mut self, variable: &str, value: &str) -> Self {
        self.environment.push((variable.to_owned(), value.to_owned()));
        self
    }

    /// With a flag of the command line, such as `--demo`.
    #[must_use]
    pub fn with_flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    /// The data folder.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The port it listens on.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Where the API is.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What jobs of the handler `ledger` wrote, in all lives of the process.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        Ledger::at(self.ledger_path())
    }

    /// The log of all lives so far.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.log_path())?)
    }

    /// The program's command line for this site.
    #[must_use]
    pub fn command(&self) -> Command {
        let program = if self.with_ledger {
            beside_this_test("standalone-with-ledger")
        } else {
            isocost()
        };
        let mut command = Command::new(program);
        command
            .args([
                "standalone",
                "--listen",
                &format!("127.0.0.1:{}", self.port),
                "--data",
            ])
            .arg(self.data())
            .args(&self.flags)
            .env("ISOCOST_LEDGER_FILE", self.ledger_path())
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Starts the program, and does not wait.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(&self) -> Result<Life> {
        self.spawn_with(&[])
    }

    /// As [`Site::spawn`], with more in the environment of this life alone.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn_with(&self, more: &[(&str, &str)]) -> Result<Life> {
        let log = File::options().create(true).append(true).open(self.log_path())?;
        let child = self
            .command()
            .envs(more.iter().copied())
            .stdout(File::create(self.output_path())?)
            .stderr(log)
            .spawn()
            .context("starting the program; is it built? `./test` does that")?;
        Ok(Life { child })
    }

    /// Starts the program and waits until it is ready.
    ///
    /// # Errors
    /// When it ends, or is not ready in time; with the end of its log.
    pub async fn start(&self) -> Result<Process> {
        self.start_with(&[]).await
    }

    /// As [`Site::start`], with more in the environment of this life alone.
    ///
    /// # Errors
    /// As [`Site::start`].
    pub async fn start_with(&self, more: &[(&str, &str)]) -> Result<Process> {
        let mut life = self.spawn_with(more)?;
        if let Err(error) = self.ready(&mut life).await {
            bail!("{error:#}; its log ends:\n{}", self.log_tail());
        }
        let key = fs::read_to_string(self.data().join("admin.key")).context("reading admin.key")?;
        Ok(Process {
            life,
            output: self.output_path(),
            api: Api::new(&self.base_url(), key.trim())?,
        })
    }

    async fn ready(&self, life: &mut Life) -> Result<()> {
        let url = self.base_url();
        let ended = eventually("the program is ready", START_LIMIT, async || {
            if let Some(status) = life.child.try_wait()? {
                return Ok(Some(Some(status)));
            }
            if !fs::read_to_string(self.output_path())?.contains(&url) {
                return Ok(None);
            }
            let answer = reqwest::get(format!("{url}/readyz")).await?;
            ensure!(
                answer.status().is_success(),
                "/readyz answers {}",
                answer.status()
            );
            Ok(Some(None))
        })
        .await?;
        ended.map_or(Ok(()), |status| Err(anyhow!("the program ended with {status}")))
    }

    fn ledger_path(&self) -> PathBuf {
        self.folder.path().join("ledger")
    }

    fn output_path(&self) -> PathBuf {
        self.folder.path().join("output")
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    fn log_tail(&self) -> String {
        let log = self.log().unwrap_or_default();
        let skipped = log.lines().count().saturating_sub(30);
        log.lines().skip(skipped).collect::<Vec<_>>().join("\n")
    }
}

/// A program that was started, ready or not. Dropped, it is killed.
pub struct Life {
    child: Child,
}

impl Life {
    /// Ends it as a crash would: `kill -9`.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub async fn kill(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Waits until it has ended by itself.
    ///
    /// # Errors
    /// When it goes on.
    pub async fn ended(&mut self) -> Result<ExitStatus> {
        let ended = timeout(STOP_LIMIT, self.child.wait()).await;
        Ok(ended.context("the program does not end")??)
    }
}

/// A program that was ready at least once. Dropped, it is killed.
pub struct Process {
    life: Life,
    output: PathBuf,
    api: Api,
}

impl Process {
    /// The REST API, as the administrator of this site.
    #[must_use]
    pub const fn api(&self) -> &Api {
        &self.api
    }

    /// What it wrote to standard output so far.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn output(&self) -> Result<String> {
        Ok(fs::read_to_string(&self.output)?)
    }

    /// `isocost job …` as its administrator.
    #[must_use]
    pub fn client(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(isocost());
        command
            .arg("job")
            .args(arguments)
            .env("ISOCOST_SERVER", self.api.base())
            .env("ISOCOST_KEY", self.api.key())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// The running program without the rest.
    #[must_use]
    pub fn into_life(self) -> Life {
        self.life
    }

    /// Ends it as a crash would: `kill -9`.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub async fn kill(self) -> Result<()> {
        self.life.kill().await
    }

    /// Stops it in good order: SIGTERM, and waits for its end.
    ///
    /// # Errors
    /// When it does not end in time, or ends with an error.
    pub async fn stop(mut self) -> Result<()> {
        let id = self.life.child.id().context("the process has ended already")?;
        let sent = Command::new("sh")
            .arg("-c")
            .arg(format!("kill -TERM {id}"))
            .status()
            .await?;
        ensure!(sent.success(), "kill -TERM: {sent}");
        let ended = timeout(STOP_LIMIT, self.life.child.wait()).await;
        let status = ended.context("the program does not stop")??;
        ensure!(status.success(), "after SIGTERM the program ended with {status}");
        Ok(())
    }
}

/// The `isocost` program: `ISOCOST_BIN`, else what was built beside the test.
#[must_use]
pub fn isocost() -> PathBuf {
    env::var_os("ISOCOST_BIN").map_or_else(|| beside_this_test("isocost"), PathBuf::from)
}

/// Tests lie in target/debug/deps, programs in target/debug.
pub(crate) fn beside_this_test(name: &str) -> PathBuf {
    let this = env::current_exe().unwrap_or_default();
    let folder = this.parent().unwrap_or(Path::new("."));
    let folder = if folder.ends_with("deps") {
        folder.parent().unwrap_or(folder)
    } else {
        folder
    };
    folder.join(name)
}

/// The HTTP client takes the provider of the process; there is none by default.
pub(crate) fn install_tls_provider() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // An error means that there is one.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}
