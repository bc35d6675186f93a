//! `feroce pfc`: its subcommands and the outcome of each.

use std::io;

use clap::Subcommand;
use feroce_engine::port::packet::PacketError;

use super::{deadlock, decode, doctor, plan, send, watch, watchdog};
use crate::capture::CaptureError;
use crate::fabric::scenario::ScenarioError;

/// The subcommands of `feroce pfc`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the PFC and PAUSE frames of a capture, their errors, and how long they pause
    Decode(decode::Options),
    /// Show the PFC and PAUSE frames that arrive at an interface, and how long they pause
    Watch(watch::Options),
    /// Send PFC and PAUSE frames: one, a storm of limited length, a sweep, malformed frames
    Send(Box<send::Options>),
    /// Compute buffers and thresholds of lossless classes by every published formula
    Plan(Box<plan::Options>),
    /// Check a host's set-up for lossless RoCE, and show the commands that fix it
    Doctor(doctor::Options),
    /// Watch for PFC storms and stuck queues; report each and run a command
    Watchdog(watchdog::Options),
    /// Find PFC deadlocks that a network's routes allow, and the changes that prevent them
    Deadlock(deadlock::Options),
}

/// Result of a command that could do its work.
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

/// Why a command ends early.
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
    #[error("{}", of_interface(.0))]
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
fn of_interface(error: &PacketError) -> String {
    match error {
        PacketError::System { source, .. } => format!("{error}: {source}"),
        _ => error.to_string(),
    }
}

impl Failure {
    /// Returns true if the input is to blame: the command line, a file, an interface or the
    /// privileges.
    pub const fn is_unusable_input(&self) -> bool {
        match self {
            Self::Capture(_) | Self::Scenario(_) | Self::Unusable(_) | Self::Open(_) => true,
            Self::Interface { .. } | Self::Output(_) => false,
        }
    }
}

/// Runs a subcommand.
///
/// # Errors
/// If the input cannot be used, or the work cannot be done.
pub fn run(command: &Command) -> Result<Outcome, Failure> {
    match command {
        Command::Decode(options) => decode::run(options),
        Command::Watch(options) => watch::run(options),
        Command::Send(options) => send::run(options),
        Command::Plan(options) => plan::run(options),
        Command::Doctor(options) => doctor::run(options),
        Command::Watchdog(options) => watchdog::run(options),
        Command::Deadlock(options) => deadlock::run(options),
    }
}
