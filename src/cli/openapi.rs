//! `isocost openapi`: the document that `/openapi.json` serves.

use crate::{exit::Failure, out};
use anyhow::Context;

pub(super) fn run() -> Result<(), Failure> {
    let document = isocost_api::openapi()
        .to_pretty_json()
        .context("writing the OpenAPI document")?;
    out::line(document)
}
