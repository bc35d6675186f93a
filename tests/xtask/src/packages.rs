//! Runs packages of Rust and Python on Feroce: the tests and examples of Rust crates that use
//! verbs, and Python packages that transfer data. The rows are in `packages/table.rs`. cargo and
//! pip download everything into target/packages.

mod fetch;
mod table;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use regex::Regex;

use crate::Result;
use crate::net::{FIRST, Pair, SECOND, command_in};
use crate::process::{Process, code, end_of, output};
use crate::rows::{self, End, feroce_listeners, number, seconds_each};
use crate::setup::{
    BUILD_PACKAGES, Work, build_what_programs_need, built, feroce_in, need_packages, need_root,
    reserve_hugepages,
};
use crate::tally::{Outcome, Tally, Verdict};
use fetch::{Store, TestProgram};
use table::{Ends, Fault, ROWS, Row, Run, Source};

/// MTU of the pair, in bytes.
const MTU: u32 = 4500;
/// Seconds for a test that is known to fail: some never end.
const FAULT_SECONDS: u64 = 20;
/// The program `rdma`, from which a test of async-rdma reads the name of the device. iproute2's
/// program queries the kernel, which does not know Feroce.
const RDMA: &str = "#!/bin/sh\necho 'link feroce0/1 state ACTIVE physical_state LINK_UP'\n";

/// Options of `xtask packages`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Use the program and the libraries that are built already
    #[arg(long)]
    built: bool,
    /// A clone of rdma-io's repository, at the commit that `--list` prints: its tests are not in
    /// the crate. Without it, their row is skipped
    #[arg(long, value_name = "FOLDER")]
    rdma_io: Option<PathBuf>,
    /// Print the rows, and the tests that are known to fail
    #[arg(long)]
    list: bool,
    /// Write the results to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A regular expression over package, version and description
    #[arg(default_value = ".")]
    filter: String,
}

/// Runs the command.
pub fn main(options: Options) -> Result<u8> {
    let filter = Regex::new(&options.filter)?;
    let rows: Vec<&Row> = ROWS.iter().filter(|row| filter.is_match(&row.title())).collect();
    if rows.is_empty() {
        return Err(format!("no row matches {filter}").into());
    }
    if options.list {
        rows.iter().for_each(|row| print_row(row));
        return Ok(0);
    }
    need_root()?;
    need_packages(BUILD_PACKAGES)?;
    build_what_programs_need(options.built)?;
    let work = Work::new()?;
    let rdma = work.file("rdma");
    std::fs::write(&rdma, RDMA)?;
    std::fs::set_permissions(&rdma, std::fs::Permissions::from_mode(0o755))?;
    let _hugepages = reserve_hugepages(128)?;
    let pair = Pair::new("packages", MTU)?;
    for (end, gateway) in [(&pair.a, SECOND), (&pair.b, FIRST)] {
        end.ip("link set lo up")?;
        // Tests of rdma-io find their own address with the default route.
        end.ip(&format!("route add default via {gateway}"))?;
    }
    let mut bench = Bench {
        tally: Tally::new(rows.len(), options.json.clone()),
        store: Store::new(options.rdma_io)?,
        work,
        pair,
    };
    for row in rows {
        bench.play(row)?;
    }
    bench.tally.finish()?;
    let [passed, failed, skipped] = [Verdict::Passed, Verdict::Failed, Verdict::Skipped]
        .map(|verdict| bench.tally.count(verdict));
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    Ok(u8::from(!bench.tally.has_passed()))
}

fn print_row(row: &Row) {
    println!("{}", row.title());
    if let Source::Clone { url, commit } = row.package.source {
        println!("    needs --rdma-io: {url}, commit {commit}");
    }
    if let Run::Tests { faults, .. } = row.run {
        for Fault { test, reason } in faults {
            println!("    known to fail: {test}: {reason}");
        }
    }
}

/// How a row ended: the verdict, a note for the line, and the lines that explain a failure.
struct Ending {
    verdict: Verdict,
    note: String,
    log: String,
}

impl Ending {
    fn new(verdict: Verdict, note: impl Into<String>) -> Ending {
        Ending { verdict, note: note.into(), log: String::new() }
    }

    fn uncompiled(log: String) -> Ending {
        Ending { log, ..Ending::new(Verdict::Failed, "does not compile") }
    }
}

