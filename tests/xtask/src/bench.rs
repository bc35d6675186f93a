//! Performance figures: a line each with name, value, bound, and `ok` or `missed`.
//!
//! Figures are ratios within this run, except instructions, which are counts, connections, which
//! are per second, and the speeds of the fabric and of reading captures, which are per second of
//! CPU time.

mod bulk;
mod history;
mod peers;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use regex::Regex;
use serde::Serialize;

use crate::Result;
use crate::connects;
use crate::exit::{Guard, at_end};
use crate::net::{Namespace, Pair};
use crate::process::{Process, output, words};
use crate::setup::{
    BUILD_PACKAGES, Work, build_release, feroce_in, libraries_release, need_packages, need_root,
    reserve_hugepages, target,
};

/// Number of runs of perftest and of `feroce perf`, alternating. The medians are compared.
const VERBS_ROUNDS: usize = 7;
const SEND_LAT: &str = "verbs: 64 B SEND half-RTT, perftest / Rust";
const WRITE_BW: &str = "verbs: 64 KiB WRITE, perftest / Rust";
/// Number of runs that make connections. The medians are compared.
const CONNECT_ROUNDS: usize = 5;
/// Number of runs of each check of a capture. The medians are compared.
const CHECK_ROUNDS: usize = 5;
const CHECK: &str = "conform: check of 1 GB / tshark";
const BOTH: &str = "conform: check of 2 x 0.5 GB / of 1 GB";
/// Address space of a check, in KiB.
const CHECK_MEMORY: u64 = 300_000;

/// Options of `xtask bench`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Write the figures to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Append the figures to tests/figures.csv; needs a committed tree
    #[arg(long, conflicts_with = "compare")]
    record: bool,
    /// Compare the instruction counts with the last ones in tests/figures.csv of the same processor
    /// and compiler: exit code 1 if one is more than 2 % higher, and no commit message since the
    /// commit that added it has a line "Instructions: REASON"; 77 if there is none. Needs a filter
    /// that begins with icount; ignores the bounds
    #[arg(long)]
    compare: bool,
    /// Only figures whose name contains this text: shm, af_xdp native, WRITE, verbs, icount, ...
    /// Those of `peers`, beside rxe in an emulated guest, are measured only if this text begins so
    #[arg(default_value = "")]
    filter: String,
}

/// A figure.
#[derive(Debug, PartialEq, Serialize)]
struct Figure {
    name: String,
    /// `None` if nothing was measured.
    value: Option<f64>,
    /// The bound: `<= 1.5` or `>= 0.9`.
    bound: String,
    is_ok: bool,
    note: String,
}

/// The bound of a figure.
#[derive(Debug, Clone, Copy)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Figure {
    fn new(name: &str, value: Option<f64>, bound: Bound, note: String) -> Figure {
        let value = value.filter(|value| *value > 0.0 && value.is_finite());
        let (is_ok, bound) = match bound {
            Bound::AtMost(most) => (value.is_some_and(|value| value <= most), format!("<= {most}")),
            Bound::AtLeast(least) => {
                (value.is_some_and(|value| value >= least), format!(">= {least}"))
            }
        };
        Figure { name: name.to_owned(), value, bound, is_ok, note }
    }

    fn line(&self, decimals: usize) -> String {
        let value = self.value.map_or("-".to_owned(), |value| format!("{value:.decimals$}"));
        let word = if self.is_ok { "ok" } else { "missed" };
        format!("{:<44} {value:>9}  {:>8}  {word:<6}  {}", self.name, self.bound, self.note)
    }

    /// Parses a line that another program printed.
    fn parse(line: &str) -> Option<Figure> {
        let form = Regex::new(concat!(
            r"^(?<name>.*?\S) +(?<value>[0-9.]+|-|NaN|inf) +",
            r"(?<bound>[<>]= \S+) +(?<word>ok|missed)\b *(?<note>.*)$",
        ));
        let found = form.expect("a regular expression").captures(line)?;
        Some(Figure {
            name: found["name"].to_owned(),
            value: found["value"].parse().ok(),
            bound: found["bound"].to_owned(),
            is_ok: &found["word"] == "ok",
            note: found["note"].to_owned(),
        })
    }
}

struct Bench {
    filter: String,
    work: Work,
    figures: Vec<Figure>,
    /// True if a program failed.
    has_failed: bool,
}

