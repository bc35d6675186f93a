//! Ceph as Debian packages it, with its messages over RDMA: a monitor, a manager and an OSD on one
//! host, a client on another, each program a client of its host's daemon.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Result;
use crate::daemon::Daemon;
use crate::net::{FIRST, Namespace, Pair};
use crate::process::{Process, end_of, output, run, run_into};
use crate::setup::{
    BUILD_PACKAGES, Work, build_what_programs_need, built, feroce_in, need_packages, need_root,
    reserve_hugepages,
};

const PACKAGES: &[&str] = &["ceph-mon", "ceph-mgr", "ceph-osd", "ceph-common"];
/// MTU of the pair, in bytes.
const MTU: u32 = 4500;
/// The messenger over RDMA.
const RDMA: &str = "async+rdma";
/// Time within which the cluster must come up.
const UP: Duration = Duration::from_secs(120);
/// Length of the file that is written, read and compared, in words of 4 bytes.
const FILE_WORDS: u32 = 16 << 20;
const CLUSTER: &str = "11111111-2222-3333-4444-555555555555";
const OSD: &str = "22222222-2222-3333-4444-555555555555";

/// Options of `xtask ceph`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Use the program and the libraries that are built already
    #[arg(long)]
    built: bool,
    /// Ceph's `ms_type`: async+rdma, or async+posix (the kernel's TCP, to compare with)
    #[arg(long, value_name = "TYPE", default_value = RDMA)]
    ms_type: String,
    /// Seconds of `rados bench` in each direction
    #[arg(long, value_name = "N", default_value_t = 10)]
    seconds: u32,
}

/// Runs the command.
pub fn main(options: Options) -> Result<u8> {
    need_root()?;
    need_packages(BUILD_PACKAGES)?;
    need_packages(PACKAGES)?;
    build_what_programs_need(options.built)?;
    let work = Work::new()?;
    let net = Pair::new("ceph", MTU)?;
    let _hugepages = reserve_hugepages(128)?;
    let cluster = Cluster::start(&work, &net, options)?;
    let passed = cluster.bench("write", &["--no-cleanup"])?
        && cluster.bench("seq", &[])?
        && cluster.keeps_a_file()?
        && cluster.used_feroce()?;
    println!("{}", if passed { "passed" } else { "FAILED" });
    Ok(u8::from(!passed))
}

/// The processes of a cluster.
struct Cluster<'a> {
    work: &'a Work,
    net: &'a Pair,
    options: Options,
    /// They end before the daemons of Feroce.
    services: Vec<Process>,
    _daemons: [Daemon; 2],
}

impl<'a> Cluster<'a> {
    /// Makes a cluster and waits until its OSD is up.
    fn start(work: &'a Work, net: &'a Pair, options: Options) -> Result<Self> {
        let feroce = feroce_in(&built());
        let daemon = |host: &Namespace, interface| -> Result<Daemon> {
            host.ip("link set lo up")?;
            Daemon::start(&feroce, host.name(), interface, &[])
        };
        let daemons = [daemon(&net.a, "v0")?, daemon(&net.b, "v1")?];
        for folder in ["mon", "mgr", "osd"] {
            std::fs::create_dir(work.file(folder))?;
        }
        std::fs::write(work.file("keyring"), "")?;
        std::fs::write(work.file("ceph.conf"), configuration(work.path(), &options.ms_type))?;
        let services = Vec::new();
        let mut cluster = Cluster { work, net, options, services, _daemons: daemons };
        let started = Instant::now();
        let monitor = format!("[v2:{FIRST}:3300,v1:{FIRST}:6789]");
        let map = work.file("monmap").display().to_string();
        let map_words = ["--create", "--addv", "a", &monitor, "--fsid", CLUSTER, &map];
        cluster.need("monmaptool", &map_words)?;
        cluster.need("ceph-mon", &["-i", "a", "--mkfs", "--monmap", &map])?;
        cluster.serve("ceph-mon", "a")?;
        cluster.wait_for("the monitor", &["status"], |status| status["health"].is_object())?;
        cluster.serve("ceph-mgr", "x")?;
        cluster.need("ceph", &["osd", "new", OSD])?;
        let osd = ["-i", "0", "--mkfs", "--monmap", &map, "--osd-uuid", OSD];
        cluster.need("ceph-osd", &osd)?;
        cluster.serve("ceph-osd", "0")?;
        cluster.wait_for("the OSD", &["osd", "stat"], |stat| stat["num_up_osds"] == 1)?;
        cluster.need("ceph", &["osd", "pool", "create", "bench", "8"])?;
        let seconds = started.elapsed().as_secs_f64();
        println!("A monitor, a manager and an OSD are up after {seconds:.0} s");
        Ok(cluster)
    }

    /// A program of Ceph on a host.
    fn command(&self, host: &Namespace, interface: &str, program: &str) -> Command {
        let mut command = host.command("timeout");
        command.args(["--kill-after=5", "300"]).arg(feroce_in(&built()));
        command.args(["run", "--quiet", "--interface", interface, "--", program]);
        command.env("FEROCE_SHARING", "daemon").current_dir(self.work.path());
        if program != "monmaptool" {
            command.arg("--conf").arg(self.work.file("ceph.conf"));
        }
        command
    }

    /// Runs a program on the cluster's host. An error shows the end of its output.
    fn need(&self, program: &str, words: &[&str]) -> Result {
        let log = self.work.file("log");
        match run_into(self.command(&self.net.a, "v0", program).args(words), &log)? {
            0 => Ok(()),
            code => Err(format!("{program} ended with {code}:{}", end_of_log(&log)).into()),
        }
    }

