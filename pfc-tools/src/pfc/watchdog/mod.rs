//! `feroce pfc watchdog`: waits for storms of pauses and stuck queues at an interface.

pub mod state;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use feroce_engine::net::{Interface, NetError};
use feroce_engine::port::ethtool::Ethtool;
use feroce_engine::sys::poll_readable;
use feroce_engine::time::Clock;
use nix::sys::signal::{SigSet, Signal};

use super::cli::{Failure, Outcome};
use super::counters::{Direction, What, about};
use super::listener::Listener;
use super::meter::PAUSE;
use super::units;
use crate::fabric::time::{LineRate, Time};
use crate::live::command::watch_signals;
use state::{Config, Event, Sample, Watchdog};

/// What ends it.
const SIGNALS: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Options of `feroce pfc watchdog`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A host's watchdog tells and does nothing else: a switch's would, of the stormed queue, either drop what is in it and what comes (drop), \
or send it in spite of pauses (forward), until the queue is restored. `--on-storm` can do something of the kind: \
`dcb pfc set dev eth0 prio-pfc 3:off`.")]
pub struct Options {
    /// Interface
    #[arg(value_name = "IFACE")]
    interface: String,
    /// Lossless priorities
    #[arg(long, value_name = "P,P", value_delimiter = ',', default_value = "3", value_parser = units::priority)]
    priorities: Vec<u8>,
    /// A storm is one that has lasted so long
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = units::time)]
    detection: Time,
    /// It is over when no pause has come for so long
    #[arg(long, value_name = "TIME", default_value = "400ms", value_parser = units::time)]
    restoration: Time,
    /// How often is looked
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = units::time)]
    poll: Time,
    /// Count the frames that reach the host, in place of the NIC's counters: for links that swallow none
    #[arg(long)]
    frames: bool,
    /// Rate of the link for --frames, in place of what its driver says
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    rate: Option<LineRate>,
    /// Run this by the shell when a storm begins; PFC_INTERFACE and PFC_PRIORITY are set
    #[arg(long, value_name = "COMMAND")]
    on_storm: Option<String>,
    /// Run this by the shell when it is over
    #[arg(long, value_name = "COMMAND")]
    on_restore: Option<String>,
    /// Keep this file up to date with figures for Prometheus, as node_exporter's textfile collector reads them; `-` prints them at the end
    #[arg(long, value_name = "FILE")]
    prometheus: Option<PathBuf>,
    /// End after this time; without it, SIGINT or SIGTERM ends it
    #[arg(long = "for", value_name = "TIME", value_parser = units::time)]
    duration: Option<Time>,
}

/// Where figures come from.
enum Source {
    /// What the NIC counts.
    Nic(Ethtool),
    /// Frames that arrive.
    Frames(Box<Listener>),
}

impl Source {
    fn open(options: &Options) -> Result<Self, Failure> {
        let name = &options.interface;
        if let Err(NetError::NoSuchInterface { .. }) = Interface::read(name) {
            return Err(Failure::Unusable(format!("no interface is called {name}")));
        }
        let of_interface = |source| Failure::Interface { name: name.clone(), source };
        let ethtool = Ethtool::open(name).map_err(of_interface)?;
        if options.frames {
            let listener = Listener::open(name, options.rate)?;
            return match listener.meter().rate() {
                Some(_) => Ok(Self::Frames(Box::new(listener))),
                None => Err(Failure::Unusable(format!(
                    "{name}: its driver knows no rate; --rate says it"
                ))),
            };
        }
        let counters = ethtool.statistics().unwrap_or_default();
        let lacks = |&&priority: &&u8| !of_counters(&counters, priority).is_enough();
        match options.priorities.iter().find(lacks) {
            None => Ok(Self::Nic(ethtool)),
            Some(priority) => Err(Failure::Unusable(format!(
                "{name}: its driver does not count for how long priority {priority} is paused, nor what it sends; --frames counts frames that reach the host"
            ))),
        }
    }

