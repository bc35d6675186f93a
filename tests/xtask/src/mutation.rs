//! Runs cargo-mutants over the crates that decide about bytes and memory, and writes the report
//! with the reason for each change that no test detects.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use crate::Result;
use crate::process::run;
use crate::setup::target;
use crate::tree_copy::Copy;

const REPORT: &str = "docs/mutation.md";
const SURVIVORS: &str = "tests/survivors.toml";

/// Sources that are changed, and the tests that must notice.
struct Part {
    name: &'static str,
    /// Folders of sources.
    folders: &'static [&'static str],
    /// Tests of `feroce-tests` that run beside the unit tests of the package; with none, all tests
    /// of the package run, and no others.
    tests: &'static [&'static str],
    /// Arguments of the test programs.
    arguments: &'static [&'static str],
    /// One change out of this many is tried, unless `--slice` says otherwise.
    every: usize,
}

impl Part {
    /// Where results are kept.
    fn folder(&self) -> PathBuf {
        target().join("mutation").join(self.name)
    }
}

/// Tests without root and namespaces that say within seconds whether the protocol is right.
const PROTOCOL: &[&str] = &[
    "cq",
    "limits",
    "loopback",
    "rc_basic",
    "rc_deregister",
    "rc_errors",
    "rc_forger",
    "rc_placement",
    "rc_requester",
    "rc_responder",
    "rc_retry",
    "rc_selective",
    "rc_split",
    "rc_srq",
    "rc_state",
    "rc_windows",
    "regions",
    "services",
    "stuck_port",
    "swarm",
    "uc",
    "ud",
    "windows",
    "xrc",
];

/// Arguments that leave out unit tests of what the part `engine` does not change. `swarm::` is the
/// swarm's own code, which takes minutes to shrink what fails.
const SKIPPED: &[&str] =
    &["--skip=daemon::", "--skip=device::", "--skip=net::", "--skip=port::", "--skip=swarm::"];

const PARTS: &[Part] = &[
    Part { name: "wire", folders: &["wire/src"], tests: &[], arguments: &[], every: 16 },
    Part {
        name: "congestion",
        folders: &["congestion/src"],
        tests: &[],
        arguments: &[],
        every: 16,
    },
    Part {
        name: "engine",
        folders: &["engine/src/core", "engine/src/memory", "engine/src/qp"],
        tests: PROTOCOL,
        arguments: SKIPPED,
        every: 80,
    },
];

/// Options of `xtask mutation`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Only this part: wire, congestion or engine (its folders core, memory and qp). The report has
    /// the last results of the others
    #[arg(long = "part", value_name = "NAME", value_parser = part_names())]
    parts: Vec<String>,
    /// Only write the report again, with the last results of each part
    #[arg(long, conflicts_with_all = ["parts", "slice"])]
    report: bool,
    /// Try every N-th change, beginning with number K, from 0 to N - 1 [default: 0/16 of wire and
    /// congestion, 0/80 of engine]
    #[arg(long, value_name = "K/N", value_parser = slice)]
    slice: Option<(usize, usize)>,
}

fn part_names() -> clap::builder::PossibleValuesParser {
    PARTS.iter().map(|part| part.name).collect::<Vec<_>>().into()
}

fn slice(text: &str) -> std::result::Result<(usize, usize), String> {
    let numbers = text
        .split_once('/')
        .and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
    numbers
        .filter(|(number, of)| number < of)
        .ok_or_else(|| "two numbers are expected, the first one smaller, such as 0/8".to_owned())
}

/// What happened to a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
enum Summary {
    CaughtMutant,
    MissedMutant,
    Timeout,
    Unviable,
    Success,
    Failure,
}

/// `outcomes.json` of cargo-mutants.
#[derive(Debug, serde::Deserialize)]
struct Outcomes {
    outcomes: Vec<Outcome>,
}

#[derive(Debug, serde::Deserialize)]
struct Outcome {
    scenario: Scenario,
    summary: Summary,
}

#[derive(Debug, serde::Deserialize)]
enum Scenario {
    Baseline,
    Mutant { name: String },
}

/// The results of a part.
#[derive(Debug, Default)]
struct Results {
    caught: usize,
    timeouts: usize,
    unviable: usize,
    /// Changes that no test detects, as [`stable`] names them.
    survivors: Vec<String>,
}

