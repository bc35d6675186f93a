//! Results: as files, and as text.

mod csv;
mod parquet;
pub mod tables;
mod text;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::fabric::scenario::{Case, Scenario};
use crate::run::CaseResult;
use feroce_engine::files;
use tables::{Columns, TABLES, Value};

pub use text::{bounds, format_number, print};

/// File name of the scenario's description, beside the tables.
pub const DESCRIPTION: &str = "scenario.json";

/// File format of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Comma-separated values, which `report` reads
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

/// The result files of a scenario, in one folder. The description is written last: a folder without
/// it belongs to an unfinished run.
pub struct Files {
    writers: Vec<Writer>,
    path: PathBuf,
    description: serde_json::Value,
    /// Unfinished flows of each case.
    unfinished: serde_json::Map<String, serde_json::Value>,
    /// Completion of the collectives of each case.
    collectives: serde_json::Map<String, serde_json::Value>,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").field("description", &self.description).finish_non_exhaustive()
    }
}

impl Files {
    /// Creates the folder with empty tables for the results of `scenario`, changed by `changes`.
    /// Removes earlier results from the folder.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn create(
        folder: &Path,
        format: Format,
        scenario: &Scenario,
        changes: &[String],
    ) -> io::Result<Self> {
        files::create_folder(folder)?;
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
        let path = folder.join(DESCRIPTION);
        let (unfinished, collectives) = Default::default();
        Ok(Self { writers, path, description, unfinished, collectives })
    }

    /// Adds the results of a case.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn add(&mut self, case: &Case, case_result: &CaseResult) -> io::Result<()> {
        let unfinished: usize =
            case_result.results.iter().map(|result| result.unfinished(None)).sum();
        self.unfinished.insert(case.name.clone(), unfinished.into());
        let collectives = collectives(case, case_result);
        if !collectives.is_empty() {
            self.collectives.insert(case.name.clone(), collectives.into());
        }
        tables::rows(case, case_result, &mut |table, values| {
            let number = TABLES
                .iter()
                .position(|(other, ..)| *other == table)
                .expect("every table has a writer");
            self.writers[number].row(values)
        })
    }

    /// Flushes the tables and writes the description.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn finish(mut self) -> io::Result<()> {
        self.writers.into_iter().try_for_each(Writer::finish)?;
        self.description["unfinished_flows"] = self.unfinished.into();
        if !self.collectives.is_empty() {
            self.description["collectives"] = self.collectives.into();
        }
        files::write(self.path, format!("{:#}\n", self.description))
    }
}

/// The completion of each collective of a case, for each seed.
fn collectives(case: &Case, case_result: &CaseResult) -> Vec<serde_json::Value> {
    let mut all = Vec::new();
    for (seed, results) in case.seeds.iter().zip(&case_result.results) {
        for (group, name, _) in case.collectives() {
            let end = results.collective(Some(group));
            all.push(serde_json::json!({
                "traffic": name,
                "seed": seed,
                "completion_us": end.map(|(_, time)| time.seconds() * 1e6),
                "slowest_rank": end.map(|(host, _)| case.network().name(host as usize)),
            }));
        }
    }
    all
}
