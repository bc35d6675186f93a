//! Runs unmodified programs of the distribution, of another release in a chroot, or of rdma-core's
//! sources, with Feroce at both ends, or with Linux rxe at one end. The rows are in
//! `tests/programs/table.txt`.

mod ends;
mod libraries;
mod rules;
mod user;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::Result;
use crate::frames;
use crate::guest::Guest;
use crate::net::{FIRST, Pair, SECOND, Star, command_in};
use crate::own::Own;
use crate::process::{Process, output, run};
use crate::root::Root;
use crate::rows::{End, Row, Run, rows, seconds_each};
use crate::setup::{
    BUILD_PACKAGES, PROGRAM_PACKAGES, Work, built, feroce_in, need_packages, need_root, need_scapy,
    reserve_hugepages,
};
use crate::tally::{Outcome, Tally, Verdict, write_section};
use ends::{FeroceEnd, RanksEnd, RxeEnd};
use libraries::{Sanitizer, libraries_for};
use rules::Rules;
use user::User;

/// Where captures of failed rows are left.
const CAPTURES: &str = "target/programs";
/// Packets of a row that tshark and scapy check. scapy takes a second for them.
const JUDGED: usize = 2000;
/// MTU of the pair, in bytes.
const MTU: u32 = 4500;
const BOTH: &str = "Feroce at both ends";
/// The group of rows with more than two ends.
const RANKS: &str = "mpi";

/// Options of `xtask programs`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Feroce's port
    #[arg(long, value_name = "KIND")]
    port_kind: Option<String>,
    /// Run the programs as clients of one daemon (`feroce up`) per end
    #[arg(long, conflicts_with_all = ["root", "valgrind"])]
    daemon: bool,
    /// Run each program between Feroce and this peer, in both roles. Rows that rxe cannot run are
    /// in tests/programs/rxe.txt. Captures of failed rows are left in target/programs
    #[arg(long, value_parser = ["rxe"])]
    peer: Option<String>,
    /// Let interop-kit run the rows with the guest as its peer; this tests interop-kit
    #[arg(long, requires = "peer")]
    kit: bool,
    /// Check the first packets of each row with tshark and scapy; the ends meet at a bridge then
    #[arg(long)]
    judge: bool,
    /// Run both ends in Valgrind, which fails a row that misuses memory; the filter is ^pingpong
    /// by default
    #[arg(long)]
    valgrind: bool,
    /// Run both ends on libraries that are built with this sanitizer. What it finds is written to
    /// target/programs/NAME.PID, and fails the run
    #[arg(
        long,
        conflicts_with_all = ["valgrind", "root", "rdma_core", "peer", "unprivileged"]
    )]
    sanitizer: Option<Sanitizer>,
    /// Run the programs of the release in this folder, such as the chroot of scripts/debian13.sh.
    /// Rows whose programs it lacks are skipped
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["peer", "valgrind"])]
    root: Option<PathBuf>,
    /// Run the programs of rdma-core's sources in this folder, which build.sh has built. Rows of
    /// other programs are skipped
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["peer", "root"])]
    rdma_core: Option<PathBuf>,
    /// Compile and run the examples of librpma's sources in this folder. Otherwise the rows of the
    /// examples are skipped
    #[arg(
        long,
        value_name = "FOLDER",
        requires = "extra",
        conflicts_with_all = ["root", "rdma_core"]
    )]
    rpma: Option<PathBuf>,
    /// Run the rows of tests/programs/extra.txt as well, which need larger packages, sources or
    /// minutes
    #[arg(long, conflicts_with_all = ["peer", "root", "rdma_core", "judge", "valgrind"])]
    extra: bool,
    /// Run both ends as an ordinary user without capabilities, in network namespaces of root, on
    /// port udp. The user can make no user namespace
    #[arg(
        long,
        conflicts_with_all = ["peer", "root", "rdma_core", "valgrind", "extra", "table", "daemon"]
    )]
    unprivileged: bool,
    /// Use the program and the libraries that are built already
    #[arg(long)]
    built: bool,
    /// Write the results into docs/programs.md, with --peer into docs/interop.md. The table of
    /// docs/programs.md has the rows of --extra, too
    #[arg(long, conflicts_with_all = ["root", "rdma_core"])]
    table: bool,
    /// Print the rows
    #[arg(long)]
    list: bool,
    /// Write the results to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A regular expression over group, description and command
    filter: Option<String>,
}

