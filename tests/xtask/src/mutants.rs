//! Checks that the tests detect defects of the engine: each patch in `tests/mutants` breaks one
//! rule, and the test that the patch names must fail.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use regex::Regex;

use crate::Result;
use crate::process::run_into;
use crate::setup::target;
use crate::tally::{Outcome, Tally, Verdict};
use crate::tree_copy::Copy;

const PATCHES: &str = "tests/mutants";
/// Seconds that a test may take.
const LIMIT: &str = "300";
/// Why mutants that Miri catches are skipped.
const NO_MIRI: &str = "no nightly toolchain with miri";
/// Tests of seeded scenarios. They also fail for lack of coverage.
const SEEDED: [&str; 2] = ["services", "swarm"];

/// Options of `xtask mutants`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Write the results to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only build the tests of the unchanged engine, for a later run
    #[arg(long, conflicts_with = "json")]
    build: bool,
    /// Mutants: file names in tests/mutants without .patch (default: all)
    names: Vec<String>,
}

/// A patch, with the test that must fail.
#[derive(Debug, PartialEq, Eq)]
pub struct Mutant {
    /// The file name without `.patch`.
    pub name: String,
    /// The test that must fail: see [`Test`].
    pub test: String,
    hunks: Vec<Hunk>,
}

/// A test, as the line `Caught by:` of a patch names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Test<'a> {
    /// A file of tests/tests.
    File(&'a str),
    /// `loom` and a model of engine/loom.
    Model(&'a str),
    /// `miri`, a package, and the beginning of the names of some of its unit tests.
    Miri { package: &'a str, filter: &'a str },
}

impl<'a> Test<'a> {
    fn of(text: &'a str) -> Self {
        let words: Vec<&str> = text.split(' ').collect();
        match words[..] {
            ["loom", model] => Self::Model(model),
            ["miri", package, filter] => Self::Miri { package, filter },
            _ => Self::File(text),
        }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Hunk {
    file: String,
    lines: Vec<(Side, String)>,
}

/// Where a line of a hunk stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Both,
    Old,
    New,
}

impl Mutant {
    /// Parses the patch in `text`.
    fn parse(name: &str, text: &str) -> Result<Mutant> {
        let test = text.lines().find_map(|line| line.strip_prefix("Caught by: "));
        let test = test.ok_or_else(|| format!("{name}: no line begins with `Caught by: `"))?;
        let (mut hunks, mut file): (Vec<Hunk>, Option<String>) = (Vec::new(), None);
        for line in text.lines() {
            if line.starts_with("--- a/") {
                continue;
            }
            if let Some(path) = line.strip_prefix("+++ b/") {
                file = Some(path.to_owned());
            } else if let (true, Some(file)) = (line.starts_with("@@"), &file) {
                hunks.push(Hunk { file: file.clone(), lines: Vec::new() });
            } else if let (Some(hunk), Some(_)) = (hunks.last_mut(), &file) {
                let side = match line.as_bytes().first() {
                    Some(b'-') => Side::Old,
                    Some(b'+') => Side::New,
                    _ => Side::Both,
                };
                hunk.lines.push((side, line.get(1..).unwrap_or_default().to_owned()));
            }
        }
        if hunks.is_empty() {
            return Err(format!("{name}: the patch has no hunk").into());
        }
        Ok(Mutant { name: name.to_owned(), test: test.trim().to_owned(), hunks })
    }

    /// The files that the mutant changes, below `tree`, with their text before and after.
    fn apply(&self, tree: &Path) -> Result<BTreeMap<PathBuf, (String, String)>> {
        let mut files: BTreeMap<PathBuf, (String, String)> = BTreeMap::new();
        for hunk in &self.hunks {
            let path = tree.join(&hunk.file);
            if !files.contains_key(&path) {
                let text = std::fs::read_to_string(&path)
                    .map_err(|error| format!("{}: {}: {error}", self.name, hunk.file))?;
                files.insert(path.clone(), (text.clone(), text));
            }
            let (_, text) = files.get_mut(&path).expect("inserted above");
            *text =
                hunk.apply(text).map_err(|why| format!("{}: {}: {why}", self.name, hunk.file))?;
        }
        Ok(files)
    }
}

/// A line without indentation and comment; `None` for a line without code.
fn code(line: &str) -> Option<&str> {
    let line = line.trim();
    if line.starts_with("//") {
        return None;
    }
    let line = line.split(" // ").next().unwrap_or_default().trim_end();
    (!line.is_empty()).then_some(line)
}

impl Hunk {
    /// `text` with the change. Only lines of code are compared, without their comments. The lines
    /// that the hunk removes must be in `text`. As many context lines are compared as are needed to
    /// find a unique position.
    fn apply(&self, text: &str) -> std::result::Result<String, String> {
        let lines: Vec<&str> = text.lines().collect();
        let is_code = |(_, line): &&(Side, String)| code(line).is_some();
        let is_changed = |(side, _): &(Side, String)| *side != Side::Both;
        let first = self.lines.iter().position(is_changed).ok_or("the hunk changes nothing")?;
        let last = self.lines.iter().rposition(is_changed).ok_or("the hunk changes nothing")?;
        let before: Vec<&str> =
            self.lines[..first].iter().filter_map(|(_, line)| code(line)).collect();
        let after: Vec<&str> =
            self.lines[last + 1..].iter().filter_map(|(_, line)| code(line)).collect();
        let core = &self.lines[first..=last];
        let old: Vec<&str> = core
            .iter()
            .filter(is_code)
            .filter(|(side, _)| *side != Side::New)
            .filter_map(|(_, line)| code(line))
            .collect();
        let file: Vec<(usize, &str)> = lines
            .iter()
            .enumerate()
            .filter_map(|(number, line)| Some((number, code(line)?)))
            .collect();
        let mut found = 0;
        for (above, below) in contexts(before.len(), after.len()) {
            if old.is_empty() && above + below == 0 {
                continue;
            }
            let wanted: Vec<&str> = before[before.len() - above..]
                .iter()
                .chain(&old)
                .chain(&after[..below])
                .copied()
                .collect();
            let places: Vec<usize> = file
                .windows(wanted.len())
                .enumerate()
                .filter(|(_, window)| window.iter().map(|(_, line)| line).eq(&wanted))
                .map(|(place, _)| place)
                .collect();
            if let &[place] = places.as_slice() {
                return Ok(replace(&lines, &file, place + above, above, core));
            }
            found = found.max(places.len());
        }
        Err(match found {
            0 => "the lines that it changes are not there".to_owned(),
            _ => format!("the lines that it changes are there {found} times"),
        })
    }
}

/// Numbers of lines of context above and below, the largest first.
fn contexts(above: usize, below: usize) -> Vec<(usize, usize)> {
    let mut all: Vec<(usize, usize)> =
        (0..=above).flat_map(|a| (0..=below).map(move |b| (a, b))).collect();
    all.sort_by_key(|(a, b)| std::cmp::Reverse(a + b));
    all
}

/// The text with `core` applied, beginning at the line of code with the number `start`. `above`
/// says whether the line before was compared: lines are then added directly below it, otherwise
/// directly above the next line.
fn replace(
    lines: &[&str],
    file: &[(usize, &str)],
    start: usize,
    above: usize,
    core: &[(Side, String)],
) -> String {
    let mut out: Vec<&str> = Vec::new();
    let mut next = match above {
        0 => file.get(start).map_or(lines.len(), |(number, _)| *number),
        _ => file[start - 1].0 + 1,
    };
    out.extend(&lines[..next]);
    let mut place = start;
    for (side, line) in core {
        match (side, code(line)) {
            (Side::New, _) => out.push(line),
            (_, None) => {} // Comments of the patch are not compared.
            (side, Some(_)) => {
                let number = file[place].0;
                out.extend(&lines[next..number]);
                if *side == Side::Both {
                    out.push(lines[number]);
                }
                (next, place) = (number + 1, place + 1);
            }
        }
    }
    out.extend(&lines[next..]);
    out.join("\n") + "\n"
}

/// All mutants below the folder `root`, by name.
fn all(root: &Path) -> Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    for entry in std::fs::read_dir(root.join(PATCHES))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "patch") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            mutants.push(Mutant::parse(&name, &std::fs::read_to_string(&path)?)?);
        }
    }
    mutants.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(mutants)
}

