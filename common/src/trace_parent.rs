//! W3C Trace Context: the header that says which trace a request belongs to. It is carried from a submission to
//! everything that follows from it, and never invented here.

use std::{fmt, str::FromStr};

/// A valid `traceparent`, as text: `00-<trace id>-<parent id>-<flags>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TraceParent(String);

/// The text is no `traceparent`. Whoever receives such a one must act as if there were none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a W3C traceparent")]
pub struct InvalidTraceParent;

/// Name of the HTTP header and of the AMQP header.
pub const TRACEPARENT: &str = "traceparent";

/// Length of the part that every version has.
const LENGTH: usize = 55;

impl TraceParent {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for TraceParent {
    type Err = InvalidTraceParent;

    /// A later version may be longer; what follows is not understood and left off.
    fn from_str(text: &str) -> Result<Self, InvalidTraceParent> {
        let (known, rest) = text.split_at_checked(LENGTH).ok_or(InvalidTraceParent)?;
        let parts: Vec<&str> = known.split('-').collect();
        let [version, trace_id, parent_id, flags] = parts.as_slice() else {
            return Err(InvalidTraceParent);
        };
        let is_hex = |part: &str, length: usize| {
            part.len() == length
                && part
                    .bytes()
                    .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        };
        let is_id = |part: &str, length| is_hex(part, length) && part.bytes().any(|byte| byte != b'0');
        let ends_well = rest.is_empty() || (*version != "00" && rest.starts_with('-'));
        let valid = is_hex(version, 2)
            && *version != "ff"
            && is_id(trace_id, 32)
            && is_id(parent_id, 16)
            && is_hex(flags, 2)
            && ends_well;
        valid.then(|| Self(known.to_owned())).ok_or(InvalidTraceParent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_standard_allows_is_kept_and_the_rest_is_none() {
        const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let parse = |text: &str| text.parse::<TraceParent>().map(|parent| parent.to_string());
        assert_eq!(parse(GOOD).as_deref(), Ok(GOOD));
        let later = format!("cc{}-what-the-future", &GOOD[2..]);
        assert_eq!(parse(&later), Ok(format!("cc{}", &GOOD[2..])));
        for bad in [
            String::new(),
            GOOD[..54].to_owned(),
            format!("{GOOD}-more"),
            format!("{GOOD}."),
            GOOD.to_uppercase(),
            format!("ff{}", &GOOD[2..]),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01".into(),
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01".into(),
            "00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01".into(),
            "é".repeat(30),
        ] {
            assert_eq!(parse(&bad), Err(InvalidTraceParent), "{bad}");
        }
    }
}
