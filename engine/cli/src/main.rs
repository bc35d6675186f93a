//! `feroce`: Feroce on the command line.
//!
//! Exit codes: 0 done; 1 the run failed (the message says why and what helps); 2 the command line is wrong;
//! 3 and 4 what `feroce doctor` found; of `feroce run` the program's; 126 and 127 if it cannot be started or found; 130 interrupted, after reporting what was measured until then.
#![deny(unsafe_code)]

mod config;
mod devinfo;
mod doctor;
mod failure;
mod open;
mod output;
mod packaging;
mod perf;
mod port_flags;
mod privileges;
mod run;
mod set;
mod sibling;
#[allow(unsafe_code)] // A named room: one signal handler.
mod signal;
mod stat;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use failure::Failure;
use feroce_engine::device::settings::Settings;

/// A RoCEv2 RNIC in user space, on an ordinary Ethernet interface.
#[derive(Debug, Parser)]
#[command(
    name = "feroce",
    version,
    disable_help_subcommand = true, // It would want a man page that nobody needs.
    after_help = "\
Settings come from /etc/feroce.toml, the environment and options: `feroce config --help`.\n\n\
Exit codes: 0 done; 1 failed, and the message says why; 2 wrong usage; 3 and 4 the warnings and errors that \
`feroce doctor` found; 130 interrupted, after reporting what was measured until then."
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
    /// Start a program written for verbs, unmodified, on an interface as its RNIC
    Run(run::Options),
    /// Show live figures of a program that has an interface open
    Stat(stat::Options),
    /// Change the parameters of congestion control of a program that has an interface open
    Set(set::Options),
    /// Find out what is wrong with an interface or with the way to a peer
    Doctor(doctor::Options),
    /// Experiments with DCQCN and PFC in virtual time (the program feroce-fabric)
    Fabric(sibling::Options),
    /// See, make, plan and watch priority flow control (the program feroce-pfc)
    Pfc(sibling::Options),
    /// Check captures against the rules of RoCE, and endpoints, too (the program feroce-conform)
    Conform(sibling::Options),
    /// Show the settings in effect, and where each came from
    Config(config::Options),
    /// Print completions for a shell
    Completions(packaging::CompletionOptions),
    /// Print or write man pages
    Man(packaging::ManOptions),
}

fn main() -> ExitCode {
    feroce_engine::log::to_stderr("feroce");
    let command = Cli::parse().command;
    // The doctor has a line for them.
    if !matches!(command, Command::Doctor(_)) {
        for name in Settings::unknown_variables() {
            eprintln!("feroce: warning: {name} is no setting (`feroce config --help` lists them)");
        }
    }
    let done = match command {
        Command::Devinfo(options) => devinfo::run(&options),
        Command::Perf(options) => perf::run(&options),
        Command::Run(options) => run::run(&options),
        Command::Stat(options) => stat::run(&options),
        Command::Set(options) => set::run(&options),
        Command::Doctor(options) => match doctor::run(&options) {
            Ok(worst) => return worst.exit_code(),
            Err(failure) => Err(failure),
        },
        Command::Fabric(options) => sibling::run("feroce-fabric", &options),
        Command::Pfc(options) => sibling::run("feroce-pfc", &options),
        Command::Conform(options) => sibling::run("feroce-conform", &options),
        Command::Config(options) => config::run(&options),
        Command::Completions(options) => packaging::completions(&options, Cli::command()),
        Command::Man(options) => packaging::man(&options, Cli::command()),
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