/// Runs rows.
struct Bench {
    tally: Tally,
    store: Store,
    work: Work,
    pair: Pair,
}

impl Bench {
    fn play(&mut self, row: &Row) -> Result {
        let started = Instant::now();
        self.tally.begin(&row.title());
        need_packages(row.package.needs)?;
        let ending = match row.run {
            Run::Tests { select, arguments, faults } => {
                self.tests(row, select, arguments, faults)?
            }
            Run::Ends(ends) => self.ends(row, &ends)?,
        };
        let seconds = started.elapsed().as_secs_f64();
        let Ending { verdict, note, log } = ending;
        let of_note = if note.is_empty() { String::new() } else { format!(": {note}") };
        let line = format!("{:<7} {seconds:4.0} s  {}{of_note}{log}", verdict.word(), row.title());
        let outcome = Outcome {
            subject: format!("{} {}", row.package.name, row.package.version),
            what: row.what.to_owned(),
            case: String::new(),
            verdict,
            seconds,
            note,
        };
        self.tally.end(outcome, &line);
        Ok(())
    }

    // ---- the tests of a crate

    fn tests(
        &mut self,
        row: &Row,
        select: &[&str],
        arguments: &[&str],
        faults: &[Fault],
    ) -> Result<Ending> {
        let crate_folder = match self.store.fetch(row.package)? {
            Ok(folder) => folder,
            Err(reason) => return Ok(Ending::new(Verdict::Skipped, reason)),
        };
        let programs = match self.store.test_programs(&crate_folder, select)? {
            Ok(programs) => programs,
            Err(log) => return Ok(Ending::uncompiled(log)),
        };
        let mut results = Results::default();
        for program in &programs {
            self.tally.begin(&format!("{}, {}", row.title(), program.name));
            self.test_program(program, arguments, faults, &mut results)?;
        }
        Ok(results.judge(faults))
    }

    /// Runs a test program as cargo does, without the tests that are known to fail; then those, one
    /// by one.
    fn test_program(
        &self,
        program: &TestProgram,
        arguments: &[&str],
        faults: &[Fault],
        results: &mut Results,
    ) -> Result {
        let known: Vec<&str> = faults.iter().filter_map(|fault| program.test(fault.test)).collect();
        let mut words = vec!["--exact"];
        words.extend(known.iter().flat_map(|test| ["--skip", test]));
        words.extend(arguments);
        self.test_run(program, &words, seconds_each(), results)?;
        for test in known {
            self.test_run(program, &["--exact", test], FAULT_SECONDS, results)?;
        }
        Ok(())
    }

    /// Runs a test program once. Its tests that gave no result have failed.
    fn test_run(
        &self,
        program: &TestProgram,
        words: &[&str],
        seconds: u64,
        results: &mut Results,
    ) -> Result {
        let end = self.end(self.pair.a.name(), "v0", seconds, false);
        let path = program.path.display().to_string();
        let mut command = end.of(&path);
        command.args(words).args(["--list", "--format=terse"]).stdin(Stdio::null());
        let list = command.output()?;
        if !list.status.success() {
            results.tests.insert(program.named("--list"), Verdict::Failed);
            let errors = end_of(&String::from_utf8_lossy(&list.stderr), 12);
            results.logs.push(format!("\n    {}: no list of tests{errors}", program.name));
            return Ok(());
        }
        let list = String::from_utf8_lossy(&list.stdout);
        let wanted = list.lines().filter_map(|line| line.strip_suffix(": test"));
        let mut expected: BTreeMap<String, Verdict> =
            wanted.map(|test| (program.named(test), Verdict::Failed)).collect();
        if expected.is_empty() {
            return Ok(());
        }
        let mut command = end.of(&path);
        command.args(words).current_dir(&program.folder).stdin(Stdio::null());
        // Only standard output has the results. In one file, messages would cut them into pieces.
        let [printed, errors] = ["results", "errors"].map(|name| self.work.file(name));
        command.stdout(File::create(&printed)?).stderr(File::create(&errors)?);
        let code = code(Process::spawn(&mut command)?.wait()?);
        let read = |file| Result::Ok(String::from_utf8_lossy(&std::fs::read(file)?).into_owned());
        let (text, errors) = (read(&printed)?, read(&errors)?);
        for (test, verdict) in parse(&text) {
            expected.insert(program.named(test), verdict);
        }
        let is_failure = |verdict: &Verdict| *verdict == Verdict::Failed;
        if code != 0 && !expected.values().any(is_failure) {
            expected.insert(program.named("exit code"), Verdict::Failed);
        }
        if expected.values().any(is_failure) {
            results.logs.push(format!(
                "\n    {}: exit code {code}{}{}",
                program.name,
                end_of(&text, 30),
                end_of(&errors, 12)
            ));
        }
        results.tests.extend(expected);
        Ok(())
    }

