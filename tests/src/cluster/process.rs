//! One process of a role: started, looked at, killed, frozen, stopped, started again.

use crate::patience::eventually;
use anyhow::{Context, Result, anyhow, bail, ensure};
use isocost_common::test_support::freeze;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    fs::{self, File},
    net::SocketAddr,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

/// Longest time from the start of a program to being ready; a build server may be slow.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Longest orderly stop: the worker's grace, and some more.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// Longest wait for an answer of its health listener.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const LOG_LINES: usize = 40;

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// `isocost api`.
    Api,
    /// `isocost dispatcher`.
    Dispatcher,
    /// `isocost relay`.
    Relay,
    /// `isocost worker`: the built-in handlers.
    Worker,
    /// A program of its own with the handler `ledger`.
    LedgerWorker,
    /// `isocost run` with all four roles.
    All,
}

impl Role {
    pub(super) const fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Api => &["api"],
            Self::Dispatcher => &["dispatcher"],
            Self::Relay => &["relay"],
            Self::Worker => &["worker"],
            Self::LedgerWorker => &[],
            Self::All => &["run", "api", "dispatcher", "relay", "worker"],
        }
    }

    pub(super) const fn has_api(self) -> bool {
        matches!(self, Self::Api | Self::All)
    }
}

/// How a process is started, also again.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) program: PathBuf,
    /// The network namespace to start it in; none for this one.
    pub(super) namespace: Option<String>,
    pub(super) arguments: &'static [&'static str],
    pub(super) environment: Vec<(String, String)>,
    pub(super) log: PathBuf,
    pub(super) api_port: Option<u16>,
    pub(super) health: SocketAddr,
}

/// A process that was started. Dropped, it is killed.
pub struct Process {
    plan: Plan,
    child: Child,
    http: reqwest::Client,
}

impl Process {
    pub(super) fn spawn(plan: Plan) -> Result<Self> {
        let log = File::options().create(true).append(true).open(&plan.log)?;
        let mut command = match &plan.namespace {
            // It becomes the program, so that whoever ends it ends the program.
            Some(name) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name]).arg(&plan.program);
                command
            }
            None => Command::new(&plan.program),
        };
        let child = command
            .args(plan.arguments)
            .envs(plan.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| {
                format!(
                    "starting {}; is it built? `./test` does that",
                    plan.program.display()
                )
            })?;
        Ok(Self {
            plan,
            child,
            http: reqwest::Client::builder().timeout(ANSWER_LIMIT).build()?,
        })
    }

    /// Waits until `/readyz` says so.
    ///
    /// # Errors
    /// When it ends, or is not ready in time; with the end of its log.
    pub async fn wait_until_ready(&mut self) -> Result<()> {
        let ended = eventually("the process is ready", START_LIMIT, async || {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(Some(status)));
            }
            let (ready, said) = self.readiness().await?;
            ensure!(ready, "{said}");
            Ok(Some(None))
        })
        .await;
        let why = match ended {
            Ok(None) => return Ok(()),
            Ok(Some(status)) => anyhow!("the process ended with {status}"),
            Err(error) => error,
        };
        bail!("{why:#}; its log ends:\n{}", self.log_tail())
    }

    /// Whether `/readyz` says ready, and what it says.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn readiness(&self) -> Result<(bool, Value)> {
        let answer = self.look("readyz").await?;
        Ok((answer.status().is_success(), answer.json().await?))
    }

    /// The sum of a metric over its labels, or over those that the name ends with; 0 when it was not recorded yet.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn metric(&self, name: &str) -> Result<f64> {
        let text = self.look("metrics").await?.text().await?;
        let values = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let is_name = name.ends_with('}') || rest.starts_with([' ', '{']);
            rest.rsplit(' ').next().filter(|_| is_name)?.parse::<f64>().ok()
        });
        Ok(values.sum())
    }

    /// Whether this dispatcher leads.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn is_leader(&self) -> Result<bool> {
        Ok(self.metric("isocost_leader").await? > 0.0)
    }

    /// The most memory that it ever had resident, in bytes.
    ///
    /// # Errors
    /// When it has ended.
    pub fn peak_memory(&self) -> Result<u64> {
        let id = self.child.id().context("the process has ended")?;
        let status = fs::read_to_string(format!("/proc/{id}/status"))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.and_then(|peak| peak.trim().strip_suffix(" kB"));
        Ok(kib.context("no VmHWM")?.trim().parse::<u64>()? << 10)
    }

    /// Where the API is.
    ///
    /// # Errors
    /// When this is no API.
    pub fn api_url(&self) -> Result<String> {
        let port = self.plan.api_port.context("this process is no API")?;
        Ok(format!("http://127.0.0.1:{port}"))
    }

    /// Ends it as a crash would: `kill -9`.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub async fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Freezes it: it holds what it holds and does nothing.
    ///
    /// # Errors
    /// When it has ended.
    pub async fn freeze(&self) -> Result<()> {
        freeze(self.process_id()?).await
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// When it has ended.
    pub fn thaw(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// SIGTERM, without waiting.
    ///
    /// # Errors
    /// When it has ended.
    pub fn terminate(&self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it does not end in time, with the end of its log.
    pub async fn ended(&mut self) -> Result<ExitStatus> {
        match timeout(STOP_LIMIT, self.child.wait()).await {
            Ok(status) => Ok(status?),
            Err(_) => bail!("the process does not end; its log ends:\n{}", self.log_tail()),
        }
    }

    /// Stops it in good order: SIGTERM, and waits for its end.
    ///
    /// # Errors
    /// When it does not end in time, or ends with an error.
    pub async fn stop(&mut self) -> Result<()> {
        self.terminate()?;
        let status = self.ended().await?;
        ensure!(
            status.success(),
            "it ended with {status}; its log ends:\n{}",
            self.log_tail()
        );
        Ok(())
    }

    /// Starts it again, on the same ports, and waits until it is ready.
    ///
    /// # Errors
    /// As [`Process::wait_until_ready`].
    pub async fn restart(&mut self) -> Result<()> {
        self.spawn_again(&[])?;
        self.wait_until_ready().await
    }

    /// Starts it again, on the same ports, with more in the environment of this life alone; does not wait.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn_again(&mut self, more: &[(&str, &str)]) -> Result<()> {
        let life = Plan {
            environment: self
                .plan
                .environment
                .iter()
                .cloned()
                .chain(
                    more.iter()
                        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
                )
                .collect(),
            ..self.plan.clone()
        };
        let Self { child, .. } = Self::spawn(life)?;
        self.child = child;
        Ok(())
    }

    /// The system's number for it; none when its end was seen.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Whether it has ended.
    ///
    /// # Errors
    /// The system's.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// What it logged in all its lives.
    ///
    /// # Errors
    /// When that cannot be read.
    pub fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(&self.plan.log)?)
    }

    /// The end of it, for messages.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let log = self.log().unwrap_or_default();
        let skipped = log.lines().count().saturating_sub(LOG_LINES);
        log.lines().skip(skipped).collect::<Vec<_>>().join("\n")
    }

    async fn look(&self, path: &str) -> Result<reqwest::Response> {
        Ok(self.http.get(self.health_url(path)).send().await?)
    }

    fn health_url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.plan.health)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(self.process_id()?, signal)?)
    }

    fn process_id(&self) -> Result<Pid> {
        let id = self.child.id().context("the process has ended")?;
        Pid::from_raw(i32::try_from(id)?).context("no process")
    }
}
