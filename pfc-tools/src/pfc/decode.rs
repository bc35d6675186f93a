//! `feroce pfc decode`: the frames of a capture.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use feroce_wire::pause::{Inspection, inspect};
use serde_json::json;

use super::cli::{Failure, Outcome};
use super::meter::Meter;
use super::report::{self, FrameLine};
use super::{page, units};
use crate::capture::{Capture, Frame};
use crate::fabric::time::{LineRate, Time};

/// Options of `decode`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// A capture: pcap or pcapng, also compressed with zstd; - is standard input
    file: PathBuf,
    /// Rate of the link, as 100G: without it, quanta are not known as times
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    rate: Option<LineRate>,
    /// Which frames get a line
    #[arg(long, value_enum, default_value = "all")]
    frames: Which,
    /// Print JSON: a line for each frame, and one of all figures at the end
    #[arg(long)]
    json: bool,
    /// Write a page with the figures, a timeline and a histogram
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Frames of which something is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Which {
    /// Every frame of flow control
    All,
    /// Those with something wrong
    Wrong,
    /// None: the figures only
    None,
}

/// Prints what the capture has of flow control.
///
/// # Errors
/// If the capture cannot be read, or not to its end: what comes before is printed then, too.
pub fn run(options: &Options) -> Result<Outcome, Failure> {
    let mut capture = Capture::open(&options.file)?;
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let mut meter = Meter::new(options.rate);
    let mut written = Ok(());
    let mut start = None;
    let read = capture.read(|frame| {
        let start = *start.get_or_insert(frame.at);
        let now = Time::from_nanos(frame.at.saturating_sub(start));
        let line_len = usize::try_from(frame.line_len).unwrap_or(usize::MAX);
        let Some(seen) = inspect(frame.bytes, line_len) else { return meter.advance(now) };
        meter.take(&seen, now);
        if written.is_ok() {
            written = line(&mut out, options, frame, &seen);
        }
    });
    written?;
    meter.settle();
    match options.json {
        true => writeln!(out, "{}", json!({ "summary": report::json(&meter) }))?,
        false => report::text(&mut out, &meter)?,
    }
    out.flush()?;
    if let Some(file) = &options.html {
        let title = format!("Flow control in {}", options.file.display());
        page::write(file, &title, &meter)?;
    }
    read?;
    Ok(Outcome::of(meter.frames().wrong > 0))
}

fn line(
    out: &mut impl Write,
    options: &Options,
    frame: Frame<'_>,
    seen: &Inspection,
) -> io::Result<()> {
    match (options.frames, seen.findings.is_empty()) {
        (Which::None, _) | (Which::Wrong, true) => Ok(()),
        _ if options.json => {
            serde_json::to_writer(&mut *out, &FrameLine::new(frame.at, seen))?;
            out.write_all(b"\n")
        }
        _ => report::frame_line(out, frame.at, options.rate, seen),
    }
}
