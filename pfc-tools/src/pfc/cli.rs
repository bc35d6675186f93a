//! `feroce-pfc`: the command line.
//!
//! Exit codes: 0 everything is fine; 1 there are findings, or what was asked for failed; 2 what was given cannot be used (the
//! command line, a file, an interface, the privileges), and one line says why.

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use super::outcome::{Failure, Outcome};
use super::{deadlock, decode, doctor, plan, send, watch, watchdog};

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
            ExitCode::from(if failure.is_unusable_input() { 2 } else { 1 })
        }
    }
}