impl Results {
    fn of(outcomes: &Outcomes) -> Results {
        let mut results = Results::default();
        for outcome in &outcomes.outcomes {
            let Scenario::Mutant { name } = &outcome.scenario else { continue };
            match outcome.summary {
                Summary::CaughtMutant => results.caught += 1,
                Summary::Timeout => results.timeouts += 1,
                Summary::MissedMutant => results.survivors.push(stable(name)),
                Summary::Unviable => results.unviable += 1,
                Summary::Success | Summary::Failure => {} // of the unchanged tree
            }
        }
        results.survivors.sort();
        results
    }

    /// Changes that compile.
    fn tried(&self) -> usize {
        self.caught + self.timeouts + self.survivors.len()
    }

    /// Percent of them that a test detects. A test that never ends has detected the change.
    fn share(&self) -> f64 {
        let detected = self.caught + self.timeouts;
        100.0 * detected as f64 / self.tried().max(1) as f64
    }
}

/// The name of a change without line and column, which move: "FILE: replace ...".
fn stable(name: &str) -> String {
    let mut fields = name.splitn(4, ':');
    match (fields.next(), fields.next(), fields.next(), fields.next()) {
        (Some(file), Some(_), Some(_), Some(what)) => format!("{file}:{what}"),
        _ => name.to_owned(),
    }
}

/// A change that no test detects, as the list has it.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Survivor {
    change: String,
    why: String,
}

#[derive(Debug, Default, serde::Deserialize)]
struct Survivors {
    #[serde(default)]
    survivor: Vec<Survivor>,
}

/// Runs the command.
pub fn main(options: Options) -> Result<u8> {
    let known: Survivors = toml::from_str(&std::fs::read_to_string(SURVIVORS)?)?;
    let known: BTreeMap<&str, &str> =
        known.survivor.iter().map(|one| (one.change.as_str(), one.why.as_str())).collect();
    if !options.report {
        let copy = Copy::updated()?;
        for part in PARTS {
            if options.parts.is_empty() || options.parts.iter().any(|name| name == part.name) {
                try_changes(part, options.slice.unwrap_or((0, part.every)), &copy)?;
            }
        }
    }
    let mut found = Vec::new();
    for part in PARTS {
        let results = last_slice(part).and_then(|slice| Ok((slice, last_results(part)?)));
        let (slice, results) = results.map_err(|error| {
            format!("no results of {0} (scripts/mutation.sh --part {0}): {error}", part.name)
        })?;
        found.push((part, slice, results));
    }
    std::fs::write(REPORT, report(&found, &known))?;
    println!("wrote {REPORT}");
    let new: BTreeSet<&String> = found
        .iter()
        .flat_map(|(.., results)| &results.survivors)
        .filter(|change| !known.contains_key(change.as_str()))
        .collect();
    for change in &new {
        println!("[[survivor]]\nchange = {change:?}\nwhy = \"\"\n");
    }
    match new.len() {
        0 => Ok(0),
        count => Err(format!("{count} changes survive without a reason in {SURVIVORS}").into()),
    }
}

/// Runs cargo-mutants over a part, in the copy: cargo-mutants' own copy would build everything
/// anew.
fn try_changes(part: &Part, slice: (usize, usize), copy: &Copy) -> Result {
    let folder = std::path::absolute(part.folder())?;
    std::fs::create_dir_all(&folder)?;
    let label = folder.join("slice"); // Only complete runs have one.
    std::fs::write(&label, "")?;
    let mut command = copy.cargo();
    command.env("FEROCE_SWARM", "2000").env_remove("FEROCE_SEED").env_remove("FEROCE_SWARM_FROM");
    command.args(["mutants", "--no-config", "--in-place", "--colors", "never"]);
    command.arg("--timeout=100").arg("--output").arg(&folder);
    command.args(["--sharding", "round-robin"]);
    command.arg(format!("--shard={}/{}", slice.0, slice.1));
    for sources in part.folders {
        command.arg("--file").arg(format!("{sources}/**"));
    }
    if !part.tests.is_empty() {
        // As arguments of cargo, because `--test-package` does not count for the unchanged tree.
        command.args(["--cargo-arg=--package=feroce-tests", "--cargo-arg=--lib"]);
        for test in part.tests {
            command.arg(format!("--cargo-arg=--test={test}"));
        }
    }
    command.args(["--", "--"]).args(part.arguments);
    // 2: some survive; 3: some made a test endless.
    match run(&mut command)? {
        0 | 2 | 3 => Ok(std::fs::write(label, format!("{}/{}", slice.0, slice.1))?),
        code => Err(format!("cargo mutants ended with {code}: see {}", folder.display()).into()),
    }
}

