//! The command line of `check`.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use feroce_wire::Qpn;

use super::{Checker, Filter, Format};
use crate::cli::{Failure, Outcome};
use crate::report;
use crate::trace::Trace;

/// Options of `check`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Captures of one exchange: pcap or pcapng, also compressed with zstd or gzip; - is standard input. Captures of the same time are
    /// those of two places, and what passes one only is told
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Only flows with this QP at either end; what is told of packets of which no flow is known, as damaged ones, stays
    #[arg(long, value_name = "NUMBER", value_parser = qpn)]
    qpn: Option<Qpn>,
    /// Only the flow of this number in the summary: its findings and its figures
    #[arg(long, value_name = "NUMBER")]
    flow: Option<u32>,
    /// Only what comes later than so many seconds after the first frame
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    from: Option<u64>,
    /// Only what comes before so many seconds after the first frame
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    to: Option<u64>,
    /// Print JSON
    #[arg(long, conflicts_with_all = ["sarif", "junit"])]
    json: bool,
    /// Print the findings as SARIF 2.1.0, for CI
    #[arg(long, conflicts_with = "junit")]
    sarif: bool,
    /// Print the rules as a JUnit test suite, for CI
    #[arg(long)]
    junit: bool,
    /// Write a page with a graph and a ladder of each flow that has findings
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// A QP number, decimal or with 0x.
fn qpn(text: &str) -> Result<Qpn, String> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    number
        .ok()
        .and_then(Qpn::new)
        .ok_or_else(|| "expected a number below 2^24, as 17 or 0x11".to_owned())
}

/// Seconds with a fraction, in nanoseconds.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Looked at before.
fn seconds(text: &str) -> Result<u64, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected seconds, as 1.5".to_owned())?;
    match (0.0..=1e9).contains(&seconds) {
        true => Ok((seconds * 1e9) as u64),
        false => Err("expected 0 to 1000000000 seconds".to_owned()),
    }
}

/// Prints what is wrong.
///
/// # Errors
/// If a capture cannot be read to its end: what comes before is printed then, too.
pub fn run(options: &Options) -> Result<Outcome, Failure> {
    let mut trace = Trace::open(&options.files)?;
    let filter = Filter { qpn: options.qpn, from: options.from, to: options.to };
    let (mut report, ended) = Checker::new(filter, options.html.is_some()).check(&mut trace);
    if let Some(flow) = options.flow {
        let known = report.flows.all().len();
        if flow == 0 || flow as usize > known {
            return Err(Failure::Unusable(format!("there is no flow {flow}: there are {known}")));
        }
        report.choose(false, |index, _| index == flow - 1);
    }
    let mut out = BufWriter::new(io::stdout().lock());
    let format = match (options.json, options.sarif, options.junit) {
        (true, ..) => Format::Json,
        (_, true, _) => Format::Sarif,
        (.., true) => Format::Junit,
        _ => Format::Text,
    };
    format.write(&mut out, &report)?;
    out.flush()?;
    if let Some(file) = &options.html {
        fs::write(file, report::html(&report))?;
    }
    ended?;
    Ok(Outcome::of(report.findings.total() > 0))
}
