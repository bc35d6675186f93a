//! `feroce fabric`, `pfc` and `conform`: their outcomes and errors as exit codes.

use std::io::{self, ErrorKind};

use feroce_pfc_tools::pfc::cli::Outcome;

use crate::exit::Exit;
use crate::failure::Failure;

/// Runs a subcommand of `feroce fabric`.
#[cfg(feature = "fabric")]
pub fn fabric(command: &feroce_pfc_tools::cli::Command) -> Result<Exit, Failure> {
    use feroce_pfc_tools::cli::{self, Failure as FabricFailure};
    cli::run(command).map(exit_of).or_else(|failure| {
        let output = match &failure {
            FabricFailure::Output(error) => Some(error),
            _ => None,
        };
        failed(output, &failure, Exit::Failed)
    })
}

/// Runs a subcommand of `feroce pfc`.
#[cfg(feature = "pfc")]
pub fn pfc(command: &feroce_pfc_tools::pfc::cli::Command) -> Result<Exit, Failure> {
    use feroce_pfc_tools::pfc::cli::{self, Failure as PfcFailure};
    cli::run(command).map(exit_of).or_else(|failure| {
        let output = match &failure {
            PfcFailure::Output(error) => Some(error),
            _ => None,
        };
        let exit = if failure.is_unusable_input() { Exit::Unusable } else { Exit::Failed };
        failed(output, &failure, exit)
    })
}

/// Runs a subcommand of `feroce conform`.
#[cfg(feature = "conform")]
pub fn conform(command: &feroce_conform::cli::Command) -> Result<Exit, Failure> {
    use feroce_conform::cli::{self, Failure as ConformFailure};
    cli::run(command).map(exit_of).or_else(|failure| {
        let output = match &failure {
            ConformFailure::Output(error) => Some(error),
            _ => None,
        };
        let exit = if failure.is_unusable_input() { Exit::Unusable } else { Exit::Failed };
        failed(output, &failure, exit)
    })
}

fn exit_of(outcome: Outcome) -> Exit {
    match outcome {
        Outcome::Fine => Exit::Ok,
        Outcome::Findings => Exit::Findings,
    }
}

/// The error of a tool. A reader that closed the pipe of the output is not an error.
fn failed(
    output: Option<&io::Error>,
    failure: &dyn std::error::Error,
    exit: Exit,
) -> Result<Exit, Failure> {
    if output.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe) {
        return Ok(Exit::Ok);
    }
    Err(Failure::Tool { message: failure.to_string(), exit })
}
