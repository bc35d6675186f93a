//! `feroce pfc watch`: live statistics of the flow control frames arriving at an interface.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;

use feroce_engine::sys::poll_readable;
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use serde_json::{Value, json};

use super::counters::{Counters, Direction, counted};
use super::dashboard::history::History;
use super::dashboard::{self, Dashboard, Input};
use super::delta::Delta;
use super::listener::Listener;
use super::meter::Meter;
use super::outcome::{Failure, Outcome};
use super::report::shown;
use super::{page, report, units};
use crate::fabric::time::{LinkRate, Time};
use crate::live::command::watch_signals;

/// A processing delay of this length is reported.
const BEHIND: Time = Time::from_millis(100);

/// Options of `watch`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Interface to listen on
    interface: String,
    /// Link rate, such as 100G, instead of the rate reported by the driver
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    rate: Option<LinkRate>,
    /// Interval between updates
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::time)]
    interval: Time,
    /// Stop after this time; without it, SIGINT or SIGTERM stops the program
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

/// The current state.
#[derive(Debug)]
pub struct Watched<'a> {
    /// Name of the interface.
    pub interface: &'a str,
    /// Statistics of the frames seen.
    pub meter: &'a Meter,
    /// Changes since the previous update.
    pub delta: &'a Delta,
    /// Increases of the NIC's counters since the start.
    pub counters: &'a BTreeMap<String, u64>,
    /// Frames dropped by the kernel because they arrived too fast.
    pub lost: u64,
    /// Longest processing delay of a frame: since the previous update, and overall.
    pub behind: [Time; 2],
}

impl Watched<'_> {
    /// Returns true if the NIC has counted more flow control frames than were seen or lost: the NIC
    /// consumes them itself.
    pub fn nic_consumes_frames(&self) -> bool {
        let (frames, now) = (self.meter.frames(), self.meter.now());
        let seen = |priority: Option<u8>| match priority {
            None => frames.pfc + frames.pause + frames.other,
            Some(priority) => {
                let own = self.meter.senders().iter().map(|s| s.stats(priority.into(), now));
                own.map(|own| own.xoff + own.xon).sum::<u64>() + self.meter.untracked()
            }
        };
        counted(self.counters).iter().any(|(&(direction, priority), counted)| {
            direction == Direction::Rx && counted.frames > seen(priority) + self.lost
        })
    }

    /// Returns true if processing was delayed noticeably.
    pub fn is_behind(&self) -> bool {
        self.behind[1] >= BEHIND
    }

    /// Notes on the accuracy of the statistics.
    pub fn notes(&self) -> Vec<String> {
        let swallowed = self
            .nic_consumes_frames()
            .then(|| "the NIC consumes PFC frames itself: see its counters".to_owned());
        let lost = (self.lost > 0).then(|| {
            format!(
                "the kernel dropped {} frames that arrived too fast: the statistics lack them",
                self.lost
            )
        });
        let behind = self.is_behind().then(|| {
            let [recent, most] = self.behind;
            let recent = if recent >= BEHIND { shown(recent) } else { "not".to_owned() };
            format!(
                "processing is late, because of too many frames or a busy machine: {recent} now, at \
                 most {}",
                shown(most)
            )
        });
        let rate =
            self.meter.rate().is_none().then(|| {
                "the link rate is unknown: set it with --rate to get pause times".to_owned()
            });
        swallowed.into_iter().chain(lost).chain(behind).chain(rate).collect()
    }

    fn json(&self) -> Value {
        let mut figures = report::json(self.meter);
        figures["interface"] = self.interface.into();
        figures["recent"] = self.delta.json();
        figures["counters"] = json!(self.counters);
        figures["swallowed"] = self.nic_consumes_frames().into();
        figures["lost"] = self.lost.into();
        figures["behind_ns"] = (self.behind[0].0 / 1000).into();
        figures["most_behind_ns"] = (self.behind[1].0 / 1000).into();
        figures
    }
}

