//! What handlers say while they run. It may be lost under overload, and then it is counted; results never are.

use crate::incarnation::Incarnation;
use isocost_common::{
    broker::{Message, PublishOutcome},
    id::ExecutionId,
    message::{LogLine, LogMessage, Progress, kind},
};
use std::{collections::HashMap, time::Duration};
use tokio::{
    sync::mpsc::{self, error::SendTimeoutError},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// Lines and progress waiting to be sent.
const WAITING: usize = 8 * 1024;
/// Lines and progress in one message, at most.
const MESSAGE_ENTRIES: usize = 500;
/// Lines gather this long, so that a chatty handler makes few messages.
const LINGER: Duration = Duration::from_millis(50);
/// A handler that says more than can be sent is slowed down this much for each line before the line is dropped.
const PATIENCE: Duration = Duration::from_millis(10);

enum Entry {
    Line(LogLine),
    Progress(Progress),
}

/// Where handlers write. Cheap to clone.
#[derive(Clone)]
pub(crate) struct HandlerLog(mpsc::Sender<Entry>);

/// The other end, for the one task that sends.
pub(crate) struct HandlerLogReceiver(mpsc::Receiver<Entry>);

/// A bounded log and its other end.
pub(crate) fn channel() -> (HandlerLog, HandlerLogReceiver) {
    let (sender, receiver) = mpsc::channel(WAITING);
    (HandlerLog(sender), HandlerLogReceiver(receiver))
}

impl HandlerLog {
    /// Writes a line.
    pub(crate) async fn line(&self, line: LogLine) {
        self.write(Entry::Line(line)).await;
    }

    /// Writes progress; only the newest of an execution counts.
    pub(crate) async fn progress(&self, progress: Progress) {
        self.write(Entry::Progress(progress)).await;
    }

    async fn write(&self, entry: Entry) {
        match self.0.send_timeout(entry, PATIENCE).await {
            Ok(()) => {}
            Err(SendTimeoutError::Timeout(_) | SendTimeoutError::Closed(_)) => dropped(1),
        }
    }
}

fn dropped(count: usize) {
    metrics::counter!("isocost_worker_log_lines_dropped_total").increment(count as u64);
}

/// Sends lines until `stop`; what was written before is sent first.
pub(crate) async fn send_log(
    incarnation: &Incarnation,
    HandlerLogReceiver(mut receiver): HandlerLogReceiver,
    stop: &CancellationToken,
) {
    let mut entries = Vec::new();
    while !stop.is_cancelled() {
        tokio::select! {
            received = receiver.recv() => match received {
                Some(entry) => entries.push(entry),
                None => return,
            },
            () = stop.cancelled() => break,
        }
        gather(&mut receiver, &mut entries).await;
        publish(incarnation, &mut entries).await;
    }
    receiver.close();
    while receiver.recv_many(&mut entries, MESSAGE_ENTRIES).await > 0 {
        publish(incarnation, &mut entries).await;
    }
}

async fn gather(receiver: &mut mpsc::Receiver<Entry>, entries: &mut Vec<Entry>) {
    let until = Instant::now() + LINGER;
    while entries.len() < MESSAGE_ENTRIES {
        match tokio::time::timeout_at(until, receiver.recv()).await {
            Ok(Some(entry)) => entries.push(entry),
            Ok(None) | Err(_) => return,
        }
    }
}

/// Tries twice; a lost line is no reason to hold up the next ones.
async fn publish(incarnation: &Incarnation, entries: &mut Vec<Entry>) {
    let body = message(entries.drain(..));
    let count = body.lines.len() + body.progress.len();
    let publication = incarnation.log_publication(Message::json(kind::LOG, &body));
    for _ in 0..2 {
        let outcomes = incarnation.broker().publish(vec![publication.clone()]).await;
        if outcomes.first() == Some(&PublishOutcome::Confirmed) {
            return;
        }
    }
    dropped(count);
}

fn message(entries: impl Iterator<Item = Entry>) -> LogMessage {
    let mut lines = Vec::new();
    let mut newest: HashMap<ExecutionId, Progress> = HashMap::new();
    for entry in entries {
        match entry {
            Entry::Line(line) => lines.push(line),
            Entry::Progress(progress) => {
                newest.insert(progress.execution, progress);
            }
        }
    }
    LogMessage {
        lines,
        progress: newest.into_values().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_progress_of_an_execution_is_sent() {
        let execution = ExecutionId::generate();
        let at = |percent| {
            Entry::Progress(Progress {
                execution,
                dispatch_seq: 1,
                percent,
                message: String::new(),
            })
        };
        let sent = message([at(10), at(40)].into_iter());
        assert_eq!(sent.progress.iter().map(|p| p.percent).collect::<Vec<_>>(), [40]);
    }
}
