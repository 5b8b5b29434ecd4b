use crate::{
    access::{Admission, HeldBytes},
    problem::{Kind, Problem},
    state::ApiState,
};
use axum::{
    body::Body,
    extract::{FromRequest, Request},
    http::{HeaderMap, header},
};
use futures_util::StreamExt;
use isocost_common::broker::Message;
use serde_json::value::RawValue;
use std::time::Duration;

/// A body that trickles in must not hold a connection for ever.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(30);
/// A batch may be so many times as large as a single request.
const BATCH_FACTOR: usize = 8;

/// Of a body that is too large, so many times the limit is read before it is cut off.
const DRAIN_FACTOR: usize = 8;

/// Which size limit applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// `api.max_body_bytes`.
    Single,
    /// Eight times as much.
    Batch,
}

/// A request body that is one JSON text, of checked type, size and syntax. Empty where the request had none.
#[derive(Debug)]
pub(crate) struct JsonBody {
    text: String,
    /// Given back when the request is done with.
    _held: HeldBytes,
}

impl JsonBody {
    /// Reads the body.
    ///
    /// # Errors
    /// [`Problem`]: 415, 413, 408 or 400.
    pub(crate) async fn read(
        headers: &HeaderMap,
        body: Body,
        limit: Limit,
        state: &ApiState,
    ) -> Result<Self, Problem> {
        let most = match limit {
            Limit::Single => state.config().api.max_body_bytes,
            Limit::Batch => state.config().api.max_body_bytes.saturating_mul(BATCH_FACTOR),
        };
        let (bytes, held) = tokio::time::timeout(ARRIVAL_LIMIT, collect(body, most, state.admission()))
            .await
            .map_err(|_| {
                Problem::new(
                    Kind::RequestTimeout,
                    "body.slow",
                    format!("the body did not arrive within {} s", ARRIVAL_LIMIT.as_secs()),
                )
            })??;
        if !bytes.is_empty() {
            check_type(headers)?;
        }
        Self::of_bytes(bytes, held)
    }

    /// The body of a message, which must be within `api.max_body_bytes` and not be said to be something else than JSON.
    ///
    /// # Errors
    /// [`Problem`]: 415, 413 or 400.
    pub(crate) fn of_message(message: &Message, state: &ApiState) -> Result<Self, Problem> {
        if message
            .content_type
            .as_deref()
            .is_some_and(|named| !names_json(named))
        {
            return Err(not_json());
        }
        let most = state.config().api.max_body_bytes;
        if message.body.len() > most {
            return Err(too_large(most));
        }
        Self::of_bytes(message.body.to_vec(), HeldBytes::default())
    }

    fn of_bytes(bytes: Vec<u8>, held: HeldBytes) -> Result<Self, Problem> {
        let text = String::from_utf8(bytes).map_err(|_| {
            Problem::new(
                Kind::InvalidRequest,
                "json.malformed",
                "the body must be JSON in UTF-8",
            )
        })?;
        if !text.is_empty() {
            check_json(&text)?;
        }
        Ok(Self { text, _held: held })
    }

    /// The JSON value; none for an empty body.
    #[must_use]
    pub(crate) fn value(&self) -> Option<&RawValue> {
        serde_json::from_str(&self.text).ok()
    }

    /// The JSON value, which this request cannot do without.
    ///
    /// # Errors
    /// [`Problem`] 400 for an empty body.
    pub(crate) fn required(&self) -> Result<&RawValue, Problem> {
        self.value().ok_or_else(|| {
            Problem::new(
                Kind::InvalidRequest,
                "json.missing",
                "this request needs a JSON body",
            )
        })
    }
}

/// Reads a body of [`Limit::Single`].
impl FromRequest<ApiState> for JsonBody {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        Self::read(&parts.headers, body, Limit::Single, state).await
    }
}

/// The whole body. One that is too large, or that there is no room for, is still read for a while: a client that is cut
/// off while it sends would see a broken connection in place of the answer.
async fn collect(body: Body, most: usize, admission: &Admission) -> Result<(Vec<u8>, HeldBytes), Problem> {
    let mut chunks = body.into_data_stream();
    let (mut bytes, mut held) = (Vec::new(), HeldBytes::default());
    let mut no_room = None;
    let mut read = 0_usize;
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| {
            let what = "the body ended before its announced length";
            Problem::new(Kind::InvalidRequest, "body.incomplete", what)
        })?;
        read = read.saturating_add(chunk.len());
        if read <= most && no_room.is_none() {
            match admission.hold(&mut held, chunk.len()) {
                Ok(()) => bytes.extend_from_slice(&chunk),
                Err(busy) => {
                    no_room = Some(busy);
                    (bytes, held) = (Vec::new(), HeldBytes::default());
                }
            }
        } else if read > most.saturating_mul(DRAIN_FACTOR) {
            break;
        }
    }
    match no_room {
        _ if read > most => Err(too_large(most)),
        Some(busy) => Err(busy),
        None => Ok((bytes, held)),
    }
}

fn too_large(most: usize) -> Problem {
    Problem::new(
        Kind::TooLarge,
        "body.too-large",
        format!(
            "the body may have at most {most} bytes (api.max_body_bytes; eight times as much for a batch)"
        ),
    )
}

fn check_type(headers: &HeaderMap) -> Result<(), Problem> {
    let named = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    if names_json(named) {
        return Ok(());
    }
    Err(not_json())
}

fn names_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default();
    let essence = essence.trim().to_ascii_lowercase();
    let subtype = essence.strip_prefix("application/");
    subtype.is_some_and(|subtype| subtype == "json" || subtype.ends_with("+json"))
}

fn not_json() -> Problem {
    Problem::new(
        Kind::UnsupportedMediaType,
        "body.not-json",
        "the Content-Type must be application/json (or application/merge-patch+json for a patch)",
    )
}

/// Syntax and depth. Depth is bounded by a scan, because what follows recurses.
fn check_json(text: &str) -> Result<(), Problem> {
    serde_json::from_str::<&RawValue>(text).map_err(|error| {
        Problem::new(
            Kind::InvalidRequest,
            "json.malformed",
            format!("the body is not valid JSON: {error}"),
        )
    })?;
    if depth(text) > super::MAX_DEPTH {
        return Err(Problem::new(
            Kind::InvalidRequest,
            "json.too-deep",
            format!("the body may be nested at most {} levels deep", super::MAX_DEPTH),
        ));
    }
    Ok(())
}

fn depth(valid_json: &str) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in valid_json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_inside_strings_do_not_count_as_depth() {
        assert_eq!(depth(r#"{"a":["[[{\"[",{"b":1}]}"#), 3);
        assert_eq!(depth(r#""\\""#), 0);
    }

    #[test]
    fn a_very_deep_body_is_refused_and_not_a_stack_overflow() {
        let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
        assert!(check_json(&deep).is_err());
    }
}