/// Runs the command.
pub fn main(options: Options) -> Result<u8> {
    // Instructions are counted without a network.
    let counts_only = options.filter.starts_with("icount");
    if options.compare && !counts_only {
        eprintln!("bench: --compare needs a filter that begins with icount");
        return Ok(2);
    }
    let place = (options.record || options.compare).then(history::Place::here).transpose()?;
    if let Some(place) = place.as_ref().filter(|_| options.record) {
        place.must_be_clean()?;
    }
    if !counts_only {
        need_root()?;
        need_packages(&["perftest"])?;
    }
    need_packages(BUILD_PACKAGES)?;
    need_packages(&["valgrind"])?;
    let _hugepages = if counts_only { None } else { reserve_hugepages(1024)? };
    let work = Work::new()?;
    let _links = remove_links_at_end();
    let filter = options.filter;
    let mut bench = Bench { filter, work, figures: Vec::new(), has_failed: false };
    bench.all()?;
    if let Some(path) = options.json {
        std::fs::write(path, serde_json::to_string_pretty(&bench.figures)? + "\n")?;
    }
    let is_short = bench.has_failed || bench.figures.iter().any(|figure| !figure.is_ok);
    if !is_short && bench.figures.is_empty() {
        eprintln!("bench: no figure's name contains '{}'", bench.filter);
        return Ok(2);
    }
    match place {
        Some(place) if options.record => place.record(&bench.figures)?,
        Some(place) if !bench.has_failed => return place.compare(&bench.figures),
        _ => {}
    }
    Ok(u8::from(is_short))
}

/// Removes the namespaces of a benchmark program that was ended while it measured.
fn remove_links_at_end() -> Guard {
    at_end(|| {
        let names = output(Command::new("ip").args(["netns", "list"])).unwrap_or_default();
        for name in names.lines().filter_map(|line| line.split(' ').next()) {
            let Some(rest) = name.strip_prefix("fr-bench-") else { continue };
            let Some((process, _)) = rest.split_once('-') else { continue };
            if process.parse::<u32>().is_ok() && !Path::new("/proc").join(process).exists() {
                let _ = Command::new("ip").args(["netns", "delete", name]).status();
            }
        }
    })
}

impl Bench {
    fn all(&mut self) -> Result {
        let filter = self.filter.clone();
        let release = target().join("release");
        if filter.starts_with("peers") {
            return self.peers();
        }
        if !filter.starts_with("icount") {
            build_release(&["--bins"])?;
            self.program(Command::new(release.join("bench")).arg(&filter))?;
            self.dpdk(&release)?;
            let examples = ["fabric_speed", "pfc_speed", "long_capture"];
            build_release(&examples.map(|name| ["--example", name]).concat())?;
            for name in ["fabric_speed", "pfc_speed"] {
                self.program(Command::new(release.join("examples").join(name)).arg(&filter))?;
            }
            self.check(&release)?;
            self.verbs(&release)?;
            self.connects(&release)?;
            self.bulk(&release)?;
        }
        self.instructions(&release)
    }

    fn chooses(&self, name: &str) -> bool {
        name.contains(&self.filter)
    }

    fn add(&mut self, figure: Figure, decimals: usize) {
        println!("{}", figure.line(decimals));
        self.figures.push(figure);
    }

    /// Runs a program that prints figures.
    fn program(&mut self, command: &mut Command) -> Result {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let pid = child.id();
        let guard = at_end(move || crate::process::end(pid));
        let lines = child.stdout.take().map(BufReader::new).ok_or("no standard output")?;
        for line in lines.lines() {
            let line = line?;
            println!("{line}");
            self.figures.extend(Figure::parse(&line));
        }
        self.has_failed |= !child.wait()?.success();
        guard.disarm();
        Ok(())
    }

    /// Figures of the DPDK port, where there is libdpdk: between two processes, since DPDK's
    /// environment starts once per process.
    fn dpdk(&mut self, release: &Path) -> Result {
        let mut exists = Command::new("pkg-config");
        if !exists.args(["--exists", "libdpdk"]).status()?.success() {
            return Ok(());
        }
        build_release(&["--features", "feroce-tests/dpdk", "--bin", "bench_dpdk"])?;
        let log = self.work.file("dpdk.log");
        let failed = std::mem::replace(&mut self.has_failed, false);
        let mut command = Command::new(release.join("bench_dpdk"));
        self.program(command.arg(&self.filter).stderr(std::fs::File::create(&log)?))?;
        if self.has_failed {
            eprint!("{}", std::fs::read_to_string(&log)?);
        }
        self.has_failed |= failed;
        Ok(())
    }

    // ---- perftest on the C libraries, and `feroce perf` on the Rust library

