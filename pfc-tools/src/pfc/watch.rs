//! `feroce pfc watch`: live statistics of the flow control frames arriving at an interface.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;

use feroce_engine::sys::poll_readable;
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use serde_json::json;

use super::counters::Counters;
use super::dashboard;
use super::dashboard::history::History;
use super::delta::Delta;
use super::listener::Listener;
use super::outcome::{Failure, Outcome};
use super::snapshot::Snapshot;
use super::{page, report, units};
use crate::fabric::time::{LinkRate, Time};
use crate::live::command::watch_signals;
use crate::terminal::{Input, Screen};

/// Options of `watch`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Interface to listen on
    #[arg(value_name = "IFACE")]
    interface: String,
    /// Link rate, such as 100G, instead of the rate reported by the driver
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    rate: Option<LinkRate>,
    /// Interval between updates
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::time)]
    interval: Time,
    /// Stop after this time; without it, SIGINT, SIGTERM or SIGHUP stops the program
    #[arg(long = "for", value_name = "TIME", value_parser = units::time)]
    duration: Option<Time>,
    /// Print lines even on a terminal
    #[arg(long, conflicts_with = "json")]
    plain: bool,
    /// Print JSON: a line of statistics at each interval, and a summary at the end
    #[arg(long)]
    json: bool,
    /// Write an SVG image of the dashboard at the end
    #[arg(long, value_name = "FILE.svg")]
    snapshot: Option<PathBuf>,
    /// Write an HTML page with statistics, timelines and a histogram at the end
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Watches until the time is over, a signal arrives, or `q` is pressed.
///
/// # Errors
/// If the interface cannot be opened or goes away.
pub fn run(options: &Options) -> Result<Outcome, Failure> {
    let signals = watch_signals(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])?;
    let mut watch = Watch::open(options)?;
    let wants_lines = options.plain || options.json || !Screen::is_possible();
    let mut screen = if wants_lines { None } else { Some(Screen::open()?) };
    let mut ended = watch.run(&signals, screen.as_mut());
    // Restore the terminal before the summary is printed.
    drop(screen);
    if !matches!(ended, Err(Failure::Output(_))) {
        // Include the frames still in the socket.
        ended = ended.and(watch.read_counters());
        finish(&watch.snapshot(), &watch.history, options)?;
    }
    ended?;
    Ok(Outcome::of(watch.listener.meter().frames().wrong > 0))
}

/// An interface and its statistics.
struct Watch<'a> {
    options: &'a Options,
    listener: Listener,
    counters: Counters,
    delta: Delta,
    history: History,
    /// Increases of the NIC's counters since the start.
    increases: BTreeMap<String, u64>,
    lost: u64,
    lag: [Time; 2],
}

impl<'a> Watch<'a> {
    fn open(options: &'a Options) -> Result<Self, Failure> {
        let interface = options.interface.as_str();
        Ok(Self {
            options,
            listener: Listener::open(interface, options.rate)?,
            counters: Counters::open(interface)?,
            delta: Delta::default(),
            history: History::default(),
            increases: BTreeMap::new(),
            lost: 0,
            lag: [Time::ZERO; 2],
        })
    }

    /// Updates the output until the end.
    fn run(&mut self, signals: &SignalFd, mut screen: Option<&mut Screen>) -> Result<(), Failure> {
        let (interval, end) = (self.options.interval, self.options.duration.unwrap_or(Time::FAR));
        let (mut due, mut scratch) = (interval, Vec::new());
        let mut descriptors = vec![self.listener.as_raw_fd(), signals.as_raw_fd()];
        descriptors.extend(screen.as_deref().map(AsRawFd::as_raw_fd));
        loop {
            let wait = Duration::from_nanos((due.min(end) - self.listener.now()).0 / 1000);
            poll_readable(&descriptors, &mut scratch, Some(wait.min(Duration::from_millis(100))));
            self.listener.take().map_err(|error| self.failure(error))?;
            let now = self.listener.now();
            let inputs = screen.as_deref_mut().map_or(Ok(Vec::new()), Screen::inputs)?;
            let is_over = now >= end
                || inputs.contains(&Input::Quit)
                || signals.read_signal().is_ok_and(|signal| signal.is_some());
            if now >= due || is_over {
                self.update()?;
                self.show(screen.as_deref_mut())?;
                due = due.max(now - interval) + interval;
            } else if inputs.contains(&Input::Resized) {
                self.show(screen.as_deref_mut())?;
            }
            if is_over {
                return Ok(());
            }
        }
    }

    fn failure(&self, source: io::Error) -> Failure {
        Failure::Interface { name: self.options.interface.clone(), source }
    }

    /// Updates the statistics.
    fn read_counters(&mut self) -> Result<(), Failure> {
        // Read the counters first: the frames they count are in the socket by then.
        self.increases = self.counters.increases();
        let drained = self.listener.drain();
        self.lost = self.listener.lost();
        drained.map_err(|error| self.failure(error))
    }

    /// Updates the statistics and the changes since the previous update.
    fn update(&mut self) -> Result<(), Failure> {
        self.read_counters()?;
        let lag = self.listener.take_lag();
        self.lag = [lag, lag.max(self.lag[1])];
        self.delta.update(self.listener.meter(), &self.increases);
        self.history.add(&self.delta);
        Ok(())
    }

    const fn snapshot(&self) -> Snapshot<'_> {
        let Self { options, listener, delta, increases, lost, lag, .. } = self;
        let meter = listener.meter();
        Snapshot {
            interface: options.interface.as_str(),
            meter,
            delta,
            counters: increases,
            lost: *lost,
            lag: *lag,
        }
    }

    /// Shows the current state: on the dashboard, as a line of JSON, or as text.
    fn show(&self, screen: Option<&mut Screen>) -> io::Result<()> {
        let snapshot = self.snapshot();
        if let Some(screen) = screen {
            return screen.draw(|frame| dashboard::draw(frame, &snapshot, &self.history));
        }
        let mut out = io::stdout().lock();
        if self.options.json {
            return writeln!(out, "{}", snapshot.json());
        }
        snapshot.lines(&mut out)
    }
}

/// Prints the summary and writes the requested files.
fn finish(snapshot: &Snapshot<'_>, history: &History, options: &Options) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    if options.json {
        writeln!(out, "{}", json!({ "summary": snapshot.json() }))?;
    } else {
        report::text(&mut out, snapshot.meter)?;
        for (name, increase) in snapshot.counters {
            writeln!(out, "{name} {increase}")?;
        }
        snapshot.notes().iter().try_for_each(|note| writeln!(out, "{note}"))?;
    }
    if let Some(file) = &options.html {
        let title = format!("Flow control at {}", snapshot.interface);
        page::write(file, &title, snapshot.meter)?;
    }
    if let Some(file) = &options.snapshot {
        dashboard::write(file, snapshot, history)?;
    }
    Ok(())
}