    /// Starts a service of the cluster.
    fn serve(&mut self, program: &str, id: &str) -> Result {
        let log = self.work.file(&format!("{program}.log"));
        let mut command = self.command(&self.net.a, "v0", program);
        self.services.push(Process::spawn_into(command.args(["-i", id, "-f"]), &log)?);
        Ok(())
    }

    /// Waits until the answer to a command of `ceph` is as expected.
    fn wait_for(&self, what: &str, words: &[&str], is_so: impl Fn(&Value) -> bool) -> Result {
        let started = Instant::now();
        while started.elapsed() < UP {
            let mut command = self.command(&self.net.a, "v0", "ceph");
            let asked = command.args(["--connect-timeout", "10", "--format", "json"]).args(words);
            let answer = output(asked).unwrap_or_default();
            if serde_json::from_str(&answer).is_ok_and(|answer| is_so(&answer)) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        let logs = ["ceph-mon", "ceph-mgr", "ceph-osd"].map(|program| {
            format!("{program}:{}", end_of_log(&self.work.file(&format!("{program}.log"))))
        });
        Err(format!("{what} is not up after {} s\n{}", UP.as_secs(), logs.join("\n")).into())
    }

    /// Runs `rados` on the other host. Returns true if it succeeds.
    fn rados(&self, words: &[&str], log: &Path) -> Result<bool> {
        let mut command = self.command(&self.net.b, "v1", "rados");
        Ok(run_into(command.args(["--pool", "bench"]).args(words), log)? == 0)
    }

    /// Runs `rados bench`, which compares what it reads, and prints its rate.
    fn bench(&self, mode: &str, more: &[&str]) -> Result<bool> {
        let log = self.work.file("rados.log");
        let seconds = self.options.seconds.to_string();
        let passed = self.rados(&[&["bench", &seconds, mode], more].concat(), &log)?;
        let text = std::fs::read_to_string(&log)?;
        match text.lines().find(|line| line.starts_with("Bandwidth (MB/sec):")) {
            Some(rate) if passed => println!("rados bench {mode}: {rate}"),
            _ => println!("rados bench {mode} failed:{}", end_of_log(&log)),
        }
        Ok(passed)
    }

    /// Writes a file from the other host, reads it back, and compares.
    fn keeps_a_file(&self) -> Result<bool> {
        let (written, read) = (self.work.file("written"), self.work.file("read"));
        let words = (0..FILE_WORDS).flat_map(|word| word.wrapping_mul(0x9e37_79b1).to_le_bytes());
        std::fs::write(&written, words.collect::<Vec<_>>())?;
        let log = self.work.file("rados.log");
        for (verb, file) in [("put", &written), ("get", &read)] {
            if !self.rados(&[verb, "file", &file.display().to_string()], &log)? {
                println!("rados {verb} failed:{}", end_of_log(&log));
                return Ok(false);
            }
        }
        let same = run(Command::new("cmp").args([&written, &read]))? == 0;
        let word = if same { "comes back as it was written" } else { "comes back altered" };
        println!("A file of {} MiB {word}", FILE_WORDS >> 18);
        Ok(same)
    }

    /// Returns true if the OSD's data crossed Feroce, or if it should not have.
    fn used_feroce(&self) -> Result<bool> {
        if self.options.ms_type != RDMA {
            return Ok(true);
        }
        let mut command = self.net.a.command(&feroce_in(&built()).display().to_string());
        let shown = output(command.args(["stat", "--daemon", "--json"]))?;
        let daemons: Vec<Value> = serde_json::from_str(&shown)?;
        let programs = daemons.iter().filter_map(|daemon| daemon["programs"].as_array());
        let osd = programs.flatten().find(|program| program["program"] == "ceph-osd");
        let bytes = osd.and_then(|osd| osd["frames"]["rx_bytes"].as_u64()).unwrap_or(0);
        println!("Feroce received {} MiB for the OSD", bytes >> 20);
        Ok(bytes > 4 * u64::from(FILE_WORDS))
    }
}

/// Ceph's configuration. The OSD keeps its data in memory. Without cephx, no keys are needed.
fn configuration(work: &Path, ms_type: &str) -> String {
    let work = work.display();
    format!(
        "[global]\n\
         fsid = {CLUSTER}\n\
         mon host = {FIRST}\n\
         public network = {FIRST}/24\n\
         auth cluster required = none\n\
         auth service required = none\n\
         auth client required = none\n\
         ms type = {ms_type}\n\
         ms async rdma device name = feroce0\n\
         ms async rdma gid idx = 1\n\
         ms async rdma receive queue len = 1024\n\
         ms async rdma receive buffers = 2048\n\
         ms async rdma send buffers = 512\n\
         osd objectstore = memstore\n\
         memstore device bytes = 8589934592\n\
         osd pool default size = 1\n\
         osd pool default min size = 1\n\
         mon allow pool size one = true\n\
         osd crush chooseleaf type = 0\n\
         mon data = {work}/mon\n\
         mgr data = {work}/mgr\n\
         osd data = {work}/osd\n\
         keyring = {work}/keyring\n\
         run dir = {work}\n\
         log file = {work}/$name.log\n"
    )
}

/// The last lines of a log.
fn end_of_log(log: &Path) -> String {
    end_of(&String::from_utf8_lossy(&std::fs::read(log).unwrap_or_default()), 8)
}
