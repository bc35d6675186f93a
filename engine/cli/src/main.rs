//! `feroce`: the command line of Feroce. Only this file lists all subcommands.
#![deny(unsafe_code)]

mod completions;
mod config;
mod descriptors;
mod devinfo;
mod doctor;
mod exit;
mod failure;
mod figures;
mod man;
#[cfg(feature = "metrics")]
mod metrics;
mod open;
mod output;
mod perf;
mod port_flags;
mod privileges;
mod run;
mod set;
mod setting_flag;
#[allow(unsafe_code)] // Installs a signal handler.
mod signal;
mod socket_holder;
mod stat;
mod syscalls;
#[cfg(any(feature = "fabric", feature = "pfc", feature = "conform"))]
mod tools;
#[cfg(feature = "top")]
mod top;
mod up;
mod usage;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use exit::Exit;
use failure::Failure;
use feroce_engine::device::settings::Settings;

/// Feroce: a RoCEv2 RNIC in user space, on an ordinary Ethernet interface
#[derive(Debug, Parser)]
#[command(
    name = "feroce",
    version,
    after_help = "\
Settings come from options, the environment and /etc/feroce.toml, in this order: \
`feroce config --help`. `feroce man SUBCOMMAND` prints a manual page."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show each interface as an RNIC (like ibv_devinfo)
    Devinfo(devinfo::Options),
    /// Measure bandwidth and latency between two hosts (like perftest)
    Perf(Box<perf::Options>),
    /// Start an unmodified verbs application on Feroce
    Run(run::Options),
    /// Own interfaces for many programs at once (the daemon)
    Up(Box<up::Options>),
    /// End daemons
    Down(up::DownOptions),
    /// Show counters and rates of a running program
    Stat(stat::Options),
    /// Show programs with their rates, live (like top)
    #[cfg(feature = "top")]
    Top(top::Options),
    /// Serve counters of programs and daemons to Prometheus
    #[cfg(feature = "metrics")]
    Metrics(metrics::Options),
    /// Change congestion control parameters of a running program
    Set(set::Options),
    /// Check the host, an interface or the path to a peer for problems
    Doctor(doctor::Options),
    /// Simulate networks with DCQCN and PFC, or connect interfaces through such a network
    #[cfg(feature = "fabric")]
    #[command(subcommand)]
    Fabric(feroce_pfc_tools::cli::Command),
    /// Decode, send, plan and monitor priority flow control (PFC)
    #[cfg(feature = "pfc")]
    #[command(subcommand)]
    Pfc(Box<feroce_pfc_tools::pfc::cli::Command>),
    /// Check captures and endpoints for conformance to the RoCE rules
    #[cfg(feature = "conform")]
    #[command(subcommand)]
    Conform(Box<feroce_conform::cli::Command>),
    /// Show the settings in effect and the source of each
    Config(config::Options),
    /// Print a shell completion script
    Completions(completions::Options),
    /// Print or write manual pages
    Man(man::Options),
}

impl Command {
    /// Returns true if the command reads the settings of the host.
    fn reads_settings(&self) -> bool {
        match self {
            Self::Devinfo(_)
            | Self::Perf(_)
            | Self::Run(_)
            | Self::Up(_)
            | Self::Stat(_)
            | Self::Set(_)
            | Self::Doctor(_)
            | Self::Config(_) => true,
            Self::Completions(_) | Self::Man(_) | Self::Down(_) => false,
            #[cfg(feature = "top")]
            Self::Top(_) => false,
            #[cfg(feature = "metrics")]
            Self::Metrics(_) => false,
            #[cfg(feature = "fabric")]
            Self::Fabric(_) => false,
            #[cfg(feature = "pfc")]
            Self::Pfc(_) => false,
            #[cfg(feature = "conform")]
            Self::Conform(_) => false,
        }
    }
}

/// The description of the command line, without exit codes.
fn command_line() -> clap::Command {
    without_help_subcommands(Cli::command())
}

/// Removes the `help` subcommands of clap: `--help` and `feroce man` do their work.
fn without_help_subcommands(command: clap::Command) -> clap::Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help_subcommands)
}

fn main() -> ExitCode {
    if run::counters::run_if_called() || up::clean_if_called() {
        return Exit::Ok.into();
    }
    let command = match parse() {
        Ok(command) => command,
        Err(exit) => return exit.into(),
    };
    if command.reads_settings() {
        feroce_engine::log::to_stderr("feroce");
        // The doctor reports unknown variables in a line of its own.
        if !matches!(command, Command::Doctor(_)) {
            for name in Settings::unknown_variables() {
                eprintln!(
                    "feroce: warning: {name} is no setting (`feroce config --help` lists them)"
                );
            }
        }
    }
    let exit = match run(command) {
        // The reader of the output has closed the pipe.
        Err(Failure::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Exit::Ok,
        Err(failure) => {
            eprintln!("feroce: {}", failure::chain(&failure));
            failure.exit()
        }
        Ok(exit) => exit,
    };
    exit.into()
}

/// Parses the command line. Prints help, version or the usage error itself.
fn parse() -> Result<Command, Exit> {
    let matches = exit::with_help(command_line()).try_get_matches();
    let parsed = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.map(|cli| cli.command).map_err(|error| {
        let error = usage::improved(error);
        let _ = error.print(); // A closed standard error cannot be reported.
        if error.use_stderr() { Exit::Usage } else { Exit::Ok }
    })
}

fn run(command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Devinfo(options) => devinfo::run(&options)?,
        Command::Perf(options) => perf::run(&options)?,
        Command::Run(options) => run::run(&options)?,
        Command::Up(options) => up::run(&options)?,
        Command::Down(options) => up::down(&options)?,
        Command::Stat(options) => stat::run(&options)?,
        #[cfg(feature = "top")]
        Command::Top(options) => top::run(&options)?,
        #[cfg(feature = "metrics")]
        Command::Metrics(options) => metrics::run(&options)?,
        Command::Set(options) => set::run(&options)?,
        Command::Doctor(options) => return doctor::run(&options).map(exit_of),
        #[cfg(feature = "fabric")]
        Command::Fabric(command) => return tools::fabric(&command),
        #[cfg(feature = "pfc")]
        Command::Pfc(command) => return tools::pfc(&command),
        #[cfg(feature = "conform")]
        Command::Conform(command) => return tools::conform(&command),
        Command::Config(options) => config::run(&options)?,
        Command::Completions(options) => completions::run(&options, command_line())?,
        Command::Man(options) => man::run(&options, command_line())?,
    }
    Ok(Exit::Ok)
}

/// The exit code of `feroce doctor` for its worst finding.
fn exit_of(worst: doctor::Severity) -> Exit {
    match worst {
        doctor::Severity::Ok | doctor::Severity::Info => Exit::Ok,
        doctor::Severity::Warning | doctor::Severity::Error => Exit::Findings,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        exit::with_help(command_line()).debug_assert();
    }
}
