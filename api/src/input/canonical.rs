//! One form for all texts of the same content, so that a replay is known again although its spacing, escapes or order
//! of members differ. Numbers keep their digits: `1` and `1.0` are different contents.

use super::members::members;
use isocost_common::store::jobs::hex;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

/// Hash of the canonical form of a value; of an object, without the members named in `except`. SHA-256, hex.
#[must_use]
pub(crate) fn content_hash(body: &RawValue, except: &[&str]) -> String {
    let mut canonical = String::with_capacity(body.get().len());
    if body.get().starts_with('{') {
        write_object(body, except, &mut canonical);
    } else {
        write_value(body, &mut canonical);
    }
    hex(&Sha256::digest(canonical))
}

fn write_value(value: &RawValue, out: &mut String) {
    match value.get().as_bytes().first() {
        Some(b'{') => write_object(value, &[], out),
        Some(b'[') => write_array(value, out),
        Some(b'"') => write_string(value.get(), out),
        _ => out.push_str(value.get()),
    }
}

fn write_object(value: &RawValue, except: &[&str], out: &mut String) {
    let Ok(mut members) = members(value) else {
        out.push_str(value.get());
        return;
    };
    members.retain(|(name, _)| !except.contains(&name.as_str()));
    // Stable: repeated names keep their order, so different contents never look alike.
    members.sort_by(|(left, _), (right, _)| left.cmp(right));
    out.push('{');
    for (index, (name, member)) in members.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        push_quoted(name, out);
        out.push(':');
        write_value(member, out);
    }
    out.push('}');
}

fn write_array(value: &RawValue, out: &mut String) {
    let items: Vec<&RawValue> = serde_json::from_str(value.get()).unwrap_or_default();
    out.push('[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_value(item, out);
    }
    out.push(']');
}

/// An escape that is no character (half a surrogate pair) has no other spelling: it stays as it is.
fn write_string(text: &str, out: &mut String) {
    match serde_json::from_str::<String>(text) {
        Ok(decoded) => push_quoted(&decoded, out),
        Err(_) => out.push_str(text),
    }
}

fn push_quoted(text: &str, out: &mut String) {
    match serde_json::to_string(text) {
        Ok(quoted) => out.push_str(&quoted),
        Err(_) => out.push_str(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(text: &str) -> String {
        content_hash(&RawValue::from_string(text.to_owned()).expect("JSON"), &["key"])
    }

    #[test]
    fn spacing_order_escapes_and_the_key_make_no_difference() {
        assert_eq!(
            hash(r#"{"a": {"x":1,"y":[ "\u0041" ]}, "key":"1"}"#),
            hash(r#"{"key":"2","a":{"y":["A"],"x":1}}"#)
        );
    }

    #[test]
    fn digits_order_of_items_and_inner_keys_make_a_difference() {
        let base = hash(r#"{"a":[1,2],"b":{"key":1}}"#);
        for other in [
            r#"{"a":[1.0,2],"b":{"key":1}}"#,
            r#"{"a":[2,1],"b":{"key":1}}"#,
            r#"{"a":[1,2],"b":{"key":2}}"#,
            r#"{"a":[1,2],"b":{"key":1,"key":1}}"#,
        ] {
            assert_ne!(base, hash(other), "{other}");
        }
    }

    #[test]
    fn values_other_than_objects_have_one_form_too() {
        assert_eq!(
            hash(r#"[ "\u0041", {"b":1, "a":2} ]"#),
            hash(r#"["A",{"a":2,"b":1}]"#)
        );
        assert_ne!(hash("1"), hash("1.0"));
        assert_ne!(hash("null"), hash(r#""null""#));
    }

    #[test]
    fn names_that_are_no_text_still_tell_contents_apart() {
        assert_ne!(hash(r#"{"a":{"\ud800":1}}"#), hash(r#"{"a":{"\ud800":2}}"#));
    }
}