/// Runs the command.
pub fn main(options: Options) -> Result<u8> {
    let default = if options.valgrind { "^pingpong" } else { "." };
    let mut rows = rows(options.filter.as_deref().unwrap_or(default), options.extra)?;
    if options.list {
        for row in &rows {
            println!("{:<9} {:<42} {}", row.group, row.what, row.command);
        }
        return Ok(0);
    }
    need_root()?;
    need_packages(BUILD_PACKAGES)?;
    need_packages(&["ibverbs-utils", "perftest", "rdmacm-utils", "fio", "qperf"])?;
    if options.valgrind {
        need_packages(&["valgrind"])?;
    }
    let mut python = None;
    if options.judge {
        need_packages(&["tshark", "tcpdump"])?;
        python = Some(need_scapy()?);
    }
    let libraries = libraries_for(&options)?;
    let source = Source::of(&options)?;
    rows.iter_mut().for_each(|row| source.suit(row));
    let work = Work::new()?;
    let user = match options.unprivileged {
        true => Some(User::new(&work, &built())?),
        false => None,
    };
    let libraries = user.as_ref().map_or(libraries, |user| user.folder.join("lib"));
    let runtime = options.sanitizer.map(Sanitizer::runtime).transpose()?;
    options.sanitizer.map(Sanitizer::forget).transpose()?;
    let rsockets = libraries.join("rsocket/librspreload.so.1").display().to_string();
    let preload = runtime.iter().chain([&rsockets]).cloned().collect::<Vec<_>>().join(":");
    let folder = libraries.parent().ok_or("the libraries are in no folder")?.to_owned();
    let _hugepages = reserve_hugepages(128)?;
    let mut bench = Bench {
        tally: Tally::new(rows.len(), options.json.clone()),
        options,
        source,
        work,
        user,
        folder,
        runtime,
        preload,
        python,
        tap: None,
        kept: 0,
    };
    let code = match bench.options.peer {
        Some(_) => bench.with_rxe(rows)?,
        None => bench.with_feroce(&rows)?,
    };
    Ok(code)
}

/// Where the programs come from.
enum Source {
    Distribution,
    Root(Root),
    /// A folder with rdma-core's programs.
    RdmaCore(PathBuf),
}

impl Source {
    fn of(options: &Options) -> Result<Source> {
        if let Some(folder) = &options.root {
            return Ok(Source::Root(Root::new(folder)?));
        }
        let Some(sources) = &options.rdma_core else { return Ok(Source::Distribution) };
        let programs = std::path::absolute(sources)?.join("build/bin");
        match programs.join("ibv_devices").exists() {
            true => Ok(Source::RdmaCore(programs)),
            false => Err(format!("rdma-core is not built: no {}", programs.display()).into()),
        }
    }

    /// Changes a row whose program has other options in this release.
    fn suit(&self, row: &mut Row) {
        match self {
            Source::Distribution => {}
            Source::Root(root) if root.needs("ucx_perftest", "libmpi.so") => {
                row.suit_ucx_with_mpi();
            }
            Source::Root(_) => {}
            Source::RdmaCore(_) => row.suit_new_rdma_core(FIRST),
        }
    }

    /// Why the row cannot be run. `own` is the folder of our own programs.
    fn lacks(&self, row: &Row, own: &Path) -> Option<String> {
        match self {
            Source::Distribution => None,
            Source::Root(root) => row
                .programs()
                .find(|name| !root.has(name) && !own.join(name).exists())
                .map(|name| format!("the release has no {name}")),
            Source::RdmaCore(folder) => row
                .programs()
                .find(|name| !folder.join(name).exists() && !own.join(name).exists())
                .map(|name| format!("{name} is not a program of rdma-core")),
        }
    }
}

struct Bench {
    options: Options,
    source: Source,
    work: Work,
    user: Option<User>,
    /// Where `feroce` and `lib` are.
    folder: PathBuf,
    /// The sanitizer's run-time library.
    runtime: Option<String>,
    /// What lets a TCP application use rsockets, behind the run-time library.
    preload: String,
    python: Option<String>,
    /// The namespace and the interface where packets are captured.
    tap: Option<(String, &'static str)>,
    /// Captures kept so far.
    kept: usize,
    tally: Tally,
}

impl Bench {
    fn seconds(&self) -> u64 {
        if self.options.valgrind || self.runtime.is_some() {
            seconds_each() * 3
        } else {
            seconds_each()
        }
    }

