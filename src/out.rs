//! What people see. `println!` panics when the reader is gone, as in `isocost openapi | head`.

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

/// Text of others, with whatever would steer the terminal, or show characters in another order than they have, as escapes:
/// a name must not look like another one. Line ends and tabs stay.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if steers(character) {
            shown.extend(character.escape_unicode());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Control characters, the marks, embeddings and isolates of bidirectional text, and the separators of lines that are no
/// line end to a terminal.
fn steers(character: char) -> bool {
    match character {
        '\n' | '\t' => false,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        other => other.is_control(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_cannot_steer_the_terminal() {
        assert_eq!(
            visible("日报😀\n\t\u{1b}[2J\u{9b}"),
            "日报😀\n\t\\u{1b}[2J\\u{9b}"
        );
    }

    #[test]
    fn text_of_others_cannot_turn_the_order_of_characters_round() {
        assert_eq!(visible("a\u{202e}gpj.exe"), "a\\u{202e}gpj.exe");
        assert_eq!(
            visible("\u{2066}x\u{2069}\u{200f}"),
            "\\u{2066}x\\u{2069}\\u{200f}"
        );
        let ordinary = "שלום مرحبا naïve 👩‍👩‍👧";
        assert_eq!(visible(ordinary), ordinary);
    }
}
