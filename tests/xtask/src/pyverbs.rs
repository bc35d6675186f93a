//! Runs rdma-core's own Python suite on Feroce: the tests that need no particular RNIC, each in a
//! process of its own, in a network namespace. The suite and pyverbs are those of the distribution,
//! of another release in a chroot, or of rdma-core's sources.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use regex::Regex;

use crate::Result;
use crate::daemon::Daemon;
use crate::net::{Pair, command_in};
use crate::process::{end_of, output, run, run_into};
use crate::root::Root;
use crate::setup::{
    BUILD_PACKAGES, Work, build_what_programs_need, built, feroce_in, need_packages, need_root,
    reserve_hugepages,
};
use crate::tally::{Outcome, Tally, Verdict};

/// The suite's place in a distribution.
const SUITE: &str = "usr/share/doc/rdma-core/tests";
/// The interpreter that python3-pyverbs is built for.
const PYTHON: &str = "/usr/bin/python3";
/// The exit code of `timeout` at the limit.
const TIMED_OUT: i32 = 124;
/// The program `rdma` of the suite. It lists the kernel's RDMA devices, and newer suites look into
/// sysfs for those that it does not list. Kernels without RDMA make iproute2's program fail.
const RDMA: &str = "#!/bin/sh\necho '[]'\n";

/// Options of `xtask pyverbs`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Use the libraries that are built already
    #[arg(long)]
    built: bool,
    /// Run the tests as clients of a daemon (`feroce up`)
    #[arg(long, conflicts_with = "root")]
    daemon: bool,
    /// Use pyverbs and the suite of the release in this folder, such as the chroot of
    /// scripts/debian13.sh
    #[arg(long, value_name = "FOLDER")]
    root: Option<PathBuf>,
    /// Use pyverbs and the suite of rdma-core's sources in this folder, which build.sh has built.
    /// docs/programs.md says how
    #[arg(long, value_name = "FOLDER", conflicts_with = "root")]
    rdma_core: Option<PathBuf>,
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
    need_packages(&["gcc"])?;
    let source = Source::of(&options)?;
    build_what_programs_need(options.built)?;
    let feroce = match std::env::var_os("FEROCE") {
        Some(path) => std::path::absolute(path)?,
        None => feroce_in(&built()),
    };
    let work = Work::new()?;
    copy_suite(&source.suite(), &work)?;
    let _hugepages = reserve_hugepages(128)?;
    let pair = Pair::new("pyverbs", 4500)?;
    let namespace = pair.a.name().to_owned();
    let _daemon = match options.daemon {
        true => Some(Daemon::start(&feroce, &namespace, "v0", &[])?),
        false => None,
    };
    let sharing = if options.daemon { "daemon" } else { "embedded" };
    let runner = Runner { source, feroce, namespace, sharing, work };
    let listed = output(runner.command("60").args([PYTHON, "one_test.py"]))?;
    let names: Vec<&str> = listed
        .lines()
        .map(|name| name.strip_prefix("tests.").unwrap_or(name))
        .filter(|name| filter.is_match(name))
        .collect();
    if names.is_empty() {
        return Err(format!("no test has a name that matches {filter}").into());
    }
    let mut tally = Tally::new(names.len(), options.json);
    for name in &names {
        tally.begin(name);
        let started = Instant::now();
        let (verdict, reason, log) = runner.test(name)?;
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

/// Where the suite and pyverbs come from.
enum Source {
    Distribution,
    Root(Root),
    /// The folder of rdma-core's sources.
    RdmaCore(PathBuf),
}

impl Source {
    fn of(options: &Options) -> Result<Source> {
        if let Some(folder) = &options.root {
            return Ok(Source::Root(Root::new(folder)?));
        }
        let Some(folder) = &options.rdma_core else {
            need_packages(&["rdma-core", "python3-pyverbs"])?;
            return Ok(Source::Distribution);
        };
        let folder = std::path::absolute(folder)?;
        let pyverbs = folder.join("build/python/pyverbs");
        match pyverbs.is_dir() {
            true => Ok(Source::RdmaCore(folder)),
            false => Err(format!("pyverbs is not built: no {}", pyverbs.display()).into()),
        }
    }

    fn suite(&self) -> PathBuf {
        match self {
            Source::Distribution => Path::new("/").join(SUITE),
            Source::Root(root) => root.file(SUITE),
            Source::RdmaCore(folder) => folder.join("tests"),
        }
    }
}

/// Copies the suite, the program that runs a test of it, and the program `rdma`.
fn copy_suite(suite: &Path, work: &Work) -> Result {
    if !suite.is_dir() {
        return Err(format!(
            "there is no {}: dpkg leaves documentation out (path-exclude in /etc/dpkg/dpkg.cfg.d)",
            suite.display()
        )
        .into());
    }
    let tests = work.file("tests");
    run(Command::new("cp").arg("-r").arg(suite).arg(&tests))?;
    // The tests of mlx5, efa and cuda are for devices of one vendor.
    let line =
        "find . -name '*.gz' -exec gunzip --force {} +; rm -f test_mlx5* test_efa* test_cuda*";
    run(Command::new("sh").args(["-c", line]).current_dir(&tests))?;
    std::fs::copy("scripts/one_test.py", work.file("one_test.py"))?;
    let rdma = work.file("rdma");
    std::fs::write(&rdma, RDMA)?;
    Ok(std::fs::set_permissions(&rdma, std::fs::Permissions::from_mode(0o755))?)
}

/// Runs tests.
struct Runner {
    source: Source,
    feroce: PathBuf,
    namespace: String,
    /// The setting `sharing`.
    sharing: &'static str,
    work: Work,
}

impl Runner {
    /// A command in the namespace and, if there is one, in the chroot, with a limit in seconds.
    fn command(&self, limit: &str) -> Command {
        let work = self.work.path();
        let inner = match &self.source {
            Source::Root(root) => {
                let built = self.feroce.parent().unwrap_or(work);
                root.command_in(&self.namespace, &[work, built])
            }
            Source::Distribution | Source::RdmaCore(_) => command_in(&self.namespace, "env"),
        };
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", limit]).current_dir(work);
        command.arg(inner.get_program()).args(inner.get_args());
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", work.display()));
        if let Source::RdmaCore(folder) = &self.source {
            command.env("PYTHONPATH", folder.join("build/python"));
        }
        // Feroce would take them for settings.
        command.env_remove("FEROCE").env_remove("FEROCE_TEST_SECONDS");
        command
    }

    /// Runs a test. Returns the verdict, the reason of a skip, and the end of the log of a failure.
    fn test(&self, name: &str) -> Result<(Verdict, String, String)> {
        if name.starts_with("test_rdmacm.") && self.sharing == "embedded" {
            let reason =
                "two processes would use one interface, whose RoCE traffic is one program's";
            return Ok((Verdict::Skipped, reason.to_owned(), String::new()));
        }
        let limit = std::env::var("FEROCE_TEST_SECONDS").unwrap_or_else(|_| "60".to_owned());
        let mut command = self.command(&limit);
        command.arg(&self.feroce).args(["run", "--quiet", "--interface", "v0", "--"]);
        command.env("FEROCE_SHARING", self.sharing);
        command.args([PYTHON, "one_test.py", &format!("tests.{name}")]);
        let log = self.work.file("log");
        let code = run_into(&mut command, &log)?;
        let text = String::from_utf8_lossy(&std::fs::read(&log)?).into_owned();
        if code != 0 {
            let mut end = end_of(&text, 12);
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
}
