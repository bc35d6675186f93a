//! `feroce fabric live`: options, main loop and output.

use std::io;
use std::path::PathBuf;

use feroce_congestion::params::Kind;
use feroce_engine::time::Clock;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::report::{self, Samples};
use super::{Live, LiveConfig, LiveError};
use crate::fabric::external::ExternalConfig;
use crate::fabric::scenario::{Case, Change};
use crate::fabric::time::Time;

/// Interval at which signals, samples and warnings are checked.
const LOOK: Time = Time::from_millis(1);

/// Options of `live`.
#[derive(Debug, clap::Args)]
pub struct LiveOptions {
    /// Scenario file, or the name of a built-in scenario (see `list`). Its topology, switches and
    /// faults are used, not its traffic
    pub scenario: String,
    /// Connect an interface to a host's link: h1=veth0. Hosts without an interface neither send nor
    /// receive
    #[arg(long = "port", value_name = "HOST=IFACE", required = true, value_parser = port)]
    pub ports: Vec<(String, String)>,
    /// Seed of marks and faults, instead of the scenario's
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Set a key of the scenario: topology.rate=1Gb/s, congestion.kmin=5KB
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub changes: Vec<Change>,
    /// Case of the scenario, instead of the first
    #[arg(long, value_name = "NAME")]
    pub case: Option<String>,
    /// Also mark packets that are not ECN-capable, such as those of Linux rxe
    #[arg(long)]
    pub mark_not_ect: bool,
    /// Hold back frames of a paused endpoint, as a NIC with PFC does
    #[arg(long)]
    pub nics_obey: bool,
    /// Bytes an endpoint may send ahead of its link rate before frames are lost
    #[arg(long, value_name = "BYTES", default_value = "512KB", value_parser = bytes)]
    pub nic_buffer: u64,
    /// Stop after this time; without it, SIGINT or SIGTERM stops the run
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    pub duration: Option<Time>,
    /// Write the counters into this CSV file at regular intervals
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Interval of the samples
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = time)]
    pub sample: Time,
}

fn port(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((host, interface)) if !host.is_empty() && !interface.is_empty() => {
            Ok((host.to_owned(), interface.to_owned()))
        }
        _ => Err("expected HOST=IFACE, such as h1=veth0".to_owned()),
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    Kind::Bytes.parse(text).ok_or_else(|| "expected bytes, such as 512KB".to_owned())
}

fn time(text: &str) -> Result<Time, String> {
    let nanos = Kind::Time.parse(text).filter(|&nanos| nanos > 0);
    nanos.map(Time::from_nanos).ok_or_else(|| "expected a time, such as 100ms".to_owned())
}

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The network cannot be built, or an interface is refused or gone.
    #[error(transparent)]
    Live(#[from] LiveError),
    /// The table or the samples cannot be written, or signals cannot be watched.
    #[error("cannot write the results: {0}")]
    Output(#[from] io::Error),
}

/// Runs the network of `case` until a signal or the end of the time, then prints the counters.
///
/// # Errors
/// See [`Failure`].
pub fn run(options: &LiveOptions, case: &Case, seed: u64) -> Result<(), Failure> {
    let LiveOptions { mark_not_ect, nic_buffer, nics_obey, .. } = *options;
    let config = LiveConfig { mark_not_ect, external: ExternalConfig { nic_buffer, nics_obey } };
    let signals = watch_signals(&[Signal::SIGINT, Signal::SIGTERM])?;
    let mut recorder = Recorder::new(options)?;
    let mut live = Live::open(&case.network_config(seed), &options.ports, config)?;
    eprintln!("feroce: {} interfaces are connected", options.ports.len());
    let (clock, end) = (Clock::start(), options.duration.unwrap_or(Time::FAR));
    let mut look = LOOK;
    let ended = loop {
        let now = Time::from_instant(clock.now());
        if let Err(error) = live.turn(now) {
            break Err(error);
        }
        if now < look {
            continue;
        }
        look = now + LOOK;
        live.warnings().iter().for_each(|text| eprintln!("feroce: {text}"));
        recorder.look(now, &mut live);
        if now >= end || signals.read_signal().is_ok_and(|signal| signal.is_some()) {
            break Ok(());
        }
    };
    let mut out = io::stdout().lock();
    report::print(&mut out, &live.report())?;
    report::print_gaps(&mut out, live.gaps())?;
    ended?;
    Ok(recorder.finish()?)
}

/// Writes samples until writing fails; the network keeps running without samples.
struct Recorder {
    samples: Option<Samples>,
    every: Time,
    next: Time,
    failed: Option<io::Error>,
}

impl Recorder {
    fn new(options: &LiveOptions) -> io::Result<Self> {
        let samples = options.csv.as_deref().map(Samples::create).transpose()?;
        Ok(Self { samples, every: options.sample, next: options.sample, failed: None })
    }

    /// Takes a sample if one is due.
    fn look(&mut self, now: Time, live: &mut Live) {
        let Some(samples) = self.samples.as_mut().filter(|_| now >= self.next) else { return };
        self.next = self.next.max(now - self.every) + self.every;
        if let Err(error) = samples.add(now, &live.report()) {
            eprintln!("feroce: samples stop: {error}");
            (self.samples, self.failed) = (None, Some(error));
        }
    }

    /// Flushes the file. Returns the error if samples are missing.
    fn finish(self) -> io::Result<()> {
        match (self.samples, self.failed) {
            (_, Some(error)) => Err(error),
            (Some(samples), None) => samples.finish(),
            (None, None) => Ok(()),
        }
    }
}

/// Blocks these signals and returns a descriptor to read them from.
pub(crate) fn watch_signals(signals: &[Signal]) -> io::Result<SignalFd> {
    let mask: SigSet = signals.iter().copied().collect();
    mask.thread_block()?;
    Ok(SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?)
}
