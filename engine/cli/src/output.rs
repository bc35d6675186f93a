//! Printing without panics: a closed pipe is an error like another.

use std::io::Write;

use crate::failure::Failure;

/// Prints a line to stdout, at once.
pub fn line(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(Failure::Output)
}

/// Prints a value as JSON to stdout.
pub fn json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text =
        serde_json::to_string_pretty(value).map_err(|error| Failure::Output(error.into()))?;
    line(&text)
}

/// Prints bytes to stdout, as they are.
pub fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(Failure::Output)
}
