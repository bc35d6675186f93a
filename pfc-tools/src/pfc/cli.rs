//! `feroce pfc`: its subcommands and the outcome of each.

use clap::Subcommand;

pub use super::outcome::{Failure, Outcome};
use super::{deadlock, decode, doctor, plan, send, watch, watchdog};

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
