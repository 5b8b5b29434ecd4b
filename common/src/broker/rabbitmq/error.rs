//! What the broker's refusals mean.

use crate::broker::BrokerError;
use lapin::ErrorKind;
use std::time::Duration;

/// `ACCESS_REFUSED`, `NOT_FOUND`, `RESOURCE_LOCKED`, `PRECONDITION_FAILED`: the soft errors of AMQP 0-9-1, which close a
/// channel.
const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const RESOURCE_LOCKED: u16 = 405;
const PRECONDITION_FAILED: u16 = 406;

/// Why one operation on a channel failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// What it names does not exist.
    NotFound(String),
    /// It exists and is different.
    Different(String),
    /// The user has no right to it.
    Forbidden(String),
    /// It belongs to another connection.
    Locked(String),
    /// The broker did not answer, or the connection is gone.
    Unavailable(String),
}

impl Failure {
    /// No answer within `patience`.
    pub(super) fn silence(patience: Duration) -> Self {
        Self::Unavailable(format!("no answer within {patience:?}"))
    }

    /// As the port says it, about `name`.
    pub(super) fn about(self, name: &str) -> BrokerError {
        match self {
            Self::NotFound(_) => BrokerError::NoSuchQueue(name.to_owned()),
            Self::Different(reason) | Self::Locked(reason) => BrokerError::Conflict {
                name: name.to_owned(),
                reason,
            },
            Self::Forbidden(reason) => BrokerError::Forbidden {
                name: name.to_owned(),
                reason,
            },
            Self::Unavailable(reason) => BrokerError::Unavailable(reason),
        }
    }
}

impl From<lapin::Error> for Failure {
    fn from(error: lapin::Error) -> Self {
        let text = text(&error);
        match code(&error) {
            Some(NOT_FOUND) => Self::NotFound(text),
            // Said of permissions, and of a queue that has an exclusive consumer.
            Some(ACCESS_REFUSED) if !text.contains("exclusive use") => Self::Forbidden(text),
            Some(ACCESS_REFUSED | PRECONDITION_FAILED) => Self::Different(text),
            Some(RESOURCE_LOCKED) => Self::Locked(text),
            _ => Self::Unavailable(text),
        }
    }
}

fn code(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some(error.get_id()),
        _ => None,
    }
}

/// The broker's own words where it said any.
pub(super) fn text(error: &lapin::Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => error.get_message().as_str().to_owned(),
        _ => error.to_string(),
    }
}

/// The exchange whose absence closed a channel, when that is why.
pub(super) fn missing_exchange(error: &lapin::Error) -> Option<String> {
    // NOT_FOUND - no exchange 'name' in vhost '/'
    if code(error) != Some(NOT_FOUND) {
        return None;
    }
    let text = text(error);
    let (_, rest) = text.split_once("no exchange '")?;
    let (name, _) = rest.rsplit_once("' in vhost '")?;
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapin::protocol::{AMQPError, AMQPErrorKind, AMQPSoftError};

    fn refused(text: &str) -> Failure {
        let kind = AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED);
        Failure::from(lapin::Error::from(ErrorKind::ProtocolError(AMQPError::new(
            kind,
            text.into(),
        ))))
    }

    #[test]
    fn a_missing_permission_is_no_conflict() {
        let permission = "ACCESS_REFUSED - access to exchange 'x' in vhost '/' refused for user 'billing'";
        assert!(matches!(refused(permission), Failure::Forbidden(_)));
        let consumer = "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use";
        assert!(matches!(refused(consumer), Failure::Different(_)));
    }
}
