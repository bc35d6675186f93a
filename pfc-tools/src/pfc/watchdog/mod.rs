//! `feroce pfc watchdog`: detects PFC storms and stuck queues at an interface.

pub mod state;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use feroce_engine::files;
use feroce_engine::net::{Interface, NetError};
use feroce_engine::port::ethtool::Ethtool;
use feroce_engine::sys::poll_readable;
use feroce_engine::time::Clock;
use nix::sys::signal::{SigSet, Signal};

use super::counters::{Direction, Quantity, parse_name};
use super::listener::Listener;
use super::outcome::{Failure, Outcome};
use super::timer::PAUSE;
use super::units;
use crate::fabric::time::{LinkRate, Time};
use crate::live::command::watch_signals;
use state::{Config, Event, Sample, Watchdog};

/// Signals that stop the program.
const SIGNALS: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Options of `feroce pfc watchdog`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
This watchdog only reports. The watchdog of a switch also acts on the stormed queue: it drops the \
queue's packets (drop) or sends them in spite of pauses (forward) until the queue is restored. A \
command of --on-storm can do something similar: `dcb pfc set dev eth0 prio-pfc 3:off`.")]
pub struct Options {
    /// Interface to watch
    #[arg(value_name = "IFACE")]
    interface: String,
    /// Lossless priorities
    #[arg(
        long,
        value_name = "P,P",
        value_delimiter = ',',
        default_value = "3",
        value_parser = units::priority
    )]
    priorities: Vec<u8>,
    /// Report a storm after this time
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = units::time)]
    detection: Time,
    /// Report the end of a storm when no pause has arrived for this time
    #[arg(long, value_name = "TIME", default_value = "400ms", value_parser = units::time)]
    restoration: Time,
    /// Polling interval
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = units::time)]
    poll: Time,
    /// Count the frames that reach the host instead of using the NIC's counters; for links that do
    /// not consume PFC frames
    #[arg(long)]
    frames: bool,
    /// Link rate for --frames, instead of the rate reported by the driver
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    rate: Option<LinkRate>,
    /// Shell command to run when a storm starts; PFC_INTERFACE and PFC_PRIORITY are set
    #[arg(long, value_name = "COMMAND")]
    on_storm: Option<String>,
    /// Shell command to run when a storm ends
    #[arg(long, value_name = "COMMAND")]
    on_restore: Option<String>,
    /// Write metrics for Prometheus to this file at every poll, for node_exporter's textfile
    /// collector; `-` prints them at the end
    #[arg(long, value_name = "FILE")]
    prometheus: Option<PathBuf>,
    /// Stop after this time; without it, SIGINT, SIGTERM or SIGHUP stops the program
    #[arg(long = "for", value_name = "TIME", value_parser = units::time)]
    duration: Option<Time>,
}

/// Source of the samples.
enum Source {
    /// The NIC's counters.
    Nic(Ethtool),
    /// Frames that reach the host.
    Frames(Box<Listener>),
}

impl Source {
    fn open(options: &Options) -> Result<Self, Failure> {
        let name = &options.interface;
        if let Err(NetError::NoSuchInterface { .. }) = Interface::read(name) {
            return Err(Failure::Unusable(format!("there is no interface {name}")));
        }
        let of_interface = |source| Failure::Interface { name: name.clone(), source };
        let ethtool = Ethtool::open(name).map_err(of_interface)?;
        if options.frames {
            let listener = Listener::open(name, options.rate)?;
            return match listener.meter().rate() {
                Some(_) => Ok(Self::Frames(Box::new(listener))),
                None => Err(Failure::Unusable(format!(
                    "{name}: the driver reports no link rate; set it with --rate"
                ))),
            };
        }
        let counters = ethtool.statistics().unwrap_or_default();
        let lacks = |&&priority: &&u8| !of_counters(&counters, priority).is_enough();
        match options.priorities.iter().find(lacks) {
            None => Ok(Self::Nic(ethtool)),
            Some(priority) => Err(Failure::Unusable(format!(
                "{name}: the driver counts neither the pause time nor the packets sent of priority \
                 {priority}; --frames counts the frames that reach the host"
            ))),
        }
    }

    /// Samples of `priorities` now.
    fn poll(&mut self, priorities: &[u8]) -> io::Result<Vec<Sample>> {
        match self {
            Self::Nic(ethtool) => {
                let counters = ethtool.statistics()?;
                Ok(priorities.iter().map(|&priority| of_counters(&counters, priority)).collect())
            }
            Self::Frames(listener) => {
                listener.drain()?;
                let (meter, now) = (listener.meter(), listener.meter().now());
                let of = |&priority: &u8| {
                    let (mut frames, mut paused) = (0, Time::ZERO);
                    for sender in meter.senders() {
                        let own = sender.stats(usize::from(priority), now);
                        frames += own.xoff + sender.stats(PAUSE, now).xoff;
                        paused = paused + sender.blocked_time(priority.into(), now);
                    }
                    Sample { frames, paused: Some(paused), ..Sample::default() }
                };
                Ok(priorities.iter().map(of).collect())
            }
        }
    }
}