/// Runs the command.
pub fn main(options: Options) -> Result<u8> {
    let mut mutants = all(Path::new("."))?;
    for name in &options.names {
        if !mutants.iter().any(|mutant| mutant.name == *name) {
            return Err(format!("no mutant is called {name}").into());
        }
    }
    mutants.retain(|mutant| options.names.is_empty() || options.names.contains(&mutant.name));
    let needs_miri = |mutant: &Mutant| matches!(Test::of(&mutant.test), Test::Miri { .. });
    let lacks_miri = mutants.iter().any(needs_miri) && !has_miri();
    let (skipped, mutants): (Vec<_>, Vec<_>) =
        mutants.into_iter().partition(|mutant| lacks_miri && needs_miri(mutant));
    let copy = Copy::updated()?;
    if options.build {
        return copy.built(&mutants).map(|_| 0);
    }
    copy.check_unchanged(&mutants)?;
    println!("{:<28} {:<12} {:<28} seconds", "mutant", "test", "caught by");
    let mut tally = Tally::new(mutants.len() + skipped.len(), options.json);
    for mutant in &mutants {
        let started = Instant::now();
        tally.begin(&mutant.name);
        let (caught, by) = copy.check(mutant)?;
        report(&mut tally, mutant, Verdict::of(caught), by, started.elapsed().as_secs_f64());
    }
    for mutant in &skipped {
        report(&mut tally, mutant, Verdict::Skipped, format!("skipped: {NO_MIRI}"), 0.0);
    }
    tally.finish()?;
    let (all, survivors) = (mutants.len(), tally.count(Verdict::Failed));
    match survivors {
        0 => println!("all {all} mutants were caught"),
        _ => eprintln!("{survivors} of {all} mutants were not caught"),
    }
    if !skipped.is_empty() {
        println!("{} mutants were skipped: {NO_MIRI}", skipped.len());
    }
    Ok(u8::from(survivors > 0))
}