    fn end(&self, namespace: &str, interface: &'static str) -> FeroceEnd {
        let mut wrap = Vec::new();
        if self.options.valgrind {
            // Fair scheduling runs the thread that waits longest: otherwise the engine's thread
            // would run too late.
            wrap = ["valgrind", "--quiet", "--fair-sched=yes", "--error-exitcode=99"]
                .map(str::to_owned)
                .to_vec();
            let file = std::path::absolute("tests/programs/valgrind.supp").expect("a path");
            wrap.push(format!("--suppressions={}", file.display()));
        }
        if let (Some(sanitizer), Some(runtime)) = (self.options.sanitizer, &self.runtime) {
            wrap = sanitizer.wrap(runtime);
        }
        let mut path = std::env::var("PATH").unwrap_or_default();
        if let Source::RdmaCore(folder) = &self.source {
            path = format!("{}:{path}", folder.display());
        }
        let work = self.work.path().display();
        let mut variables = vec![
            ("DAT_OVERRIDE", format!("{work}/dat.{interface}")),
            ("PATH", format!("{work}:{path}")),
            ("TMPDIR", work.to_string()), // Both ends see it, also in a chroot.
        ];
        let root = match &self.source {
            Source::Root(root) => Some((root.clone(), [self.work.path().to_owned(), built()])),
            Source::Distribution | Source::RdmaCore(_) => None,
        };
        let udp = self.user.as_ref().map(|_| "udp".to_owned());
        let kind = self.options.port_kind.clone().or(udp);
        variables.extend(kind.map(|kind| ("FEROCE_PORT_KIND", kind)));
        if self.options.daemon {
            variables.push(("FEROCE_SHARING", "daemon".to_owned()));
        }
        FeroceEnd {
            namespace: namespace.to_owned(),
            interface,
            feroce: feroce_in(&self.folder),
            root,
            user: self.user.as_ref().map(User::start),
            wrap,
            seconds: self.seconds(),
            variables,
        }
    }

    // ---- Feroce at both ends

    fn with_feroce(&mut self, rows: &[Row]) -> Result<u8> {
        need_packages(&["libibverbs-dev", "librdmacm-dev", "gcc"])?;
        let installs = matches!(self.source, Source::Distribution);
        if installs {
            let others: Vec<&str> = rows.iter().filter_map(package).collect();
            need_packages(&others)?;
        }
        let own = Own::make(&self.work, rows, installs, self.options.rpma.as_deref())?;
        self.name_interfaces()?;
        let pair = match self.options.judge {
            true => Pair::bridged("programs", MTU)?,
            false => Pair::new("programs", MTU)?,
        };
        pair.plain_frames();
        self.tap = pair.switch.as_ref().map(|switch| (switch.name().to_owned(), "br0"));
        for end in [&pair.a, &pair.b] {
            end.ip("link set lo up")?; // Threads of libfabric talk to each other.
        }
        let (a, b) = (self.end(pair.a.name(), "v0"), self.end(pair.b.name(), "v1"));
        // Four ranks on each of two hosts with a daemon, or one on each of four hosts.
        let (hosts, each) = if self.options.daemon { (2, 4) } else { (4, 1) };
        let star = match rows.iter().any(|row| row.group == RANKS) {
            true => Some(Star::new("ranks", MTU, hosts)?),
            false => None,
        };
        let mut daemons = Vec::new();
        if self.options.daemon {
            let names = star.iter().flat_map(|star| star.names());
            let ranks = names.map(|name| self.end(name, "v0")).collect::<Vec<_>>();
            for end in [&a, &b].into_iter().chain(&ranks) {
                daemons.push(end.start_daemon()?);
            }
        }
        let ranks = RanksEnd { star: star.as_ref(), each, end: self.end("", "v0") };
        let rules = match self.options.sanitizer {
            Some(sanitizer) => Rules::read(sanitizer.name())?,
            None => Rules::default(),
        };
        for row in rows {
            let lacking = self.source.lacks(row, self.work.path()).or_else(|| own.lacks(row));
            match lacking.or_else(|| rules.excluded(row, BOTH).map(str::to_owned)) {
                Some(reason) => self.skip(row, BOTH, &reason),
                None if row.group == RANKS => self.play(row, &ranks, &ranks, FIRST, BOTH)?,
                None => self.play(row, &b, &a, SECOND, BOTH)?,
            }
        }
        self.finish(&[BOTH], "docs/programs.md", "programs")
    }

    /// Writes the names of the interfaces for uDAPL programs.
    fn name_interfaces(&self) -> Result {
        for interface in ["v0", "v1"] {
            let line = format!(
                "feroce u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"{interface} 0\" \
                 \"\"\n"
            );
            std::fs::write(self.work.file(&format!("dat.{interface}")), line)?;
        }
        Ok(())
    }

    // ---- rxe at one end