    // ---- two programs, or one

    fn ends(&self, row: &Row, ends: &Ends) -> Result<Ending> {
        let mut words: Vec<(&str, String)> = vec![
            ("{programs}", std::path::absolute("tests/packages")?.display().to_string()),
            ("CLIENT", FIRST.to_owned()),
        ];
        match row.package.source {
            Source::Pypi(packages) => match self.store.python(packages)? {
                Ok(python) => words.push(("{python}", python)),
                Err(reason) => return Ok(Ending::new(Verdict::Skipped, reason)),
            },
            Source::Crates | Source::Clone { .. } => {
                let folder = match ends.build.is_empty() {
                    true => Ok(self.store.own_program(row.package)?),
                    false => self.store.fetch(row.package)?,
                };
                let folder = match folder {
                    Ok(folder) => folder,
                    Err(reason) => return Ok(Ending::new(Verdict::Skipped, reason)),
                };
                if let Err(log) = self.store.build(&folder, ends.build)? {
                    return Ok(Ending::uncompiled(log));
                }
                words.push(("{built}", self.store.built().display().to_string()));
            }
        }
        let fill_in = |line: &str| {
            words.iter().fold(line.to_owned(), |line, (from, to)| line.replace(from, to))
        };
        let row = rows::Row {
            group: if ends.has_tcp { "tcp" } else { "cm" }.to_owned(),
            what: row.what.to_owned(),
            server: ends.server.map(fill_in),
            is_endless: ends.is_endless,
            client: fill_in(ends.client),
            pattern: ends.pattern.to_owned(),
            command: String::new(),
        };
        let seconds = seconds_each();
        let a = self.end(self.pair.a.name(), "v0", seconds, ends.preload);
        let b = self.end(self.pair.b.name(), "v1", seconds, ends.preload);
        let run = rows::Run {
            server: &b,
            client: &a,
            address: SECOND,
            preload: "",
            work: self.work.path(),
        };
        Ok(match run.play(&row)? {
            Ok(()) => Ending::new(Verdict::Passed, ""),
            Err(why) => {
                let log = format!("\n{}", run.explain(&why)?);
                Ending { log, ..Ending::new(Verdict::Failed, why) }
            }
        })
    }

    fn end(&self, namespace: &str, interface: &'static str, seconds: u64, preload: bool) -> Side {
        let path = std::env::var("PATH").unwrap_or_default();
        Side {
            namespace: namespace.to_owned(),
            interface,
            seconds,
            preload,
            path: format!("{}:{path}", self.work.path().display()),
        }
    }
}

/// An end of the pair.
struct Side {
    namespace: String,
    interface: &'static str,
    seconds: u64,
    preload: bool,
    path: String,
}

impl Side {
    /// `feroce run` with a program, to which the caller adds arguments.
    fn of(&self, program: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", &self.seconds.to_string()]);
        command.args(["ip", "netns", "exec", &self.namespace]).arg(feroce_in(&built()));
        command.args(["run", "--quiet", "--interface", self.interface, "--"]);
        if self.preload {
            let library = |name: &str| built().join("lib").join(name).display().to_string();
            let (verbs, cm) = (library("libibverbs.so.1"), library("librdmacm.so.1"));
            command.args(["env", &format!("LD_PRELOAD={cm}:{verbs}")]);
        }
        command.arg(program).env("PATH", &self.path);
        command
    }
}

impl End for Side {
    fn command(&self, words: &str) -> Command {
        let mut words = words.split_whitespace();
        let mut command = self.of(words.next().unwrap_or_default());
        command.args(words);
        command
    }

