//! Results read back from their folders. Those of one scenario that several machines have run belong together.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::fabric::scenario::Figure;
use crate::results::DESCRIPTION;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// A file is not what `run` or `sweep` write.
    #[error("{}: {what}; expected what `run --out` or `sweep --out` write as CSV", path.display())]
    Content {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Nothing is there.
    #[error("{}: no results here (a folder with {DESCRIPTION}, or folders of such; a run that did not end has none)", path.display())]
    Nothing {
        /// The folder.
        path: PathBuf,
    },
}

/// What is known of a scenario, as its results have it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Description {
    /// Its name.
    pub scenario: String,
    /// What it shows.
    pub title: String,
    /// Where the published numbers are from.
    pub source: String,
    /// What a reader should know.
    pub notes: String,
    /// What a report draws.
    pub figures: Vec<Figure>,
}

/// A row of a table: values by their column's name.
pub type Row = BTreeMap<String, String>;

/// Everything that was measured of one scenario.
#[derive(Debug)]
pub struct Measured {
    /// What it is.
    pub description: Description,
    folders: Vec<PathBuf>,
}

impl Measured {
    /// The results in and below `folders`, by scenario, in the order in which they are met.
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
            for row in reader.deserialize() {
                rows.push(row.map_err(wrong)?);
            }
        }
        Ok(rows)
    }
}

/// The number in a column; NaN if there is none.
pub fn number(row: &Row, column: &str) -> f64 {
    row.get(column).and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
}

/// The text in a column.
pub fn text<'a>(row: &'a Row, column: &str) -> &'a str {
    row.get(column).map_or("", String::as_str)
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
