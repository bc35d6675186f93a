//! `feroce conform rules`: lists the rules, and those without a test.

use std::io::{self, Write};

use super::{Place, RULES};
use crate::failure::{Failure, Outcome};

/// Options of `rules`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// List only the rules that no test covers
    #[arg(long)]
    uncovered: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "uncovered")]
    json: bool,
}

/// Prints the rules.
///
/// # Errors
/// If nothing can be written.
pub fn run(options: &Options) -> Result<Outcome, Failure> {
    let mut out = io::stdout().lock();
    if options.json {
        serde_json::to_writer_pretty(&mut out, RULES).map_err(io::Error::from)?;
        writeln!(out)?;
        return Ok(Outcome::Fine);
    }
    let shown = RULES.iter().filter(|rule| !options.uncovered || rule.proof.is_none());
    for rule in shown {
        let statement = rule.statement.map(|id| format!(" ({id})")).unwrap_or_default();
        writeln!(out, "{:24} {:8} {}{statement}", rule.name, rule.severity, rule.text)?;
        for (what, place) in [("engine", rule.engine), ("proof", rule.proof)] {
            if let Some(Place { file, word }) = place {
                writeln!(out, "{:24} {what:8} {file}: {word}", "")?;
            }
        }
    }
    let uncovered = RULES.iter().filter(|rule| rule.proof.is_none()).count();
    writeln!(out, "{} rules, {uncovered} without a test", RULES.len())?;
    Ok(Outcome::Fine)
}
