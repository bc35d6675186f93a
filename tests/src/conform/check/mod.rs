//! `feroce conform check`: every packet of captures against the rules.

use std::io::{self, Write};
use std::path::PathBuf;

use super::cli::{Failure, Outcome};
use super::packet::{Icrc, Look, Reader};
use super::trace::Trace;

/// Options of `check`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Captures of one exchange: pcap or pcapng, also compressed with zstd or gzip; - is standard input
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

/// Prints what is wrong.
///
/// # Errors
/// If a capture cannot be read to its end.
pub fn run(options: &Options) -> Result<Outcome, Failure> {
    let mut trace = Trace::open(&options.files)?;
    let mut reader = Reader::default();
    let mut out = io::stdout().lock();
    let mut wrong = 0_u64;
    while let Some(frame) = trace.next_frame()? {
        match reader.look(&frame) {
            Look::Roce(seen) if matches!(seen.icrc, Icrc::Wrong { .. }) => {
                wrong += 1;
                writeln!(out, "{}: the ICRC is wrong", seen.number)?;
            }
            Look::Broken(error) => {
                wrong += 1;
                writeln!(out, "{}: {error}", frame.number)?;
            }
            _ => {}
        }
    }
    Ok(Outcome::of(wrong > 0))
}
