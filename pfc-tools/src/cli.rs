//! `feroce fabric`: its subcommands and what each does.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use clap::builder::RangedI64ValueParser;

use crate::batch::{self, Batch, BatchError};
use crate::convert::{self, ConvertError, ExportOptions, ImportOptions};
use crate::fabric::scenario::{Change, Scenario, ScenarioError};
use crate::live::command::{self, LiveOptions};
use crate::parallel;
use crate::pfc::cli::Outcome;
use crate::report::{self, Measured, ReportError};
use crate::results::Format;
use crate::scenarios::{self, load};
use crate::study::{self, Study};
use crate::sweep::{self, SweptKey};

/// The subcommands of `feroce fabric`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run scenarios and compare the results with the published figures
    Run(RunOptions),
    /// Run a scenario for every combination of values, on this machine or spread over several
    Sweep(SweepOptions),
    /// Write a page with charts of results; without folders, run every scenario first
    Report(ReportOptions),
    /// Connect real interfaces through a scenario's network, in real time
    Live(LiveOptions),
    /// Write a scenario for a topology and flows of HPCC's ns-3 simulator
    Import(ImportOptions),
    /// Write network and traffic of a scenario as files of HPCC's ns-3 simulator
    Export(ExportOptions),
    /// List the scenarios that come with the program
    List,
}

/// Parses a value of `--jobs`.
fn jobs_range() -> RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=1024)
}

/// Options of `feroce fabric run`.
#[derive(Debug, clap::Args)]
pub struct RunOptions {
    /// Scenarios: files, or names from `feroce fabric list`
    #[arg(required = true, value_name = "SCENARIO")]
    scenarios: Vec<String>,
    /// Seed of the first run [default: the scenario's]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Runs at a time; the results are the same for any number [default: one for each CPU]
    #[arg(short, long, value_name = "N", value_parser = jobs_range())]
    jobs: Option<u16>,
    /// Write the results to this folder; those of several scenarios to a subfolder each
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Format of the result files
    #[arg(long, value_enum, default_value = "csv")]
    format: Format,
    /// Override a key of the scenario: switch.alpha=1/8, traffic.0.senders=4
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<Change>,
    /// Run only this case
    #[arg(long, value_name = "NAME")]
    case: Option<String>,
}

/// Options of `feroce fabric sweep`.
#[derive(Debug, clap::Args)]
pub struct SweepOptions {
    /// Scenario: a file, or a name from `feroce fabric list`
    #[arg(required_unless_present = "file")]
    scenario: Option<String>,
    /// Values of a key; repeat the option to run every combination
    #[arg(long, value_name = "KEY=VALUE,VALUE", required_unless_present = "file")]
    over: Vec<SweptKey>,
    /// Count which published figures each reading of a sweep file reproduces, and write a page
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["scenario", "over", "changes", "seeds", "format", "only"])]
    file: Option<PathBuf>,
    /// Runs at a time; the results are the same for any number [default: one for each CPU]
    #[arg(short, long, value_name = "N", value_parser = jobs_range())]
    jobs: Option<u16>,
    /// Override a key of the scenario in all runs
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<Change>,
    /// Seeds per combination [default: the scenario's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: Option<u64>,
    /// Write the results of each run to a subfolder of this folder
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// Format of the result files
    #[arg(long, value_enum, default_value = "csv")]
    format: Format,
    /// Run only this run, numbered from 0: for job arrays
    #[arg(long, value_name = "N")]
    only: Option<usize>,
    /// Print one command per run, for GNU parallel, instead of running
    #[arg(long, conflicts_with_all = ["only", "file"])]
    commands: bool,
}

/// Options of `feroce fabric report`.
#[derive(Debug, clap::Args)]
pub struct ReportOptions {
    /// Folders that `run --out` and `sweep --out` wrote, as CSV, whose results of one scenario are
    /// merged; or scenario files, which are run
    folders: Vec<PathBuf>,
    /// Write report.html, report.md and the plots to this folder
    #[arg(long, value_name = "FOLDER", default_value = "fabric-report")]
    out: PathBuf,
    /// Also run the scenarios that take minutes
    #[arg(long, conflicts_with = "folders")]
    long: bool,
    /// Runs at a time; the report is the same for any number [default: one for each CPU]
    #[arg(short, long, value_name = "N", value_parser = jobs_range())]
    jobs: Option<u16>,
}

