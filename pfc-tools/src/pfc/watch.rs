//! `feroce pfc watch`: what arrives of flow control at an interface, as it arrives.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;

use feroce_engine::sys::poll_readable;
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use serde_json::{Value, json};

use super::cli::{Failure, Outcome};
use super::counters::{Counters, Direction, counted};
use super::dashboard::history::History;
use super::dashboard::{self, Dashboard, Input};
use super::listener::Listener;
use super::meter::Meter;
use super::recent::Recent;
use super::report::shown;
use super::{page, report, units};
use crate::fabric::time::{LineRate, Time};
use crate::live::command::watch_signals;

/// A frame that waits for so long to be looked at is worth a word.
const BEHIND: Time = Time::from_millis(100);

/// Options of `watch`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Interface
    #[arg(value_name = "IFACE")]
    interface: String,
    /// Rate of the link, as 100G, in place of what its driver says
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    rate: Option<LineRate>,
    /// How often figures are shown
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = units::time)]
    interval: Time,
    /// End after this time; without it, SIGINT or SIGTERM ends it
    #[arg(long = "for", value_name = "TIME", value_parser = units::time)]
    duration: Option<Time>,
    /// Print lines, also to a terminal
    #[arg(long, conflicts_with = "json")]
    plain: bool,
    /// Print JSON: a line of figures at each interval, and one of all at the end
    #[arg(long)]
    json: bool,
    /// Write a picture of the dashboard as it is at the end
    #[arg(long, value_name = "FILE.svg")]
    snapshot: Option<PathBuf>,
    /// Write a page with the figures, a timeline and a histogram at the end
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// What is known at a moment.
#[derive(Debug)]
pub struct Watched<'a> {
    /// The interface.
    pub interface: &'a str,
    /// The frames that were seen.
    pub meter: &'a Meter,
    /// What came since the moment before.
    pub recent: &'a Recent,
    /// The NIC's own counters, since the beginning.
    pub counters: &'a BTreeMap<String, u64>,
    /// Frames that the kernel dropped: they came too fast to be looked at.
    pub lost: u64,
    /// The longest that a frame waited to be looked at: since the moment before, and ever.
    pub behind: [Time; 2],
}

impl Watched<'_> {
    /// Whether the NIC has counted more frames of flow control than were seen or lost: it takes them for itself.
    pub fn is_swallowed(&self) -> bool {
        let (frames, now) = (self.meter.frames(), self.meter.now());
        let seen = |priority: Option<u8>| match priority {
            None => frames.pfc + frames.pause + frames.other,
            Some(priority) => {
                let own = self.meter.senders().iter().map(|s| s.figures(priority.into(), now));
                own.map(|own| own.xoff + own.xon).sum::<u64>() + self.meter.unnamed()
            }
        };
        counted(self.counters).iter().any(|(&(direction, priority), counted)| {
            direction == Direction::Rx && counted.frames > seen(priority) + self.lost
        })
    }

    /// Whether frames waited for a while to be looked at.
    pub fn is_behind(&self) -> bool {
        self.behind[1] >= BEHIND
    }

    /// What is to be known about the figures.
    pub fn notes(&self) -> Vec<String> {
        let swallowed = self.is_swallowed().then(|| {
            "the NIC takes frames for itself: its own counters tell what was not seen".to_owned()
        });
        let lost = (self.lost > 0).then(|| {
            format!(
                "the kernel dropped {} frames, which came faster than they could be looked at: the figures lack them",
                self.lost
            )
        });
        let behind = self.is_behind().then(|| {
            let [recent, most] = self.behind;
            let recent = if recent >= BEHIND { shown(recent) } else { "not".to_owned() };
            format!(
                "frames came faster than they were looked at, or this program was kept waiting: {recent} behind now, {} at most",
                shown(most)
            )
        });
        let rate = self.meter.rate().is_none().then(|| {
            "the link does not know its rate: --rate tells how long quanta are".to_owned()
        });
        swallowed.into_iter().chain(lost).chain(behind).chain(rate).collect()
    }

    fn json(&self) -> Value {
        let mut figures = report::json(self.meter);
        figures["interface"] = self.interface.into();
        figures["recent"] = self.recent.json();
        figures["counters"] = json!(self.counters);
        figures["swallowed"] = self.is_swallowed().into();
        figures["lost"] = self.lost.into();
        figures["behind_ns"] = (self.behind[0].0 / 1000).into();
        figures["most_behind_ns"] = (self.behind[1].0 / 1000).into();
        figures
    }
}

