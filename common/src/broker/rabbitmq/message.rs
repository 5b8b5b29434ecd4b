//! A message in AMQP's properties and back.
//!
//! AMQP has whole seconds only, so the milliseconds of a timestamp travel in a header. Two headers of ours never reach a
//! reader: that one, and the number by which a returned publication is found again.

use crate::{
    broker::{Message, MessageHeaders, Publication},
    time::EpochMillis,
};
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable, LongString, ShortString},
};

const CONTENT_TYPE: &str = "application/json";
const PERSISTENT: u8 = 2;
/// The name that RabbitMQ's own plugin for message timestamps uses.
const TIMESTAMP_HEADER: &str = "timestamp_in_ms";
/// Set on mandatory publications only: see [`super::returns`].
const STAMP_HEADER: &str = "isocost-publication";
/// AMQP's limit for everything but bodies and header values.
const MAX_SHORT_TEXT: usize = 255;

/// The first text of a publication that AMQP cannot carry, if any: a property longer than 255 bytes. Sent
/// nevertheless, it would end the connection.
pub(super) fn too_long(publication: &Publication) -> Option<&'static str> {
    let message = &publication.message;
    let optional = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let lengths = [
        ("exchange", publication.exchange.len()),
        ("routing key", publication.routing_key.len()),
        ("message id", message.message_id.len()),
        ("kind", message.kind.len()),
        ("reply_to", optional(&message.reply_to)),
        ("correlation id", optional(&message.correlation_id)),
        ("content type", optional(&message.content_type)),
        (
            "header name",
            message.headers.keys().map(String::len).max().unwrap_or(0),
        ),
    ];
    let long = lengths.into_iter().find(|(_, length)| *length > MAX_SHORT_TEXT);
    long.map(|(name, _)| name)
}

/// The properties of a message. `stamp` names its publication; `user` is who we are to the broker, which refuses a
/// message that claims to come from somebody else.
pub(super) fn properties(message: &Message, stamp: Option<u64>, user: &str) -> BasicProperties {
    let mut headers = FieldTable::default();
    for (name, value) in &message.headers {
        headers.insert(
            name.as_str().into(),
            AMQPValue::LongString(LongString::from(value.as_str())),
        );
    }
    let EpochMillis(millis) = message.timestamp;
    if millis % 1_000 != 0 {
        headers.insert(TIMESTAMP_HEADER.into(), AMQPValue::LongLongInt(millis));
    }
    if let Some(stamp) = stamp {
        headers.insert(STAMP_HEADER.into(), AMQPValue::LongLongInt(stamp.cast_signed()));
    }
    let mut properties = BasicProperties::default()
        .with_content_type(short(message.content_type.as_deref().unwrap_or(CONTENT_TYPE)))
        .with_delivery_mode(PERSISTENT)
        .with_message_id(short(&message.message_id))
        .with_type(short(&message.kind))
        .with_timestamp(u64::try_from(millis.div_euclid(1_000)).unwrap_or(0))
        .with_priority(message.priority)
        .with_headers(headers);
    if let Some(expiration) = message.expiration_ms {
        properties = properties.with_expiration(expiration.to_string().into());
    }
    if let Some(queue) = &message.reply_to {
        properties = properties.with_reply_to(short(queue));
    }
    if let Some(id) = &message.correlation_id {
        properties = properties.with_correlation_id(short(id));
    }
    if let Some(user_id) = message.user_id.as_ref().filter(|user_id| *user_id == user) {
        properties = properties.with_user_id(short(user_id));
    }
    properties
}

fn short(text: &str) -> ShortString {
    text.into()
}

/// Which publication came back.
pub(super) fn stamp(properties: &BasicProperties) -> Option<u64> {
    match properties.headers().as_ref()?.inner().get(STAMP_HEADER)? {
        AMQPValue::LongLongInt(stamp) => Some(stamp.cast_unsigned()),
        _ => None,
    }
}

