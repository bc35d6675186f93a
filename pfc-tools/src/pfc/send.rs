//! `feroce pfc send`: sends flow control frames to an interface or into a file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use feroce_engine::files;
use feroce_engine::net::Interface;
use feroce_engine::port::ethtool::Ethtool;
use feroce_engine::port::packet::{Offload, Tap};
use feroce_engine::sys::poll_readable;
use feroce_engine::time::Clock;
use feroce_wire::{FlowControl, FlowControlFrame, MacAddr};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, TsResolution};

use super::malformed::Malformed;
use super::outcome::{Failure, Outcome};
use super::report::{share, shown};
use super::schedule::{FinalXon, LONGEST, Schedule, Step, pfc, xon};
use super::transmit::{End, Playback, Transmitter, transmit};
use super::units;
use crate::fabric::time::{LinkRate, Time};
use crate::live::command::watch_signals;

/// Default source address of frames in a file.
const DEFAULT_SRC: MacAddr = MacAddr([0x02, 0, 0, 0, 0, 0x01]);
/// Frames per second of a storm if the link rate is unknown.
const STORM_PER_SECOND: u64 = 2000;
/// Shortest interval that a storm chooses by itself.
const STORM_GAP_MIN: Time = Time::from_micros(1);

/// Options of `send`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    what: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Send one frame, or the same frame several times
    Frame(FrameOptions),
    /// Resume priorities
    Xon(XonOptions),
    /// Keep priorities paused for a given time, then resume them
    Storm(StormOptions),
    /// Send every combination of the given rates, quanta and priorities, one after the other
    Sweep(SweepOptions),
    /// Send random frames, every third malformed, to test other decoders
    Random(RandomOptions),
}

/// Destination of the frames.
#[derive(Debug, Args)]
struct Destination {
    /// Interface to send on
    #[arg(value_name = "IFACE", required_unless_present = "pcap")]
    interface: Option<String>,
    /// Write the frames into a capture file instead, with the times at which they would be sent
    #[arg(long, value_name = "FILE", conflicts_with = "interface")]
    pcap: Option<PathBuf>,
    /// Also write the sent frames into a capture file, with their send times; captures by other
    /// programs on the interface lack them
    #[arg(long, value_name = "FILE", conflicts_with = "pcap")]
    record: Option<PathBuf>,
    /// Source address, instead of the interface's
    #[arg(long, value_name = "MAC")]
    src: Option<MacAddr>,
}

#[derive(Debug, Args)]
struct FrameOptions {
    #[command(flatten)]
    to: Destination,
    /// Priorities
    #[arg(
        long,
        value_name = "P,P",
        default_value = "3",
        value_delimiter = ',',
        value_parser = units::priority
    )]
    priorities: Vec<u8>,
    /// Pause time in units of 512 bit times; 0 resumes
    #[arg(long, value_name = "QUANTA", default_value = "65535")]
    quanta: u16,
    /// Send PAUSE (802.3x), which stops every priority
    #[arg(long, conflicts_with = "priorities")]
    pause: bool,
    /// Make one field invalid
    #[arg(long, value_enum, value_name = "FIELD")]
    malformed: Option<Malformed>,
    /// Number of frames
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000)
    )]
    count: u64,
    /// Frames per second
    #[arg(
        long,
        value_name = "N",
        default_value = "1000",
        value_parser = clap::value_parser!(u64).range(1..=10_000_000)
    )]
    per_second: u64,
}

#[derive(Debug, Args)]
struct XonOptions {
    #[command(flatten)]
    to: Destination,
    /// Priorities
    #[arg(
        long,
        value_name = "P,P",
        default_value = "0,1,2,3,4,5,6,7",
        value_delimiter = ',',
        value_parser = units::priority
    )]
    priorities: Vec<u8>,
}

