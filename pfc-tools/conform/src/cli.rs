//! `feroce conform`: its subcommands.

use clap::Subcommand;

pub use super::failure::{Failure, Outcome};
use super::{check, inject, replay, rules};

/// The subcommands of `feroce conform`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check every packet of captures against the rules, and explain what went wrong
    Check(Box<check::Options>),
    /// List the rules, where the engine implements them and which test covers them
    Rules(rules::Options),
    /// Play scripts of faults at chosen packets between two endpoints, and check their behaviour
    Inject(inject::cli::Options),
    /// Compare the `inject` results of several endpoints in one table
    Scorecard(inject::cli::ScorecardOptions),
    /// Play one end of each captured connection with the engine, and compare its packets with the
    /// captured ones
    Replay(Box<replay::options::Options>),
    /// Rewrite a capture with other addresses, QP numbers, PSNs or keys, and matching ICRCs
    Rewrite(Box<replay::rewrite::Options>),
}

/// Runs `command`; its results go to standard output or to the files that it names.
///
/// # Errors
/// See [`Failure`].
pub fn run(command: &Command) -> Result<Outcome, Failure> {
    match command {
        Command::Check(options) => check::run(options),
        Command::Rules(options) => rules::run(options),
        Command::Inject(options) => inject::cli::run(options),
        Command::Scorecard(options) => inject::cli::scorecard(options),
        Command::Replay(options) => replay::options::run(options),
        Command::Rewrite(options) => replay::rewrite::run(options),
    }
}
