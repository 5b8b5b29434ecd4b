//! How a run ended, as its worker reports it.

use crate::raw_json::RawJson;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Longest error message kept, in bytes. Longer ones are cut on a character border and end in a mark.
const MESSAGE_LIMIT: usize = 8 * 1024;
const CUT_MARK: &str = "… (cut)";

/// Why an execution did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecutionError {
    /// A stable word for programs, such as `handler.failed`, `handler.panicked`, `params.invalid`.
    pub code: String,
    /// A sentence for people.
    pub message: String,
}

impl ExecutionError {
    /// An error whose message is cut to what the tables hold.
    #[must_use]
    pub fn new(code: &str, message: &str) -> Self {
        Self {
            code: limit_text(code, 64).into_owned(),
            message: limit_text(message, MESSAGE_LIMIT).into_owned(),
        }
    }
}

/// The text, or as much of it as fits into `limit` bytes with a mark, cut on a character border.
#[must_use]
pub fn limit_text(text: &str, limit: usize) -> Cow<'_, str> {
    if text.len() <= limit {
        return Cow::Borrowed(text);
    }
    let kept = text.floor_char_boundary(limit.saturating_sub(CUT_MARK.len()));
    Cow::Owned(format!("{}{CUT_MARK}", &text[..kept]))
}

/// How one attempt ended.
// Tagged from outside, as [`ReportEvent`](crate::message::ReportEvent) is and for the same reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Outcome {
    /// The handler returned a result.
    Succeeded {
        /// Its return value, byte for byte.
        result: RawJson,
    },
    /// The handler returned an error, or panicked.
    Failed {
        /// What it said.
        error: ExecutionError,
        /// False when another attempt cannot help.
        retryable: bool,
        /// The pause the handler asked for, in milliseconds; the policy decides when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
    },
    /// The worker stopped it at its run-time limit.
    TimedOut,
    /// The worker stopped it because a cancel was requested.
    Cancelled,
    /// The worker stopped it for its own reasons: a drain, or a lease that ran out.
    Interrupted {
        /// A sentence for people.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ap09_a_long_message_is_cut_on_a_character_border_with_a_mark() {
        let error = ExecutionError::new("handler.failed", &"😀".repeat(262_144));
        assert!(error.message.len() <= MESSAGE_LIMIT);
        assert!(error.message.ends_with(CUT_MARK));
        assert!(
            error
                .message
                .trim_end_matches(CUT_MARK)
                .chars()
                .all(|c| c == '😀')
        );
    }

    #[test]
    fn a_message_at_the_limit_is_kept_whole() {
        let text = "a".repeat(MESSAGE_LIMIT);
        assert_eq!(ExecutionError::new("x", &text).message, text);
    }
}
