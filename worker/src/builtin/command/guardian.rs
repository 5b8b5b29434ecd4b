//! Ends programs whose worker was killed: they would go on beside their repetition elsewhere.
//!
//! A shell waits at the end of a pipe for what the worker watches. The pipe ends with the worker, whatever ended it, and
//! the shell then kills every process group that is still watched. `PR_SET_PDEATHSIG` would reach no grandchildren, and
//! follows the thread that started the program, not the process. A worker that is frozen keeps its pipe, and its programs.

use parking_lot::Mutex;
use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    process::Pid,
};
use std::{
    collections::BTreeSet,
    io::{self, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    sync::Arc,
};
use tracing::warn;

/// `+7` watches the process group 7, `-7` does not any more.
const SCRIPT: &str = r#"
watched=' '
while read -r sign group; do
    case $sign in
        +) watched="$watched$group " ;;
        -) case $watched in *" $group "*) watched="${watched%% $group *} ${watched#* $group }" ;; esac ;;
    esac
done
for group in $watched; do kill -s KILL -- "-$group"; done
"#;

/// The shell of one worker process; started with the first program.
#[derive(Default)]
pub(super) struct Guardian(Mutex<State>);

#[derive(Default)]
struct State {
    watched: BTreeSet<i32>,
    shell: Option<Child>,
    /// Said once: programs run all the same.
    is_missing: bool,
}

/// A process group that is watched until this is dropped.
pub(super) struct Watched {
    guardian: Arc<Guardian>,
    group: i32,
}

impl Guardian {
    /// Watches a process group.
    pub(super) fn watch(self: &Arc<Self>, group: Pid) -> Watched {
        let group = group.as_raw_nonzero().get();
        let mut state = self.0.lock();
        state.watched.insert(group);
        state.tell(&format!("+ {group}\n"));
        Watched {
            guardian: Arc::clone(self),
            group,
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut state = self.guardian.0.lock();
        state.watched.remove(&self.group);
        state.tell(&format!("- {}\n", self.group));
    }
}

impl State {
    /// Tells the shell. One that is gone or does not read is replaced, and the next is told everything.
    fn tell(&mut self, line: &str) {
        if let Some(pipe) = self.shell.as_mut().and_then(|shell| shell.stdin.as_mut())
            && pipe.write_all(line.as_bytes()).is_ok()
        {
            return;
        }
        self.end_shell();
        if self.watched.is_empty() {
            return;
        }
        match start(&self.watched) {
            Ok(shell) => (self.shell, self.is_missing) = (Some(shell), false),
            Err(error) if !self.is_missing => {
                self.is_missing = true;
                warn!(%error, "programs would outlive this worker if it were killed: /bin/sh cannot be started");
            }
            Err(_) => {}
        }
    }

    /// Killed before its pipe ends, or it would take the end for the worker's.
    fn end_shell(&mut self) {
        if let Some(mut shell) = self.shell.take() {
            // An error means that it has ended, and was waited for.
            let _ = shell.kill();
            let _ = shell.wait();
        }
    }
}

/// In a process group of its own, which no signal of a terminal reaches.
fn start(watched: &BTreeSet<i32>) -> io::Result<Child> {
    let mut shell = Command::new("/bin/sh")
        .args(["-c", SCRIPT])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    if let Some(pipe) = shell.stdin.as_mut() {
        // A shell that stands still must not stop a run.
        fcntl_setfl(&*pipe, fcntl_getfl(&*pipe)? | OFlags::NONBLOCK)?;
        let lines: String = watched.iter().map(|group| format!("+ {group}\n")).collect();
        pipe.write_all(lines.as_bytes())?;
    }
    Ok(shell)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Signal, kill_process, test_kill_process};
    use std::time::{Duration, Instant};

    /// A program in a group of its own, and its group.
    fn program() -> (Child, Pid) {
        let child = Command::new("/bin/sleep")
            .arg("300")
            .process_group(0)
            .spawn()
            .expect("started");
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid")).expect("not 0");
        (child, pid)
    }

    fn ends(mut program: Child) -> bool {
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if program.try_wait().expect("ours").is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = program.kill();
        false
    }

    /// The end of the pipe, as the death of the worker brings it.
    fn die(guardian: &Guardian) {
        drop(
            guardian
                .0
                .lock()
                .shell
                .as_mut()
                .and_then(|shell| shell.stdin.take()),
        );
    }

    #[test]
    fn what_is_watched_ends_with_the_worker_and_what_is_not_goes_on() {
        let guardian = Arc::<Guardian>::default();
        let (first, group) = program();
        let first_watched = guardian.watch(group);
        let (second, group) = program();
        let second_watched = guardian.watch(group);
        let (mut third, group) = program();
        let _third_watched = guardian.watch(group);
        drop(second_watched);
        drop(first_watched);
        let _again = guardian.watch(Pid::from_child(&first));
        die(&guardian);
        assert!(ends(first), "it was watched again");
        assert!(third.wait().is_ok(), "it was watched all along");
        assert!(
            test_kill_process(Pid::from_child(&second)).is_ok(),
            "it was let go"
        );
        let mut second = second;
        second.kill().expect("ours");
        second.wait().expect("ended");
    }

    #[test]
    fn a_guardian_that_was_killed_is_replaced() {
        let guardian = Arc::<Guardian>::default();
        let (first, group) = program();
        let _watched = guardian.watch(group);
        let mut state = guardian.0.lock();
        let shell = state.shell.as_mut().expect("started");
        kill_process(Pid::from_child(shell), Signal::KILL).expect("alive");
        shell.wait().expect("ended");
        drop(state);
        let (second, group) = program();
        let _watched = guardian.watch(group);
        die(&guardian);
        assert!(ends(first), "it was watched by the one before");
        assert!(ends(second));
    }
}
