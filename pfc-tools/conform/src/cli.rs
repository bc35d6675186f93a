//! `feroce conform`: its subcommands and the outcome of each.

use std::io;

use clap::Subcommand;
pub use feroce_pfc_tools::pfc::cli::Outcome;

use super::trace::TraceError;
use super::{check, inject, replay, rules};

/// The subcommands of `feroce conform`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Hold every packet of captures against the rules, and say what went wrong
    Check(Box<check::Options>),
    /// Show the rules, where the engine keeps them and what proves that they are found broken
    Rules(rules::Options),
    /// Play scripts of faults at chosen packets between two endpoints, and check what they make of it
    Inject(inject::cli::Options),
    /// Put what `inject` found of several endpoints side by side
    Scorecard(inject::cli::ScorecardOptions),
    /// Play one end of each connection of a capture with the engine, and compare what it says with what was captured
    Replay(Box<replay::options::Options>),
    /// Write a capture anew with other addresses, QP numbers, PSNs or keys, and right ICRCs
    Rewrite(Box<replay::rewrite::Options>),
}

/// Why a command ends early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A capture that cannot be read, or not to its end.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Something else that was given cannot be used.
    #[error("{0}")]
    Unusable(String),
    /// What came out cannot be written.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
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
