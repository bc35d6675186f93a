//! `feroce stat`: figures of programs that have an interface open.
//!
//! Input: the options, and a snapshot from each running program, which serves it over a socket of
//! its own. Output: tables or JSON on standard output. Rates are computed here from two snapshots.
//! Reading the counters changes neither the program nor the host.

mod daemon;
mod rates;
mod text;

use std::io::{IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use feroce_engine::device::stat::{self, Request, Snapshot, StatError};
use feroce_engine::net::NetError;
use feroce_engine::sys;
use serde::Serialize;

use crate::failure::{self, Failure};
use crate::{figures, output, signal};
use rates::Rates;

/// Options of `feroce stat`.
#[derive(Debug, Args)]
#[command(after_help = "\
The program itself serves the figures to root and to its own user. Run `feroce stat` in the \
network namespace of the interface (`ip netns exec NAME feroce stat`).")]
pub struct Options {
    /// Show only this interface, or one program at its daemon, such as `eth0@4711` [default: every
    /// interface that a program has open in this network namespace]
    #[arg(short, long, value_name = "IFACE")]
    interface: Option<String>,
    /// Show rates every SECONDS until Ctrl-C: in place on a terminal, otherwise line by line
    #[arg(
        short,
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "1",
        value_parser = parse_seconds
    )]
    watch: Option<Duration>,
    /// Show every QP
    #[arg(short, long)]
    qps: bool,
    /// Show the daemons (`feroce up`): their programs, frames that they refused or lost, and what
    /// each user has used of the limits
    #[arg(long, conflicts_with_all = ["watch", "qps"])]
    daemon: bool,
    /// Print JSON; with --watch, one document per line and interval
    #[arg(long)]
    json: bool,
}

/// Parses a time in seconds, 0.1 to 86400.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| (0.1..=86_400.0).contains(s));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected 0.1 to 86400 seconds".to_owned())
}

/// Prints the figures.
pub fn run(options: &Options) -> Result<(), Failure> {
    if options.daemon {
        return daemon::run(options.interface.as_deref(), options.json);
    }
    let snapshots = take(options)?;
    match options.watch {
        Some(interval) => watch(options, interval, snapshots),
        None if options.json => output::json(&snapshots),
        None => snapshots.iter().try_for_each(|snapshot| output::line(&text::whole(snapshot))),
    }
}

/// Takes a snapshot of every requested interface.
fn take(options: &Options) -> Result<Vec<Snapshot>, Failure> {
    let request = Request { queue_pairs: options.qps, ..Request::default() };
    let mut interfaces = stat::endpoints();
    if let Some(interface) = &options.interface {
        interfaces.retain(|name| stat::is_on(name, interface));
        if interfaces.len() < 2 {
            let name = interfaces.first().unwrap_or(interface);
            return Ok(vec![figures::program(name, &request)?]);
        }
    }
    if interfaces.is_empty() {
        return Err(StatError::NoServer.into());
    }
    // Any user can create another endpoint: an endpoint that fails must not hide the others.
    let mut snapshots = Vec::new();
    let mut errors = Vec::new();
    for response in figures::programs(&interfaces, &request) {
        match response {
            Ok(snapshot) => snapshots.push(snapshot),
            Err(error) => errors.push(error),
        }
    }
    let fatal = if snapshots.is_empty() { errors.pop() } else { None };
    for error in &errors {
        eprintln!("feroce: {}", failure::chain(error));
    }
    fatal.map_or(Ok(snapshots), |error| Err(error.into()))
}

/// Rates, with the figures they were made of.
#[derive(Debug, Serialize)]
struct Interval<'a> {
    rates: Vec<&'a Rates>,
    figures: &'a [Snapshot],
}

fn watch(options: &Options, interval: Duration, first: Vec<Snapshot>) -> Result<(), Failure> {
    signal::watch();
    let in_place = !options.json && std::io::stdout().is_terminal();
    let mut before = first;
    if !options.json && !in_place {
        output::line(&text::heading())?;
    }
    loop {
        // Unlike a plain sleep, Ctrl-C ends this wait.
        sys::poll_readable(&[], &mut Vec::new(), Some(interval));
        if signal::interrupted() {
            return Ok(());
        }
        let now = match take(options) {
            Err(
                Failure::Stat(StatError::NoEndpoint { .. } | StatError::NoServer)
                | Failure::Net(NetError::NoSuchInterface { .. }),
            ) => {
                return Err(Failure::Plan(ended(&before)));
            }
            other => other?,
        };
        // Querying a stopped program takes seconds.
        if signal::interrupted() {
            return Ok(());
        }
        // A program that started since the first sample has no rates yet.
        let pairs = now.iter().filter_map(|now| {
            let same = |before: &&Snapshot| rates::is_same(before, now);
            before.iter().find(same).map(|before| (now, Rates::between(before, now)))
        });
        let pairs: Vec<_> = pairs.collect();
        if options.json {
            let rates = pairs.iter().map(|(_, rates)| rates).collect();
            let line = serde_json::to_string(&Interval { rates, figures: &now });
            output::line(&line.map_err(|error| Failure::Output(error.into()))?)?;
        } else if in_place {
            redraw(&text::screen(&pairs))?;
        } else {
            for (snapshot, rates) in &pairs {
                output::line(&text::line(rates))?;
                if let Some(qps) = &snapshot.queue_pairs {
                    output::line(text::queue_pairs(qps).trim_end())?;
                }
            }
        }
        before = now;
    }
}

/// The message when the programs of `before` have ended.
fn ended(before: &[Snapshot]) -> String {
    let gone = before.iter().map(|Snapshot { program, pid, interface, .. }| {
        format!("{program} (pid {pid}) has ended, or closed {interface}")
    });
    gone.collect::<Vec<_>>().join("; ")
}

/// Redraws the screen in place.
fn redraw(screen: &str) -> Result<(), Failure> {
    const HOME: &str = "\x1b[H";
    const CLEAR_LINE: &str = "\x1b[K\n";
    const CLEAR_BELOW: &str = "\x1b[J";
    let mut out = std::io::stdout().lock();
    let lines = screen.lines().map(|line| format!("{line}{CLEAR_LINE}")).collect::<String>();
    write!(out, "{HOME}{lines}{CLEAR_BELOW}").and_then(|()| out.flush()).map_err(Failure::Output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_seconds() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "nan", "inf", "1e9", "x"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
    }
}
