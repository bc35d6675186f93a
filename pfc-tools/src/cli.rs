//! `feroce fabric`: its subcommands and what each does.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};

use crate::convert::{self, ConvertError, ExportOptions, ImportOptions};
use crate::fabric::scenario::{Case, Change, Scenario, ScenarioError};
use crate::fabric::time::Time;
use crate::live::command::{self, LiveOptions};
use crate::parallel;
use crate::pfc::cli::Outcome;
use crate::report::{self, Measured, ReportError};
use crate::results::{self, Files, Format};
use crate::run::{self, CaseResult, Judge, Progress};
use crate::scenarios::{self, load};
use crate::study::{self, Study};
use crate::sweep::{self, SweptKey};

/// The subcommands of `feroce fabric`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a scenario and compare the results with the published figures
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

/// Options of `feroce fabric run`.
#[derive(Debug, clap::Args)]
pub struct RunOptions {
    /// Scenario: a file, or a name from `feroce fabric list`
    scenario: String,
    /// Seed of the first run [default: the scenario's]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Write the results to this folder
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
    /// Runs at a time, for --file [default: one for each CPU]
    #[arg(short, long, value_name = "N", requires = "file")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
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
    #[arg(short, long, value_name = "N", conflicts_with = "folders")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
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
        Command::Run(options) => run_scenario(options),
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
    for (name, text) in scenarios::ALL {
        let title = Scenario::parse(name, text, &[], None)?.title;
        writeln!(out, "{name:24} {title}")?;
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

/// Runs a scenario. Returns true if all gates hold and no case has a violation.
fn run_scenario(options: &RunOptions) -> Result<bool, Failure> {
    let mut scenario = load(&options.scenario, &options.changes, options.seed)?;
    choose(&mut scenario, options.case.as_ref())?;
    scenario.check_traffic()?;
    let set: Vec<String> = options.changes.iter().map(Change::to_string).collect();
    let create = |folder: &Path| Files::create(folder, options.format, &scenario, &set);
    let files = options.out.as_deref().map(create).transpose()?;
    let mut meter = Meter::new();
    let holds = run_cases(&scenario, &scenario.cases, files, &mut meter)?;
    meter.finish();
    Ok(holds)
}

/// Runs `cases` of a scenario, prints the results and adds them to `files`. Returns true if no gate
/// fails.
fn run_cases(
    scenario: &Scenario,
    cases: &[Case],
    mut files: Option<Files>,
    meter: &mut Meter,
) -> Result<bool, Failure> {
    println!("{}", scenario.title);
    let (mut judge, mut holds) = (Judge::default(), true);
    for case in cases {
        let ran = run::run(case, files.is_some(), |progress| meter.show(&case.name, progress))?;
        meter.clear();
        let judged = judge.judge(case, ran);
        holds &= judged.holds();
        publish(scenario, case, &judged, files.as_mut(), meter)?;
    }
    files.map(Files::finish).transpose()?;
    Ok(holds)
}

/// Prints the results of a case and adds them to `files`.
fn publish(
    scenario: &Scenario,
    case: &Case,
    judged: &CaseResult,
    files: Option<&mut Files>,
    meter: &mut Meter,
) -> Result<(), Failure> {
    for results in &judged.results {
        meter.add(results.events, results.hops);
    }
    let mut out = io::stdout().lock();
    results::print(&mut out, scenario, case, judged)?;
    out.flush()?;
    files.map_or(Ok(()), |files| files.add(case, judged))?;
    Ok(())
}

/// Runs every combination, or the one given by `--only`. All scenarios are parsed first, so that an
/// invalid combination is reported before the first run.
fn sweep(options: &SweepOptions) -> Result<bool, Failure> {
    let points = sweep_points(options)?;
    let runs = points.iter().map(|(_, scenario)| scenario.cases.len()).sum();
    if options.commands {
        let mut out = io::stdout().lock();
        for number in 0..runs {
            writeln!(out, "{} --only {number}", current_command())?;
        }
        return Ok(true);
    }
    if let Some(only) = options.only.filter(|&only| only >= runs) {
        return Err(Failure::NoRun { only, runs });
    }
    let (mut meter, mut holds) = (Meter::new(), true);
    let cases = points.iter().flat_map(|point| point.1.cases.iter().map(move |case| (point, case)));
    for (number, ((point, scenario), case)) in cases.enumerate() {
        if options.only.is_some_and(|only| only != number) {
            continue;
        }
        let set: Vec<String> =
            point.iter().chain(&options.changes).map(Change::to_string).collect();
        let folder = options.out.join(format!("{number:05}"));
        let files = Files::create(&folder, options.format, scenario, &set)?;
        holds &= run_cases(scenario, std::slice::from_ref(case), Some(files), &mut meter)?;
    }
    meter.finish();
    Ok(holds)
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
    let mut meter = Meter::new();
    let page = study.run(parallel::jobs(jobs), |case, results| {
        results.iter().for_each(|results| meter.add(results.events, results.hops));
        meter.count(case);
    })?;
    meter.finish();
    std::fs::create_dir_all(out)?;
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let path = out.join(format!("{stem}.md"));
    feroce_engine::files::write(&path, page)?;
    println!("{}", path.display());
    Ok(())
}

/// Writes a report of the given folders, or of every scenario. Returns true if no gate fails.
fn report(options: &ReportOptions) -> Result<bool, Failure> {
    let mut folders = Vec::new();
    for path in &options.folders {
        match path.is_file() {
            true => folders.push(run_file(path, options)?),
            false => folders.push(path.clone()),
        }
    }
    if folders.is_empty() {
        folders = run_all(options)?;
    }
    let measured = Measured::read(&folders)?;
    report::write(&report::page("DCQCN and PFC in Feroce's fabric", &measured)?, &options.out)?;
    writeln!(io::stdout(), "{}", options.out.join("report.html").display())?;
    Ok(report::holds(&measured)?)
}

/// Runs a scenario file for a report. Returns the folder of the results.
fn run_file(path: &Path, options: &ReportOptions) -> Result<PathBuf, Failure> {
    let scenario = Scenario::load(path, &[], None)?;
    scenario.check_traffic()?;
    let folder = options.out.join("data").join(scenario.name());
    let files = Files::create(&folder, Format::Csv, &scenario, &[])?;
    let mut meter = Meter::new();
    // Gates that fail are in the report, which decides about the exit code.
    run_cases(&scenario, &scenario.cases, Some(files), &mut meter)?;
    meter.finish();
    Ok(folder)
}

/// Runs every scenario, several cases at a time. Returns the folders of the results.
fn run_all(options: &ReportOptions) -> Result<Vec<PathBuf>, Failure> {
    let mut all = Vec::new();
    for (name, text) in scenarios::ALL {
        let scenario = Scenario::parse(name, text, &[], None)?;
        if !scenario.long || options.long {
            all.push(scenario);
        }
    }
    let cases = all.iter().flat_map(|scenario| scenario.cases.iter().map(move |c| (scenario, c)));
    let cases: Vec<(&Scenario, &Case)> = cases.collect();
    let folder = |scenario: &Scenario| options.out.join("data").join(scenario.name());
    let mut meter = Meter::new();
    let mut open: Option<(Files, Judge)> = None;
    let work = |number: usize| run::run(cases[number].1, true, |_| {});
    parallel::in_order(parallel::jobs(options.jobs), cases.len(), work, |number, ran| {
        let (scenario, case) = cases[number];
        let (mut files, mut judge) = match open.take() {
            Some(open) => open,
            None => {
                println!("{}", scenario.title);
                let folder = folder(scenario);
                (Files::create(&folder, Format::Csv, scenario, &[])?, Judge::default())
            }
        };
        let judged = judge.judge(case, ran?);
        publish(scenario, case, &judged, Some(&mut files), &mut meter)?;
        match cases.get(number + 1) {
            Some((next, _)) if std::ptr::eq(*next, scenario) => open = Some((files, judge)),
            _ => files.finish()?,
        }
        Ok::<(), Failure>(())
    })?;
    meter.finish();
    Ok(all.iter().map(folder).collect())
}

/// Shows the progress of a run on standard error if that is a terminal, and prints the speed of
/// all runs at the end.
#[derive(Debug)]
struct Meter {
    bar: ProgressBar,
    began: std::time::Instant,
    events: u64,
    hops: u64,
    runs: u32,
}

impl Meter {
    #[allow(clippy::disallowed_methods)] // Wall-clock time of the user; no result depends on it.
    fn new() -> Self {
        // Draws nothing if standard error is not a terminal.
        let bar = ProgressBar::new(1);
        let style = "{msg} {wide_bar} {percent} % of virtual time, {elapsed}";
        bar.set_style(ProgressStyle::with_template(style).expect("a valid template"));
        Self { bar, began: std::time::Instant::now(), events: 0, hops: 0, runs: 0 }
    }

    /// Called often by a run; the progress bar limits how often it draws.
    fn show(&self, case: &str, progress: Progress) {
        if self.bar.is_hidden() {
            return;
        }
        let Progress { now: Time(now), duration: Time(duration), events } = progress;
        self.bar.set_length(duration.max(1));
        self.bar.set_position(now);
        self.bar.set_message(format!(
            "{case}, run {}, {} M events",
            self.runs + 1,
            events / 1_000_000
        ));
    }

    /// Shows that a case has ended, of several that run at a time.
    fn count(&self, case: &str) {
        if !self.bar.is_hidden() {
            self.bar.set_message(format!("{} runs, {case}", self.runs));
        }
    }

    /// Removes the bar, so that results can be printed.
    fn clear(&self) {
        self.bar.finish_and_clear();
        self.bar.reset();
    }

    fn add(&mut self, events: u64, hops: u64) {
        self.events += events;
        self.hops += hops;
        self.runs += 1;
    }

    #[allow(clippy::cast_precision_loss)] // Counts below 2^53.
    fn finish(&self) {
        let seconds = self.began.elapsed().as_secs_f64().max(1e-9);
        let (events, hops) = (self.events as f64 / 1e6, self.hops as f64 / 1e6);
        let Self { runs, .. } = self;
        eprintln!(
            "{runs} runs, {events:.1} M events, {hops:.1} M packet hops in {seconds:.1} s: \
             {:.2} M events/s, {:.2} M packet hops/s",
            events / seconds,
            hops / seconds
        );
    }
}
