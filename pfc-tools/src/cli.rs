//! `feroce fabric`: its subcommands and what each does.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};

use crate::fabric::scenario::{Case, Change, Scenario, ScenarioError};
use crate::fabric::time::Time;
use crate::live::command::{self, LiveOptions};
use crate::pfc::cli::Outcome;
use crate::report::{self, Measured, ReportError};
use crate::results::{self, Files, Format};
use crate::run::{self, Progress};
use crate::scenarios::{self, load};
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
    scenario: String,
    /// Values of a key; repeat the option to run every combination
    #[arg(long, value_name = "KEY=VALUE,VALUE", required = true)]
    over: Vec<SweptKey>,
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
    #[arg(long, conflicts_with = "only")]
    commands: bool,
}

/// Options of `feroce fabric report`.
#[derive(Debug, clap::Args)]
pub struct ReportOptions {
    /// Folders that `run --out` and `sweep --out` wrote, as CSV; results of one scenario are merged
    folders: Vec<PathBuf>,
    /// Write report.html, report.md and the plots to this folder
    #[arg(long, value_name = "FOLDER", default_value = "fabric-report")]
    out: PathBuf,
    /// Also run the scenarios that take minutes
    #[arg(long, conflicts_with = "folders")]
    long: bool,
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
    /// The report cannot be made.
    #[error(transparent)]
    Report(#[from] ReportError),
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
        Command::Sweep(options) => sweep(options),
        Command::Report(options) => report(options),
        Command::Live(options) => run_live(options).map(|()| true),
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

/// Runs `cases` of a scenario, prints the results and adds them to `files`. Returns true if all
/// gates hold.
fn run_cases(
    scenario: &Scenario,
    cases: &[Case],
    mut files: Option<Files>,
    meter: &mut Meter,
) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{}", scenario.title)?;
    let mut holds = true;
    for case in cases {
        let judged = run::run(case, files.is_some(), |progress| meter.show(&case.name, progress))?;
        meter.clear();
        holds &= judged.holds();
        for results in &judged.results {
            meter.add(results.events, results.hops);
        }
        results::print(&mut out, scenario, case, &judged)?;
        out.flush()?;
        if let Some(files) = &mut files {
            files.add(case, &judged)?;
        }
    }
    files.map(Files::finish).transpose()?;
    Ok(holds)
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
        let mut scenario = load(&options.scenario, &all_changes(options, &point), None)?;
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

/// Writes a report of the given folders, or of every scenario. Returns true if all gates hold.
fn report(options: &ReportOptions) -> Result<bool, Failure> {
    let mut folders = options.folders.clone();
    if folders.is_empty() {
        let mut meter = Meter::new();
        for (name, text) in scenarios::ALL {
            let scenario = Scenario::parse(name, text, &[], None)?;
            if scenario.long && !options.long {
                continue;
            }
            let folder = options.out.join("data").join(name);
            let files = Files::create(&folder, Format::Csv, &scenario, &[])?;
            run_cases(&scenario, &scenario.cases, Some(files), &mut meter)?;
            folders.push(folder);
        }
        meter.finish();
    }
    let measured = Measured::read(&folders)?;
    report::write(&report::page("DCQCN and PFC in Feroce's fabric", &measured)?, &options.out)?;
    writeln!(io::stdout(), "{}", options.out.join("report.html").display())?;
    Ok(report::holds(&measured)?)
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
