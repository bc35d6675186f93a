//! `feroce-fabric`: the command line.
//!
//! Exit codes: 0 everything is as expected; 1 the scenario cannot be run, and the message says why; 2 wrong usage; 3 it ran, and a
//! gate does not hold or a lossless network was not.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::fabric::scenario::{Case, Change, Scenario, ScenarioError};
use crate::fabric::time::Time;
use crate::live::command::{self, LiveOptions};
use crate::report::{self, Measured, ReportError};
use crate::results::{self, Files, Format};
use crate::run::{Progress, run};
use crate::scenarios::{self, load};
use crate::sweep::{self, Over};

/// Hosts, lines and switches in virtual time: experiments with DCQCN and PFC.
#[derive(Debug, Parser)]
#[command(
    name = "feroce-fabric",
    bin_name = "feroce fabric",
    version,
    disable_help_subcommand = true,
    after_help = "Exit codes: 0 as expected; 1 cannot be run; 2 wrong usage; 3 a gate does not hold, or a lossless network lost something."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a scenario and compare it with what was published
    Run(RunOptions),
    /// Run a scenario for every combination of some values, here or spread over machines
    Sweep(SweepOptions),
    /// Show results as a page with charts; without folders, run every scenario first
    Report(ReportOptions),
    /// Connect real interfaces by a scenario's network, in real time
    Live(LiveOptions),
    /// Show the scenarios that come with the program
    List,
}

#[derive(Debug, clap::Args)]
struct RunOptions {
    /// A file, or the name of a scenario that `list` shows
    scenario: String,
    /// Seed of the first run, in place of the scenario's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Write results into this folder
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// How results are written
    #[arg(long, value_enum, default_value = "csv")]
    format: Format,
    /// Give a key of the scenario another value: switch.alpha=1/8, traffic.0.senders=4
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<Change>,
    /// Run this case only
    #[arg(long, value_name = "NAME")]
    case: Option<String>,
}

#[derive(Debug, clap::Args)]
struct SweepOptions {
    /// A file, or the name of a scenario that `list` shows
    scenario: String,
    /// Values that a key takes, one after the other; given several times, every combination
    #[arg(long, value_name = "KEY=VALUE,VALUE", required = true)]
    over: Vec<Over>,
    /// Give a key another value in all runs
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<Change>,
    /// Run each combination with so many seeds, in place of the scenario's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: Option<u64>,
    /// Write the results of each run into a folder of its own below this one
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// How results are written
    #[arg(long, value_enum, default_value = "csv")]
    format: Format,
    /// Run this one only, counted from 0: for job arrays
    #[arg(long, value_name = "N")]
    only: Option<usize>,
    /// Print a command for each run, for GNU parallel, and run nothing
    #[arg(long, conflicts_with = "only")]
    commands: bool,
}

#[derive(Debug, clap::Args)]
struct ReportOptions {
    /// What `run --out` and `sweep --out` have written, as CSV; results of one scenario are merged
    folders: Vec<PathBuf>,
    /// Write report.html, report.md and plots into this folder
    #[arg(long, value_name = "FOLDER", default_value = "fabric-report")]
    out: PathBuf,
    /// Also run the scenarios that take minutes
    #[arg(long, conflicts_with = "folders")]
    long: bool,
}

/// Why the program ends early.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    #[error("the scenario has no case `{case}`; there are {known}")]
    NoCase { case: String, known: String },
    #[error(transparent)]
    Live(#[from] command::Failure),
    #[error("cannot write results: {0}")]
    Output(#[from] io::Error),
    #[error(transparent)]
    Report(#[from] ReportError),
    #[error("the sweep has {runs} runs, from 0 on; there is no run {only}")]
    NoRun { only: usize, runs: usize },
}

/// Does what the command line says.
pub fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(options) => run_scenario(&options),
        Command::Sweep(options) => sweep(&options),
        Command::Report(options) => report(&options),
        Command::Live(options) => run_live(&options).map(|()| true),
        Command::List => list(&mut io::stdout().lock()).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        // Whoever read our output has seen enough.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("feroce-fabric: {failure}");
            ExitCode::from(1)
        }
    }
}

fn list(out: &mut impl Write) -> Result<(), Failure> {
    for (name, text) in scenarios::ALL {
        let title = Scenario::parse(name, text, &[], None)?.title;
        writeln!(out, "{name:24} {title}")?;
    }
    Ok(())
}

/// Keeps the case of this name only, if one is asked for.
fn choose(scenario: &mut Scenario, case: Option<&String>) -> Result<(), Failure> {
    let Some(case) = case else { return Ok(()) };
    scenario.choose(case).map_err(|known| Failure::NoCase { case: case.clone(), known })
}

fn run_live(options: &LiveOptions) -> Result<(), Failure> {
    let mut scenario = load(&options.scenario, &options.changes, options.seed)?;
    choose(&mut scenario, options.case.as_ref())?;
    let case = &scenario.cases[0];
    if case.has_engines() {
        let told = "`host.engine` makes hosts of the engine; `live` has interfaces in their places";
        return Err(case.inconsistent(told.to_owned()).into());
    }
    Ok(command::run(options, case, case.seeds[0])?)
}

/// Runs it; whether everything is as expected.
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

/// Runs `cases` of a scenario, tells what came out, and writes it into `files`.
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
        let judged = run(case, files.is_some(), |progress| meter.show(&case.name, progress))?;
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

/// Runs every combination, or the one that is asked for. All are read first: one that cannot be run is told before any is.
fn sweep(options: &SweepOptions) -> Result<bool, Failure> {
    let points = sweep_points(options)?;
    let runs = points.iter().map(|(_, scenario)| scenario.cases.len()).sum();
    if options.commands {
        let mut out = io::stdout().lock();
        for number in 0..runs {
            writeln!(out, "{} --only {number}", own_command())?;
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

/// Every combination of a sweep with its scenario, whose cases are named for it: the runs, in the order of their numbers.
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

/// This command line without `--commands`, as a shell takes it.
fn own_command() -> String {
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

/// Makes a report of folders, or of every scenario.
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

/// Tells on standard error how far a run is, on a terminal, and at the end how fast it was.
#[derive(Debug)]
struct Meter {
    is_terminal: bool,
    began: std::time::Instant,
    told: std::time::Instant,
    events: u64,
    hops: u64,
    runs: u32,
}

impl Meter {
    #[allow(clippy::disallowed_methods)] // The time that people wait; nothing depends on it.
    fn new() -> Self {
        let now = std::time::Instant::now();
        let is_terminal = io::stderr().is_terminal();
        Self { is_terminal, began: now, told: now, events: 0, hops: 0, runs: 0 }
    }

    #[allow(clippy::disallowed_methods)]
    fn show(&mut self, case: &str, progress: Progress) {
        let now = std::time::Instant::now();
        if !self.is_terminal || (now - self.told).as_millis() < 200 {
            return;
        }
        self.told = now;
        let Progress { now: Time(now), duration: Time(duration), events } = progress;
        let percent = now.saturating_mul(100) / duration.max(1);
        eprint!(
            "\r\x1b[K{case}  run {}: {percent} %, {} M events",
            self.runs + 1,
            events / 1_000_000
        );
    }

    fn clear(&self) {
        if self.is_terminal {
            eprint!("\r\x1b[K");
        }
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
            "{runs} runs, {events:.1} M events, {hops:.1} M packet hops in {seconds:.1} s: {:.2} M events/s, {:.2} M packet hops/s",
            events / seconds,
            hops / seconds
        );
    }
}
