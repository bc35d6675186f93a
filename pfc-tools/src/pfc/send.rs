//! `feroce pfc send`: frames of flow control, to an interface or into a file.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use feroce_engine::net::Interface;
use feroce_engine::port::packet::{Offload, Tap};
use feroce_engine::sys::poll_readable;
use feroce_engine::time::Clock;
use feroce_wire::{FlowControl, FlowControlFrame, MacAddr};
use nix::sys::signalfd::SignalFd;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, TsResolution};
use std::os::fd::AsRawFd;

use super::cli::{Failure, Outcome};
use super::malformed::Malformed;
use super::report::shown;
use super::schedule::{Schedule, Step, pfc};
use super::units;
use crate::fabric::time::Time;
use crate::live::command::watch_signals;

/// The address that frames in a file come from unless told otherwise.
const NOBODY: MacAddr = MacAddr([0x02, 0, 0, 0, 0, 0x01]);
/// Nothing that is sent takes longer.
const LONGEST: Time = Time::from_millis(3_600_000);

/// Options of `send`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// A frame, or several of the same
    Frame(FrameOptions),
    /// Let priorities go
    Xon(XonOptions),
    /// Keep priorities paused for a stated time, and then let them go
    Storm(StormOptions),
    /// Every combination of some rates, quanta and priorities, one after the other
    Sweep(SweepOptions),
    /// Random frames, every third with something wrong, for other decoders to judge
    Random(RandomOptions),
}

/// Where frames go.
#[derive(Debug, Args)]
struct To {
    /// The interface that sends
    #[arg(required_unless_present = "pcap")]
    interface: Option<String>,
    /// Write the frames into a file instead, with the times at which they would be sent
    #[arg(long, value_name = "FILE", conflicts_with = "interface")]
    pcap: Option<PathBuf>,
    /// Source address, in place of the interface's
    #[arg(long, value_name = "MAC")]
    src: Option<MacAddr>,
}

#[derive(Debug, Args)]
struct FrameOptions {
    #[command(flatten)]
    to: To,
    /// Priorities
    #[arg(long, value_name = "P,P", default_value = "3", value_delimiter = ',', value_parser = units::priority)]
    priorities: Vec<u8>,
    /// For how long, in times of 512 bits; 0 lets go
    #[arg(long, value_name = "QUANTA", default_value = "65535")]
    quanta: u16,
    /// PAUSE (802.3x), which stops every priority
    #[arg(long, conflicts_with = "priorities")]
    pause: bool,
    /// Make one field wrong
    #[arg(long, value_enum, value_name = "FIELD")]
    malformed: Option<Malformed>,
    /// How often
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    count: u64,
    /// Frames a second
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    per_second: u64,
}

#[derive(Debug, Args)]
struct XonOptions {
    #[command(flatten)]
    to: To,
    /// Priorities
    #[arg(long, value_name = "P,P", default_value = "0,1,2,3,4,5,6,7", value_delimiter = ',', value_parser = units::priority)]
    priorities: Vec<u8>,
}

#[derive(Debug, Args)]
struct StormOptions {
    #[command(flatten)]
    to: To,
    /// How long: it always ends, and lets go then
    #[arg(long = "for", value_name = "TIME", value_parser = span)]
    duration: Time,
    /// Priorities
    #[arg(long, value_name = "P,P", default_value = "3", value_delimiter = ',', value_parser = units::priority)]
    priorities: Vec<u8>,
    /// For how long each frame pauses, in times of 512 bits
    #[arg(long, value_name = "QUANTA", default_value = "65535")]
    quanta: u16,
    /// PAUSE (802.3x), which stops every priority
    #[arg(long, conflicts_with = "priorities")]
    pause: bool,
    /// Frames a second
    #[arg(long, value_name = "N", default_value = "2000", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    per_second: u64,
}

