use super::{Findings, Value, members::members, nearest};
use crate::problem::FieldError;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// A JSON object whose members are taken one by one; what nobody took is unknown, and refused by name.
#[derive(Debug)]
pub(crate) struct Object<'a> {
    pointer: String,
    members: Vec<(String, Option<&'a RawValue>)>,
    known: Vec<&'static str>,
}

impl<'a> Object<'a> {
    /// Opens a value that must be an object without repeated names.
    pub(crate) fn open(value: &Value<'a>, findings: &mut Findings) -> Option<Self> {
        if !value.raw().get().starts_with('{') {
            findings.push(value.error("json.not-an-object", "must be a JSON object"));
            return None;
        }
        let members = match members(value.raw()) {
            Ok(members) => members.into_iter().map(|(name, raw)| (name, Some(raw))).collect(),
            Err(error) => {
                findings.push(value.error(
                    "json.malformed",
                    &format!("has a name that is not valid: {error}"),
                ));
                return None;
            }
        };
        let object = Self {
            pointer: value.pointer().to_owned(),
            members,
            known: Vec::new(),
        };
        object.refuse_repeated(findings);
        Some(object)
    }

    /// The body as an object.
    pub(crate) fn of_body(raw: &'a RawValue, findings: &mut Findings) -> Option<Self> {
        Self::open(&Value::root(raw), findings)
    }

    /// Takes a member out.
    pub(crate) fn take(&mut self, name: &'static str) -> Option<Value<'a>> {
        self.known.push(name);
        let pointer = self.pointer_to(name);
        let (_, raw) = self.members.iter_mut().find(|(member, _)| member == name)?;
        raw.take().map(|raw| Value::new(raw, pointer, name))
    }

    /// Takes a member out that must be there.
    pub(crate) fn require(&mut self, name: &'static str, findings: &mut Findings) -> Option<Value<'a>> {
        let value = self.take(name);
        if value.is_none() {
            let what = format!("{name} is required");
            findings.push(self.error_at(name, "field.required", what));
        }
        value
    }

    /// An error at a member, whether it is there or not.
    pub(crate) fn error_at(&self, name: &str, code: &'static str, message: String) -> FieldError {
        FieldError {
            pointer: Some(self.pointer_to(name)),
            field: name.to_owned(),
            code: Cow::Borrowed(code),
            message,
        }
    }

    /// Refuses what nobody took, with the nearest name that somebody would have taken.
    pub(crate) fn close(self, findings: &mut Findings) {
        for (name, raw) in &self.members {
            if raw.is_some() && !self.known.contains(&name.as_str()) {
                let shown: String = name.chars().take(64).collect();
                let hint = match nearest(name, self.known.iter().copied()) {
                    Some(meant) => format!("did you mean `{meant}`?"),
                    None => format!("known are {}", self.known.join(", ")),
                };
                findings.push(self.error_at(
                    &shown,
                    "field.unknown",
                    format!("`{shown}` is not a known field: {hint}"),
                ));
            }
        }
    }

    /// Takes every member, for objects whose names are the user's.
    pub(crate) fn into_members(self) -> impl Iterator<Item = (String, Value<'a>)> {
        let pointer = self.pointer;
        self.members.into_iter().filter_map(move |(name, raw)| {
            let value = Value::new(raw?, format!("{pointer}/{}", escape(&name)), "value");
            Some((name, value))
        })
    }

    fn pointer_to(&self, name: &str) -> String {
        format!("{}/{}", self.pointer, escape(name))
    }

    fn refuse_repeated(&self, findings: &mut Findings) {
        let mut names: Vec<&str> = self.members.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        let mut reported = None;
        for pair in names.windows(2) {
            if pair[0] == pair[1] && reported != Some(pair[0]) {
                reported = Some(pair[0]);
                let shown: String = pair[0].chars().take(64).collect();
                let what = format!("`{shown}` is given more than once; give it once");
                findings.push(self.error_at(&shown, "field.repeated", what));
            }
        }
    }
}

/// A JSON pointer's own characters.
fn escape(name: &str) -> Cow<'_, str> {
    if name.contains(['~', '/']) {
        Cow::Owned(name.replace('~', "~0").replace('/', "~1"))
    } else {
        Cow::Borrowed(name)
    }
}
