//! Standard output without panics: a closed pipe is an ordinary error.

use std::io::Write;

use crate::failure::Failure;

/// Prints a line and flushes.
pub fn line(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(Failure::Output)
}

/// Prints a value as JSON.
pub fn json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text =
        serde_json::to_string_pretty(value).map_err(|error| Failure::Output(error.into()))?;
    line(&text)
}

/// Prints bytes unchanged.
pub fn bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(Failure::Output)
}
