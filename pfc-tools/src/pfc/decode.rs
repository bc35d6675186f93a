//! `feroce pfc decode`: the frames of a capture.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use feroce_wire::EthernetHeader;

use super::capture::{Capture, Frame};
use super::cli::{Failure, Outcome};

/// EtherType of MAC control.
const MAC_CONTROL: u16 = 0x8808;

/// Options of `decode`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// A capture: pcap or pcapng, also compressed with zstd; - is standard input
    file: PathBuf,
}

/// Prints what the capture has of MAC control.
///
/// # Errors
/// If the capture cannot be read, or not to its end.
pub fn run(options: &Options) -> Result<Outcome, Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    let mut written = Ok(());
    let read = Capture::open(&options.file)?.read(|frame| {
        if written.is_ok() {
            written = line(&mut out, frame);
        }
    });
    written?;
    out.flush()?;
    read?;
    Ok(Outcome::Fine)
}

fn line(out: &mut impl Write, frame: Frame<'_>) -> io::Result<()> {
    match EthernetHeader::parse(frame.bytes) {
        Ok(ethernet) if ethernet.ethertype == MAC_CONTROL => {
            writeln!(out, "{} {} > {}", frame.at, ethernet.src, ethernet.dst)
        }
        _ => Ok(()),
    }
}
