//! Reads results back from their folders. Results of one scenario from several folders are merged.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use csv::StringRecord;
use serde::Deserialize;

use crate::fabric::scenario::Figure;
use crate::plot::Verdict;
use crate::results::DESCRIPTION;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A file was not written by `run` or `sweep`.
    #[error("{}: {what}; expected what `run --out` or `sweep --out` write as CSV", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The error.
        what: String,
    },
    /// No results found.
    #[error(
        "{}: no results found: no {DESCRIPTION} here or in a folder below (a run that did not end \
         has none)",
        path.display()
    )]
    Nothing {
        /// The folder.
        path: PathBuf,
    },
}

/// The description of a scenario, stored with its results.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Description {
    /// Name.
    pub scenario: String,
    /// What the scenario shows.
    pub title: String,
    /// Source of the published numbers.
    pub source: String,
    /// Notes for the reader.
    pub notes: String,
    /// Figures of the report.
    pub figures: Vec<Figure>,
}

/// A row of a table.
#[derive(Debug)]
pub struct Row {
    columns: Arc<StringRecord>,
    values: StringRecord,
}

/// All results of one scenario.
#[derive(Debug)]
pub struct Measured {
    /// Description of the scenario.
    pub description: Description,
    folders: Vec<PathBuf>,
}

impl Measured {
    /// Reads the results in and below `folders`, grouped by scenario, in the order found.
    ///
    /// # Errors
    /// See [`ReportError`].
    pub fn read(folders: &[PathBuf]) -> Result<Vec<Self>, ReportError> {
        let mut all: Vec<Self> = Vec::new();
        for folder in folders {
            let found = find(folder)?;
            if found.is_empty() {
                return Err(ReportError::Nothing { path: folder.clone() });
            }
            for folder in found {
                let description = describe(&folder)?;
                let same = |known: &&mut Self| known.description.scenario == description.scenario;
                match all.iter_mut().find(same) {
                    Some(known) => known.folders.push(folder),
                    None => all.push(Self { description, folders: vec![folder] }),
                }
            }
        }
        Ok(all)
    }

    /// All rows of a table.
    ///
    /// # Errors
    /// See [`ReportError`].
    pub fn rows(&self, table: &str) -> Result<Vec<Row>, ReportError> {
        let mut rows = Vec::new();
        for folder in &self.folders {
            let path = folder.join(format!("{table}.csv"));
            let wrong = |error: csv::Error| match error.into_kind() {
                csv::ErrorKind::Io(source) => ReportError::Read { path: path.clone(), source },
                other => ReportError::Content { path: path.clone(), what: format!("{other:?}") },
            };
            let mut reader = csv::Reader::from_path(&path).map_err(wrong)?;
            let columns = Arc::new(reader.headers().map_err(wrong)?.clone());
            for values in reader.into_records() {
                rows.push(Row { columns: Arc::clone(&columns), values: values.map_err(wrong)? });
            }
        }
        Ok(rows)
    }
}

/// The number in a column; NaN if absent.
pub fn number(row: &Row, column: &str) -> f64 {
    text(row, column).parse().unwrap_or(f64::NAN)
}

/// The text in a column; empty if there is no such column.
pub fn text<'a>(row: &'a Row, column: &str) -> &'a str {
    let place = row.columns.iter().position(|name| name == column);
    place.and_then(|place| row.values.get(place)).unwrap_or_default()
}

/// Returns true if rows of `case` are shown. A case of a sweep is named after the scenario's case,
/// followed by its changes.
fn is_shown(figure: &Figure, case: &str) -> bool {
    let is = |name: &String| {
        case == name || case.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with(" ["))
    };
    figure.of.is_empty() || figure.of.iter().any(is)
}

/// The shown rows, grouped by `key`, in order of appearance.
pub fn grouped<K: Ord + Clone>(
    figure: &Figure,
    rows: Vec<Row>,
    key: impl Fn(&Row) -> K,
) -> Vec<(K, Vec<Row>)> {
    let mut groups: Vec<(K, Vec<Row>)> = Vec::new();
    let mut places: BTreeMap<K, usize> = BTreeMap::new();
    for row in rows {
        if !is_shown(figure, text(&row, "case")) {
            continue;
        }
        let key = key(&row);
        match places.get(&key) {
            Some(&place) => groups[place].1.push(row),
            None => {
                places.insert(key.clone(), groups.len());
                groups.push((key, vec![row]));
            }
        }
    }
    groups
}

/// Returns true if the flow has an end, whether it reached it or not, and a slowdown if it does:
/// messages that wait for other flows have none. A flow that waits for others counts before its
/// start.
pub fn is_ended(row: &Row) -> bool {
    let starts = !text(row, "started_ns").is_empty() || text(row, "waits") == "start";
    starts && text(row, "waits") != "messages" && number(row, "size_bytes") > 0.0
}

/// The result of a gate.
pub fn verdict(row: &Row) -> Verdict {
    match text(row, "verdict") {
        "holds" => Verdict::Holds,
        "missed" => Verdict::Missed,
        "" => Verdict::Shown,
        _ => Verdict::Fails,
    }
}

fn find(folder: &Path) -> Result<Vec<PathBuf>, ReportError> {
    if folder.join(DESCRIPTION).exists() {
        return Ok(vec![folder.to_owned()]);
    }
    let failed = |source| ReportError::Read { path: folder.to_owned(), source };
    let mut below = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            below.extend(find(&path)?);
        }
    }
    below.sort();
    Ok(below)
}

fn describe(folder: &Path) -> Result<Description, ReportError> {
    let path = folder.join(DESCRIPTION);
    let text = fs::read_to_string(&path)
        .map_err(|source| ReportError::Read { path: path.clone(), source })?;
    serde_json::from_str(&text)
        .map_err(|error| ReportError::Content { path, what: error.to_string() })
}
