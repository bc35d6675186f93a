//! `feroce conform replay`: its options, and what it prints.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;

use super::lanes::Captured;
use super::report::Summary;
use super::{Role, live, replay};
use crate::cli::{Failure, Outcome};
use crate::trace::{Link, Trace};

/// Which part to play.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Who asks
    Requester,
    /// Who answers
    Responder,
    /// One after the other
    Both,
}

/// Options of `replay`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// A capture: pcap or pcapng, also compressed with zstd or gzip; - is standard input
    file: PathBuf,
    /// The part to play
    #[arg(long, value_enum, default_value_t = Part::Both)]
    role: Part,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    live: live::cli::Options,
}

/// Most bytes of a capture that is played: its frames are held in memory.
const LARGEST: usize = 1 << 30;

/// Every Ethernet frame of a capture.
///
/// # Errors
/// If it cannot be read to its end, or is too long to be held.
pub fn read(file: PathBuf) -> Result<Vec<Captured>, Failure> {
    let mut trace = Trace::open(&[file])?;
    let (mut frames, mut start, mut bytes) = (Vec::new(), None, 0);
    while let Some(frame) = trace.next_frame()? {
        let start = *start.get_or_insert(frame.at);
        bytes += frame.bytes.len();
        if bytes > LARGEST {
            let most = LARGEST >> 20;
            return Err(Failure::Unusable(format!("the capture has more than {most} MiB")));
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

/// Plays, and prints what came of it.
///
/// # Errors
/// If the capture cannot be used.
pub fn run(options: &Options) -> Result<Outcome, Failure> {
    let frames = read(options.file.clone())?;
    let mut out = io::stdout().lock();
    if options.live.asks_needs() {
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
    let replay = match options.live.is_live() {
        true => options.live.play(frames)?,
        false => replay(frames, roles),
    };
    if replay.compared() == 0 && replay.played.is_empty() {
        let why = "no RC, UC or UD packets to play are in the capture";
        return Err(Failure::Unusable(why.to_owned()));
    }
    match options.json {
        true => write_json(&mut out, &Summary::of(&replay))?,
        false => writeln!(out, "{replay}")?,
    }
    Ok(Outcome::of(!replay.agrees()))
}
