//! JSON merge patch (RFC 7396) on texts, so that what the patch leaves alone keeps every byte.

use super::members::members;
use serde_json::value::RawValue;

/// The target with the patch applied. Members named in `replaced_whole` are not merged into but replaced.
///
/// # Errors
/// The parser's error when a name in either has an escape that is no character.
pub(crate) fn merge_patch(
    target: &RawValue,
    patch: &RawValue,
    replaced_whole: &[&str],
) -> Result<Box<RawValue>, serde_json::Error> {
    if !is_object(patch) {
        return Ok(patch.to_owned());
    }
    let mut merged: Vec<(String, Box<RawValue>)> = if is_object(target) {
        members(target)?
            .into_iter()
            .map(|(name, value)| (name, value.to_owned()))
            .collect()
    } else {
        Vec::new()
    };
    for (name, change) in members(patch)? {
        let place = merged.iter().position(|(member, _)| *member == name);
        if change.get() == "null" {
            if let Some(place) = place {
                merged.remove(place);
            }
            continue;
        }
        let old = place.map_or(RawValue::NULL, |place| &merged[place].1);
        let new = if replaced_whole.contains(&name.as_str()) {
            change.to_owned()
        } else {
            merge_patch(old, change, &[])?
        };
        match place {
            Some(place) => merged[place].1 = new,
            None => merged.push((name, new)),
        }
    }
    let texts: Result<Vec<String>, _> = merged
        .iter()
        .map(|(name, value)| Ok(format!("{}:{}", serde_json::to_string(name)?, value.get())))
        .collect();
    RawValue::from_string(format!("{{{}}}", texts?.join(",")))
}

fn is_object(value: &RawValue) -> bool {
    value.get().starts_with('{')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patched(target: &str, patch: &str) -> String {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).expect("JSON");
        let merged = merge_patch(&raw(target), &raw(patch), &["trigger"]).expect("merges");
        merged.get().to_owned()
    }

    #[test]
    fn what_the_patch_leaves_alone_keeps_every_digit() {
        let target = r#"{"params":{"big":123456789012345678901234567890,"a":1.50},"x":1}"#;
        assert_eq!(
            patched(target, r#"{"params":{"a":2}}"#),
            r#"{"params":{"big":123456789012345678901234567890,"a":2},"x":1}"#
        );
    }

    #[test]
    fn null_removes_and_the_trigger_is_replaced_whole() {
        let target = r#"{"trigger":{"type":"cron","expr":"x"},"labels":{"a":"1","b":"2"}}"#;
        assert_eq!(
            patched(
                target,
                r#"{"trigger":{"type":"manual"},"labels":{"a":null},"gone":null}"#
            ),
            r#"{"trigger":{"type":"manual"},"labels":{"b":"2"}}"#
        );
    }
}