/// Prints and records the result of a mutant.
fn report(tally: &mut Tally, mutant: &Mutant, verdict: Verdict, note: String, seconds: f64) {
    let line = format!("{:<28} {:<12} {note:<28} {seconds:.0}", mutant.name, mutant.test);
    let (subject, what) = (mutant.name.clone(), mutant.test.clone());
    tally.end(Outcome { subject, what, case: String::new(), verdict, seconds, note }, &line);
}

/// Cargo of the nightly toolchain, as its proxy finds it.
fn nightly() -> Command {
    let mut command = Command::new("cargo");
    command.arg("+nightly").env_remove("RUSTUP_TOOLCHAIN");
    command
}

/// Returns true if a nightly toolchain has Miri.
fn has_miri() -> bool {
    let mut command = nightly();
    command.args(["miri", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

impl Copy {
    /// Builds a test of the copy.
    fn build(&self, test: &str) -> Result<Option<PathBuf>> {
        let test = match Test::of(test) {
            Test::File(name) => name,
            Test::Model(_) => return self.build_models(),
            Test::Miri { package, .. } => return self.build_for_miri(package),
        };
        let mut command = self.cargo();
        command.args(["test", "--quiet", "-p", "feroce-tests", "--test", test]);
        command.args(["--no-run", "--message-format=json"]);
        let built = command.output()?;
        if !built.status.success() {
            eprint!("{}", String::from_utf8_lossy(&built.stderr));
            return Ok(None);
        }
        let messages = String::from_utf8_lossy(&built.stdout).into_owned();
        let mut messages = messages
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
            .filter(|message| message["target"]["kind"][0] == "test")
            .filter_map(|message| Some(PathBuf::from(message["executable"].as_str()?)));
        Ok(messages.next_back())
    }

    /// Builds the models of loom, in the folder in which scripts/test.sh builds them, too.
    fn build_models(&self) -> Result<Option<PathBuf>> {
        let folder = target().join("loom");
        let mut command = Command::new(crate::setup::cargo());
        command.current_dir(self.tree.join("engine/loom")).env("CARGO_TARGET_DIR", &folder);
        let built = command.args(["build", "--quiet"]).output()?;
        if !built.status.success() {
            eprint!("{}", String::from_utf8_lossy(&built.stderr));
            return Ok(None);
        }
        Ok(Some(folder.join("debug/feroce-engine-loom")))
    }

    /// Builds the unit tests of `package` for Miri, in the folder in which scripts/test.sh builds
    /// them, too. Returns the program that runs them.
    fn build_for_miri(&self, package: &str) -> Result<Option<PathBuf>> {
        let mut command = self.miri(package);
        let built = command.arg("--no-run").output()?;
        if !built.status.success() {
            eprint!("{}", String::from_utf8_lossy(&built.stderr));
            return Ok(None);
        }
        Ok(Some(PathBuf::from("cargo")))
    }

    fn miri(&self, package: &str) -> Command {
        let mut command = nightly();
        command.current_dir(&self.tree).env("CARGO_TARGET_DIR", target().join("miri"));
        command
            .env("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-permissive-provenance")
            .args(["miri", "test", "--quiet", "-p", package, "--lib"]);
        command
    }

    /// Runs a test; its output is in `run.log`.
    fn run(&self, binary: &Path, test: &str) -> Result<i32> {
        let test = Test::of(test);
        if let Test::Miri { package, filter } = test {
            return run_into(self.miri(package).args(["--", filter]), &self.log());
        }
        let scenarios = std::env::var("FEROCE_MUTANT_SCENARIOS");
        let mut command = Command::new("timeout");
        command.arg(LIMIT).arg(binary).current_dir(self.tree.join("tests"));
        if let Test::Model(model) = test {
            command.arg(model);
        }
        command.env("FEROCE_SWARM", scenarios.unwrap_or_else(|_| "20000".to_owned()));
        command.env_remove("FEROCE_SEED").env_remove("FEROCE_SWARM_FROM");
        run_into(&mut command, &self.log())
    }

    fn log(&self) -> PathBuf {
        self.base.join("run.log")
    }

    /// Builds the tests of `mutants` on the unchanged engine.
    fn built<'a>(&self, mutants: &'a [Mutant]) -> Result<Vec<(&'a str, PathBuf)>> {
        let tests: BTreeSet<&str> = mutants.iter().map(|mutant| mutant.test.as_str()).collect();
        let built = |test| match self.build(test)? {
            Some(binary) => Ok((test, binary)),
            None => Err(format!("{test} does not build").into()),
        };
        tests.into_iter().map(built).collect()
    }

    /// Before anything is broken, the tests must pass.
    fn check_unchanged(&self, mutants: &[Mutant]) -> Result {
        for (test, binary) in self.built(mutants)? {
            if self.run(&binary, test)? != 0 {
                eprint!("{}", std::fs::read_to_string(self.log())?);
                return Err(format!("{test} fails on the unchanged engine").into());
            }
        }
        Ok(())
    }

    /// Applies the mutant, runs its test and reverts the mutant. Returns true if the test
    /// failed, and what caught the mutant or why nothing did.
    fn check(&self, mutant: &Mutant) -> Result<(bool, String)> {
        let files = match mutant.apply(&self.tree) {
            Ok(files) => files,
            Err(why) => return Ok((false, format!("DOES NOT APPLY: {why}"))),
        };
        for (path, (_, text)) in &files {
            std::fs::write(path, text)?;
        }
        let result = self.build(&mutant.test).and_then(|binary| match binary {
            Some(binary) => Ok(Some(self.run(&binary, &mutant.test)?)),
            None => Ok(None),
        });
        for (path, (text, _)) in &files {
            std::fs::write(path, text)?;
        }
        let Some(code) = result? else { return Ok((false, "DOES NOT BUILD".to_owned())) };
        verdict(Test::of(&mutant.test), code, &std::fs::read_to_string(self.log())?)
    }
}

/// The result of a test that ended with `code` and the output `log`: true if it caught the mutant,
/// and what caught it or why nothing did.
fn verdict(test: Test<'_>, code: i32, log: &str) -> Result<(bool, String)> {
    let seeds = Regex::new("(?m)^seed ([0-9]+): ")?;
    let seed = seeds.captures_iter(log).filter_map(|found| found[1].parse::<u64>().ok()).min();
    let failed = Regex::new("(?m)^test ([a-z0-9_:]*) .*FAILED$")?;
    let failed = || failed.captures(log).map_or(String::new(), |found| found[1].to_owned());
    Ok(match (test, code, seed) {
        (_, 0, _) => (false, "NOTHING".to_owned()),
        (_, 124, _) => (false, "HANGS".to_owned()),
        (Test::Miri { .. }, _, _) => match log.contains("error: Undefined Behavior") {
            true => (true, "undefined behaviour".to_owned()),
            false => (false, format!("NO UNDEFINED BEHAVIOUR ({code})")),
        },
        (_, 101, Some(seed)) => (true, format!("seed {seed}")),
        // Every scenario passed, and one kind of event was too rare in all of them.
        (Test::File(name), 101, None) if SEEDED.contains(&name) => {
            (false, "ONLY COVERAGE".to_owned())
        }
        (Test::Model(_), 101, None) if log.contains("deadlock") => (true, "deadlock".to_owned()),
        (_, 101, None) => (true, failed()),
        (_, code, _) => (false, format!("CRASH ({code})")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hunk(text: &str) -> Hunk {
        let text = format!("Caught by: swarm\n--- a/x\n+++ b/x\n@@ @@\n{text}");
        Mutant::parse("x", &text).expect("a patch").hunks.remove(0)
    }

    #[test]
    fn every_mutant_applies_to_this_tree() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let mut broken = Vec::new();
        let models = std::fs::read_to_string(root.join("engine/loom/src/models.rs")).expect("text");
        let script = std::fs::read_to_string(root.join("scripts/test.sh")).expect("text");
        for mutant in all(root).expect("patches") {
            let is_there = match Test::of(&mutant.test) {
                Test::File(name) => root.join(format!("tests/tests/{name}.rs")).is_file(),
                Test::Model(model) => models.contains(&format!("(\"{model}\", ")),
                Test::Miri { package, filter } => {
                    let step = script.split_once("step_miri()").expect("the step").1;
                    let step = step.split_once("\n}\n").expect("its end").0;
                    let has = |due: &str| step.split_whitespace().any(|word| word == due);
                    has(package) && has(filter)
                }
            };
            if !is_there {
                broken.push(format!("{}: there is no test {}", mutant.name, mutant.test));
            }
            broken.extend(mutant.apply(root).err().map(|why| why.to_string()));
        }
        assert!(broken.is_empty(), "{}", broken.join("\n"));
    }

    #[test]
    fn missing_coverage_catches_no_mutant() {
        let (swarm, other) = (Test::of("swarm"), Test::of("rc_retry"));
        let log = "test every_seed ... FAILED\nnever seen: a READ\n";
        let of = |test, code, log: &str| verdict(test, code, log).expect("plain patterns");
        assert_eq!(of(swarm, 101, log), (false, "ONLY COVERAGE".into()));
        assert_eq!(of(other, 101, log), (true, "every_seed".into()));
        let log = "seed 70: lost\nseed 7: lost\ntest every_seed ... FAILED\n";
        assert_eq!(of(swarm, 101, log), (true, "seed 7".into()));
        assert_eq!(of(swarm, 0, log).1, "NOTHING");
        assert_eq!(of(swarm, 124, log).1, "HANGS");
        assert_eq!(of(swarm, 134, "").1, "CRASH (134)");
    }

    #[test]
    fn only_undefined_behaviour_counts_as_caught_by_miri() {
        let miri = Test::of("miri feroce-libibverbs post::");
        assert_eq!(miri, Test::Miri { package: "feroce-libibverbs", filter: "post::" });
        let of = |log: &str| verdict(miri, 1, log).expect("plain patterns");
        assert!(of("error: Undefined Behavior: reading uninitialized memory").0);
        assert!(!of("test post::tests::x ... FAILED").0);
    }

    #[test]
    fn comments_do_not_matter() {
        let hunk = hunk(" // Old words.\n a();\n-b(); // old\n+c();\n // Old words.\n d();\n");
        let text = "// New words.\na();\n// More.\n    b(); // new\nd();\n";
        assert_eq!(
            hunk.apply(text).expect("it applies"),
            "// New words.\na();\n// More.\nc();\nd();\n"
        );
    }

    #[test]
    fn a_line_that_occurs_twice_needs_its_neighbours() {
        let hunk = hunk(" a();\n-b();\n c();\n");
        assert_eq!(hunk.apply("b();\na();\nb();\nx();\n").expect("applies"), "b();\na();\nx();\n");
        assert!(hunk.apply("b();\nb();\n").expect_err("ambiguous").contains("2 times"));
        assert!(hunk.apply("a();\nc();\n").expect_err("not there").contains("not there"));
    }

    #[test]
    fn lines_are_added_next_to_their_neighbour() {
        let hunk = hunk(" a();\n+b();\n c();\n");
        assert_eq!(hunk.apply("a();\n// w\nx();\n").expect("applies"), "a();\nb();\n// w\nx();\n");
        assert_eq!(hunk.apply("x();\n// w\nc();\n").expect("applies"), "x();\n// w\nb();\nc();\n");
    }
}
