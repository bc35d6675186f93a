//! The committed history of figures, `tests/figures.csv`, and the comparison of instruction counts
//! with it. Counts do not depend on what else runs, but on the processor and the compiler.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::Figure;
use crate::Result;
use crate::process::output;

const FILE: &str = "tests/figures.csv";
/// A count that exceeds the last one by more than this part is worse.
const TOLERANCE: f64 = 0.02;
/// A commit message has this at the start of a line, before the reason for a higher count.
const REASON: &str = "Instructions: ";

/// A figure, as measured once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Entry {
    date: String,
    /// The commit that was measured.
    commit: String,
    processor: String,
    rustc: String,
    figure: String,
    value: f64,
}

/// What is measured here, and where.
#[derive(Debug)]
struct Place {
    commit: String,
    processor: String,
    rustc: String,
}

impl Place {
    fn here() -> Result<Place> {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo")?;
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
        let processor = model.and_then(|text| text.split(": ").nth(1)).unwrap_or("unknown");
        let rustc = output(Command::new("rustc").arg("--version"))?;
        Ok(Place {
            commit: git(&["describe", "--always", "--dirty", "--abbrev=10"])?,
            processor: processor.trim().to_owned(),
            rustc: rustc.split(' ').nth(1).unwrap_or("unknown").to_owned(),
        })
    }
}

/// Appends the measured figures to the history.
pub fn record(figures: &[Figure]) -> Result {
    let place = Place::here()?;
    let date = output(Command::new("date").arg("+%F"))?.trim().to_owned();
    let file = OpenOptions::new().append(true).open(FILE)?;
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(file);
    for figure in figures {
        let Some(value) = figure.value else { continue };
        writer.serialize(Entry {
            date: date.clone(),
            commit: place.commit.clone(),
            processor: place.processor.clone(),
            rustc: place.rustc.clone(),
            figure: figure.name.clone(),
            value: (value * 1000.0).round() / 1000.0,
        })?;
    }
    Ok(writer.flush()?)
}

/// Compares the measured instruction counts with the last ones of this processor and compiler.
/// Returns the exit code: 1 if one is worse without a reason, 77 if there is nothing to compare
/// with.
pub fn compare(figures: &[Figure]) -> Result<u8> {
    let place = Place::here()?;
    let entries = read(Path::new(FILE))?;
    let (mut compared, mut is_worse) = (false, false);
    for figure in figures.iter().filter(|figure| figure.name.starts_with("icount: ")) {
        let (Some(value), Some(last)) = (figure.value, last(&entries, &place, &figure.name)) else {
            continue;
        };
        compared = true;
        let ratio = value / last.value;
        println!("{}: {value:.0}, {:.0} in {} ({ratio:.3})", figure.name, last.value, last.commit);
        if ratio > 1.0 + TOLERANCE && !has_reason(&last.commit)? {
            is_worse = true;
            eprintln!(
                "{} is more than {:.0} % worse: say why in a commit message, in a line that \
                 begins with \"{REASON}\", and add the new count with scripts/bench.sh --record",
                figure.name,
                TOLERANCE * 100.0
            );
        }
    }
    if !compared {
        println!("{FILE} has no count of {} with rustc {}", place.processor, place.rustc);
        return Ok(77);
    }
    Ok(u8::from(is_worse))
}

fn read(file: &Path) -> Result<Vec<Entry>> {
    csv::Reader::from_path(file)?.deserialize().map(|entry| Ok(entry?)).collect()
}

fn last<'e>(entries: &'e [Entry], place: &Place, figure: &str) -> Option<&'e Entry> {
    entries.iter().rev().find(|entry| {
        entry.figure == figure && entry.processor == place.processor && entry.rustc == place.rustc
    })
}

/// Returns true if a commit after `commit` gives a reason. Without its history, as in a shallow
/// clone, only the newest commit counts.
fn has_reason(commit: &str) -> Result<bool> {
    let commit = commit.trim_end_matches("-dirty");
    let known = git(&["rev-parse", "--verify", "--quiet", &format!("{commit}^{{commit}}")])?;
    let range = if known.is_empty() { "-1".to_owned() } else { format!("{commit}..HEAD") };
    Ok(git(&["log", "--format=%B", &range])?.lines().any(|line| line.starts_with(REASON)))
}

fn git(arguments: &[&str]) -> Result<String> {
    Ok(output(Command::new("git").args(arguments))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(processor: &str, figure: &str, value: f64) -> Entry {
        Entry {
            date: "2026-11-30".into(),
            commit: "75b5cd91".into(),
            processor: processor.into(),
            rustc: "1.95.0".into(),
            figure: figure.into(),
            value,
        }
    }

    #[test]
    fn the_last_count_of_the_same_processor_counts() {
        let entries = [entry("A", "x", 1.0), entry("A", "x", 2.0), entry("B", "x", 3.0)];
        let place = |processor: &str, rustc: &str| Place {
            commit: String::new(),
            processor: processor.into(),
            rustc: rustc.into(),
        };
        let value = |processor, rustc, figure| {
            last(&entries, &place(processor, rustc), figure).map(|entry| entry.value)
        };
        assert_eq!(value("A", "1.95.0", "x"), Some(2.0));
        assert_eq!(value("B", "1.95.0", "x"), Some(3.0));
        assert_eq!(value("C", "1.95.0", "x"), None);
        assert_eq!(value("A", "1.96.0", "x"), None);
        assert_eq!(value("A", "1.95.0", "y"), None);
    }

    #[test]
    fn the_committed_history_is_read() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(FILE);
        assert!(!read(&file).unwrap().is_empty());
    }
}