    fn with_rxe(&mut self, rows: Vec<Row>) -> Result<u8> {
        need_packages(&["tcpdump"])?;
        if self.options.kit {
            need_packages(PROGRAM_PACKAGES)?; // The engine's namespace has no network.
        }
        let guest = Guest::new("programs", &self.work)?;
        if self.options.kit {
            return self.with_kit(&guest);
        }
        if guest.shell("echo here")?.trim() != "here" {
            return Err("the guest's SSH server does not respond".into());
        }
        std::fs::create_dir_all(CAPTURES)?;
        self.tap = Some((guest.switch.name().to_owned(), "br-data"));
        let mut feroce = self.end(guest.engine.name(), "v0");
        let _daemon = match self.options.daemon {
            true => Some(feroce.start_daemon()?),
            false => None,
        };
        // Limits the data in flight to the slow peer to 256 KiB.
        let window = std::env::var("FEROCE_WINDOW").unwrap_or_else(|_| "64".to_owned());
        feroce.variables.push(("FEROCE_WINDOW", window));
        let rxe = RxeEnd { guest: &guest, seconds: self.seconds() };
        let rules = Rules::read("rxe")?;
        let rows: Vec<Row> = rows.into_iter().filter(|row| row.server.is_some()).collect();
        self.tally.set_total(2 * rows.len());
        for mut row in rows {
            row.suit_other_peer();
            row.suit_slow_peer()?;
            let cases: [(&dyn End, &dyn End, &str, &str); 2] =
                [(&feroce, &rxe, FIRST, "Feroce serves"), (&rxe, &feroce, SECOND, "rxe serves")];
            for (server, client, address, case) in cases {
                match rules.excluded(&row, case) {
                    Some(reason) => self.skip(&row, case, reason),
                    None => self.play(&row, server, client, address, case)?,
                }
            }
        }
        self.finish(&["Feroce serves", "rxe serves"], "docs/interop.md", "rxe")
    }

    fn skip(&mut self, row: &Row, case: &str, reason: &str) {
        let line = format!(
            "{:<7}         {:<9} {:<42} {} ({case}): {reason}",
            "skipped", row.group, row.what, row.command
        );
        let outcome = outcome(row, case, Verdict::Skipped, 0.0, reason);
        self.tally.end(outcome, &line);
    }

    /// Runs interop-kit with the guest as an ordinary host that ssh reaches.
    fn with_kit(&self, guest: &Guest) -> Result<u8> {
        let config = guest.ssh_config();
        let mut command = command_in(guest.engine.name(), "scripts/interop-kit.sh");
        command.args(["--interface", "v0", "--transport", &format!("ssh -n -F {config} guest")]);
        command.args(["--peer-address", SECOND, "--slow", "--report", "target/interop", "guest"]);
        command.arg(self.options.filter.as_deref().unwrap_or("."));
        Ok(u8::try_from(run(&mut command)?).unwrap_or(1))
    }

    // ---- a row

    fn play(
        &mut self,
        row: &Row,
        server: &dyn End,
        client: &dyn End,
        address: &str,
        case: &str,
    ) -> Result {
        let started = Instant::now();
        let (preload, path) = (self.preload.clone(), self.work.path().to_owned());
        let run = Run { server, client, address, preload: &preload, work: &path };
        self.tally.begin(&row.command);
        let mut verdict = self.attempt(&run, row)?;
        let mut again = String::new();
        for _ in 0..3 {
            let Err(why) = &verdict else { break };
            // An emulated CPU on a busy machine stands still for longer than a QP retries, half a
            // second: a row may fail once.
            let may_fail = self.options.peer.is_some() && again.is_empty();
            if !may_fail && !run.met_own_race(row)? {
                break;
            }
            again = format!(": {why}; passed when tried again");
            self.keep_capture(row)?;
            verdict = self.attempt(&run, row)?;
        }
        let word = Verdict::of(verdict.is_ok());
        let seconds = started.elapsed().as_secs_f64();
        let of = if self.options.peer.is_some() { format!(" ({case})") } else { String::new() };
        let line = format!(
            "{:<7} {seconds:4.0} s  {:<9} {:<42} {}{of}{}",
            word.word(),
            row.group,
            row.what,
            row.command,
            if verdict.is_ok() { &again } else { "" }
        );
        let why = verdict.as_ref().err().map_or(again.as_str(), String::as_str);
        self.tally.end(outcome(row, case, word, seconds, why), &line);
        if let Err(why) = &verdict {
            self.tally.print(&run.explain(why)?);
            self.keep_capture(row)?;
        }
        Ok(())
    }

