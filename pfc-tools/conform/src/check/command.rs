//! The command line of `check`.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use feroce_wire::Qpn;

use super::{Checker, Filter, Format, Report};
use crate::failure::{Failure, Outcome};
use crate::report;
use crate::trace::{Trace, TraceError};
use feroce_engine::files;

/// Options of `check`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Captures (pcap, pcapng, ERF; also compressed with zstd or gzip), each judged by itself; -
    /// reads standard input
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The captures show one exchange: one after the other in time, or at several points. A packet
    /// that only one of two points has is reported as lost
    #[arg(long)]
    taps: bool,
    /// Check only flows with this QP at either end. Findings without a flow, such as damaged
    /// packets, are always reported
    #[arg(long, value_name = "NUMBER", value_parser = qpn)]
    qpn: Option<Qpn>,
    /// Report only this flow of the summary: its findings and its figures
    #[arg(long, value_name = "NUMBER")]
    flow: Option<u32>,
    /// Skip packets earlier than this many seconds after the first frame
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    from: Option<u64>,
    /// Skip packets later than this many seconds after the first frame
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    to: Option<u64>,
    /// Print JSON
    #[arg(long, conflicts_with_all = ["sarif", "junit"])]
    json: bool,
    /// Print the findings as SARIF 2.1.0, for CI
    #[arg(long, conflicts_with = "junit")]
    sarif: bool,
    /// Print the result of each rule as a JUnit test suite, for CI
    #[arg(long)]
    junit: bool,
    /// Write an HTML page with a PSN graph and a ladder diagram of each flow that has findings
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Parses a QP number, decimal or with 0x.
fn qpn(text: &str) -> Result<Qpn, String> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    number
        .ok()
        .and_then(Qpn::new)
        .ok_or_else(|| "expected a number below 2^24, such as 17 or 0x11".to_owned())
}

/// Parses seconds with a fraction; returns nanoseconds.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // The range is checked first.
fn seconds(text: &str) -> Result<u64, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected seconds, such as 1.5".to_owned())?;
    match (0.0..=1e9).contains(&seconds) {
        true => Ok((seconds * 1e9) as u64),
        false => Err("expected a number from 0 to 1000000000".to_owned()),
    }
}

/// Checks the captures and prints the report.
///
/// # Errors
/// If a capture cannot be read to its end. The reports then cover what was read of all captures.
pub fn run(options: &Options) -> Result<Outcome, Failure> {
    let groups: Vec<&[PathBuf]> = match options.taps {
        true => vec![&options.files],
        false => options.files.chunks(1).collect(),
    };
    if options.flow.is_some() && groups.len() > 1 {
        return Err(Failure::Unusable(
            "--flow takes one capture, because each capture has a flow 1 (or --taps, if the \
             captures show one exchange)"
                .to_owned(),
        ));
    }
    let (mut reports, mut all_ended) = (Vec::new(), Ok(()));
    for files in groups {
        match check(files, options) {
            Ok((report, ended)) => {
                reports.push(report);
                all_ended = all_ended.and(ended.map_err(Failure::from));
            }
            Err(failure) => all_ended = all_ended.and(Err(failure)),
        }
    }
    if reports.is_empty() {
        return all_ended.map(|()| Outcome::Fine);
    }
    let mut out = BufWriter::new(io::stdout().lock());
    let format = match (options.json, options.sarif, options.junit) {
        (true, ..) => Format::Json,
        (_, true, _) => Format::Sarif,
        (.., true) => Format::Junit,
        _ => Format::Text,
    };
    format.write_all(&mut out, &reports)?;
    out.flush()?;
    if let Some(file) = &options.html {
        files::write(file, report::html_of(&reports))?;
    }
    all_ended?;
    Ok(Outcome::of(reports.iter().any(|report| report.findings.total() > 0)))
}

/// Checks the captures of one exchange. Returns the report, and the error that ended the check.
fn check(
    files: &[PathBuf],
    options: &Options,
) -> Result<(Report, Result<(), TraceError>), Failure> {
    let mut trace = Trace::open(files)?;
    let filter = Filter { qpn: options.qpn, from: options.from, to: options.to };
    let (mut report, ended) = Checker::new(filter, options.html.is_some()).check(&mut trace);
    if trace.is_in_parts() {
        eprintln!(
            "feroce: the captures do not overlap in time: they are taken for one capture in parts \
             (two taps need one clock; `editcap -t` shifts a capture)"
        );
    }
    if let Some(flow) = options.flow {
        let known = report.flows.all().len();
        if flow == 0 || flow as usize > known {
            return Err(Failure::Unusable(format!(
                "there is no flow {flow}: the captures have {known} flows"
            )));
        }
        report.retain_flows(false, |index, _| index == flow - 1);
    }
    Ok((report, ended))
}