/// Why a command ends early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The scenario cannot be read or run.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// `--case` names no case of the scenario.
    #[error("the scenario has no case `{case}`; its cases are {known}")]
    NoCase {
        /// Name given with `--case`.
        case: String,
        /// Names of all cases.
        known: String,
    },
    /// Two scenarios have the same name, and their results would be in the same folder.
    #[error("two scenarios are named `{0}`, and their results would be in one folder; rename one")]
    SameName(String),
    /// Runs ended early.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// `live` could not connect the interfaces.
    #[error(transparent)]
    Live(#[from] command::Failure),
    /// The results cannot be written.
    #[error("cannot write results: {0}")]
    Output(#[from] io::Error),
    /// Files cannot be imported or exported.
    #[error(transparent)]
    Convert(#[from] ConvertError),
    /// The report cannot be made.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// The sweep file cannot be used.
    #[error(transparent)]
    Study(#[from] study::StudyError),
    /// `--only` names no run of the sweep.
    #[error("the sweep has {runs} runs, numbered from 0; run {only} does not exist")]
    NoRun {
        /// Number given with `--only`.
        only: usize,
        /// Number of runs.
        runs: usize,
    },
}

/// Runs a subcommand. [`Outcome::Findings`]: a gate does not hold, or a lossless network lost
/// packets.
///
/// # Errors
/// If the scenario cannot be run, or its results cannot be read or written.
pub fn run(command: &Command) -> Result<Outcome, Failure> {
    let holds = match command {
        Command::Run(options) => run_scenarios(options),
        Command::Sweep(SweepOptions { file: Some(file), jobs, out, .. }) => {
            run_study(file, *jobs, out).map(|()| true)
        }
        Command::Sweep(options) => sweep(options),
        Command::Report(options) => report(options),
        Command::Live(options) => run_live(options).map(|()| true),
        Command::Import(options) => convert::import(options).map(|()| true).map_err(Failure::from),
        Command::Export(options) => convert::export(options).map(|()| true).map_err(Failure::from),
        Command::List => list(&mut io::stdout().lock()).map(|()| true),
    };
    Ok(Outcome::of(!holds?))
}

fn list(out: &mut impl Write) -> Result<(), Failure> {
    for built_in in scenarios::ALL {
        writeln!(out, "{:24} {}", built_in.name, built_in.parse(&[], None)?.title)?;
    }
    Ok(())
}

/// Drops all cases but `case`, if one is given.
fn choose(scenario: &mut Scenario, case: Option<&String>) -> Result<(), Failure> {
    let Some(case) = case else { return Ok(()) };
    scenario.choose(case).map_err(|known| Failure::NoCase { case: case.clone(), known })
}

fn run_live(options: &LiveOptions) -> Result<(), Failure> {
    let mut scenario = load(&options.scenario, &options.changes, options.seed)?;
    choose(&mut scenario, options.case.as_ref())?;
    let case = &scenario.cases[0];
    if case.has_engines() {
        let message =
            "`host.engine` replaces hosts by the engine; `live` puts interfaces in their places";
        return Err(case.inconsistent(message.to_owned()).into());
    }
    Ok(command::run(options, case, case.seeds[0])?)
}

/// Runs scenarios. Returns true if all gates hold and no case has a violation.
fn run_scenarios(options: &RunOptions) -> Result<bool, Failure> {
    let read = |name: &String| {
        let mut scenario = load(name, &options.changes, options.seed)?;
        choose(&mut scenario, options.case.as_ref())?;
        scenario.check_traffic()?;
        Ok(scenario)
    };
    let all: Vec<Scenario> = options.scenarios.iter().map(read).collect::<Result<_, Failure>>()?;
    if options.out.is_some() {
        check_names(&all)?;
    }
    let changes: Vec<String> = options.changes.iter().map(Change::to_string).collect();
    let folder = |scenario: &Scenario| match (&options.out, all.len()) {
        (Some(out), 2..) => Some(out.join(scenario.name())),
        (out, _) => out.clone(),
    };
    let batch = |scenario| Batch {
        scenario,
        cases: &scenario.cases,
        changes: changes.clone(),
        folder: folder(scenario),
    };
    let batches: Vec<Batch<'_>> = all.iter().map(batch).collect();
    Ok(batch::run(&batches, options.format, parallel::jobs(options.jobs))?)
}

/// Returns an error if two scenarios have the same name.
fn check_names(scenarios: &[Scenario]) -> Result<(), Failure> {
    let mut names = BTreeSet::new();
    let twice = scenarios.iter().map(Scenario::name).find(|name| !names.insert(name.clone()));
    twice.map_or(Ok(()), |name| Err(Failure::SameName(name)))
}

/// Runs every combination, or the one given by `--only`. All scenarios are parsed first, so that an
/// invalid combination is reported before the first run.
fn sweep(options: &SweepOptions) -> Result<bool, Failure> {
    let points = sweep_points(options)?;
    let runs = points.iter().map(|(_, scenario)| scenario.cases.len()).sum();
    if options.commands {
        // Whoever runs the commands decides how many run at a time.
        let jobs = if options.jobs.is_some() { "" } else { " --jobs 1" };
        let (mut out, command) = (io::stdout().lock(), current_command());
        for number in 0..runs {
            writeln!(out, "{command}{jobs} --only {number}")?;
        }
        return Ok(true);
    }
    if let Some(only) = options.only.filter(|&only| only >= runs) {
        return Err(Failure::NoRun { only, runs });
    }
    let cases = points.iter().flat_map(|point| point.1.cases.iter().map(move |case| (point, case)));
    let mut batches = Vec::new();
    for (number, ((point, scenario), case)) in cases.enumerate() {
        if options.only.is_some_and(|only| only != number) {
            continue;
        }
        batches.push(Batch {
            scenario,
            cases: std::slice::from_ref(case),
            changes: point.iter().chain(&options.changes).map(Change::to_string).collect(),
            folder: Some(options.out.join(format!("{number:05}"))),
        });
    }
    Ok(batch::run(&batches, options.format, parallel::jobs(options.jobs))?)
}

/// Every combination of a sweep with its scenario, in the order of the run numbers. Case names
/// include the combination.
fn sweep_points(options: &SweepOptions) -> Result<Vec<(Vec<Change>, Scenario)>, Failure> {
    let read = |point: Vec<Change>| {
        let name = options.scenario.as_deref().unwrap_or_default();
        let mut scenario = load(name, &all_changes(options, &point), None)?;
        scenario.check_traffic()?;
        for case in &mut scenario.cases {
            case.name = sweep::label(&case.name, &point);
        }
        Ok((point, scenario))
    };
    sweep::points(&options.over).into_iter().map(read).collect()
}

fn all_changes(options: &SweepOptions, point: &[Change]) -> Vec<Change> {
    let repeat = |seeds: u64| Change { key: "repeat".to_owned(), value: seeds.to_string() };
    let repeat = options.seeds.map(repeat);
    options.changes.iter().chain(point).cloned().chain(repeat).collect()
}

/// This command line without `--commands`, quoted for a shell.
fn current_command() -> String {
    let words = std::env::args().filter(|word| word != "--commands");
    let quoted = words.map(|word| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:%+@".contains(c);
        if !word.is_empty() && word.chars().all(is_plain) {
            word
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// Counts the figures that each reading of a sweep file reproduces, and writes the page.
fn run_study(file: &Path, jobs: Option<u16>, out: &Path) -> Result<(), Failure> {
    let study = Study::load(file)?;
    let page = study.run(parallel::jobs(jobs))?;
    feroce_engine::files::create_folder(out)?;
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let path = out.join(format!("{stem}.md"));
    feroce_engine::files::write(&path, page)?;
    println!("{}", path.display());
    Ok(())
}

/// Writes a report of the given folders, or of every scenario. Returns true if no gate fails.
fn report(options: &ReportOptions) -> Result<bool, Failure> {
    let (mut folders, mut scenarios) = (Vec::new(), Vec::new());
    let folder = |scenario: &Scenario| options.out.join("data").join(scenario.name());
    for path in &options.folders {
        if path.is_file() {
            let scenario = Scenario::load(path, &[], None)?;
            scenario.check_traffic()?;
            folders.push(folder(&scenario));
            scenarios.push(scenario);
        } else {
            folders.push(path.clone());
        }
    }
    check_names(&scenarios)?;
    if folders.is_empty() {
        scenarios = built_in(options.long)?;
        folders = scenarios.iter().map(folder).collect();
    }
    let batch = |scenario| Batch {
        scenario,
        cases: &scenario.cases,
        changes: Vec::new(),
        folder: Some(folder(scenario)),
    };
    let batches: Vec<Batch<'_>> = scenarios.iter().map(batch).collect();
    if !batches.is_empty() {
        // Gates that fail are in the report, which decides about the exit code.
        batch::run(&batches, Format::Csv, parallel::jobs(options.jobs))?;
    }
    let measured = Measured::read(&folders)?;
    report::write(&report::page("DCQCN and PFC in Feroce's fabric", &measured)?, &options.out)?;
    writeln!(io::stdout(), "{}", options.out.join("report.html").display())?;
    Ok(report::holds(&measured)?)
}

/// Every built-in scenario, with those that take minutes or without.
fn built_in(long: bool) -> Result<Vec<Scenario>, ScenarioError> {
    let all = scenarios::ALL.iter().map(|built_in| built_in.parse(&[], None));
    let wanted = all.filter(|scenario| !scenario.as_ref().is_ok_and(|own| own.long && !long));
    wanted.collect()
}