/// The slice of the last run.
fn last_slice(part: &Part) -> Result<(usize, usize)> {
    Ok(slice(&std::fs::read_to_string(part.folder().join("slice"))?)?)
}

/// What the last run found.
fn last_results(part: &Part) -> Result<Results> {
    let file = part.folder().join("mutants.out/outcomes.json");
    Ok(Results::of(&serde_json::from_str(&std::fs::read_to_string(file)?)?))
}

/// The report, as Markdown.
fn report(found: &[(&Part, (usize, usize), Results)], reasons: &BTreeMap<&str, &str>) -> String {
    let mut text = String::from(HEAD);
    for (part, (number, of), results) in found {
        let folders: Vec<String> = part.folders.iter().map(|name| format!("`{name}`")).collect();
        let _ = writeln!(
            text,
            "| {} | {} of {of} | {} | {} | {} | {} | {} | {:.0} % |",
            folders.join(", "),
            number + 1,
            results.tried(),
            results.caught,
            results.timeouts,
            results.survivors.len(),
            results.unviable,
            results.share(),
        );
    }
    text.push_str("\n## Changes that no test detects\n\n| change | why |\n|---|---|\n");
    for change in found.iter().flat_map(|(.., results)| &results.survivors) {
        let why = reasons.get(change.as_str()).copied().unwrap_or("**no reason yet**");
        let _ = writeln!(text, "| `{}` | {why} |", change.replace('|', "\\|"));
    }
    text
}

const HEAD: &str = "\
# Mutation report

cargo-mutants changes a function at a time: its result, an operator, a match arm. Then a test must
fail. `scripts/mutation.sh` writes this page, in 40 minutes on two cores. A slice is every N-th
change of the part, since all would take a day; `--slice K/N` tries another.

The tests are those of the package itself; for the engine its unit tests and those of `tests/tests`
that need no network, with 2,000 scenarios of each swarm. Tests over real ports, other stacks and
programs are not run, so the share below is a lower bound.

| sources | slice | tried | caught | endless test | survive | no build | caught |
|---|---|---|---|---|---|---|---|
";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const OUTCOMES: &str = r#"{"outcomes": [
        {"scenario": "Baseline", "summary": "Success"},
        {"scenario": {"Mutant": {"name": "wire/src/a.rs:1:2: replace A::b with ()"}},
         "summary": "MissedMutant"},
        {"scenario": {"Mutant": {"name": "wire/src/a.rs:3:4: replace | with ^ in A::c"}},
         "summary": "MissedMutant"},
        {"scenario": {"Mutant": {"name": "wire/src/a.rs:5:6: d"}}, "summary": "CaughtMutant"},
        {"scenario": {"Mutant": {"name": "wire/src/a.rs:7:8: e"}}, "summary": "Timeout"},
        {"scenario": {"Mutant": {"name": "wire/src/a.rs:9:9: f"}}, "summary": "Unviable"}]}"#;

    #[test]
    fn the_report_counts_and_names_survivors_with_their_reasons() {
        let results = Results::of(&serde_json::from_str(OUTCOMES).expect("outcomes"));
        let reasons = BTreeMap::from([("wire/src/a.rs: replace A::b with ()", "logs only")]);
        let text = report(&[(&PARTS[0], (2, 8), results)], &reasons);
        assert!(text.contains("| `wire/src` | 3 of 8 | 4 | 1 | 1 | 2 | 1 | 50 % |"), "{text}");
        assert!(text.contains("| `wire/src/a.rs: replace A::b with ()` | logs only |"), "{text}");
        assert!(text.contains("replace \\| with ^ in A::c` | **no reason yet** |"), "{text}");
    }

    #[test]
    fn a_slice_is_one_of_several() {
        assert_eq!(slice("3/4"), Ok((3, 4)));
        for wrong in ["4/4", "0/0", "1", "a/2", "-1/2"] {
            assert!(slice(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_survivor_has_a_reason_and_a_file() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let text = std::fs::read_to_string(root.join(SURVIVORS)).expect("the list");
        let list: Survivors = toml::from_str(&text).expect("the list");
        for survivor in list.survivor {
            let file = survivor.change.split(':').next().unwrap_or_default();
            assert!(root.join(file).is_file(), "{}", survivor.change);
            assert!(!survivor.why.is_empty(), "{}", survivor.change);
        }
    }
}
