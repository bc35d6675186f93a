//! The outcome of a subcommand of `feroce conform`: how it ended, or why it failed.

use std::io;

pub use feroce_pfc_tools::pfc::cli::Outcome;

use super::trace::TraceError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A capture cannot be read, or not to its end.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Other input is unusable.
    #[error("{0}")]
    Unusable(String),
    /// The output cannot be written.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

impl Failure {
    /// Returns true if the cause is the input: the command line or a capture.
    pub const fn is_unusable_input(&self) -> bool {
        matches!(self, Self::Trace(_) | Self::Unusable(_))
    }
}
