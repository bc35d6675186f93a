//! The committed history of figures, `tests/figures.csv`, and the comparison of instruction counts
//! with it. Counts do not depend on what else runs, but on the processor and the compiler.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
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

/// What is measured, and where.
#[derive(Debug)]
pub struct Place {
    commit: String,
    processor: String,
    rustc: String,
}

impl Place {
    /// This commit, with `-dirty` if the working tree differs, and this machine.
    pub fn here() -> Result<Place> {
        // The compiler that xtask builds with; sudo may have changed PATH.
        let cargo = std::env::var_os("CARGO").map(PathBuf::from).unwrap_or_default();
        let rustc = output(Command::new(cargo.with_file_name("rustc")).arg("--version"))?;
        Ok(Place {
            commit: git(&["describe", "--always", "--dirty", "--abbrev=10"])?,
            processor: processor(&std::fs::read_to_string("/proc/cpuinfo")?),
            rustc: rustc.split(' ').nth(1).unwrap_or("unknown").to_owned(),
        })
    }

    /// Appends the figures measured here to the history.
    pub fn record(&self, figures: &[Figure]) -> Result {
        let date = output(Command::new("date").arg("+%F"))?.trim().to_owned();
        let file = OpenOptions::new().append(true).open(FILE)?;
        let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(file);
        for figure in figures {
            let Some(value) = figure.value else { continue };
            writer.serialize(Entry {
                date: date.clone(),
                commit: self.commit.clone(),
                processor: self.processor.clone(),
                rustc: self.rustc.clone(),
                figure: figure.name.clone(),
                value: (value * 1000.0).round() / 1000.0,
            })?;
        }
        Ok(writer.flush()?)
    }

    /// Returns an error if the working tree differs from the commit.
    pub fn must_be_clean(&self) -> Result {
        match self.commit.ends_with("-dirty") {
            true => Err("commit first: --record names the commit that it measures".into()),
            false => Ok(()),
        }
    }

    /// Compares instruction counts with the last ones of this processor and compiler. Returns the
    /// exit code: 1 if one is worse without a reason, 77 if there is nothing to compare with.
    pub fn compare(&self, figures: &[Figure]) -> Result<u8> {
        let entries = read(Path::new(FILE))?;
        let mut code = 77;
        for figure in figures {
            let Some(last) = last(&entries, self, &figure.name) else { continue };
            let value = figure.value.ok_or_else(|| format!("{}: no count", figure.name))?;
            let (name, before, commit) = (&figure.name, last.value, &last.commit);
            println!("{name}: {value:.0}, {before:.0} in {commit} ({:.3})", value / before);
            let worse = is_worse(value, before) && !has_reason(&messages_since(last)?);
            if worse {
                eprintln!(
                    "{name} is more than 2 % worse: say why in a commit message, in a line that \
                     begins with \"{REASON}\"; after that commit, record the new counts with \
                     scripts/bench.sh --record icount"
                );
            }
            code = u8::from(worse || code == 1);
        }
        if code == 77 {
            println!("{FILE} has no count of {} with rustc {}", self.processor, self.rustc);
        }
        Ok(code)
    }
}

/// The processor's name and, because hypervisors give many the same name, its numbers.
fn processor(cpuinfo: &str) -> String {
    let field = |name: &str| {
        let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| key.trim() == name).map_or("?", |(_, value)| value.trim())
    };
    let numbers = ["cpu family", "model", "stepping"].map(field).join("/");
    format!("{} {numbers}", field("model name"))
}

fn is_worse(value: f64, before: f64) -> bool {
    value > before * (1.0 + TOLERANCE)
}

fn has_reason(messages: &str) -> bool {
    messages.lines().any(|line| line.starts_with(REASON) && line.len() > REASON.len())
}

fn read(file: &Path) -> Result<Vec<Entry>> {
    csv::Reader::from_path(file)?.deserialize().map(|entry| Ok(entry?)).collect()
}

fn last<'e>(entries: &'e [Entry], place: &Place, figure: &str) -> Option<&'e Entry> {
    entries.iter().rev().find(|entry| {
        entry.figure == figure && entry.processor == place.processor && entry.rustc == place.rustc
    })
}

/// The messages of the commits after the one that added `entry` to the history.
fn messages_since(entry: &Entry) -> Result<String> {
    let text = format!("{},{},{}", entry.date, entry.commit, entry.processor);
    let added = git(&["log", "-1", "--format=%H", &format!("-S{text}"), "--", FILE])?;
    if added.is_empty() {
        return Ok(String::new());
    }
    git(&["log", "--format=%B", &format!("{added}..HEAD")])
}

fn git(arguments: &[&str]) -> Result<String> {
    let done = Command::new("git").args(arguments).output()?;
    if !done.status.success() {
        let errors = String::from_utf8_lossy(&done.stderr);
        return Err(format!("git {}: {}", arguments.join(" "), errors.trim()).into());
    }
    Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
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
    fn two_percent_more_needs_a_reason() {
        assert!(!is_worse(1020.0, 1000.0) && is_worse(1021.0, 1000.0) && !is_worse(900.0, 1000.0));
        assert!(has_reason("qp: check more\n\nInstructions: one more comparison\n"));
        assert!(!has_reason("qp: check more\n\nMore Instructions: 12\nInstructions: \n"));
    }

    #[test]
    fn a_processor_has_its_numbers() {
        let cpuinfo = "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 207\n\
                       model name\t: Some CPU\nstepping\t: 2\n";
        assert_eq!(processor(cpuinfo), "Some CPU 6/207/2");
        assert_eq!(processor("CPU part\t: 0xd4f\n"), "? ?/?/?");
    }

    #[test]
    fn the_committed_history_is_read() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(FILE);
        assert!(!read(&file).unwrap().is_empty());
    }
}
