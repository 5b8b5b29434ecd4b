use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// The members of a JSON object in their order, with repetitions, which a map would lose.
///
/// # Errors
/// The parser's error when the value is no object, or a name has an escape that is no character.
pub(super) fn members(value: &RawValue) -> Result<Vec<(String, &RawValue)>, serde_json::Error> {
    Deserializer::deserialize_map(&mut serde_json::Deserializer::from_str(value.get()), Members)
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::with_capacity(16);
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(members)
    }
}