#[derive(Debug, Args)]
struct StormOptions {
    #[command(flatten)]
    to: Destination,
    /// Duration of the storm; the priorities are resumed at its end
    #[arg(long = "for", value_name = "TIME", value_parser = span)]
    duration: Time,
    /// Priorities
    #[arg(
        long,
        value_name = "P,P",
        default_value = "3",
        value_delimiter = ',',
        value_parser = units::priority
    )]
    priorities: Vec<u8>,
    /// Pause time of each frame, in units of 512 bit times
    #[arg(
        long,
        value_name = "QUANTA",
        default_value = "65535",
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    quanta: u16,
    /// Send PAUSE (802.3x), which stops every priority
    #[arg(long, conflicts_with = "priorities")]
    pause: bool,
    /// Frames per second; by default two per pause time at the link rate, or 2000 if the rate is
    /// unknown
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    per_second: Option<u64>,
}

#[derive(Debug, Args)]
struct SweepOptions {
    #[command(flatten)]
    to: Destination,
    /// Priorities; repeat the option for several sets, sent one after the other
    #[arg(long, value_name = "P+P", default_value = "3", value_parser = mask)]
    priorities: Vec<u8>,
    /// Quanta
    #[arg(long, value_name = "Q,Q", default_value = "1000,65535", value_delimiter = ',')]
    quanta: Vec<u16>,
    /// Frames per second
    #[arg(
        long,
        value_name = "N,N",
        default_value = "100,1000",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u64).range(1..=10_000_000)
    )]
    per_second: Vec<u64>,
    /// Duration of each combination
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = span)]
    each: Time,
}

#[derive(Debug, Args)]
struct RandomOptions {
    #[command(flatten)]
    to: Destination,
    /// Number of frames
    #[arg(
        long,
        value_name = "N",
        default_value = "1000",
        value_parser = clap::value_parser!(u64).range(1..=10_000_000)
    )]
    count: u64,
    /// Seed: the same seed gives the same frames
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
}

fn span(text: &str) -> Result<Time, String> {
    let time = units::time(text)?;
    if time <= LONGEST { Ok(time) } else { Err("the limit is one hour".to_owned()) }
}

/// Priorities joined by `+`, one bit each.
fn mask(text: &str) -> Result<u8, String> {
    text.split('+').try_fold(0, |mask, p| Ok(mask | 1 << units::priority(p)?))
}

fn bits(priorities: &[u8]) -> u8 {
    priorities.iter().fold(0, |mask, p| mask | 1 << p)
}

fn gap(per_second: u64) -> Time {
    Time(1_000_000_000_000 / per_second)
}

/// Interval between frames of a storm: as requested, else half of a pause.
fn storm_gap(per_second: Option<u64>, quanta: u16, rate: Option<LinkRate>) -> Time {
    match (per_second, rate) {
        (Some(n), _) => gap(n),
        (None, Some(rate)) => Time(rate.quanta(quanta).0 / 2).max(STORM_GAP_MIN),
        (None, None) => gap(STORM_PER_SECOND),
    }
}

/// A note if each pause ends before the next frame.
fn short_pause_note(gap: Time, quanta: u16, rate: LinkRate) -> Option<String> {
    let pause = rate.quanta(quanta);
    (gap > pause).then(|| {
        let percent = 100.0 * share(pause, gap);
        format!(
            "pauses only {percent:.1} % of the time: {quanta} quanta last {}, and a frame is sent \
             every {}",
            shown(pause),
            shown(gap)
        )
    })
}

fn control(priorities: &[u8], quanta: u16, pause: bool) -> FlowControl {
    if pause { FlowControl::Pause { quanta } } else { pfc(bits(priorities), quanta) }
}

impl Destination {
    fn source(&self) -> Result<MacAddr, Failure> {
        match (&self.src, &self.interface) {
            (Some(mac), _) => Ok(*mac),
            (None, None) => Ok(DEFAULT_SRC),
            (None, Some(name)) => {
                let found = Interface::read(name);
                found.map(|found| found.mac).map_err(|error| Failure::Unusable(error.to_string()))
            }
        }
    }
}

impl Destination {
    fn rate(&self) -> Option<LinkRate> {
        Ethtool::open(self.interface.as_deref()?).ok()?.rate().map(LinkRate::new)
    }
}

