//! The command line of `feroce conform replay`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use indicatif::ProgressBar;
use serde::Serialize;

use super::lanes::Captured;
use super::report::Summary;
use super::{Role, live, replay};
use crate::failure::{Failure, Outcome};
use crate::trace::{Link, Trace};

/// The end to play.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The end that sends requests
    Requester,
    /// The end that responds to requests
    Responder,
    /// Both, one after the other
    Both,
}

/// Options of `replay`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// A capture (pcap, pcapng; also compressed with zstd or gzip); - reads standard input
    file: PathBuf,
    /// The end to play
    #[arg(long, value_enum, default_value_t = Part::Both)]
    role: Part,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    live: live::cli::Options,
}

/// The largest capture that is played, in bytes: its frames are held in memory.
const LARGEST: usize = 1 << 30;

/// Reads all Ethernet frames of a capture.
///
/// # Errors
/// If it cannot be read to its end, or is too large.
pub fn read(file: PathBuf) -> Result<Vec<Captured>, Failure> {
    frames_of(&mut Trace::open(&[file])?)
}

/// Reads all Ethernet frames of `trace`.
///
/// # Errors
/// See [`read`].
pub fn frames_of(trace: &mut Trace) -> Result<Vec<Captured>, Failure> {
    let (mut frames, mut start, mut bytes) = (Vec::new(), None, 0);
    while let Some(frame) = trace.next_frame()? {
        let start = *start.get_or_insert(frame.at);
        bytes += frame.bytes.len();
        if bytes > LARGEST {
            let limit = LARGEST >> 20;
            return Err(Failure::Unusable(format!("the capture is larger than {limit} MiB")));
        }
        if frame.link == Link::Ethernet && !frame.is_cut() {
            let at = Duration::from_nanos(frame.at.saturating_sub(start));
            frames.push(Captured { number: frame.number, at, bytes: frame.bytes.to_vec() });
        }
    }
    Ok(frames)
}

fn write_json(mut out: impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)
}

/// Plays the capture and prints the result.
///
/// # Errors
/// If the capture cannot be used.
pub fn run(options: &Options) -> Result<Outcome, Failure> {
    let frames = read(options.file.clone())?;
    let mut out = io::stdout().lock();
    if options.live.prints_needs() {
        let needs = options.live.needs(frames)?;
        match options.json {
            true => write_json(&mut out, &needs)?,
            false => needs.iter().try_for_each(|endpoint| write!(out, "{endpoint}"))?,
        }
        return Ok(Outcome::Fine);
    }
    let roles: &[Role] = match options.role {
        Part::Requester => &[Role::Requester],
        Part::Responder => &[Role::Responder],
        Part::Both => &[Role::Responder, Role::Requester],
    };
    // Draws nothing if standard error is not a terminal.
    let bar = ProgressBar::new_spinner().with_message(format!("playing {} frames", frames.len()));
    bar.enable_steady_tick(Duration::from_millis(200));
    let replay = match options.live.is_live() {
        true => options.live.play(frames)?,
        false => replay(frames, roles),
    };
    bar.finish_and_clear();
    if replay.played.is_empty() && replay.conversations.is_empty() {
        let why = "the capture has no RC, UC or UD packets and no communication management to play";
        return Err(Failure::Unusable(why.to_owned()));
    }
    match options.json {
        true => write_json(&mut out, &Summary::of(&replay))?,
        false => writeln!(out, "{replay}")?,
    }
    Ok(Outcome::of(!replay.agrees()))
}