/// Watches until the time is over, a signal comes, or `q` is pressed.
///
/// # Errors
/// If the interface cannot be opened, or goes away.
pub fn run(options: &Options) -> Result<Outcome, Failure> {
    let signals = watch_signals(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])?;
    let mut watch = Watch::open(options)?;
    let wants_lines = options.plain || options.json || !Dashboard::is_possible();
    let mut screen = if wants_lines { None } else { Some(Dashboard::open()?) };
    let mut ended = watch.run(&signals, screen.as_mut());
    // Figures go to the terminal as it was.
    drop(screen);
    if !matches!(ended, Err(Failure::Output(_))) {
        // What still waits belongs to them.
        ended = ended.and(watch.count());
        finish(&watch.watched(), &watch.history, options)?;
    }
    ended?;
    Ok(Outcome::of(watch.listener.meter().frames().wrong > 0))
}

/// An interface, and what is known of it.
struct Watch<'a> {
    options: &'a Options,
    listener: Listener,
    counters: Counters,
    recent: Recent,
    history: History,
    /// The NIC's own counters, since the beginning.
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
            recent: Recent::default(),
            history: History::default(),
            moved: BTreeMap::new(),
            lost: 0,
            behind: [Time::ZERO; 2],
        })
    }

    /// Shows what happens until it is over.
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
                self.look()?;
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

    /// Brings the figures up to date.
    fn count(&mut self) -> Result<(), Failure> {
        // The counters first: what they have, the socket has by then.
        self.moved = self.counters.moved();
        let settled = self.listener.settle();
        self.lost = self.listener.lost();
        settled.map_err(|error| self.failure(error))
    }

    /// Brings the figures up to date, those of the time since the look before, too.
    fn look(&mut self) -> Result<(), Failure> {
        self.count()?;
        let behind = self.listener.take_behind();
        self.behind = [behind, behind.max(self.behind[1])];
        self.recent.look(self.listener.meter(), &self.moved);
        self.history.add(&self.recent);
        Ok(())
    }

    const fn watched(&self) -> Watched<'_> {
        let Self { options, listener, recent, moved, lost, behind, .. } = self;
        let meter = listener.meter();
        Watched {
            interface: options.interface.as_str(),
            meter,
            recent,
            counters: moved,
            lost: *lost,
            behind: *behind,
        }
    }

    /// Shows what is known now: on the dashboard, as a line of JSON, or as lines for people.
    fn show(&self, screen: Option<&mut Dashboard>) -> io::Result<()> {
        let watched = self.watched();
        if let Some(screen) = screen {
            return screen.draw(&watched, &self.history);
        }
        let mut out = io::stdout().lock();
        if self.options.json {
            return writeln!(out, "{}", watched.json());
        }
        watched.recent.lines(&mut out, &watched)
    }
}

/// All figures at the end.
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
    fn a_nic_that_counts_more_than_is_seen_takes_frames_for_itself() {
        let mut meter = Meter::new(None);
        let frame = FlowControlFrame { src: MacAddr([2, 0, 0, 0, 0, 1]), control: pfc(8, 1) };
        let seen = inspect(&frame.to_bytes(), 60).unwrap();
        (0..3).for_each(|_| meter.take(&seen, Time::ZERO));
        let recent = Recent::default();
        let is_swallowed = |name: &str, moved, lost| {
            let counters = [(name.to_owned(), moved)].into();
            Watched {
                interface: "x",
                meter: &meter,
                recent: &recent,
                counters: &counters,
                lost,
                behind: [Time::ZERO; 2],
            }
            .is_swallowed()
        };
        assert!(!is_swallowed("rx_prio3_pause", 3, 0) && !is_swallowed("rx_global_pause", 3, 0));
        assert!(is_swallowed("rx_prio3_pause", 4, 0) && is_swallowed("rx_prio4_pause", 1, 0));
        assert!(!is_swallowed("rx_prio3_pause", 4, 1) && !is_swallowed("tx_prio3_pause", 9, 0));
    }
}
