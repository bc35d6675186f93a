//! Output of a live run: a table at the end, and samples as CSV.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use super::EdgeReport;
use crate::fabric::measure::histogram::TimeHistogram;
use crate::fabric::time::Time;

/// A column of the table: its name and its value.
type Column = (&'static str, fn(&EdgeReport) -> String);

/// The columns. `in` is from the endpoint, `out` to the endpoint.
const COLUMNS: [Column; 19] = [
    ("host", |r| r.host.clone()),
    ("interface", |r| r.interface.clone()),
    ("in_frames", |r| r.counts.frames.to_string()),
    ("in_bytes", |r| r.counts.bytes.to_string()),
    ("out_frames", |r| r.counts.frames_out.to_string()),
    ("out_bytes", |r| r.counts.bytes_out.to_string()),
    ("marked", |r| r.link.received.marked.to_string()),
    ("dropped", |r| r.link.received.dropped.to_string()),
    ("overrun", |r| r.counts.overrun.to_string()),
    ("lost", |r| (r.link.sent.lost + r.link.received.lost).to_string()),
    ("corrupted", |r| (r.link.sent.corrupted + r.link.received.corrupted).to_string()),
    ("missed", |r| (r.counts.missed + r.counts.too_long + r.counts.refused).to_string()),
    ("unroutable", |r| r.counts.unroutable.to_string()),
    ("pauses_in", |r| r.counts.pauses_in.to_string()),
    ("pauses_out", |r| r.counts.pauses_out.to_string()),
    ("paused_us", |r| (r.link.paused.0 / 1_000_000).to_string()),
    ("queue", |r| r.link.queue.to_string()),
    ("queue_mean", |r| format!("{:.0}", r.link.queues.mean())),
    ("queue_max", |r| r.link.queues.max().to_string()),
];

/// Prints the table.
///
/// # Errors
/// Errors of `out`.
pub fn print(out: &mut impl Write, reports: &[EdgeReport]) -> io::Result<()> {
    let rows: Vec<Vec<String>> = reports
        .iter()
        .map(|report| COLUMNS.iter().map(|(_, show)| show(report)).collect())
        .collect();
    let widths: Vec<usize> = (0..COLUMNS.len())
        .map(|at| rows.iter().map(|row| row[at].len()).chain([COLUMNS[at].0.len()]).max())
        .map(Option::unwrap_or_default)
        .collect();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells: Vec<String> =
            cells.zip(&widths).map(|(cell, &width)| format!("{cell:>width$}")).collect();
        writeln!(out, "{}", cells.join("  "))
    };
    line(&mut COLUMNS.iter().map(|(name, _)| *name))?;
    rows.iter().try_for_each(|row| line(&mut row.iter().map(String::as_str)))
}

/// Prints quantiles of the time between iterations.
///
/// # Errors
/// Errors of `out`.
pub fn print_gaps(out: &mut impl Write, gaps: &TimeHistogram) -> io::Result<()> {
    let micros = |permille| in_micros(gaps.quantile(permille));
    writeln!(
        out,
        "late by (us): 50 % {}, 99 % {}, 99.9 % {}, max {}",
        micros(500),
        micros(990),
        micros(999),
        in_micros(gaps.max())
    )
}

fn in_micros(nanos: u64) -> String {
    format!("{}.{}", nanos / 1000, nanos % 1000 / 100)
}

/// Samples as a CSV file: the columns of the table at regular intervals.
#[derive(Debug)]
pub struct Samples(csv::Writer<File>);

impl Samples {
    /// Creates the file and writes its header.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut writer = csv::Writer::from_path(path)?;
        writer.write_record(["microseconds"].into_iter().chain(COLUMNS.map(|(name, _)| name)))?;
        Ok(Self(writer))
    }

    /// Writes the counters at `now`.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn add(&mut self, now: Time, reports: &[EdgeReport]) -> io::Result<()> {
        for report in reports {
            self.0.write_field((now.0 / 1_000_000).to_string())?;
            self.0.write_record(COLUMNS.map(|(_, show)| show(report)))?;
        }
        Ok(())
    }

    /// Flushes the file.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn finish(mut self) -> io::Result<()> {
        self.0.flush()
    }
}