    /// What is known of each of `priorities` now.
    fn look(&mut self, priorities: &[u8]) -> io::Result<Vec<Sample>> {
        match self {
            Self::Nic(ethtool) => {
                let counters = ethtool.statistics()?;
                Ok(priorities.iter().map(|&priority| of_counters(&counters, priority)).collect())
            }
            Self::Frames(listener) => {
                listener.settle()?;
                let (meter, now) = (listener.meter(), listener.meter().now());
                let of = |&priority: &u8| {
                    let (mut frames, mut paused) = (0, Time::ZERO);
                    for sender in meter.senders() {
                        let own = sender.figures(usize::from(priority), now);
                        frames += own.xoff + sender.figures(PAUSE, now).xoff;
                        paused = paused + sender.stood_still(priority.into(), now);
                    }
                    Sample { frames, paused: Some(paused), ..Sample::default() }
                };
                Ok(priorities.iter().map(of).collect())
            }
        }
    }
}

/// What a NIC's counters say of a priority.
fn of_counters(counters: &BTreeMap<String, u64>, priority: u8) -> Sample {
    let mut sample = Sample::default();
    for (name, &value) in counters {
        // As mlx5 calls them.
        if *name == format!("tx_prio{priority}_packets") {
            sample.sent = Some(value);
        }
        let Some(about) = about(name) else { continue };
        if about.direction != Direction::Rx || about.priority != Some(priority) {
            continue;
        }
        match about.what {
            What::Frames => sample.frames += value,
            What::Micros => sample.paused = Some(Time::from_micros(value)),
            What::Transitions => {}
        }
    }
    sample
}

/// Watches until the time is over or a signal comes.
///
/// # Errors
/// If the interface cannot be watched, or goes away.
pub fn run(options: &Options) -> Result<Outcome, Failure> {
    let name = &options.interface;
    let Options { detection, restoration, .. } = *options;
    let signals = watch_signals(&SIGNALS)?;
    let clock = Clock::start();
    let mut source = Source::open(options)?;
    let config = Config { detection, restoration, paused: 80 };
    let mut dogs: Vec<Watchdog> =
        options.priorities.iter().map(|_| Watchdog::new(config)).collect();
    let mut link = Link::default();
    let (mut children, mut scratch) = (Vec::new(), Vec::new());
    let end = options.duration.unwrap_or(Time::FAR);
    let mut due = Time::ZERO;
    loop {
        let now = Time::from_instant(clock.now());
        if now >= end || signals.read_signal().is_ok_and(|signal| signal.is_some()) {
            break;
        }
        if now < due {
            let wait = Duration::from_nanos((due.min(end) - now).0 / 1000 + 1);
            poll_readable(&[signals.as_raw_fd()], &mut scratch, Some(wait));
            continue;
        }
        due = now + options.poll;
        let of_interface = |source| Failure::Interface { name: name.clone(), source };
        link.look(name).map_err(|error| of_interface(io::Error::other(error)))?;
        let samples = source.look(&options.priorities).map_err(of_interface)?;
        children.retain_mut(|child: &mut Child| matches!(child.try_wait(), Ok(None)));
        for ((dog, &priority), sample) in dogs.iter_mut().zip(&options.priorities).zip(&samples) {
            let sample = Sample { link_changes: link.changes, is_up: link.is_up, ..*sample };
            if let Some(event) = dog.poll(now, sample) {
                children.extend(tell(options, priority, event, now)?);
            }
        }
        if let Some(file) = options.prometheus.as_ref().filter(|file| *file != Path::new("-")) {
            replace(file, &figures(name, &options.priorities, &dogs, &samples))?;
        }
    }
    if options.prometheus.as_deref() == Some(Path::new("-")) {
        let samples = source.look(&options.priorities).unwrap_or_default();
        let text = figures(name, &options.priorities, &dogs, &samples);
        io::stdout().lock().write_all(text.as_bytes())?;
    }
    Ok(Outcome::of(dogs.iter().any(|dog| dog.storms > 0)))
}

/// Whether the link is there, and how often that has changed.
#[derive(Debug, Default)]
struct Link {
    is_up: bool,
    changes: u64,
}

impl Link {
    fn look(&mut self, name: &str) -> Result<(), NetError> {
        let interface = Interface::read(name)?;
        let is_up = interface.is_usable();
        // Changes between two looks, where the kernel counts them.
        let counted = interface.carrier_changes.map(u64::from);
        self.changes = counted.unwrap_or(self.changes + u64::from(is_up != self.is_up));
        self.is_up = is_up;
        Ok(())
    }
}

