//! The task that expires messages and queues on time. It exists only once something has a time to expire at.

use super::Server;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use tokio::{runtime::Handle, sync::Notify, task::JoinHandle, time::Instant};

/// The timer task and the means to wake it.
#[derive(Default)]
pub(super) struct Timer {
    schedule: Arc<Schedule>,
    task: Mutex<Task>,
}

#[derive(Default)]
struct Schedule {
    /// When the task will wake, as far as it knows.
    wakes_at: Mutex<Option<Instant>>,
    changed: Notify,
}

#[derive(Default)]
enum Task {
    #[default]
    NotNeededYet,
    Running(JoinHandle<()>),
    /// Every connection is closed.
    Stopped,
}

impl Timer {
    /// Makes sure that the task looks at the state at `at`, or earlier.
    pub(super) fn set(&self, server: &Arc<Server>, at: Instant) {
        {
            let mut wakes_at = self.schedule.wakes_at.lock();
            if wakes_at.is_some_and(|set| set <= at) {
                return;
            }
            *wakes_at = Some(at);
        }
        self.schedule.changed.notify_one();
        let mut task = self.task.lock();
        // A consumer may be dropped after the runtime; then there is nothing left to expire for.
        if let (Task::NotNeededYet, Ok(runtime)) = (&*task, Handle::try_current()) {
            let schedule = Arc::clone(&self.schedule);
            *task = Task::Running(runtime.spawn(run(Arc::downgrade(server), schedule)));
        }
    }

    /// Ends the task.
    pub(super) async fn stop(&self) {
        let task = std::mem::replace(&mut *self.task.lock(), Task::Stopped);
        if let Task::Running(task) = task {
            task.abort();
            // Aborted at one of its waits: the error says just that.
            let _ = task.await;
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Task::Running(task) = self.task.get_mut() {
            task.abort();
        }
    }
}

async fn run(server: Weak<Server>, schedule: Arc<Schedule>) {
    loop {
        let wakes_at = *schedule.wakes_at.lock();
        let is_due = match wakes_at {
            Some(at) => tokio::time::timeout_at(at, schedule.changed.notified())
                .await
                .is_err(),
            None => {
                schedule.changed.notified().await;
                false
            }
        };
        if is_due {
            let Some(server) = server.upgrade() else { return };
            *schedule.wakes_at.lock() = None;
            // Sets the timer again if anything is left to expire.
            server.change(|state, now| state.advance(now));
        }
    }
}
