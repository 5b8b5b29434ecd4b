//! `command`: starts a program that the worker's configuration lists. No shell is involved.
//!
//! The program gets the job's params as JSON on its standard input and a small environment without the worker's own
//! settings. It runs in a process group of its own, so that stopping it stops its children too; when the worker is killed, a
//! [`guardian`] kills that group.

mod guardian;

use super::TEXT_LIMIT;
use crate::{JobContext, JobError, handler::Handler};
use guardian::{Guardian, Watched};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, process::Stdio, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStdin, Command},
    time::timeout,
};

/// Between the polite signal and the other one; shorter than the grace of a stopped handler.
const TERMINATION_GRACE: Duration = Duration::from_secs(1);
/// A child that went on with the program's output open is not waited for.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);
/// What a program sees of the worker's environment.
const INHERITED: [&str; 4] = ["PATH", "HOME", "LANG", "TZ"];

/// Other fields are the program's own business: it reads them from its standard input.
#[derive(Deserialize)]
struct Params {
    program: String,
    #[serde(default)]
    args: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Output {
    exit_code: i32,
    stdout: String,
    stderr: String,
}

pub(super) fn handler(programs: &[String]) -> Handler {
    let allowed: Arc<BTreeSet<String>> = Arc::new(programs.iter().cloned().collect());
    let guardian = Arc::<Guardian>::default();
    Handler::new(move |job| run(job, Arc::clone(&allowed), Arc::clone(&guardian)))
}

async fn run(
    job: JobContext,
    allowed: Arc<BTreeSet<String>>,
    guardian: Arc<Guardian>,
) -> Result<Output, JobError> {
    let params: Params = job.params()?;
    if !allowed.contains(&params.program) {
        let message = format!("`{}` is not listed in worker.commands", params.program);
        return Err(JobError::fatal(message).with_code("command.not-allowed"));
    }
    let mut child = spawn(&params, &job)
        .map_err(|error| JobError::retry(format!("starting {}: {error}", params.program)))?;
    let group = Group::of(&child, &guardian);
    let cancelled = job.cancelled();
    let output = tokio::select! {
        output = communicate(&mut child, job.raw_params().as_str()) => output?,
        () = cancelled.requested() => {
            group.signal(Signal::TERM);
            let _ended_or_killed_next = timeout(TERMINATION_GRACE, child.wait()).await;
            return Err(JobError::retry("the program was stopped"));
        }
    };
    group.leave_children();
    if output.exit_code == 0 {
        return Ok(output);
    }
    let message = format!(
        "{} ended with exit code {}: {}",
        params.program, output.exit_code, output.stderr
    );
    Err(JobError::retry(message).with_code("command.exit-code"))
}

fn spawn(params: &Params, job: &JobContext) -> std::io::Result<Child> {
    let inherited = INHERITED
        .iter()
        .filter_map(|name| Some((name, std::env::var_os(name)?)));
    Command::new(&params.program)
        .args(&params.args)
        .env_clear()
        .envs(inherited)
        .env("ISOCOST_EXECUTION_ID", job.execution_id().to_string())
        .env("ISOCOST_ATTEMPT", job.attempt().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

async fn communicate(child: &mut Child, params: &str) -> Result<Output, JobError> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (mut out, mut err) = (String::new(), String::new());
    let status = {
        let mut reading = Box::pin(async {
            tokio::join!(
                feed(stdin, params),
                collect(stdout, &mut out),
                collect(stderr, &mut err)
            )
        });
        tokio::select! {
            // Its output is read before it ends, or it could wait for ever for room in a pipe.
            _read = &mut reading => child.wait().await?,
            status = child.wait() => {
                let _cut_when_late = timeout(OUTPUT_GRACE, &mut reading).await;
                status?
            }
        }
    };
    Ok(Output {
        // Without a code it was ended by a signal, which shells write as this.
        exit_code: status.code().unwrap_or(128 + signal(status)),
        stdout: out,
        stderr: err,
    })
}

fn signal(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.signal().unwrap_or(0)
}

async fn feed(stdin: Option<ChildStdin>, params: &str) {
    if let Some(mut stdin) = stdin {
        // A program that does not read its input closes it, which is its right.
        let _ = stdin.write_all(params.as_bytes()).await;
    }
}

/// Reads to the end and keeps the beginning.
async fn collect(output: Option<impl AsyncRead + Unpin>, kept: &mut String) {
    let Some(mut output) = output else { return };
    let mut buffer = [0_u8; 4096];
    let mut bytes = Vec::new();
    while let Ok(count @ 1..) = output.read(&mut buffer).await {
        let room = TEXT_LIMIT - bytes.len();
        bytes.extend_from_slice(&buffer[..count.min(room)]);
        *kept = String::from_utf8_lossy(&bytes).into_owned();
    }
}

/// The program and its children; killed when dropped, and when the worker is killed.
struct Group {
    id: Option<Pid>,
    _watched: Option<Watched>,
}

impl Group {
    fn of(program: &Child, guardian: &Arc<Guardian>) -> Self {
        let id = program.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Self {
            id,
            _watched: id.map(|id| guardian.watch(id)),
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.id {
            // The only failure that matters is that it has gone already.
            let _ = kill_process_group(pid, signal);
        }
    }

    /// The program ended by itself: what it left running is its own affair.
    fn leave_children(mut self) {
        self.id = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}
