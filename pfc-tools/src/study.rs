//! A sweep file: several readings of the same rules, and which published figures each reproduces.
//!
//! The file names scenarios and readings. A reading is a set of changed keys. Every scenario runs
//! under every reading, and the gates of kind `paper` and `model` decide, as in the report.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::fabric::scenario::{Case, Change, Scenario, ScenarioError};
use crate::meter::Meter;
use crate::results::format_number;
use crate::run::{self, Judge};
use crate::scenarios;

/// Why a sweep file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The file is no sweep file.
    #[error("{}: {message}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the line.
        message: String,
    },
    /// A scenario cannot be read or run.
    #[error("reading `{reading}`: {source}")]
    Scenario {
        /// Name of the reading.
        reading: String,
        /// The error.
        #[source]
        source: ScenarioError,
    },
}

/// A sweep file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Study {
    title: String,
    notes: String,
    scenarios: Vec<String>,
    #[serde(rename = "reading")]
    readings: Vec<Reading>,
}

/// One way to read the rules.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reading {
    name: String,
    /// Changed keys and their values.
    set: BTreeMap<String, String>,
    /// The reading changes several rules.
    #[serde(default)]
    combined: bool,
}

/// A measured value beside the published one.
struct Measured {
    case: String,
    gate: String,
    published: Option<f64>,
    value: Option<f64>,
    holds: bool,
}

/// Results of a reading: for each figure, its gates.
type Figures = BTreeMap<String, Vec<Measured>>;

/// A case to run: numbers of its reading, scenario and case.
type Unit = (usize, usize, usize);

impl Study {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self, StudyError> {
        let failed = |source| StudyError::Read { path: path.to_owned(), source };
        let text = fs::read_to_string(path).map_err(failed)?;
        toml::from_str(&text).map_err(|error| {
            let message = error.to_string().trim().to_owned();
            StudyError::Content { path: path.to_owned(), message }
        })
    }

    /// Runs every scenario under every reading, `jobs` runs at a time, and returns the page.
    pub fn run(&self, jobs: usize) -> Result<String, StudyError> {
        let loaded = self.readings.iter().map(|reading| self.load_all(reading));
        let loaded: Vec<Vec<Scenario>> = loaded.collect::<Result<_, _>>()?;
        let units = units(&loaded);
        let case = |&(reading, scenario, case): &Unit| &loaded[reading][scenario].cases[case];
        let cases: Vec<&Case> = units.iter().map(case).collect();
        let mut meter = Meter::new(&cases);
        let mut figures: Vec<Figures> = self.readings.iter().map(|_| Figures::new()).collect();
        let mut judges: BTreeMap<(usize, usize), Judge> = BTreeMap::new();
        run::run_all(&cases, false, jobs, meter.progress(), |number, ran| {
            let ((reading, scenario, _), case) = (units[number], cases[number]);
            let failed = |source| StudyError::Scenario {
                reading: self.readings[reading].name.clone(),
                source,
            };
            let judge = judges.entry((reading, scenario)).or_default();
            let judged = judge.judge(case, ran.map_err(failed)?);
            meter.add(&judged.results);
            for result in &judged.gate_results {
                if let Some(figure) = &result.gate.reproduces {
                    figures[reading].entry(figure.clone()).or_default().push(Measured {
                        case: case.name.clone(),
                        gate: result.gate.name.clone(),
                        published: result.gate.published,
                        value: result.value,
                        // A miss need not be where the scenario says, under another reading.
                        holds: result.holds,
                    });
                }
            }
            Ok(())
        })?;
        meter.finish();
        Ok(self.page(&figures))
    }

    fn load_all(&self, reading: &Reading) -> Result<Vec<Scenario>, StudyError> {
        let change =
            |(key, value): (&String, &String)| Change { key: key.clone(), value: value.clone() };
        let changes: Vec<Change> = reading.set.iter().map(change).collect();
        let load = |name: &String| {
            let failed = |source| StudyError::Scenario { reading: reading.name.clone(), source };
            scenarios::load(name, &changes, None).map_err(failed)
        };
        self.scenarios.iter().map(load).collect()
    }