    fn verbs(&mut self, release: &Path) -> Result {
        if !self.chooses(SEND_LAT) && !self.chooses(WRITE_BW) {
            return Ok(());
        }
        build_release(&["--bin", "feroce"])?;
        libraries_release()?;
        let pair = Pair::new("bench", 4500)?;
        pair.plain_frames();
        let feroce = feroce_in(release).display().to_string();
        if self.chooses(SEND_LAT) {
            let theirs = ("ib_send_lat -F -s 64 -n 30000", 5);
            let ours = ("--op send --latency -s 64 -n 30000", 4);
            let (a, b) = self.by_turns(&pair, &feroce, theirs, ours)?;
            let note = format!("{a} of {b} us");
            self.add(Figure::new(SEND_LAT, Some(a / b), Bound::AtMost(1.5), note), 2);
        }
        if self.chooses(WRITE_BW) {
            let theirs = ("ib_write_bw -F -s 65536 -n 20000", 4);
            let ours = ("--op write -s 65536 -n 20000", 3);
            let (a, b) = self.by_turns(&pair, &feroce, theirs, ours)?;
            let note = format!("{a} of {b} MiB/s");
            self.add(Figure::new(WRITE_BW, Some(a / b), Bound::AtLeast(0.9), note), 2);
        }
        Ok(())
    }

    /// The medians of a column of both programs' results, perftest first.
    fn by_turns(
        &self,
        pair: &Pair,
        feroce: &str,
        (perftest, their_column): (&str, usize),
        (options, our_column): (&str, usize),
    ) -> Result<(f64, f64)> {
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..VERBS_ROUNDS {
            theirs.extend(self.between(
                pair,
                &format!("{feroce} run --quiet --interface v1 -- {perftest}"),
                &format!("{feroce} run --quiet --interface v0 -- {perftest} 10.77.0.2"),
                their_column,
            )?);
            ours.extend(self.between(
                pair,
                &format!("{feroce} perf --interface v1"),
                &format!("{feroce} perf --interface v0 {options} 10.77.0.2"),
                our_column,
            )?);
        }
        Ok((median(&mut theirs), median(&mut ours)))
    }

    /// Runs a server and a client. Returns the column of the client's line of results.
    fn between(
        &self,
        pair: &Pair,
        server: &str,
        client: &str,
        column: usize,
    ) -> Result<Option<f64>> {
        let (server_log, client_log) = (self.work.file("server"), self.work.file("client"));
        let limited = |namespace: &Namespace, line: &str| {
            words(&format!("timeout 60 ip netns exec {} {line}", namespace.name()))
        };
        let server = Process::spawn_into(&mut limited(&pair.b, server), &server_log)?;
        wait_for_server(pair)?;
        let code = crate::process::run_into(&mut limited(&pair.a, client), &client_log)?;
        let printed = std::fs::read_to_string(&client_log)?;
        if code != 0 {
            eprint!("{printed}{}", std::fs::read_to_string(&server_log)?);
        }
        server.wait()?;
        let result =
            printed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find(|cells| {
                matches!(cells.first(), Some(&("64" | "65536")))
                    && cells.get(1).is_some_and(|cell| cell.parse::<u64>().is_ok())
            });
        Ok(result.and_then(|cells| cells.get(column - 1)?.parse().ok()))
    }

    // ---- connections

    fn connects(&mut self, release: &Path) -> Result {
        let chosen: Vec<_> =
            connects::FIGURES.iter().filter(|figure| self.chooses(figure.name)).collect();
        if chosen.is_empty() {
            return Ok(());
        }
        need_packages(&["libibverbs-dev", "librdmacm-dev", "gcc"])?;
        build_release(&["--bin", "feroce"])?;
        libraries_release()?;
        crate::own::compile_one(&self.work, connects::PROGRAM)?;
        let pair = Pair::new("bench", 4500)?;
        for figure in chosen {
            let mut rates = Vec::new();
            for _ in 0..CONNECT_ROUNDS {
                rates.extend(figure.rate(&self.work, &pair, &feroce_in(release))?);
            }
            let rate = median(&mut rates);
            let note = "connections per second".to_owned();
            self.add(Figure::new(figure.name, Some(rate), Bound::AtLeast(figure.least), note), 0);
        }
        Ok(())
    }

    // ---- `feroce conform check`