/// Prints what has happened, and runs the command for it.
fn tell(options: &Options, priority: u8, event: Event, now: Time) -> io::Result<Option<Child>> {
    let name = &options.interface;
    let (what, command) = match event {
        Event::Storm => ("storm", &options.on_storm),
        Event::Restored => ("restored", &options.on_restore),
    };
    let mut out = io::stdout().lock();
    writeln!(out, "{:.1} s: {name}: priority {priority}: {what}", now.seconds())?;
    out.flush()?;
    let Some(command) = command else { return Ok(None) };
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null());
    shell.env("PFC_INTERFACE", name).env("PFC_PRIORITY", priority.to_string());
    // A child inherits which signals are blocked, and these have to end it, too. One that comes just now ends this program at once.
    let mask: SigSet = SIGNALS.into_iter().collect();
    mask.thread_unblock()?;
    let child = shell.spawn();
    mask.thread_block()?;
    match child {
        Ok(child) => Ok(Some(child)),
        Err(error) => {
            eprintln!("feroce: cannot run `{command}`: {error}");
            Ok(None)
        }
    }
}

/// Figures in Prometheus' text format.
fn figures(name: &str, priorities: &[u8], dogs: &[Watchdog], samples: &[Sample]) -> String {
    let rows = [
        ("storm", "gauge", "whether there is a storm"),
        ("storms_total", "counter", "storms that began"),
        ("restored_total", "counter", "storms that ended"),
        ("pause_frames_total", "counter", "pause frames received"),
        ("paused_seconds_total", "counter", "for how long they paused"),
    ];
    let mut text = String::new();
    for (row, kind, help) in rows {
        let row_name = format!("feroce_pfc_watchdog_{row}");
        let _ = writeln!(text, "# HELP {row_name} {help}\n# TYPE {row_name} {kind}");
        for ((priority, dog), sample) in priorities.iter().zip(dogs).zip(samples) {
            let value = match row {
                "storm" => u8::from(dog.is_stormed()).to_string(),
                "storms_total" => dog.storms.to_string(),
                "restored_total" => dog.restored.to_string(),
                "pause_frames_total" => sample.frames.to_string(),
                _ => match sample.paused {
                    Some(paused) => paused.seconds().to_string(),
                    None => continue,
                },
            };
            let _ = writeln!(
                text,
                "{row_name}{{interface=\"{name}\",priority=\"{priority}\"}} {value}"
            );
        }
    }
    text
}

/// Whoever reads the file sees all of it, or all of what it was.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    let beside = file.with_extension("tmp");
    std::fs::write(&beside, text)?;
    std::fs::rename(&beside, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drivers_counters_are_read() {
        let counters = [
            ("rx_prio3_pause", 12),
            ("rx_prio3_pause_duration", 3400),
            ("rx_prio4_pause", 5),
            ("tx_prio3_pause", 99),
            ("tx_prio3_packets", 77),
        ];
        let counters = counters.map(|(name, value)| (name.to_owned(), value)).into();
        let sample = of_counters(&counters, 3);
        assert_eq!((sample.frames, sample.sent), (12, Some(77)));
        assert_eq!(sample.paused, Some(Time::from_micros(3400)));
        assert!(!of_counters(&counters, 4).is_enough());
    }

    #[test]
    fn figures_are_what_prometheus_reads() {
        let config = Config { detection: Time(1), restoration: Time(1), paused: 80 };
        let sample =
            Sample { frames: 4, paused: Some(Time::from_millis(1500)), ..Sample::default() };
        let text = figures("eth0", &[3], &[Watchdog::new(config)], &[sample]);
        for line in [
            "# TYPE feroce_pfc_watchdog_storm gauge",
            "feroce_pfc_watchdog_storm{interface=\"eth0\",priority=\"3\"} 0",
            "feroce_pfc_watchdog_pause_frames_total{interface=\"eth0\",priority=\"3\"} 4",
            "feroce_pfc_watchdog_paused_seconds_total{interface=\"eth0\",priority=\"3\"} 1.5",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
    }
}