    /// The page: the readings, the figures that each reproduces, and the values of each gate.
    fn page(&self, results: &[Figures]) -> String {
        let mut page = format!("# {}\n\n{}\n", self.title, self.notes.trim());
        page.push_str("\n## Readings\n\n| reading | changes |\n| --- | --- |\n");
        for reading in &self.readings {
            let set = reading.set.iter().map(|(key, value)| format!("`{key} = {value}`"));
            let _ = writeln!(page, "| {} | {} |", reading.name, set.collect::<Vec<_>>().join(", "));
        }
        let figures: Vec<&String> = results.first().into_iter().flat_map(Figures::keys).collect();
        page.push_str("\n## Figures by reading\n\n");
        page.push_str("A cell is the number of gates that hold, of all gates of the figure; ");
        page.push_str("**bold** if all\nhold: the figure is reproduced.\n\n| reading |");
        figures.iter().for_each(|figure| page.extend([" ", figure, " |"]));
        page.push_str(" reproduced | gates |\n| --- |");
        figures.iter().for_each(|_| page.push_str(" --- |"));
        page.push_str(" --- | --- |\n");
        for (reading, own) in self.readings.iter().zip(results) {
            let _ = write!(page, "| {} |", reading.name);
            for figure in &figures {
                let gates = own.get(*figure).map_or(&[][..], Vec::as_slice);
                let (held, of) = count(gates);
                let cell = format!("{held} of {of}");
                let cell = if held == of { format!("**{cell}**") } else { cell };
                let _ = write!(page, " {cell} |");
            }
            let (reproduced, held, of) = score(own);
            let _ = writeln!(page, " {reproduced} of {} | {held} of {of} |", figures.len());
        }
        page.push_str(&self.best(results));
        page.push_str(&self.values(results));
        page
    }

    /// Names the best readings: most figures, then most gates.
    fn best(&self, results: &[Figures]) -> String {
        let mut text = "\n## The best reading\n\n".to_owned();
        for (kind, combined) in [("single change", false), ("combination", true)] {
            let own = self.readings.iter().zip(results);
            let own = own.filter(|(reading, _)| reading.combined == combined);
            let rank = |own: &Figures| {
                let (reproduced, held, _) = score(own);
                (reproduced, held)
            };
            let Some((best, figures)) = own.clone().max_by_key(|(_, own)| rank(own)) else {
                continue;
            };
            let (reproduced, held, of) = score(figures);
            let ties = own.filter(|(_, own)| rank(own) == rank(figures));
            let others: Vec<String> = ties
                .filter(|(reading, _)| reading.name != best.name)
                .map(|(reading, _)| reading.name.clone())
                .collect();
            let ties = match others.is_empty() {
                true => String::new(),
                false => format!(", as {}", others.join(", ")),
            };
            let names = figures.iter().filter(|(_, gates)| is_reproduced(gates));
            let names: Vec<&str> = names.map(|(name, _)| name.as_str()).collect();
            let _ = writeln!(
                text,
                "- {kind}: **{}** reproduces {reproduced} of {} figures and meets {held} of {of} \
                 gates{ties}. Reproduced: {}.",
                best.name,
                figures.len(),
                names.join(", ")
            );
        }
        text
    }

    /// The values of every gate, under each reading.
    fn values(&self, results: &[Figures]) -> String {
        let mut text = "\n## Values\n\n**Bold** values meet their gate.\n\n".to_owned();
        text.push_str("| figure | case | value | published |");
        self.readings.iter().for_each(|reading| text.extend([" ", &reading.name, " |"]));
        text.push_str("\n| --- | --- | --- | --- |");
        self.readings.iter().for_each(|_| text.push_str(" --- |"));
        text.push('\n');
        for (figure, gates) in results.first().into_iter().flatten() {
            for (number, gate) in gates.iter().enumerate() {
                let published = gate.published.map_or_else(String::new, format_number);
                let _ = write!(text, "| {figure} | {} | {} | {published} |", gate.case, gate.gate);
                for own in results {
                    let gate = own.get(figure).and_then(|gates| gates.get(number));
                    let value = gate.and_then(|gate| gate.value).map_or("-".into(), format_number);
                    let is_met = gate.is_some_and(|gate| gate.holds);
                    let value = if is_met { format!("**{value}**") } else { value };
                    let _ = write!(text, " {value} |");
                }
                text.push('\n');
            }
        }
        text
    }
}

fn count(gates: &[Measured]) -> (usize, usize) {
    (gates.iter().filter(|gate| gate.holds).count(), gates.len())
}

fn is_reproduced(gates: &[Measured]) -> bool {
    gates.iter().all(|gate| gate.holds)
}

/// Figures reproduced, gates held, gates.
fn score(figures: &Figures) -> (usize, usize, usize) {
    let reproduced = figures.values().filter(|gates| is_reproduced(gates)).count();
    let counts = figures.values().map(|gates| count(gates));
    let (held, of) = counts.fold((0, 0), |sum, own| (sum.0 + own.0, sum.1 + own.1));
    (reproduced, held, of)
}

/// The cases with gates that decide about figures. A gate refers to such cases only.
fn units(loaded: &[Vec<Scenario>]) -> Vec<Unit> {
    let mut units = Vec::new();
    for (reading, scenarios) in loaded.iter().enumerate() {
        for (number, scenario) in scenarios.iter().enumerate() {
            for (case, own) in scenario.cases.iter().enumerate() {
                if decides(own) {
                    units.push((reading, number, case));
                }
            }
        }
    }
    units
}

fn decides(case: &Case) -> bool {
    case.gates.iter().any(|gate| gate.reproduces.is_some())
}
