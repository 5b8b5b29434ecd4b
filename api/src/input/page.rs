use super::QueryText;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use serde::Serialize;
use std::{fmt::Display, str::FromStr};
use utoipa::ToSchema;

const DEFAULT_SIZE: i64 = 50;
const MAX_SIZE: i64 = 500;

/// Which page of a list is asked for. `T` is the id that the list goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageRequest<T> {
    /// Items wanted, 1 to 500.
    pub size: i64,
    /// The last item of the page before.
    pub before: Option<T>,
}

impl<T: FromStr + Display> PageRequest<T> {
    /// Takes `pageSize` and `pageToken`. `list` names the list, so that the token of another one is refused.
    pub(crate) fn take(query: &mut QueryText, list: &str) -> Self {
        let size = query.integer("pageSize", 1..=MAX_SIZE).unwrap_or(DEFAULT_SIZE);
        let before = query.parsed(
            "pageToken",
            "the nextPageToken of this list, unchanged",
            |token| {
                let text = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
                text.strip_prefix(list)?.strip_prefix(':')?.parse().ok()
            },
        );
        Self { size, before }
    }

    /// How many rows to read: one more than shown tells whether there is another page.
    #[must_use]
    pub(crate) const fn limit(&self) -> i64 {
        self.size + 1
    }

    /// Cuts the surplus row off; the token of the next page, if there is one.
    pub(crate) fn next_token<R>(
        &self,
        list: &str,
        rows: &mut Vec<R>,
        id: impl Fn(&R) -> T,
    ) -> Option<String> {
        let size = usize::try_from(self.size).unwrap_or(usize::MAX);
        if rows.len() <= size {
            return None;
        }
        rows.truncate(size);
        rows.last().map(|last| token(list, &id(last)))
    }
}

/// The token of the page after the item with this id.
fn token(list: &str, id: &impl Display) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(format!("{list}:{id}"))
}

/// The id in a token of this list.
pub(crate) fn read_token<T: FromStr>(list: &str, token: &str) -> Option<T> {
    let text = String::from_utf8(BASE64_URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
    text.strip_prefix(list)?.strip_prefix(':')?.parse().ok()
}

/// A page of a list.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Paged<T> {
    /// The items, newest first.
    pub items: Vec<T>,
    /// Give it as `pageToken` for the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_page_token: Option<String>,
}