/// Reads what anybody may have published: what is missing is empty, what is no text is shown as text or left out, and
/// the body is taken as it is. A message without a timestamp gets the present instant.
pub(super) fn read(properties: &BasicProperties, body: Vec<u8>) -> Message {
    let seconds = properties
        .timestamp()
        .and_then(|seconds| i64::try_from(seconds).ok());
    let mut timestamp = seconds.and_then(|seconds| seconds.checked_mul(1_000));
    let mut headers = MessageHeaders::new();
    for (name, value) in properties.headers().iter().flat_map(|headers| headers.inner()) {
        match (name.as_str(), value) {
            (STAMP_HEADER, _) => {}
            // Somebody else's may say anything: it must agree with the property.
            (TIMESTAMP_HEADER, AMQPValue::LongLongInt(millis))
                if Some(millis.div_euclid(1_000)) == seconds =>
            {
                timestamp = Some(*millis);
            }
            (name, value) => {
                if let Some(text) = header_text(value) {
                    headers.insert(name.to_owned(), text);
                }
            }
        }
    }
    let text = |property: &Option<ShortString>| property.as_ref().map(|text| text.as_str().to_owned());
    Message {
        message_id: text(properties.message_id()).unwrap_or_default(),
        kind: text(properties.kind()).unwrap_or_default(),
        timestamp: timestamp.map_or_else(EpochMillis::system_now, EpochMillis),
        priority: properties.priority().unwrap_or(0),
        expiration_ms: text(properties.expiration()).and_then(|text| text.parse().ok()),
        reply_to: text(properties.reply_to()),
        correlation_id: text(properties.correlation_id()),
        user_id: text(properties.user_id()),
        content_type: text(properties.content_type())
            .filter(|named| !named.is_empty() && named != CONTENT_TYPE),
        headers,
        body: body.into(),
    }
}

/// A header as text; none for tables, arrays and bytes that are no text.
fn header_text(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).ok().map(str::to_owned),
        AMQPValue::ShortString(text) => Some(text.as_str().to_owned()),
        AMQPValue::Boolean(value) => Some(value.to_string()),
        AMQPValue::ShortShortInt(value) => Some(value.to_string()),
        AMQPValue::ShortShortUInt(value) => Some(value.to_string()),
        AMQPValue::ShortInt(value) => Some(value.to_string()),
        AMQPValue::ShortUInt(value) => Some(value.to_string()),
        AMQPValue::LongInt(value) => Some(value.to_string()),
        AMQPValue::LongUInt(value) => Some(value.to_string()),
        AMQPValue::LongLongInt(value) => Some(value.to_string()),
        AMQPValue::Float(value) => Some(value.to_string()),
        AMQPValue::Double(value) => Some(value.to_string()),
        AMQPValue::Timestamp(value) => Some(value.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message {
            message_id: "m-1".into(),
            timestamp: EpochMillis(1_790_000_000_123),
            ..Message::json("kind", &"text")
        }
    }

    #[test]
    fn a_message_comes_back_equal_to_the_millisecond_and_without_our_headers() {
        let sent = Message {
            priority: 3,
            expiration_ms: Some(5),
            reply_to: Some("answers".into()),
            correlation_id: Some("c".into()),
            user_id: Some("isocost".into()),
            ..message()
        };
        let properties = properties(&sent, Some(u64::MAX), "isocost");
        assert_eq!(stamp(&properties), Some(u64::MAX));
        assert_eq!(read(&properties, sent.body.to_vec()), sent);
    }

    #[test]
    fn another_user_is_not_claimed() {
        let sent = Message {
            user_id: Some("producer".into()),
            ..message()
        };
        assert!(properties(&sent, None, "isocost").user_id().is_none());
    }

    #[test]
    fn a_foreign_message_is_read_as_far_as_it_goes() {
        let mut headers = FieldTable::default();
        headers.insert("number".into(), AMQPValue::LongInt(-7));
        headers.insert("flag".into(), AMQPValue::Boolean(true));
        headers.insert(
            "bytes".into(),
            AMQPValue::LongString(LongString::from(vec![0xff, 0x00])),
        );
        headers.insert("table".into(), AMQPValue::FieldTable(FieldTable::default()));
        headers.insert("nothing".into(), AMQPValue::Void);
        headers.insert(TIMESTAMP_HEADER.into(), AMQPValue::LongLongInt(5));
        let properties = BasicProperties::default()
            .with_headers(headers)
            .with_timestamp(u64::MAX)
            .with_expiration("soon".into());
        let read = read(&properties, vec![0xff, 0xfe]);
        let expected = [("number", "-7"), ("flag", "true"), (TIMESTAMP_HEADER, "5")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(read.headers, MessageHeaders::from(expected));
        assert!(read.message_id.is_empty() && read.kind.is_empty() && read.expiration_ms.is_none());
        assert_eq!(&read.body[..], [0xff, 0xfe]);
        assert!(read.parse::<String>().is_err());
    }

    #[test]
    fn a_property_beyond_255_bytes_is_named() {
        let mut publication = Publication {
            exchange: String::new(),
            routing_key: "k".repeat(255),
            mandatory: true,
            message: message(),
        };
        assert_eq!(too_long(&publication), None);
        publication.message.correlation_id = Some("c".repeat(256));
        assert_eq!(too_long(&publication), Some("correlation id"));
    }
}