    fn listeners(&self, group: &str) -> usize {
        let mut command = command_in(&self.namespace, "sh");
        number(output(command.args(["-c", feroce_listeners(group)])))
    }
}

/// The results of a crate's tests.
#[derive(Debug, Default)]
struct Results {
    /// The verdicts, by `PROGRAM::TEST`.
    tests: BTreeMap<String, Verdict>,
    logs: Vec<String>,
}

impl Results {
    /// Passed if only tests failed that are known to fail, and others passed.
    fn judge(self, faults: &[Fault]) -> Ending {
        let is_known = |test: &str| faults.iter().any(|fault| fault.test == test);
        let of = |verdict| {
            let tests = self.tests.iter().filter(move |(_, found)| **found == verdict);
            tests.map(|(test, _)| test.as_str()).collect::<Vec<&str>>()
        };
        let (passed, failed, ignored) =
            (of(Verdict::Passed), of(Verdict::Failed), of(Verdict::Skipped));
        let (known, new): (Vec<&str>, Vec<&str>) = failed.iter().partition(|test| is_known(test));
        let mut note = format!("{} tests passed", passed.len());
        for (count, word) in [(ignored.len(), "ignored"), (known.len(), "known to fail")] {
            if count > 0 {
                note += &format!(", {count} {word}");
            }
        }
        if !new.is_empty() {
            note += &format!(", failed: {}", new.join(" "));
        }
        let mended: Vec<&str> = passed.iter().copied().filter(|test| is_known(test)).collect();
        if !mended.is_empty() {
            note += &format!(", known to fail but passed: {}", mended.join(" "));
        }
        let ok = new.is_empty() && !passed.is_empty();
        let log = if ok { String::new() } else { self.logs.concat() };
        Ending { log, ..Ending::new(Verdict::of(ok), note) }
    }
}

/// The results in the output of a test program.
fn parse(text: &str) -> Vec<(&str, Verdict)> {
    let mut found = Vec::new();
    for line in text.lines() {
        let Some((test, result)) =
            line.strip_prefix("test ").and_then(|line| line.split_once(" ... "))
        else {
            continue;
        };
        let test = test.strip_suffix(" - should panic").unwrap_or(test);
        match result.split([',', ' ']).next() {
            Some("ok") => found.push((test, Verdict::Passed)),
            Some("FAILED") => found.push((test, Verdict::Failed)),
            Some("ignored") => found.push((test, Verdict::Skipped)),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAULTS: &[Fault] = &[Fault { test: "imm::send::main", reason: "3 is not 2" }];

    fn results(tests: &[(&str, Verdict)]) -> Results {
        let tests = tests.iter().map(|(test, verdict)| ((*test).to_owned(), *verdict)).collect();
        Results { tests, logs: vec!["\n    log".to_owned()] }
    }

    #[test]
    fn results_are_parsed() {
        let text = "running 4 tests\n\
            test a::b ... ok\n\
            test a::c - should panic ... ok\n\
            test d has been running for over 60 seconds\n\
            test e ... ignored, not yet implemented\n\
            test f ... FAILED\n\
            test result: FAILED. 2 passed; 1 failed\n";
        let expected = [
            ("a::b", Verdict::Passed),
            ("a::c", Verdict::Passed),
            ("e", Verdict::Skipped),
            ("f", Verdict::Failed),
        ];
        assert_eq!(parse(text), expected);
    }

    #[test]
    fn only_known_failures_are_accepted() {
        let known = [("lib::a", Verdict::Passed), ("imm::send::main", Verdict::Failed)];
        let ending = results(&known).judge(FAULTS);
        assert_eq!(ending.verdict, Verdict::Passed);
        assert_eq!(
            (ending.note.as_str(), ending.log.as_str()),
            ("1 tests passed, 1 known to fail", "")
        );
        let other = [("lib::a", Verdict::Failed), ("imm::send::main", Verdict::Passed)];
        let ending = results(&other).judge(FAULTS);
        assert_eq!(ending.verdict, Verdict::Failed);
        let note = "1 tests passed, failed: lib::a, known to fail but passed: imm::send::main";
        assert_eq!((ending.note.as_str(), ending.log.as_str()), (note, "\n    log"));
        assert_eq!(results(&[]).judge(FAULTS).verdict, Verdict::Failed);
    }
}
