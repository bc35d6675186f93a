//! `feroce`: Feroce on the command line.
//!
//! Exit codes: 0 done; 1 the run failed (the message says why and what helps); 2 the command line is wrong;
//! 130 interrupted, after reporting what was measured until then.
#![deny(unsafe_code)]

mod devinfo;
mod failure;
mod log;
mod open;
mod output;
mod perf;
#[allow(unsafe_code)] // A named room: one signal handler.
mod signal;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use failure::Failure;

/// A RoCEv2 RNIC in user space, on an ordinary Ethernet interface.
#[derive(Debug, Parser)]
#[command(
    name = "feroce",
    version,
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what RNIC each interface would be (as ibv_devinfo)
    Devinfo(devinfo::Options),
    /// Measure bandwidth and latency between two hosts (as perftest)
    Perf(Box<perf::Options>),
}

fn main() -> ExitCode {
    log::start();
    let done = match Cli::parse().command {
        Command::Devinfo(options) => devinfo::run(&options),
        Command::Perf(options) => perf::run(&options),
    };
    match done {
        // Whoever read our output has seen enough.
        Err(Failure::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("feroce: {}", failure::chain(&failure));
            ExitCode::from(failure.exit_code())
        }
        Ok(()) => ExitCode::SUCCESS,
    }
}
