//! A message on the broker: the properties all of ours carry, and a body.

use crate::{id::MessageId, time::EpochMillis};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Application headers. Text only, which every AMQP client can read.
pub type MessageHeaders = BTreeMap<String, String>;

/// A message. Always persistent; ours are always JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Unique; returns are matched by it. A submission's may be any text of its producer.
    pub message_id: String,
    /// What the body is: a constant of [`crate::message::kind`].
    pub kind: String,
    /// When it was made.
    pub timestamp: EpochMillis,
    /// Higher is delivered first, in queues declared with priorities. 0 to 9.
    pub priority: u8,
    /// Milliseconds after which a queue drops it undelivered.
    pub expiration_ms: Option<u64>,
    /// Where an answer is wanted: a queue name.
    pub reply_to: Option<String>,
    /// What the answer must repeat.
    pub correlation_id: Option<String>,
    /// The user who published it, as checked by the broker. RabbitMQ takes only a publisher's own name, so another one is
    /// left out when a message is published.
    pub user_id: Option<String>,
    /// More, such as `traceparent` and `schema-version`.
    pub headers: MessageHeaders,
    /// What the body says it is; none for plain JSON, and where a producer did not say.
    pub content_type: Option<String>,
    /// The JSON text.
    pub body: Bytes,
}

/// Header with the version of the body's schema.
pub const SCHEMA_VERSION_HEADER: &str = "schema-version";
/// The version this program writes, and the newest it reads. Readers accept unknown fields, so it grows only with a
/// change that an older reader would misread.
pub const SCHEMA_VERSION: u32 = 1;

/// Why a message cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// A newer program wrote it, in a way that this one would misread.
    #[error("it has schema version {found}, and this program reads up to {SCHEMA_VERSION}")]
    Newer {
        /// What its header says.
        found: String,
    },
    /// Its body is not what its kind says.
    #[error(transparent)]
    Malformed(#[from] serde_json::Error),
}

impl Unreadable {
    /// True when a newer version of this program can read it.
    #[must_use]
    pub const fn is_newer(&self) -> bool {
        matches!(self, Self::Newer { .. })
    }
}

impl Message {
    /// A message with the given body and kind, an id of its own and the current instant.
    ///
    /// # Panics
    /// Never for our message types: they serialise without a fallible part.
    #[must_use]
    pub fn json(kind: &str, body: &impl serde::Serialize) -> Self {
        let body = serde_json::to_vec(body).expect("messages have text keys and no fallible parts");
        Self {
            message_id: MessageId::generate().to_string(),
            kind: kind.to_owned(),
            timestamp: EpochMillis::system_now(),
            priority: 0,
            expiration_ms: None,
            reply_to: None,
            correlation_id: None,
            user_id: None,
            headers: MessageHeaders::from([(SCHEMA_VERSION_HEADER.into(), SCHEMA_VERSION.to_string())]),
            content_type: None,
            body: body.into(),
        }
    }

    /// Reads the body. One without a version is taken to be of the first.
    ///
    /// # Errors
    /// [`Unreadable`], when a newer program wrote it, or the body is not what `T` needs.
    pub fn parse<T: serde::de::DeserializeOwned>(&self) -> Result<T, Unreadable> {
        if let Some(found) = self.headers.get(SCHEMA_VERSION_HEADER)
            && !found.parse().is_ok_and(|version: u32| version <= SCHEMA_VERSION)
        {
            return Err(Unreadable::Newer { found: found.clone() });
        }
        Ok(serde_json::from_slice(&self.body)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_version(version: Option<&str>) -> Result<bool, Unreadable> {
        let mut message = Message::json("test", &true);
        message.headers.remove(SCHEMA_VERSION_HEADER);
        if let Some(version) = version {
            message
                .headers
                .insert(SCHEMA_VERSION_HEADER.into(), version.into());
        }
        message.parse()
    }

    #[test]
    fn a_message_of_a_newer_version_is_not_guessed_at() {
        for known in [None, Some("1")] {
            assert!(of_version(known).is_ok_and(|body| body), "{known:?}");
        }
        for newer in ["2", "1000", "1.5", "next"] {
            assert!(
                of_version(Some(newer)).is_err_and(|unreadable| unreadable.is_newer()),
                "{newer}"
            );
        }
        assert!(
            Message::json("test", &1)
                .parse::<bool>()
                .is_err_and(|unreadable| !unreadable.is_newer())
        );
    }
}