/// The sample of a priority from a NIC's counters.
fn of_counters(counters: &BTreeMap<String, u64>, priority: u8) -> Sample {
    let mut sample = Sample::default();
    for (name, &value) in counters {
        // Name of mlx5.
        if *name == format!("tx_prio{priority}_packets") {
            sample.sent = Some(value);
        }
        let Some(meaning) = parse_name(name) else { continue };
        if meaning.direction != Direction::Rx || meaning.priority != Some(priority) {
            continue;
        }
        match meaning.what {
            Quantity::Frames => sample.frames += value,
            Quantity::Micros => sample.paused = Some(Time::from_micros(value)),
            Quantity::Transitions => {}
        }
    }
    sample
}

/// Watches until the time is over or a signal arrives.
///
/// # Errors
/// If the interface cannot be watched or goes away.
pub fn run(options: &Options) -> Result<Outcome, Failure> {
    let name = &options.interface;
    let Options { detection, restoration, .. } = *options;
    let signals = watch_signals(&SIGNALS)?;
    let clock = Clock::start();
    let mut source = Source::open(options)?;
    let config = Config { detection, restoration, paused: 80 };
    let mut watchdogs: Vec<Watchdog> =
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
        link.poll(name).map_err(|error| of_interface(io::Error::other(error)))?;
        let samples = source.poll(&options.priorities).map_err(of_interface)?;
        children.retain_mut(|child: &mut Child| matches!(child.try_wait(), Ok(None)));
        for ((watchdog, &priority), sample) in
            watchdogs.iter_mut().zip(&options.priorities).zip(&samples)
        {
            let sample = Sample { link_changes: link.changes, is_up: link.is_up, ..*sample };
            if let Some(event) = watchdog.poll(now, sample) {
                children.extend(report_event(options, priority, event, now)?);
            }
        }
        if let Some(file) = options.prometheus.as_ref().filter(|file| *file != Path::new("-")) {
            replace(file, &metrics(name, &options.priorities, &watchdogs, &samples))?;
        }
    }
    if options.prometheus.as_deref() == Some(Path::new("-")) {
        let samples = source.poll(&options.priorities).unwrap_or_default();
        let text = metrics(name, &options.priorities, &watchdogs, &samples);
        io::stdout().lock().write_all(text.as_bytes())?;
    }
    Ok(Outcome::of(watchdogs.iter().any(|watchdog| watchdog.storms > 0)))
}

/// State of the link, and the number of its changes.
#[derive(Debug, Default)]
struct Link {
    is_up: bool,
    changes: u64,
}

impl Link {
    fn poll(&mut self, name: &str) -> Result<(), NetError> {
        let interface = Interface::read(name)?;
        let is_up = interface.is_usable();
        // The kernel's count includes changes between two polls.
        let counted = interface.carrier_changes.map(u64::from);
        self.changes = counted.unwrap_or(self.changes + u64::from(is_up != self.is_up));
        self.is_up = is_up;
        Ok(())
    }
}

/// Prints an event and runs its command.
fn report_event(
    options: &Options,
    priority: u8,
    event: Event,
    now: Time,
) -> io::Result<Option<Child>> {
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
    // A child inherits the signal mask, and the signals must be able to stop it. A signal that
    // arrives during the spawn stops this program at once.
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

/// Metrics in Prometheus' text format.
fn metrics(name: &str, priorities: &[u8], watchdogs: &[Watchdog], samples: &[Sample]) -> String {
    let rows = [
        ("storm", "gauge", "1 during a storm"),
        ("storms_total", "counter", "storms started"),
        ("restored_total", "counter", "storms ended"),
        ("pause_frames_total", "counter", "pause frames received"),
        ("paused_seconds_total", "counter", "pause time"),
    ];
    let mut text = String::new();
    for (row, kind, help) in rows {
        let row_name = format!("feroce_pfc_watchdog_{row}");
        let _ = writeln!(text, "# HELP {row_name} {help}\n# TYPE {row_name} {kind}");
        for ((priority, watchdog), sample) in priorities.iter().zip(watchdogs).zip(samples) {
            let value = match row {
                "storm" => u8::from(watchdog.is_stormed()).to_string(),
                "storms_total" => watchdog.storms.to_string(),
                "restored_total" => watchdog.restored.to_string(),
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

/// Replaces the file atomically.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    let beside = file.with_extension("tmp");
    files::write(&beside, text)?;
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
    fn metrics_have_prometheus_format() {
        let config = Config { detection: Time(1), restoration: Time(1), paused: 80 };
        let sample =
            Sample { frames: 4, paused: Some(Time::from_millis(1500)), ..Sample::default() };
        let text = metrics("eth0", &[3], &[Watchdog::new(config)], &[sample]);
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