#[derive(Debug, Args)]
struct SweepOptions {
    #[command(flatten)]
    to: To,
    /// Priorities; given several times, one after the other
    #[arg(long, value_name = "P+P", default_value = "3", value_parser = mask)]
    priorities: Vec<u8>,
    /// Quanta
    #[arg(long, value_name = "Q,Q", default_value = "1000,65535", value_delimiter = ',')]
    quanta: Vec<u16>,
    /// Frames a second
    #[arg(long, value_name = "N,N", default_value = "100,1000", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    per_second: Vec<u64>,
    /// How long each combination is sent
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = span)]
    each: Time,
}

#[derive(Debug, Args)]
struct RandomOptions {
    #[command(flatten)]
    to: To,
    /// How many
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    count: u64,
    /// The same seed gives the same frames
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
}

fn span(text: &str) -> Result<Time, String> {
    let time = units::time(text)?;
    if time <= LONGEST { Ok(time) } else { Err("an hour is the most".to_owned()) }
}

/// Priorities joined by `+`, a bit each.
fn mask(text: &str) -> Result<u8, String> {
    text.split('+').try_fold(0, |mask, p| Ok(mask | 1 << units::priority(p)?))
}

fn bits(priorities: &[u8]) -> u8 {
    priorities.iter().fold(0, |mask, p| mask | 1 << p)
}

fn gap(per_second: u64) -> Time {
    Time(1_000_000_000_000 / per_second)
}

fn control(priorities: &[u8], quanta: u16, pause: bool) -> FlowControl {
    if pause { FlowControl::Pause { quanta } } else { pfc(bits(priorities), quanta) }
}

impl To {
    fn source(&self) -> Result<MacAddr, Failure> {
        match (&self.src, &self.interface) {
            (Some(mac), _) => Ok(*mac),
            (None, None) => Ok(NOBODY),
            (None, Some(name)) => {
                let found = Interface::read(name);
                found.map(|found| found.mac).map_err(|error| Failure::Unusable(error.to_string()))
            }
        }
    }
}

/// Sends.
///
/// # Errors
/// If the interface cannot be used or the file not be written.
pub fn run(options: &Options) -> Result<Outcome, Failure> {
    let (to, schedule) = match &options.what {
        What::Frame(options) => (&options.to, frame(options)?),
        What::Xon(options) => {
            let control = pfc(bits(&options.priorities), 0);
            let bytes = FlowControlFrame { src: options.to.source()?, control }.to_bytes().to_vec();
            let step = Step { bytes, count: 1, gap: Time::ZERO };
            (&options.to, Schedule { steps: vec![step], xon: None })
        }
        What::Storm(options) => {
            let control = control(&options.priorities, options.quanta, options.pause);
            let (src, gap) = (options.to.source()?, gap(options.per_second));
            (&options.to, Schedule::storm(src, control, options.duration, gap))
        }
        What::Sweep(options) => {
            let gaps: Vec<_> = options.per_second.iter().map(|&n| gap(n)).collect();
            let SweepOptions { to, priorities, quanta, each, .. } = options;
            (to, Schedule::sweep(to.source()?, priorities, quanta, &gaps, *each))
        }
        What::Random(options) => {
            (&options.to, Schedule::random(options.count, options.seed, gap(1_000_000)))
        }
    };
    match (&to.pcap, &to.interface) {
        (Some(file), _) => {
            write(file, &schedule).map_err(|error| {
                Failure::Unusable(format!("cannot write {}: {error}", file.display()))
            })?;
            Ok(Outcome::Fine)
        }
        (None, Some(interface)) => send(interface, &schedule),
        (None, None) => Err(Failure::Unusable("an interface or --pcap".to_owned())),
    }
}

fn frame(options: &FrameOptions) -> Result<Schedule, Failure> {
    let control = control(&options.priorities, options.quanta, options.pause);
    let frame = FlowControlFrame { src: options.to.source()?, control };
    let bytes = match options.malformed {
        Some(kind) if options.pause && !kind.fits_pause() => {
            return Err(Failure::Unusable("PAUSE has no class enable vector".to_owned()));
        }
        Some(kind) => kind.bytes(&frame, 0x55),
        None => frame.to_bytes().to_vec(),
    };
    let step = Step { bytes, count: options.count, gap: gap(options.per_second) };
    Ok(Schedule { steps: vec![step], xon: None })
}