/// Watches until the time is over, a signal arrives, or `q` is pressed.
///
/// # Errors
/// If the interface cannot be opened or goes away.
pub fn run(options: &Options) -> Result<Outcome, Failure> {
    let signals = watch_signals(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])?;
    let mut watch = Watch::open(options)?;
    let wants_lines = options.plain || options.json || !Dashboard::is_possible();
    let mut screen = if wants_lines { None } else { Some(Dashboard::open()?) };
    let mut ended = watch.run(&signals, screen.as_mut());
    // Restore the terminal before the summary is printed.
    drop(screen);
    if !matches!(ended, Err(Failure::Output(_))) {
        // Include the frames still in the socket.
        ended = ended.and(watch.read_counters());
        finish(&watch.watched(), &watch.history, options)?;
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
    moved: BTreeMap<String, u64>,
    lost: u64,
    behind: [Time; 2],
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
            moved: BTreeMap::new(),
            lost: 0,
            behind: [Time::ZERO; 2],
        })
    }

    /// Updates the output until the end.
    fn run(
        &mut self,
        signals: &SignalFd,
        mut screen: Option<&mut Dashboard>,
    ) -> Result<(), Failure> {
        let (interval, end) = (self.options.interval, self.options.duration.unwrap_or(Time::FAR));
        let (mut due, mut scratch) = (interval, Vec::new());
        let mut descriptors = vec![self.listener.as_raw_fd(), signals.as_raw_fd()];
        descriptors.extend(screen.as_deref().map(AsRawFd::as_raw_fd));
        loop {
            let wait = Duration::from_nanos((due.min(end) - self.listener.now()).0 / 1000);
            poll_readable(&descriptors, &mut scratch, Some(wait.min(Duration::from_millis(100))));
            self.listener.take().map_err(|error| self.failure(error))?;
            let now = self.listener.now();
            let input = screen.as_deref_mut().map_or(Ok(Input::Nothing), Dashboard::input)?;
            let is_over = now >= end
                || input == Input::Quit
                || signals.read_signal().is_ok_and(|signal| signal.is_some());
            if now >= due || is_over {
                self.update()?;
                self.show(screen.as_deref_mut())?;
                due = due.max(now - interval) + interval;
            } else if input == Input::Resized {
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
        self.moved = self.counters.increases();
        let drained = self.listener.drain();
        self.lost = self.listener.lost();
        drained.map_err(|error| self.failure(error))
    }

    /// Updates the statistics and the changes since the previous update.
    fn update(&mut self) -> Result<(), Failure> {
        self.read_counters()?;
        let behind = self.listener.take_behind();
        self.behind = [behind, behind.max(self.behind[1])];
        self.delta.update(self.listener.meter(), &self.moved);
        self.history.add(&self.delta);
        Ok(())
    }

    const fn watched(&self) -> Watched<'_> {
        let Self { options, listener, delta, moved, lost, behind, .. } = self;
        let meter = listener.meter();
        Watched {
            interface: options.interface.as_str(),
            meter,
            delta,
            counters: moved,
            lost: *lost,
            behind: *behind,
        }
    }

    /// FigureKind the current state: on the dashboard, as a line of JSON, or as text.
    fn show(&self, screen: Option<&mut Dashboard>) -> io::Result<()> {
        let watched = self.watched();
        if let Some(screen) = screen {
            return screen.draw(&watched, &self.history);
        }
        let mut out = io::stdout().lock();
        if self.options.json {
            return writeln!(out, "{}", watched.json());
        }
        watched.delta.lines(&mut out, &watched)
    }
}

/// Prints the summary and writes the requested files.
fn finish(watched: &Watched<'_>, history: &History, options: &Options) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    if options.json {
        writeln!(out, "{}", json!({ "summary": watched.json() }))?;
    } else {
        report::text(&mut out, watched.meter)?;
        for (name, moved) in watched.counters {
            writeln!(out, "{name} {moved}")?;
        }
        watched.notes().iter().try_for_each(|note| writeln!(out, "{note}"))?;
    }
    if let Some(file) = &options.html {
        let title = format!("Flow control at {}", watched.interface);
        page::write(file, &title, watched.meter)?;
    }
    if let Some(file) = &options.snapshot {
        dashboard::write(file, watched, history)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    use feroce_wire::pause::inspect;
    use feroce_wire::{FlowControlFrame, MacAddr};

    use super::super::schedule::pfc;

    #[test]
    fn a_nic_that_counts_more_than_seen_consumes_frames() {
        let mut meter = Meter::new(None);
        let frame = FlowControlFrame { src: MacAddr([2, 0, 0, 0, 0, 1]), control: pfc(8, 1) };
        let seen = inspect(&frame.to_bytes(), 60).unwrap();
        (0..3).for_each(|_| meter.take(&seen, Time::ZERO));
        let delta = Delta::default();
        let nic_consumes_frames = |name: &str, moved, lost| {
            let counters = [(name.to_owned(), moved)].into();
            Watched {
                interface: "x",
                meter: &meter,
                delta: &delta,
                counters: &counters,
                lost,
                behind: [Time::ZERO; 2],
            }
            .nic_consumes_frames()
        };
        assert!(
            !nic_consumes_frames("rx_prio3_pause", 3, 0)
                && !nic_consumes_frames("rx_global_pause", 3, 0)
        );
        assert!(
            nic_consumes_frames("rx_prio3_pause", 4, 0)
                && nic_consumes_frames("rx_prio4_pause", 1, 0)
        );
        assert!(
            !nic_consumes_frames("rx_prio3_pause", 4, 1)
                && !nic_consumes_frames("tx_prio3_pause", 9, 0)
        );
    }
}
