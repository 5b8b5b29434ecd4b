//! Standard output. `println!` panics when the reader is gone, as in `isocost openapi | head`.

use crate::exit::Failure;
use anyhow::Context;
use std::io::{self, ErrorKind, Write};
use std::{fmt, process};

/// Prints a line. When nobody reads any more the process ends, in silence and well: the reader has what it wanted.
///
/// # Errors
/// [`Failure`] when the output cannot be written, such as to a full disk.
pub(crate) fn line(text: impl fmt::Display) -> Result<(), Failure> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => process::exit(0),
        outcome => Ok(outcome.context("writing to standard output")?),
    }
}
