//! Results: as files for programs, as text for people.

mod csv;
mod parquet;
pub mod tables;
mod text;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::fabric::scenario::{Case, Scenario};
use crate::run::Judged;
use tables::{Columns, TABLES, Value};

pub use text::{number, print};

/// What the description of a scenario is called, beside its tables.
pub const DESCRIPTION: &str = "scenario.json";

/// How tables are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Comma-separated values: what `report` reads
    Csv,
    /// Parquet
    Parquet,
}

enum Writer {
    Csv(Box<csv::Writer>),
    Parquet(Box<parquet::Writer>),
}

impl Writer {
    fn create(format: Format, folder: &Path, name: &str, columns: Columns) -> io::Result<Self> {
        match format {
            Format::Csv => {
                let writer = csv::create(&folder.join(format!("{name}.csv")), columns)?;
                Ok(Self::Csv(Box::new(writer)))
            }
            Format::Parquet => {
                let writer =
                    parquet::Writer::create(&folder.join(format!("{name}.parquet")), columns)?;
                Ok(Self::Parquet(Box::new(writer)))
            }
        }
    }

    fn row(&mut self, values: Vec<Value>) -> io::Result<()> {
        match self {
            Self::Csv(writer) => csv::row(writer, &values),
            Self::Parquet(writer) => writer.row(values),
        }
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Self::Csv(mut writer) => writer.flush(),
            Self::Parquet(writer) => writer.finish(),
        }
    }
}

/// The files of a scenario, in a folder. Its description comes last: a folder without it is of a run that did not end.
pub struct Files {
    writers: Vec<Writer>,
    description: (PathBuf, String),
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").field("description", &self.description).finish_non_exhaustive()
    }
}

impl Files {
    /// Makes the folder and empty tables in it, for results of `scenario`, which was changed by `changes`. Results that
    /// the folder has are removed.
    ///
    /// # Errors
    /// Of the file system.
    pub fn create(
        folder: &Path,
        format: Format,
        scenario: &Scenario,
        changes: &[String],
    ) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let tables = TABLES
            .iter()
            .flat_map(|(_, name, _)| ["csv", "parquet"].map(|kind| format!("{name}.{kind}")));
        for file in tables.chain([DESCRIPTION.to_owned()]) {
            match fs::remove_file(folder.join(file)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        let description = serde_json::json!({
            "scenario": scenario.name(),
            "title": scenario.title,
            "source": scenario.source,
            "notes": scenario.notes,
            "figures": scenario.figures,
            "set": changes,
            "version": env!("CARGO_PKG_VERSION"),
        });
        let create =
            |(_, name, columns): &(_, &str, Columns)| Writer::create(format, folder, name, columns);
        let writers = TABLES.iter().map(create).collect::<io::Result<_>>()?;
        Ok(Self { writers, description: (folder.join(DESCRIPTION), format!("{description:#}\n")) })
    }

    /// Adds a case.
    ///
    /// # Errors
    /// Of the file system.
    pub fn add(&mut self, case: &Case, judged: &Judged) -> io::Result<()> {
        tables::rows(case, judged, &mut |table, values| {
            let number =
                TABLES.iter().position(|(other, ..)| *other == table).expect("all are there");
            self.writers[number].row(values)
        })
    }

    /// Writes what is still in memory, and the description.
    ///
    /// # Errors
    /// Of the file system.
    pub fn finish(self) -> io::Result<()> {
        self.writers.into_iter().try_for_each(Writer::finish)?;
        let (path, text) = self.description;
        fs::write(path, text)
    }
}
