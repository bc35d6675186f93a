//! Figures of a live run: a table at its end, and samples as CSV.

use std::io::{self, Write};

use super::EdgeReport;
use crate::fabric::time::Time;

/// A column of the table: its name, and what is in it.
type Column = (&'static str, fn(&EdgeReport) -> String);

/// The columns. `in` is from the endpoint, `out` to it.
const COLUMNS: [Column; 18] = [
    ("host", |r| r.host.clone()),
    ("interface", |r| r.interface.clone()),
    ("in_frames", |r| r.counts.frames.to_string()),
    ("in_bytes", |r| r.counts.bytes.to_string()),
    ("out_frames", |r| r.counts.frames_out.to_string()),
    ("out_bytes", |r| r.counts.bytes_out.to_string()),
    ("marked", |r| r.line.received.marked.to_string()),
    ("dropped", |r| r.line.received.dropped.to_string()),
    ("overrun", |r| r.counts.overrun.to_string()),
    ("lost", |r| (r.line.sent.lost + r.line.received.lost).to_string()),
    ("corrupted", |r| (r.line.sent.corrupted + r.line.received.corrupted).to_string()),
    ("missed", |r| (r.counts.missed + r.counts.too_long + r.counts.refused).to_string()),
    ("pauses_in", |r| r.counts.pauses_in.to_string()),
    ("pauses_out", |r| r.counts.pauses_out.to_string()),
    ("paused_us", |r| (r.line.paused.0 / 1_000_000).to_string()),
    ("queue", |r| r.line.queue.to_string()),
    ("queue_mean", |r| format!("{:.0}", r.line.queues.mean())),
    ("queue_max", |r| r.line.queues.most().to_string()),
];

/// Prints the table.
///
/// # Errors
/// Of `out`.
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

/// Writes the first line of a file of samples.
///
/// # Errors
/// Of `out`.
pub fn csv_head(out: &mut impl Write) -> io::Result<()> {
    let names: Vec<&str> = COLUMNS.iter().map(|(name, _)| *name).collect();
    writeln!(out, "microseconds,{}", names.join(","))
}

/// Writes what the counters are at `now`.
///
/// # Errors
/// Of `out`.
pub fn csv_sample(out: &mut impl Write, now: Time, reports: &[EdgeReport]) -> io::Result<()> {
    for report in reports {
        let cells: Vec<String> = COLUMNS.iter().map(|(_, show)| show(report)).collect();
        writeln!(out, "{},{}", now.0 / 1_000_000, cells.join(","))?;
    }
    Ok(())
}