/// Sends the frames.
///
/// # Errors
/// If the interface cannot be used or the file cannot be written.
pub fn run(options: &Options) -> Result<Outcome, Failure> {
    let (to, schedule) = match &options.what {
        Command::Frame(options) => (&options.to, frame(options)?),
        Command::Xon(options) => {
            let control = pfc(bits(&options.priorities), 0);
            let bytes = FlowControlFrame { src: options.to.source()?, control }.to_bytes().to_vec();
            let steps = vec![Step::same(bytes, 1, Time::ZERO)];
            (&options.to, Schedule { steps, xon: None, final_xon: FinalXon::Always })
        }
        Command::Storm(options) => (&options.to, storm(options)?),
        Command::Sweep(options) => {
            let gaps: Vec<_> = options.per_second.iter().map(|&n| gap(n)).collect();
            let SweepOptions { to, priorities, quanta, each, .. } = options;
            (to, Schedule::sweep(to.source()?, priorities, quanta, &gaps, *each))
        }
        Command::Random(RandomOptions { to, count, seed }) => {
            (to, Schedule::random(*count, *seed, to.src, gap(1_000_000)))
        }
    };
    if schedule.span() > LONGEST {
        let (span, limit) = (shown(schedule.span()), shown(LONGEST));
        return Err(Failure::Unusable(format!("the frames take {span}; the limit is {limit}")));
    }
    match (&to.pcap, &to.interface) {
        (Some(file), _) => {
            write(file, &schedule).map_err(cannot_write(file))?;
            Ok(Outcome::Fine)
        }
        (None, Some(interface)) => send(interface, to.record.as_deref(), &schedule),
        (None, None) => Err(Failure::Unusable("an interface or --pcap".to_owned())),
    }
}

fn frame(options: &FrameOptions) -> Result<Schedule, Failure> {
    let control = control(&options.priorities, options.quanta, options.pause);
    let frame = FlowControlFrame { src: options.to.source()?, control };
    let bytes = match options.malformed {
        Some(kind) if options.pause && !kind.fits_pause() => {
            return Err(Failure::Unusable("PAUSE frames have no class enable vector".to_owned()));
        }
        Some(kind) => kind.bytes(&frame, 0x55),
        None => frame.to_bytes().to_vec(),
    };
    // A completed schedule leaves its pauses in place; an interrupted one resumes them.
    let xon = (options.malformed.is_none() && options.quanta > 0).then(|| {
        let frame = FlowControlFrame { control: xon(control), ..frame };
        frame.to_bytes().to_vec()
    });
    let steps = vec![Step::same(bytes, options.count, gap(options.per_second))];
    Ok(Schedule { steps, xon, final_xon: FinalXon::WhenStopped })
}

fn storm(options: &StormOptions) -> Result<Schedule, Failure> {
    let StormOptions { to, quanta, duration, .. } = options;
    let (src, rate) = (to.source()?, to.rate());
    let gap = storm_gap(options.per_second, *quanta, rate);
    if let Some(note) = rate.and_then(|rate| short_pause_note(gap, *quanta, rate)) {
        eprintln!("feroce: {note}");
    }
    let control = control(&options.priorities, *quanta, options.pause);
    Ok(Schedule::storm(src, control, *duration, gap))
}

fn cannot_write(file: &Path) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::Unusable(format!("cannot write {}: {error}", file.display()))
}

/// A capture file with times from 0.
struct Capture(PcapWriter<BufWriter<File>>);

