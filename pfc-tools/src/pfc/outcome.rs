//! The result of a command: findings or not, or why it failed.

use std::io;

use feroce_engine::port::packet::PacketError;

use crate::capture::CaptureError;
use crate::fabric::scenario::ScenarioError;

/// Result of a command that completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// No findings.
    Fine,
    /// At least one finding.
    Findings,
}

impl Outcome {
    /// `Findings` if `findings` is true.
    pub const fn of(findings: bool) -> Self {
        if findings { Self::Findings } else { Self::Fine }
    }
}

/// Why a command ended early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A capture cannot be read, or not to its end.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// A scenario cannot be used.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// Other input cannot be used.
    #[error("{0}")]
    Unusable(String),
    /// An interface cannot be opened.
    #[error("{}", with_source(.0))]
    Open(#[from] PacketError),
    /// An interface refused an operation, or is gone.
    #[error("{name}: {source}")]
    Interface {
        /// Name of the interface.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The output cannot be written.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

/// The error, with the kernel's error where only the source has it.
fn with_source(error: &PacketError) -> String {
    match error {
        PacketError::System { source, .. } => format!("{error}: {source}"),
        _ => error.to_string(),
    }
}

impl Failure {
    /// Returns true if the cause is the input: the command line, a file, an interface or the
    /// privileges.
    pub const fn is_unusable_input(&self) -> bool {
        match self {
            Self::Capture(_) | Self::Scenario(_) | Self::Unusable(_) | Self::Open(_) => true,
            Self::Interface { .. } | Self::Output(_) => false,
        }
    }
}
