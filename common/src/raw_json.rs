//! JSON that travels byte for byte: params and results keep every digit the user sent.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use std::{fmt, sync::Arc};

/// One JSON value, kept as the text it arrived as. Cheap to clone.
#[derive(Clone)]
pub struct RawJson(Arc<RawValue>);

impl RawJson {
    /// The JSON value `null`.
    #[must_use]
    pub fn null() -> Self {
        Self(Arc::from(RawValue::NULL.to_owned()))
    }

    /// Checks that the text is one JSON value and keeps it.
    ///
    /// # Errors
    /// The parser's error when the text is not JSON.
    pub fn parse(text: String) -> Result<Self, serde_json::Error> {
        RawValue::from_string(text).map(|raw| Self(Arc::from(raw)))
    }

    /// Serialises a value.
    ///
    /// # Errors
    /// The serialiser's error, for instance for a map with keys that are no strings.
    pub fn from_value(value: &impl Serialize) -> Result<Self, serde_json::Error> {
        serde_json::value::to_raw_value(value).map(|raw| Self(Arc::from(raw)))
    }

    /// The text, exactly as it arrived.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.get()
    }
}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for RawJson {}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(|raw| Self(Arc::from(raw)))
    }
}