impl Capture {
    fn create(file: &Path) -> io::Result<Self> {
        let header = PcapHeader {
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        let out = BufWriter::new(files::create_private(file)?);
        PcapWriter::with_header(out, header).map(Self).map_err(io::Error::other)
    }

    fn put(&mut self, bytes: &[u8], at: Time) -> io::Result<()> {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let packet = PcapPacket::new(Duration::from_nanos(at.0 / 1000), len, bytes);
        self.0.write_packet(&packet).map(|_len| ()).map_err(io::Error::other)
    }

    /// Flushes the file; reports a full disk at the latest here.
    fn finish(self) -> io::Result<()> {
        self.0.into_writer().flush()
    }
}

/// Writes the schedule as a capture.
fn write(file: &Path, schedule: &Schedule) -> io::Result<()> {
    let mut capture = Capture::create(file)?;
    let mut start = Time::ZERO;
    for step in &schedule.steps {
        let mut now = start;
        for n in 0..step.count {
            capture.put(&step.bytes(n), now)?;
            now = now + step.gap;
        }
        start = start + step.span;
    }
    if let (FinalXon::Always, Some(xon)) = (schedule.final_xon, &schedule.xon) {
        capture.put(xon, start)?;
    }
    capture.finish()
}

/// An interface to send on, until a signal arrives.
struct Port {
    tap: Tap,
    signals: SignalFd,
    clock: Clock,
    scratch: Vec<nix::libc::pollfd>,
    record: Option<Capture>,
    /// The first error of the recording. Sending then continues without recording.
    unrecorded: io::Result<()>,
}

impl Transmitter for Port {
    fn now(&self) -> Time {
        Time::from_instant(self.clock.now())
    }

    fn wait(&mut self, due: Time) -> bool {
        loop {
            let wait = Duration::from_nanos((due - self.now()).0 / 1000);
            poll_readable(&[self.signals.as_raw_fd()], &mut self.scratch, Some(wait));
            if self.signals.read_signal().is_ok_and(|signal| signal.is_some()) {
                return true;
            }
            if self.now() >= due {
                return false;
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.tap.send(bytes, Offload::default())?;
        let now = self.now();
        if let (Some(record), Ok(())) = (&mut self.record, &self.unrecorded) {
            self.unrecorded = record.put(bytes, now);
        }
        Ok(())
    }
}

fn send(interface: &str, record: Option<&Path>, schedule: &Schedule) -> Result<Outcome, Failure> {
    // SIGHUP included: nothing stays paused when the terminal goes away.
    let signals =
        watch_signals(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT])?;
    let tap = Tap::open_flow_control(interface, 1 << 16)?;
    let create = |file: &Path| Capture::create(file).map_err(cannot_write(file));
    let capture = record.map(create).transpose()?;
    let (clock, scratch, unrecorded) = (Clock::start(), Vec::new(), Ok(()));
    let mut port = Port { tap, signals, clock, scratch, record: capture, unrecorded };
    let Playback { sent, ended, xon } = transmit(&mut port, schedule);
    let how = match &ended {
        Err(_) => "refused by the interface",
        Ok(End::Signal) => "stopped by a signal",
        Ok(End::Done) => "complete",
    };
    let xon_result = match &xon {
        None => String::new(),
        Some(Ok(())) => "; XON sent".to_owned(),
        Some(Err(error)) => format!("; XON failed: {error}"),
    };
    let (all, took) = (schedule.frames(), shown(port.now()));
    let message = writeln!(io::stdout(), "{sent} of {all} frames in {took}: {how}{xon_result}");
    let refused = |source| Failure::Interface { name: interface.to_owned(), source };
    let kept = port.unrecorded.and_then(|()| port.record.map_or(Ok(()), Capture::finish));
    let ended = ended.map_err(refused)?;
    xon.transpose().map_err(refused)?;
    message?;
    kept.map_err(cannot_write(record.unwrap_or(Path::new(""))))?;
    Ok(Outcome::of(ended == End::Signal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_with_the_default_rate_pauses_continuously() {
        let rate = |gigabits: u64| LinkRate::new(gigabits * 1_000_000_000);
        for (gigabits, quanta) in [(1, 65_535), (100, 65_535), (400, 65_535), (100, 1000)] {
            let gap = storm_gap(None, quanta, Some(rate(gigabits)));
            assert_eq!(short_pause_note(gap, quanta, rate(gigabits)), None, "{gigabits} {quanta}");
        }
        // 65535 quanta are 335.5 us at 100 Gb/s.
        let gap = storm_gap(Some(2000), 65_535, Some(rate(100)));
        let message = short_pause_note(gap, 65_535, rate(100)).unwrap();
        assert!(message.contains("67.1 %") && message.contains("336 us"), "{message}");
        assert_eq!(storm_gap(None, 65_535, None), Time::from_micros(500));
    }
}
