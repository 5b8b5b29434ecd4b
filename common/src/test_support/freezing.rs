//! Processes that stand still.

use rustix::process::{Pid, Signal, kill_process};
use std::{fs, io, time::Duration};
use tokio::time::Instant;

const STANDS_STILL_WITHIN: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Sends SIGSTOP, and waits until every thread of the process stands still: one that is running meets the signal a little
/// later, and still answers until then.
///
/// # Errors
/// When there is no such process of ours, or it does not stand still in time.
pub async fn freeze(process: Pid) -> anyhow::Result<()> {
    kill_process(process, Signal::STOP)?;
    let deadline = Instant::now() + STANDS_STILL_WITHIN;
    while !stands_still(process)? {
        anyhow::ensure!(
            Instant::now() < deadline,
            "it does not stand still within {STANDS_STILL_WITHIN:?}"
        );
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

fn stands_still(process: Pid) -> io::Result<bool> {
    for task in fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()))? {
        // A thread that ends meanwhile has no file any more, and the next look does not list it.
        let Ok(stat) = fs::read_to_string(task?.path().join("stat")) else {
            return Ok(false);
        };
        // The state follows the name, which stands in parentheses and may hold any character.
        let state = stat.rsplit(')').next().map(str::trim_start);
        // One that has just died does nothing either.
        if !state.is_some_and(|state| state.starts_with(['T', 'Z', 'X'])) {
            return Ok(false);
        }
    }
    Ok(true)
}
