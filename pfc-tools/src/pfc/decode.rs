//! `feroce pfc decode`: the flow control frames of a capture.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::time::Duration;

use feroce_engine::time::Clock;
use feroce_wire::pause::{Inspection, inspect};
use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::meter::Meter;
use super::outcome::{Failure, Outcome};
use super::report::{self, FrameLine, shown};
use super::{page, units};
use crate::capture::{Capture, CaptureError, Frame};
use crate::fabric::time::{LinkRate, Time};

/// Options of `decode`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Capture file: pcap or pcapng, optionally compressed with zstd or gzip; - is standard input
    file: PathBuf,
    /// Link rate, such as 100G; without it, pause times are unknown
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    rate: Option<LinkRate>,
    /// Which flow control frames to print
    #[arg(long, value_enum, default_value = "all")]
    frames: FrameSelection,
    /// Print JSON: a line for each frame, and a summary at the end
    #[arg(long)]
    json: bool,
    /// Write an HTML page with statistics, timelines and a histogram
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// The flow control frames that are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum FrameSelection {
    /// Every flow control frame
    All,
    /// Malformed frames
    Wrong,
    /// No frame: only the statistics
    None,
}

/// Reads all frames of a capture into a meter and passes flow control frames to `show`.
///
/// # Errors
/// If the capture cannot be read to its end. The frames before the error have been taken.
pub fn take(
    capture: &mut Capture,
    meter: &mut Meter,
    mut show: impl FnMut(Frame<'_>, &Inspection),
) -> Result<(), CaptureError> {
    let mut start = None;
    let read = capture.read(|frame| {
        let start = *start.get_or_insert(frame.at);
        let now = Time::from_nanos(frame.at.saturating_sub(start));
        let original_len = usize::try_from(frame.original_len).unwrap_or(usize::MAX);
        let Some(seen) = inspect(frame.bytes, original_len) else { return meter.advance(now) };
        meter.take(&seen, now);
        show(frame, &seen);
    });
    meter.end_expired();
    read
}

/// The time needed to read a capture.
#[derive(Debug, Clone, Copy)]
struct Pace {
    frames: u64,
    took: Time,
}

impl Pace {
    /// Frames per second.
    #[allow(clippy::cast_precision_loss)] // Counts of frames.
    fn per_second(self) -> f64 {
        self.frames as f64 / self.took.seconds().max(1e-9)
    }

    /// Returns true if reading is at least as fast as the busiest second of the capture.
    #[allow(clippy::cast_precision_loss)]
    fn keeps_up(self, peak: u64) -> bool {
        self.per_second() >= peak as f64
    }

    fn text(self, out: &mut impl Write, peak: u64) -> io::Result<()> {
        let (took, per_second) = (shown(self.took), self.per_second());
        writeln!(out, "{} frames read in {took}: {per_second:.0} per second", self.frames)?;
        match self.keeps_up(peak) {
            true => Ok(()),
            false => writeln!(out, "This is slower than the peak of {peak} frames per second."),
        }
    }

    fn json(self, peak: u64) -> Value {
        json!({
            "frames": self.frames, "took_ns": self.took.0 / 1000, "keeps_up": self.keeps_up(peak),
        })
    }
}

/// Prints the flow control frames and statistics of the capture.
///
/// # Errors
/// If the capture cannot be read to its end. The frames before the error are printed.
pub fn run(options: &Options) -> Result<Outcome, Failure> {
    let mut capture = Capture::open(&options.file)?;
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let mut meter = Meter::new(options.rate);
    let mut written = Ok(());
    let clock = Clock::start();
    let bar = progress(options.frames);
    let read = take(&mut capture, &mut meter, |frame, seen| {
        if written.is_ok() {
            written = line(&mut out, options, frame, seen);
        }
    });
    bar.finish_and_clear();
    let pace = Pace { frames: capture.frames(), took: Time::from_instant(clock.now()) };
    written?;
    if options.json {
        let mut summary = report::json(&meter);
        summary["read"] = pace.json(meter.peak());
        writeln!(out, "{}", json!({ "summary": summary }))?;
    } else {
        report::text(&mut out, &meter)?;
        pace.text(&mut out, meter.peak())?;
    }
    out.flush()?;
    if let Some(file) = &options.html {
        let title = format!("Flow control in {}", options.file.display());
        page::write(file, &title, &meter)?;
    }
    read?;
    Ok(Outcome::of(meter.frames().wrong > 0))
}

/// Shows on a terminal that a capture is being read, while no frame is printed.
fn progress(frames: FrameSelection) -> ProgressBar {
    if frames != FrameSelection::None {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner().with_message("reading the capture");
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn line(
    out: &mut impl Write,
    options: &Options,
    frame: Frame<'_>,
    seen: &Inspection,
) -> io::Result<()> {
    match (options.frames, seen.findings.is_empty()) {
        (FrameSelection::None, _) | (FrameSelection::Wrong, true) => Ok(()),
        _ if options.json => {
            serde_json::to_writer(&mut *out, &FrameLine::new(frame.at, seen))?;
            out.write_all(b"\n")
        }
        _ => report::frame_line(out, frame.at, options.rate, seen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_slower_than_the_peak_is_reported() {
        let pace = Pace { frames: 3000, took: Time::from_millis(2000) };
        assert!(pace.keeps_up(1500) && !pace.keeps_up(1501));
        let message = |peak| {
            let mut out = Vec::new();
            pace.text(&mut out, peak).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(message(1500), "3000 frames read in 2.00 s: 1500 per second\n");
        assert!(message(1501).contains("slower than the peak of 1501"));
        assert_eq!(pace.json(1501)["keeps_up"], false);
        // A capture without frames takes no time and is not too slow.
        assert!(Pace { frames: 0, took: Time::ZERO }.keeps_up(0));
    }
}
