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
/// The version this program writes. Readers accept unknown fields, so it grows only with a breaking change.
pub const SCHEMA_VERSION: &str = "1";

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
            headers: MessageHeaders::from([(SCHEMA_VERSION_HEADER.into(), SCHEMA_VERSION.into())]),
            content_type: None,
            body: body.into(),
        }
    }

    /// Reads the body.
    ///
    /// # Errors
    /// The parser's error when the body is not what `T` needs.
    pub fn parse<T: serde::de::DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.body)
    }
}