    /// Checks a capture of 1 GB with `feroce conform check` in a bounded address space, compared
    /// with tshark. Then checks two captures of 0.5 GB each, one of them 5 ms behind, so that tens
    /// of thousands of packets wait for the other side.
    fn check(&mut self, release: &Path) -> Result {
        let (with_tshark, with_both) = (self.chooses(CHECK), self.chooses(BOTH));
        if !with_tshark && !with_both {
            return Ok(());
        }
        need_packages(&["tshark", "wireshark-common"])?;
        let [capture, half, late] =
            ["long.pcap", "half.pcap", "late.pcap"].map(|name| self.work.file(name));
        let make = release.join("examples/long_capture");
        expect(Command::new(&make).arg(&capture).arg("1000"))?;
        if with_both {
            expect(Command::new(&make).arg(&half).arg("500"))?;
            let mut editcap = Command::new("editcap");
            expect(editcap.args(["-F", "pcap", "-t", "0.005"]).arg(&half).arg(&late))?;
        }
        let feroce = feroce_in(release);
        let (mut one, mut tshark, mut both) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..CHECK_ROUNDS {
            one.push(self.checked(&feroce, &[&capture])?);
            if with_tshark {
                tshark.push(
                    self.cpu_seconds(Command::new("tshark").args(["-n", "-r"]).arg(&capture))?,
                );
            }
            if with_both {
                both.push(self.checked(&feroce, &[&half, &late])?);
            }
        }
        let one = median(&mut one);
        if with_tshark {
            self.compare(CHECK, 0.05, one, median(&mut tshark));
        }
        if with_both {
            self.compare(BOTH, 2.0, median(&mut both), one);
        }
        Ok(())
    }

    fn compare(&mut self, name: &str, most: f64, ours: f64, theirs: f64) {
        let note =
            format!("{ours:.2} s of {theirs:.2} s of CPU time, in {} MiB", CHECK_MEMORY / 1024);
        self.add(Figure::new(name, Some(ours / theirs), Bound::AtMost(most), note), 3);
    }

    /// CPU seconds of a check in bounded memory. The captures are read first, so that they are in
    /// the page cache.
    fn checked(&self, feroce: &Path, captures: &[&PathBuf]) -> Result<f64> {
        for capture in captures {
            std::io::copy(&mut std::fs::File::open(capture)?, &mut std::io::sink())?;
        }
        let mut command = Command::new("prlimit");
        command.arg(format!("--as={}", CHECK_MEMORY * 1024)).arg(feroce);
        command.args(["conform", "check", "--taps"]).args(captures);
        self.cpu_seconds(&mut command)
    }

    /// CPU seconds, user and system, that a command takes.
    fn cpu_seconds(&self, command: &mut Command) -> Result<f64> {
        let log = self.work.file("timed");
        let mut timed = Command::new("bash");
        timed.args(["-c", "TIMEFORMAT='%U %S'; { time \"${@:2}\" > \"$1\" 2>&1; } 2>&1", "time"]);
        timed.arg(&log).arg(command.get_program()).args(command.get_args());
        let result = timed.stdin(Stdio::null()).output()?;
        if !result.status.success() {
            eprint!("{}", std::fs::read_to_string(&log)?);
            return Err(format!("{} failed", command.get_program().display()).into());
        }
        let text = String::from_utf8_lossy(&result.stdout).into_owned();
        text.split_whitespace().map(|cell| Ok(cell.parse::<f64>()?)).sum()
    }

    // ---- instructions

    fn instructions(&mut self, release: &Path) -> Result {
        const SENDS: &[(&str, f64, &str)] = &[
            ("requester", 1050.0, "64 B SEND, requester"),
            ("responder", 1150.0, "64 B SEND, responder"),
        ];
        const WRITES: &[(&str, f64, &str)] = &[
            ("requester", 1005.0, "64 B WRITE, requester"),
            ("responder", 895.0, "64 B WRITE, responder"),
        ];
        const MANY: &[(&str, f64, &str)] = &[
            ("requester", 1312.0, "64 B SEND, 10000 QPs, requester"),
            ("responder", 1437.0, "64 B SEND, 10000 QPs, responder"),
        ];
        const PACED: &[(&str, f64, &str)] = &[
            ("unlimited", 150.0, "paced packet, no CNP yet"),
            ("recovering", 170.0, "paced packet, paper"),
            ("recovering_nvidia", 190.0, "paced packet, nvidia"),
            ("cnps", 120.0, "CNP"),
        ];
        let (program, what) = (release.join("icount"), ["--bin", "icount"]);
        self.count(&program, &["send"], &what, (200, 1200), 16, SENDS)?;
        self.count(&program, &["write"], &what, (200, 1200), 16, WRITES)?;
        self.count(&program, &["send", "10000"], &what, (20_000, 30_000), 16, MANY)?;
        let what = ["-p", "feroce-congestion", "--example", "icount"];
        self.count(&release.join("examples/icount"), &[], &what, (20_000, 120_000), 1, PACED)
    }

