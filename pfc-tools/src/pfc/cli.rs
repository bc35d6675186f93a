//! `feroce-pfc`: the command line.
//!
//! Exit codes: 0 everything is fine; 1 there are findings, or what was asked for failed; 2 what was given cannot be used (the
//! command line, a file, an interface, the privileges), and one line says why.

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use feroce_engine::port::packet::PacketError;

use super::{deadlock, decode, doctor, plan, send, watch, watchdog};
use crate::capture::CaptureError;
use crate::fabric::scenario::ScenarioError;

/// See, make, plan and watch priority flow control.
#[derive(Debug, Parser)]
#[command(
    name = "feroce-pfc",
    bin_name = "feroce pfc",
    version,
    disable_help_subcommand = true,
    after_help = "Exit codes: 0 all is fine; 1 there are findings, or it failed; 2 what was given cannot be used."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the PFC and PAUSE frames of a capture, what is wrong with them, and for how long they pause
    Decode(decode::Options),
    /// Show the PFC and PAUSE frames that arrive at an interface, and for how long they pause
    Watch(watch::Options),
    /// Send PFC and PAUSE frames: one, a storm that ends, a sweep, wrong ones
    Send(Box<send::Options>),
    /// Buffers and thresholds for lossless classes, by every published formula
    Plan(Box<plan::Options>),
    /// Tell what lossless RoCE lacks on this host, and the commands that help
    Doctor(doctor::Options),
    /// Wait for storms and stuck queues, say so, and run a command
    Watchdog(watchdog::Options),
    /// Tell whether PFC can bring a network to a stand for ever, why, and what to change
    Deadlock(deadlock::Options),
}

/// What came out of a command that could do its work: its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to object to.
    Fine,
    /// Something is wrong with what was looked at.
    Findings,
}

impl Outcome {
    /// Findings if there are any.
    pub const fn of(findings: bool) -> Self {
        if findings { Self::Findings } else { Self::Fine }
    }
}

/// Why a command ends early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A capture that cannot be read, or not to its end.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// A scenario that cannot be used.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// Something else that was given cannot be used.
    #[error("{0}")]
    Unusable(String),
    /// An interface that cannot be opened.
    #[error("{}", of_interface(.0))]
    Open(#[from] PacketError),
    /// An interface that refuses what it is asked for, or is gone.
    #[error("{name}: {source}")]
    Interface {
        /// Which.
        name: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// What came out cannot be written.
    #[error("cannot write: {0}")]
    Output(#[from] io::Error),
}

/// With the kernel's answer, where the error leaves it to its source.
fn of_interface(error: &PacketError) -> String {
    match error {
        PacketError::System { source, .. } => format!("{error}: {source}"),
        _ => error.to_string(),
    }
}

impl Failure {
    /// 2 if what was given is to blame, else 1.
    const fn exit_code(&self) -> u8 {
        match self {
            Self::Capture(_) | Self::Scenario(_) | Self::Unusable(_) | Self::Open(_) => 2,
            Self::Interface { .. } | Self::Output(_) => 1,
        }
    }
}

/// Does what the command line says.
pub fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Decode(options) => decode::run(&options),
        Command::Watch(options) => watch::run(&options),
        Command::Send(options) => send::run(&options),
        Command::Plan(options) => plan::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Watchdog(options) => watchdog::run(&options),
        Command::Deadlock(options) => deadlock::run(&options),
    };
    match done {
        Ok(Outcome::Fine) => ExitCode::SUCCESS,
        Ok(Outcome::Findings) => ExitCode::from(1),
        // Whoever read our output has seen enough.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("feroce-pfc: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}