    fn attempt(&self, run: &Run<'_>, row: &Row) -> Result<std::result::Result<(), String>> {
        let capture = self.capture()?;
        let verdict = run.play(row)?;
        if let Some(tcpdump) = capture {
            tcpdump.stop()?;
        }
        match (&verdict, &self.python) {
            (Ok(()), Some(python)) => self.judge_capture(python),
            _ => Ok(verdict),
        }
    }

    /// Captures the last packets of a row and, if tshark and scapy check them, the first.
    fn capture(&self) -> Result<Option<Process>> {
        let Some((namespace, interface)) = &self.tap else { return Ok(None) };
        let mut command = command_in(namespace, "tcpdump");
        command.args(["--immediate-mode", "-Z", "root", "-i", interface, "-s", "0"]);
        command.args(["-B", "16384", "-C", "30", "-W", "2", "-w"]).arg(self.work.file("capture"));
        command.arg("udp port 4791 or (vlan and udp port 4791)");
        Ok(Some(Process::spawn_into(&mut command, &self.work.file("tcpdump"))?))
    }

    fn judge_capture(&self, python: &str) -> Result<std::result::Result<(), String>> {
        let first = self.work.file("first");
        let mut command = Command::new("tcpdump");
        command.arg("-r").arg(self.work.file("capture0"));
        command.args(["-c", &JUDGED.to_string(), "-w"]).arg(&first);
        output(&mut command)?;
        let (ok, report) = frames::judge(&first, 1, python)?;
        Ok(if ok { Ok(()) } else { Err(report) })
    }

    fn keep_capture(&mut self, row: &Row) -> Result {
        if self.tap.is_none() {
            return Ok(());
        }
        std::fs::create_dir_all(CAPTURES)?;
        self.kept += 1;
        let name = row.command.split(' ').next().unwrap_or_default();
        let path = format!("{CAPTURES}/{}-{name}.pcap", self.kept);
        std::fs::copy(self.work.file("capture0"), &path)?;
        self.tally.print(&format!("    packets: {path}"));
        Ok(())
    }

    fn finish(&self, cases: &[&str], file: &str, section: &str) -> Result<u8> {
        self.tally.finish()?;
        if self.options.table {
            write_section(file, section, &self.tally.table(cases))?;
        }
        let [passed, failed, skipped] = [Verdict::Passed, Verdict::Failed, Verdict::Skipped]
            .map(|verdict| self.tally.count(verdict));
        println!("{passed} passed, {failed} failed, {skipped} skipped");
        self.options.sanitizer.map(Sanitizer::check).transpose()?;
        Ok(u8::from(!self.tally.has_passed()))
    }
}

/// The outcome of a row.
pub fn outcome(row: &Row, case: &str, verdict: Verdict, seconds: f64, note: &str) -> Outcome {
    Outcome {
        subject: row.program().to_owned(),
        what: row.name(),
        case: case.to_owned(),
        verdict,
        seconds,
        note: note.to_owned(),
    }
}

/// The package of the row's program, if other rows do not need it.
fn package(row: &Row) -> Option<&'static str> {
    match row.program() {
        "iperf" => Some("iperf"),
        "dtest" => Some("dapl2-utils"),
        "migrate" => Some("qemu-system-x86"),
        name if name.starts_with("ucx_") => Some("ucx-utils"),
        name if name.starts_with("fi_") => Some("libfabric-bin"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_whose_programs_are_missing_are_skipped() {
        let folder = tempfile::tempdir().expect("a folder");
        let (programs, own) = (folder.path().join("usr/bin"), folder.path().join("own"));
        std::fs::create_dir_all(&programs).expect("a folder");
        std::fs::create_dir(&own).expect("a folder");
        for file in [programs.join("env"), programs.join("rcopy"), own.join("compare")] {
            std::fs::write(file, "").expect("a file");
        }
        let row = |line: &str| Row::parse(line).expect("a row");
        let (copy, fio) = (row("g | w | rcopy | compare | p"), row("g | w | fio | rcopy | p"));
        let lacks = |source: &Source, row: &Row| source.lacks(row, &own);
        let root = Source::Root(Root::new(folder.path()).expect("a release"));
        assert_eq!(lacks(&root, &copy), None);
        assert_eq!(lacks(&root, &fio).as_deref(), Some("the release has no fio"));
        let sources = Source::RdmaCore(programs);
        assert_eq!(lacks(&sources, &copy), None);
        assert_eq!(lacks(&sources, &fio).as_deref(), Some("fio is not a program of rdma-core"));
        assert_eq!(lacks(&Source::Distribution, &fio), None);
        assert!(Root::new(&own).is_err());
    }
}