    /// Instructions are the difference between a long and a short run, so that set-up cancels
    /// out. `per` things happen for each of `counts`, which is followed by `arguments`.
    fn count(
        &mut self,
        program: &Path,
        arguments: &[&str],
        what: &[&str],
        counts: (u32, u32),
        per: u32,
        functions: &[(&str, f64, &str)],
    ) -> Result {
        let chosen: Vec<_> = functions
            .iter()
            .filter(|(.., name)| self.chooses(&format!("icount: {name}")))
            .collect();
        if chosen.is_empty() {
            return Ok(());
        }
        build_release(what)?;
        let (short, long) = (
            self.annotated(program, counts.0, arguments)?,
            self.annotated(program, counts.1, arguments)?,
        );
        for (function, most, name) in chosen {
            let (a, b) = (instructions_of(&short, function), instructions_of(&long, function));
            let value = a
                .zip(b)
                .filter(|(a, b)| b > a)
                .map(|(a, b)| (b - a) / f64::from((counts.1 - counts.0) * per));
            let note = match value {
                Some(_) => "instructions",
                None => "callgrind gave no numbers",
            };
            let name = format!("icount: {name}");
            self.add(Figure::new(&name, value, Bound::AtMost(*most), note.to_owned()), 0);
        }
        Ok(())
    }

    /// What callgrind_annotate prints of a run.
    fn annotated(&self, program: &Path, count: u32, arguments: &[&str]) -> Result<String> {
        let out = self.work.file("callgrind");
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--quiet", "--tool=callgrind"]);
        valgrind.arg(format!("--callgrind-out-file={}", out.display()));
        expect(valgrind.arg(program).arg(count.to_string()).args(arguments).stdout(Stdio::null()))?;
        let mut annotate = Command::new("callgrind_annotate");
        output(annotate.args(["--inclusive=yes", "--threshold=100"]).arg(&out))
    }
}

/// Waits until a server listens at the second end.
fn wait_for_server(pair: &Pair) -> Result {
    for _ in 0..200 {
        if !output(pair.b.command("ss").arg("-ltnH"))?.is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    Ok(())
}

/// Runs a command that must succeed.
fn expect(command: &mut Command) -> Result {
    match crate::process::run(command)? {
        0 => Ok(()),
        code => Err(format!("{}: exit code {code}", command.get_program().display()).into()),
    }
}

/// The instructions of `icount::FUNCTION` in the output of callgrind_annotate.
fn instructions_of(annotated: &str, function: &str) -> Option<f64> {
    let name = Regex::new(&format!("icount::{function}([^_a-z]|$)")).expect("a plain name");
    let line = annotated.lines().find(|line| name.is_match(line))?;
    line.split_whitespace().next()?.replace(',', "").parse().ok()
}

/// The lower median; 0 without values.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_back() {
        let figure = Figure::new("a: b / c", Some(0.5), Bound::AtMost(1.5), "1 of 2".into());
        assert_eq!(
            figure.line(3),
            format!("{:<44} {:>9}  {:>8}  ok      1 of 2", "a: b / c", "0.500", "<= 1.5")
        );
        assert_eq!(Figure::parse(&figure.line(3)), Some(figure));
    }

    #[test]
    fn a_figure_that_was_not_measured_misses_its_bar() {
        for value in [None, Some(0.0), Some(f64::NAN), Some(f64::INFINITY)] {
            assert!(!Figure::new("x", value, Bound::AtMost(9.0), String::new()).is_ok);
            assert!(!Figure::new("x", value, Bound::AtLeast(0.1), String::new()).is_ok);
        }
        assert!(Figure::new("x", Some(0.9), Bound::AtLeast(0.9), String::new()).is_ok);
    }

    #[test]
    fn instructions_are_those_of_the_function_itself() {
        let text = "9,999 (9%) x:icount::recovering_nvidia [y]\n1,234 ( 1%) x:icount::recovering";
        assert_eq!(instructions_of(text, "recovering"), Some(1234.0));
        assert_eq!(instructions_of(text, "cnps"), None);
    }

    #[test]
    fn the_median_is_a_value() {
        assert_eq!([median(&mut [3.0, 1.0, 2.0]), median(&mut [4.0, 1.0, 2.0, 3.0])], [2.0, 2.0]);
        assert_eq!(median(&mut []), 0.0);
    }
}
