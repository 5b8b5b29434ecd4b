//! `isocost openapi`: the document that `/openapi.json` serves.

use crate::{exit::Failure, out};
use anyhow::Context;

pub(super) fn run() -> Result<(), Failure> {
    let document =
        serde_json::to_string_pretty(&isocost_api::openapi()).context("writing the OpenAPI document")?;
    out::line(document)
}
