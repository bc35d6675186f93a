//! Runs cases, several at a time; prints their results and writes them to files, in order.

use std::io::{self, Write};
use std::path::PathBuf;

use crate::fabric::scenario::{Case, Scenario, ScenarioError};
use crate::meter::Meter;
use crate::results::{self, Files, Format};
use crate::run::{self, Judge};
use feroce_engine::files;

/// Why runs end early.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// A case cannot be run.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The results cannot be written.
    #[error("cannot write results: {0}")]
    Output(#[from] io::Error),
}

/// Cases of a scenario whose results are in one folder. Their gates may refer to each other.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    pub scenario: &'a Scenario,
    pub cases: &'a [Case],
    /// How the command line has changed the scenario.
    pub changes: Vec<String>,
    /// Where the results are written.
    pub folder: Option<PathBuf>,
}

/// Runs `batches`, `jobs` runs at a time. Output and files do not depend on `jobs`. Returns true if
/// no gate fails and no case has a violation.
pub(crate) fn run(batches: &[Batch<'_>], format: Format, jobs: usize) -> Result<bool, BatchError> {
    let units = batches.iter().flat_map(|batch| batch.cases.iter().map(move |case| (batch, case)));
    let units: Vec<(&Batch<'_>, &Case)> = units.collect();
    let cases: Vec<&Case> = units.iter().map(|(_, case)| *case).collect();
    // A folder that cannot be made ends the command now and not after an hour.
    let folders = batches.iter().filter_map(|batch| batch.folder.as_ref());
    folders.clone().try_for_each(files::create_folder)?;
    let keep_samples = folders.count() > 0;
    let mut meter = Meter::new(&cases);
    let progress = meter.progress();
    let (mut open, mut holds) = (None, true);
    run::run_all(&cases, keep_samples, jobs, progress, |number, ran| {
        let (batch, case) = units[number];
        let (mut files, mut judge) = match open.take() {
            Some(open) => open,
            None => (begin(batch, format, &meter)?, Judge::default()),
        };
        let judged = judge.judge(case, ran?);
        holds &= judged.holds();
        meter.print(|| {
            let mut out = io::stdout().lock();
            results::print(&mut out, batch.scenario, case, &judged)?;
            out.flush()
        })?;
        files.as_mut().map_or(Ok(()), |files| files.add(case, &judged))?;
        meter.add(&judged.results);
        match units.get(number + 1) {
            Some((next, _)) if std::ptr::eq(*next, batch) => open = Some((files, judge)),
            _ => files.map_or(Ok(()), Files::finish)?,
        }
        Ok::<(), BatchError>(())
    })?;
    meter.finish();
    Ok(holds)
}

/// Prints the title of a batch and creates its files.
fn begin(batch: &Batch<'_>, format: Format, meter: &Meter) -> io::Result<Option<Files>> {
    let Batch { scenario, changes, folder, .. } = batch;
    meter.print(|| writeln!(io::stdout(), "{}", scenario.title))?;
    let create = |folder: &PathBuf| Files::create(folder, format, scenario, changes);
    folder.as_ref().map(create).transpose()
}