/// Writes the schedule as a capture that begins at 0.
fn write(file: &PathBuf, schedule: &Schedule) -> io::Result<()> {
    let header = PcapHeader {
        datalink: DataLink::ETHERNET,
        ts_resolution: TsResolution::NanoSecond,
        ..PcapHeader::default()
    };
    let out = BufWriter::new(File::create(file)?);
    let mut writer = PcapWriter::with_header(out, header).map_err(io::Error::other)?;
    let mut now = Time::ZERO;
    let mut put = |bytes: &[u8], now: Time| {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let packet = PcapPacket::new(Duration::from_nanos(now.0 / 1000), len, bytes);
        writer.write_packet(&packet).map(|_len| ()).map_err(io::Error::other)
    };
    for step in &schedule.steps {
        for _ in 0..step.count {
            put(&step.bytes, now)?;
            now = now + step.gap;
        }
    }
    schedule.xon.as_ref().map_or(Ok(()), |xon| put(xon, now))
}

/// How sending ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Done,
    Signal,
}

fn send(interface: &str, schedule: &Schedule) -> Result<Outcome, Failure> {
    let signals = watch_signals()?;
    let mut tap = Tap::open_flow_control(interface, 1 << 16)?;
    let clock = Clock::start();
    let mut sent = 0;
    let ended = play(&mut tap, &signals, &clock, schedule, &mut sent);
    let took = Time::from_instant(clock.now());
    // Whatever has happened: nothing stays paused.
    let xon = schedule.xon.as_ref().map(|xon| tap.send(xon, Offload::default()));
    let how = match (&ended, &xon) {
        (Err(_), _) => "the interface refused it",
        (Ok(End::Signal), _) => "stopped by a signal",
        (Ok(End::Done), _) => "ended by itself",
    };
    let xon = match xon {
        None => String::new(),
        Some(Ok(())) => "; XON sent".to_owned(),
        Some(Err(error)) => format!("; XON could not be sent: {error}"),
    };
    println!("{sent} of {} frames in {}: {how}{xon}", schedule.frames(), shown(took));
    match ended {
        Ok(End::Done) => Ok(Outcome::Fine),
        Ok(End::Signal) => Ok(Outcome::Findings),
        Err(error) => Err(Failure::Interface { name: interface.to_owned(), source: error }),
    }
}

/// Sends each frame when its time has come; what is late goes at once, so that the rate holds over time.
fn play(
    tap: &mut Tap,
    signals: &SignalFd,
    clock: &Clock,
    schedule: &Schedule,
    sent: &mut u64,
) -> io::Result<End> {
    let (mut due, mut scratch) = (Time::ZERO, Vec::new());
    for step in &schedule.steps {
        for n in 0..step.count {
            loop {
                let now = Time::from_instant(clock.now());
                let wait = Duration::from_nanos((due - now).0 / 1000);
                // A signal is looked for now and then, also when there is no time to wait.
                if !wait.is_zero() || n % 64 == 0 {
                    poll_readable(&[signals.as_raw_fd()], &mut scratch, Some(wait));
                    if signals.read_signal().is_ok_and(|signal| signal.is_some()) {
                        return Ok(End::Signal);
                    }
                }
                if Time::from_instant(clock.now()) < due {
                    continue;
                }
                match tap.send(&step.bytes, Offload::default()) {
                    Ok(()) => break,
                    // No room: its time has come, and it will be tried again.
                    Err(error) if is_full(&error) => {
                        poll_readable(&[], &mut scratch, Some(Duration::from_micros(50)));
                        if signals.read_signal().is_ok_and(|signal| signal.is_some()) {
                            return Ok(End::Signal);
                        }
                    }
                    Err(error) => return Err(error),
                }
            }
            *sent += 1;
            due = due + step.gap;
        }
    }
    Ok(End::Done)
}

fn is_full(error: &io::Error) -> bool {
    const ENOBUFS: i32 = 105;
    error.kind() == ErrorKind::WouldBlock || error.raw_os_error() == Some(ENOBUFS)
}
