//! Worker → intake: what handlers say while they run.

use crate::{id::ExecutionId, time::EpochMillis};
use serde::{Deserialize, Serialize};

/// Lines and progress of any number of executions. May be lost under overload; results never are.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogMessage {
    /// Log lines.
    pub lines: Vec<LogLine>,
    /// The newest progress of an execution.
    pub progress: Vec<Progress>,
}

/// How serious a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LogLevel {
    /// As expected.
    Info,
    /// Worth a look.
    Warn,
    /// Went wrong.
    Error,
}

/// One line of a handler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogLine {
    /// Whose.
    pub execution: ExecutionId,
    /// Of which start, from 1.
    pub attempt: u32,
    /// Number within the attempt, from 1: a line that arrives twice is stored once.
    pub line: u32,
    /// When.
    pub at: EpochMillis,
    /// How serious.
    pub level: LogLevel,
    /// What.
    pub message: String,
}

/// How far an execution has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Whose.
    pub execution: ExecutionId,
    /// Of which handover: progress of an older one is dropped.
    pub dispatch_seq: i64,
    /// 0 to 100.
    pub percent: u8,
    /// In words.
    pub message: String,
}
