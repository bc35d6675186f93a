//! Results of rows: printed as they arrive, written as JSON, counted at the end.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::Result;

/// How a row ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// With the expected result.
    Passed,
    /// With another result, or an error.
    Failed,
    /// It was not run.
    Skipped,
}

impl Verdict {
    /// The word in lists.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Passed => "passed",
            Verdict::Failed => "FAILED",
            Verdict::Skipped => "skipped",
        }
    }

    /// `Passed` if `ok`.
    pub fn of(ok: bool) -> Verdict {
        if ok { Verdict::Passed } else { Verdict::Failed }
    }
}

/// The result of a row.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// The program or file of the row.
    pub subject: String,
    /// What the row shows.
    pub what: String,
    /// Which end does what, if a row runs several times.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub case: String,
    /// How it ended.
    pub verdict: Verdict,
    /// How long it took.
    pub seconds: f64,
    /// Why it failed or was skipped, or a note.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// Results so far, and a progress line on a terminal.
#[derive(Debug)]
pub struct Tally {
    bar: ProgressBar,
    json: Option<PathBuf>,
    outcomes: Vec<Outcome>,
}

impl Tally {
    /// A tally of `total` rows. The results are written to `json` at the end.
    pub fn new(total: usize, json: Option<PathBuf>) -> Tally {
        let style = ProgressStyle::with_template("  {pos} of {len}, {elapsed}: {wide_msg}");
        let bar = ProgressBar::new(total as u64);
        bar.set_style(style.expect("the template is right"));
        bar.enable_steady_tick(Duration::from_secs(1));
        Tally { bar, json, outcomes: Vec::new() }
    }

    /// Changes the number of rows.
    pub fn set_total(&self, total: usize) {
        self.bar.set_length(total as u64);
    }

    /// Shows what runs now.
    pub fn begin(&self, name: &str) {
        self.bar.set_message(name.to_owned());
    }

    /// Prints lines above the progress line.
    pub fn print(&self, text: &str) {
        self.bar.suspend(|| println!("{text}"));
    }

    /// Prints `line` and records the outcome.
    pub fn end(&mut self, outcome: Outcome, line: &str) {
        self.print(line);
        self.outcomes.push(outcome);
        self.bar.inc(1);
    }

    /// How many outcomes have `verdict`.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.verdict == verdict).count()
    }

    /// Ends the progress line and writes the JSON file.
    pub fn finish(&self) -> Result {
        self.bar.finish_and_clear();
        if let Some(path) = &self.json {
            std::fs::write(path, serde_json::to_string_pretty(&self.outcomes)? + "\n")?;
        }
        Ok(())
    }

    /// Returns true if at least one row passed and none failed.
    pub fn has_passed(&self) -> bool {
        self.count(Verdict::Failed) == 0 && self.count(Verdict::Passed) > 0
    }

    /// A Markdown table with a line per program: what was run and, for each case, how many of its
    /// rows passed.
    pub fn table(&self, cases: &[&str]) -> String {
        let mut programs: Vec<&str> = Vec::new();
        let mut runs: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for outcome in &self.outcomes {
            let of = runs.entry(&outcome.subject).or_default();
            if of.is_empty() {
                programs.push(&outcome.subject);
            }
            if !of.contains(&outcome.what.as_str()) {
                of.push(&outcome.what);
            }
        }
        let heads: String = cases.iter().map(|case| format!(" {case} |")).collect();
        let mut lines = vec![
            format!("| program | runs |{heads}"),
            format!("|---|---|{}", "---|".repeat(cases.len())),
        ];
        for program in programs {
            let cells: String = cases.iter().map(|case| self.cell(program, case)).collect();
            lines.push(format!("| `{program}` | {} |{cells}", runs[program].join("; ")));
        }
        lines.join("\n")
    }

    fn cell(&self, program: &str, case: &str) -> String {
        let of_cell = |outcome: &&Outcome| {
            outcome.subject == program
                && outcome.case == case
                && outcome.verdict != Verdict::Skipped
        };
        let all: Vec<&Outcome> = self.outcomes.iter().filter(of_cell).collect();
        let (passed, failed): (Vec<&Outcome>, Vec<&Outcome>) =
            all.iter().partition(|outcome| outcome.verdict == Verdict::Passed);
        if all.is_empty() {
            return " - |".to_owned();
        }
        let failed: Vec<&str> = failed.iter().map(|outcome| outcome.what.as_str()).collect();
        let note = match failed.is_empty() {
            true => String::new(),
            false => format!(" (not: {})", failed.join("; ")),
        };
        format!(" {} of {}{note} |", passed.len(), all.len())
    }
}

/// Puts `text` between the lines `<!-- NAME -->` and `<!-- /NAME -->` of `file`.
pub fn write_section(file: &str, name: &str, text: &str) -> Result {
    let old = std::fs::read_to_string(file)?;
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let (Some(from), Some(to)) = (old.find(&begin), old.find(&end)) else {
        return Err(format!("{file} has no marks for {name}").into());
    };
    let new = format!("{}{text}\n{}", &old[..from + begin.len()], &old[to..]);
    Ok(std::fs::write(file, new)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(subject: &str, what: &str, case: &str, verdict: Verdict) -> Outcome {
        let (subject, what, case) = (subject.into(), what.into(), case.into());
        Outcome { subject, what, case, verdict, seconds: 0.0, note: String::new() }
    }

    #[test]
    fn the_table_counts_rows_per_program_and_case() {
        let mut tally = Tally::new(4, None);
        tally.end(outcome("ping", "rc: one", "A", Verdict::Passed), "");
        tally.end(outcome("ping", "rc: one", "B", Verdict::Failed), "");
        tally.end(outcome("ping", "rc: two", "A", Verdict::Passed), "");
        tally.end(outcome("pong", "ud: one", "B", Verdict::Skipped), "");
        let expected = "| program | runs | A | B |\n\
            |---|---|---|---|\n\
            | `ping` | rc: one; rc: two | 2 of 2 | 0 of 1 (not: rc: one) |\n\
            | `pong` | ud: one | - | - |";
        assert_eq!(tally.table(&["A", "B"]), expected);
        assert!(!tally.has_passed());
    }
}
