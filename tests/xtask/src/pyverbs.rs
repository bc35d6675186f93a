//! Runs rdma-core's own Python suite on Feroce: the tests that need no particular RNIC, each in a
//! process of its own, in a network namespace.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use regex::Regex;

use crate::Result;
use crate::net::Pair;
use crate::process::{output, run, run_into};
use crate::setup::{
    BUILD_PACKAGES, Work, build, built, feroce_in, libraries, need_packages, need_root,
    reserve_hugepages,
};
use crate::tally::{Outcome, Tally, Verdict};

const SUITE: &str = "/usr/share/doc/rdma-core/tests";
/// The interpreter that python3-pyverbs is built for.
const PYTHON: &str = "/usr/bin/python3";
/// The exit code of `timeout` at the limit.
const TIMED_OUT: i32 = 124;

/// Options of `xtask pyverbs`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Use the libraries that are built already
    #[arg(long)]
    built: bool,
    /// Write the results to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A regular expression that picks tests by name, such as test_qp.QPTest.test_query_qp
    #[arg(default_value = ".")]
    filter: String,
}

/// Runs the command. `$FEROCE` names a `feroce` that is built already, `$FEROCE_TEST_SECONDS` the
/// seconds after which a test is given up (60).
pub fn main(options: Options) -> Result<u8> {
    let filter = Regex::new(&options.filter)?;
    need_root()?;
    need_packages(BUILD_PACKAGES)?;
    need_packages(&["rdma-core", "python3-pyverbs", "gcc"])?;
    if !options.built {
        println!("Building");
        build(&["--bin", "feroce"])?;
        libraries()?;
    }
    let feroce = match std::env::var_os("FEROCE") {
        Some(path) => std::path::absolute(path)?,
        None => feroce_in(&built()),
    };
    let work = Work::new()?;
    copy_suite(&work)?;
    let listed = output(Command::new(PYTHON).arg("one_test.py").current_dir(work.path()))?;
    let names: Vec<&str> = listed
        .lines()
        .map(|name| name.strip_prefix("tests.").unwrap_or(name))
        .filter(|name| filter.is_match(name))
        .collect();
    if names.is_empty() {
        return Err(format!("no test has a name that matches {filter}").into());
    }
    let _hugepages = reserve_hugepages(128)?;
    let pair = Pair::new("pyverbs", 4500)?;
    let mut tally = Tally::new(names.len(), options.json);
    for name in &names {
        tally.begin(name);
        let started = Instant::now();
        let (verdict, reason, log) = test(name, &feroce, pair.a.name(), &work)?;
        let seconds = started.elapsed().as_secs_f64();
        let note = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        let line = format!("{:<7} {seconds:3.0} s  {name}{note}{log}", verdict.word());
        let outcome = Outcome {
            subject: (*name).to_owned(),
            what: String::new(),
            case: String::new(),
            verdict,
            seconds,
            note: reason,
        };
        tally.end(outcome, &line);
    }
    tally.finish()?;
    let [passed, failed, skipped] =
        [Verdict::Passed, Verdict::Failed, Verdict::Skipped].map(|verdict| tally.count(verdict));
    let all = names.len();
    println!("{all} tests: {passed} passed, {skipped} skipped, {failed} failed");
    Ok(u8::from(failed > 0))
}

/// Copies the suite and the program that runs a test of it.
fn copy_suite(work: &Work) -> Result {
    if !Path::new(SUITE).is_dir() {
        return Err(format!(
            "there is no {SUITE}: dpkg leaves documentation out (path-exclude in \
             /etc/dpkg/dpkg.cfg.d)"
        )
        .into());
    }
    let tests = work.file("tests");
    run(Command::new("cp").args(["-r", SUITE]).arg(&tests))?;
    // The tests of mlx5, efa and cuda are for devices of one vendor.
    let line = "gunzip --force *.gz; rm -f test_mlx5* test_efa* test_cuda*";
    run(Command::new("sh").args(["-c", line]).current_dir(&tests))?;
    std::fs::copy("scripts/one_test.py", work.file("one_test.py"))?;
    Ok(())
}

/// Runs a test. Returns the verdict, the reason of a skip, and the end of the log of a failure.
fn test(
    name: &str,
    feroce: &Path,
    namespace: &str,
    work: &Work,
) -> Result<(Verdict, String, String)> {
    if name.starts_with("test_rdmacm.") {
        let reason = "two processes would use one interface, whose RoCE traffic is one program's";
        return Ok((Verdict::Skipped, reason.to_owned(), String::new()));
    }
    let limit = std::env::var("FEROCE_TEST_SECONDS").unwrap_or_else(|_| "60".to_owned());
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", &limit, "ip", "netns", "exec", namespace]).arg(feroce);
    command.args(["run", "--quiet", "--interface", "v0", "--", PYTHON, "one_test.py"]);
    command.arg(format!("tests.{name}")).current_dir(work.path());
    // Feroce would take them for settings.
    command.env_remove("FEROCE").env_remove("FEROCE_TEST_SECONDS");
    let log = work.file("log");
    let code = run_into(&mut command, &log)?;
    let text = String::from_utf8_lossy(&std::fs::read(&log)?).into_owned();
    if code != 0 {
        let lines: Vec<&str> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(12)..];
        let mut end: String = last.iter().map(|line| format!("\n    {line}")).collect();
        if code == TIMED_OUT {
            end.insert_str(0, &format!("\n    gave no result within {limit} s"));
        }
        return Ok((Verdict::Failed, String::new(), end));
    }
    let reasons: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("SKIPPED ")).collect();
    let verdict = if reasons.is_empty() { Verdict::Passed } else { Verdict::Skipped };
    Ok((verdict, reasons.join(" "), String::new()))
}
