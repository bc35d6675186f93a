//! Eight pairs of unmodified programs at once, through one daemon per host, as an ordinary user.
//! First every pair must finish with correct data. Then, while all run on, the servers of two pairs
//! are killed and the client of a third is stopped: the clients of the killed servers must end
//! within [`END_WITHIN`], and every other pair must keep its rate.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Result;
use crate::exit::{Guard, at_end};
use crate::net::{Namespace, Pair, SECOND};
use crate::process::{Process, code, output, run};
use crate::setup::{
    BUILD_PACKAGES, Work, build_what_programs_need, built, copy_for_users, feroce_in,
    need_packages, need_root, reserve_hugepages,
};

/// MTU of the pair, in bytes.
const MTU: u32 = 4500;
/// Programs need this long to connect, two CPUs for all of them.
const START: Duration = Duration::from_secs(6);
/// Time over which a rate is measured.
const SAMPLE: Duration = Duration::from_secs(5);
/// Limit of the pairs that must finish.
const FINISH: Duration = Duration::from_secs(120);
/// Time within which the client of a killed server must end.
const END_WITHIN: Duration = Duration::from_secs(1);
/// Least rate of a pair after its neighbours have died, relative to the rate before.
const KEEPS: f64 = 0.85;
/// Starts a command as an ordinary user without capabilities.
const AS_USER: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all \
                       --inh-caps=-all --no-new-privs";

/// Options of `xtask together`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Port of the daemons. With udp, the user runs them, too
    #[arg(long, value_name = "KIND", default_value = "udp")]
    port_kind: String,
    /// Use the program and the libraries that are built already
    #[arg(long)]
    built: bool,
}

/// What happens to a pair while the others run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Lives,
    ServerKilled,
    ClientStopped,
}

/// A pair of programs. COUNT stands for a number of iterations, SERVER for the server's address.
struct Programs {
    name: &'static str,
    server: &'static str,
    client: &'static str,
    /// Iterations of a run that must finish.
    count: u64,
    /// True if the programs compare the data.
    checks: bool,
    fate: Fate,
}

const PAIRS: &[Programs] = &[
    Programs {
        name: "perftest, RC WRITE",
        server: "ib_write_bw -F -p 18601 -n COUNT",
        client: "ib_write_bw -F -p 18601 -n COUNT SERVER",
        count: 20_000,
        checks: false,
        fate: Fate::Lives,
    },
    Programs {
        name: "perftest, UD",
        // For a time: of a number of datagrams, the server would wait for the lost ones, too.
        server: "ib_send_bw -F -c UD -p 18602 -D COUNT",
        client: "ib_send_bw -F -c UD -p 18602 -D COUNT SERVER",
        count: 10,
        checks: false,
        fate: Fate::ClientStopped,
    },
    Programs {
        name: "perftest, shared receive queue",
        server: "ib_send_bw -F --use-srq -q 4 -p 18603 -n COUNT",
        client: "ib_send_bw -F --use-srq -q 4 -p 18603 -n COUNT SERVER",
        count: 4_000,
        checks: false,
        fate: Fate::ServerKilled,
    },
    Programs {
        name: "rping",
        server: "rping -s -p 18604 -v -V -C COUNT",
        client: "rping -c -a SERVER -p 18604 -v -V -C COUNT",
        count: 2_000,
        checks: true,
        fate: Fate::ServerKilled,
    },
    Programs {
        name: "fio, WRITE",
        server: "fio --name=server --ioengine=rdma --port=18605 --rw=read --bs=64k \
                 --io_size=COUNTk --size=1g --iodepth=16 --thread",
        client: "fio --name=client --ioengine=rdma --hostname=SERVER --port=18605 --verb=write \
                 --rw=write --bs=64k --io_size=COUNTk --size=1g --iodepth=8 --thread",
        count: 262_144,
        checks: false,
        fate: Fate::Lives,
    },
    Programs {
        name: "rsockets, rstream",
        server: "rstream -p 18606 -S 65536 -C COUNT -I 10 -T v",
        client: "rstream -s SERVER -p 18606 -S 65536 -C COUNT -I 10 -T v",
        count: 500,
        checks: true,
        fate: Fate::Lives,
    },
    Programs {
        name: "UCX, tagged messages on RC",
        server: "env UCX_TLS=rc,self ucx_perftest -p 18607",
        client: "env UCX_TLS=rc,self ucx_perftest SERVER -p 18607 -t tag_bw -s 65536 -n COUNT",
        count: 5_000,
        checks: false,
        fate: Fate::Lives,
    },
    Programs {
        name: "ibv_rc_pingpong",
        server: "ibv_rc_pingpong -g 1 -c -p 18608 -n COUNT",
        client: "ibv_rc_pingpong -g 1 -c -p 18608 -n COUNT SERVER",
        count: 2_000,
        checks: true,
        fate: Fate::Lives,
    },
];

/// Runs the command.
pub fn main(options: Options) -> Result<u8> {
    need_root()?;
    need_packages(BUILD_PACKAGES)?;
    need_packages(&["ibverbs-utils", "perftest", "rdmacm-utils", "fio", "ucx-utils"])?;
    build_what_programs_need(options.built)?;
    let work = Work::new()?;
    let net = Pair::new("together", MTU)?;
    for end in [&net.a, &net.b] {
        end.ip("link set lo up")?;
    }
    let _hugepages = reserve_hugepages(128)?;
    let hosts = Hosts::start(&work, &net, &options.port_kind)?;
    let finished = hosts.finish()?;
    let kept = hosts.survive()?;
    println!("{}", if finished && kept { "passed" } else { "FAILED" });
    Ok(u8::from(!(finished && kept)))
}

/// The two hosts, each with a daemon.
struct Hosts<'a> {
    work: &'a Work,
    net: &'a Pair,
    feroce: String,
    _daemons: Vec<Guard>,
}

/// A running pair.
struct Running {
    programs: &'static Programs,
    server: Process,
    client: Process,
}

impl<'a> Hosts<'a> {
    fn start(work: &'a Work, net: &'a Pair, kind: &str) -> Result<Self> {
        let folder = copy_for_users(work, &built())?;
        let feroce = feroce_in(&folder).display().to_string();
        let mut hosts = Self { work, net, feroce, _daemons: Vec::new() };
        for (host, interface) in [(&net.a, "v0"), (&net.b, "v1")] {
            let up = format!("{} up {interface} --detach --port-kind {kind}", hosts.feroce);
            let words = match kind {
                "udp" => up,
                _ => format!("{up} --group nogroup"),
            };
            if run(&mut hosts.command(host, &words, kind == "udp"))? != 0 {
                return Err(format!("no daemon of {interface}").into());
            }
            let mut down = hosts.command(host, &format!("{} down", hosts.feroce), kind == "udp");
            hosts._daemons.push(at_end(move || drop(down.status())));
        }
        Ok(hosts)
    }

    /// A command on `host`, as the user or as root.
    fn command(&self, host: &Namespace, words: &str, as_user: bool) -> Command {
        let mut command = host.command("env");
        command.arg(format!("TMPDIR={}", self.work.path().display()));
        command.arg(format!("XDG_RUNTIME_DIR={}/{}", self.work.path().display(), host.name()));
        if as_user {
            command.args(AS_USER.split_whitespace());
        }
        command.args(words.split_whitespace());
        command
    }

    /// Starts a program as a client of its host's daemon.
    fn program(&self, host: &Namespace, words: &str, log: &str) -> Result<Process> {
        let words = format!("{} run --quiet --no-mounts -- {words}", self.feroce);
        let mut command = self.command(host, &words, true);
        command.env("FEROCE_SHARING", "daemon");
        Process::spawn_into(&mut command, &self.work.file(log))
    }

    /// Starts all pairs: the servers, then the clients.
    fn spawn(&self, count: impl Fn(&Programs) -> u64) -> Result<Vec<Running>> {
        let words = |programs: &Programs, words: &str| {
            let count = count(programs).to_string();
            words.replace("COUNT", &count).replace("SERVER", SECOND)
        };
        let mut servers = Vec::new();
        for (number, programs) in PAIRS.iter().enumerate() {
            let words = words(programs, programs.server);
            servers.push(self.program(&self.net.b, &words, &format!("server{number}"))?);
        }
        std::thread::sleep(START);
        let mut all = Vec::new();
        for ((number, programs), server) in PAIRS.iter().enumerate().zip(servers) {
            let words = words(programs, programs.client);
            let client = self.program(&self.net.a, &words, &format!("client{number}"))?;
            all.push(Running { programs, server, client });
        }
        Ok(all)
    }

    /// Runs all pairs to their end. Returns true if all succeeded.
    fn finish(&self) -> Result<bool> {
        println!("Eight pairs at once, to their end");
        let mut all = self.spawn(|programs| programs.count)?;
        let start = Instant::now();
        while all.iter_mut().any(Running::is_running) && start.elapsed() < FINISH {
            std::thread::sleep(Duration::from_millis(100));
        }
        let mut passed = true;
        for (number, mut pair) in all.into_iter().enumerate() {
            let (name, checks) = (pair.programs.name, pair.programs.checks);
            let verdict = match pair.is_running() {
                true => Err("does not end".to_owned()),
                false => match (code(pair.client.wait()?), code(pair.server.wait()?)) {
                    (0, 0) => Ok(()),
                    (client, server) => Err(format!("client {client}, server {server}")),
                },
            };
            match verdict {
                Ok(()) if checks => println!("passed  {name}, data compared"),
                Ok(()) => println!("passed  {name}"),
                Err(why) => {
                    println!("FAILED  {name}: {why}");
                    self.explain(number)?;
                    passed = false;
                }
            }
        }
        Ok(passed)
    }

    /// Kills and stops programs while all run on. Returns true if the others kept their rates and
    /// the clients of the killed servers ended in time.
    fn survive(&self) -> Result<bool> {
        println!("Two servers are killed, one client is stopped");
        let mut all = self.spawn(|programs| programs.count * 1000)?;
        std::thread::sleep(START);
        let before = self.rates(&all)?;
        for pair in &all {
            match pair.programs.fate {
                Fate::Lives => {}
                Fate::ServerKilled => pair.server.signal("KILL"),
                Fate::ClientStopped => pair.client.signal("STOP"),
            }
        }
        let mut passed = wait_for_clients(&mut all);
        std::thread::sleep(SAMPLE / 5);
        let after = self.rates(&all)?;
        let lives = |pair: &Running| pair.programs.fate == Fate::Lives;
        let rates = all.iter().zip(before.iter().zip(after));
        for (pair, (before, after)) in rates.filter(|(pair, _)| lives(pair)) {
            let name = pair.programs.name;
            let (before, after) = (before / 1e6, after / 1e6);
            let keeps = after >= KEEPS * before && before > 0.0;
            let word = if keeps { "passed" } else { "FAILED" };
            println!("{word}  {name}: {before:.1} MB/s before, {after:.1} MB/s after");
            passed &= keeps;
        }
        for (number, pair) in all.iter_mut().enumerate().filter(|(_, pair)| lives(pair)) {
            if !pair.is_running() {
                println!("FAILED  {}: has ended", pair.programs.name);
                self.explain(number)?;
                passed = false;
            }
        }
        for pair in all {
            pair.client.signal("KILL");
            pair.server.signal("KILL");
        }
        Ok(passed)
    }

    /// Bytes per second that each pair's server receives and sends.
    fn rates(&self, all: &[Running]) -> Result<Vec<f64>> {
        let before = self.bytes()?;
        let start = Instant::now();
        std::thread::sleep(SAMPLE);
        let after = self.bytes()?;
        let seconds = start.elapsed().as_secs_f64();
        let of = |bytes: &[(u32, f64)], pid| {
            bytes.iter().find(|(other, _)| *other == pid).map_or(0.0, |(_, bytes)| *bytes)
        };
        let rate = |pair: &Running| {
            let pid = pair.server.id();
            (of(&after, pid) - of(&before, pid)).max(0.0) / seconds
        };
        Ok(all.iter().map(rate).collect())
    }

    /// Bytes that each program on the servers' host has received and sent, by process id.
    fn bytes(&self) -> Result<Vec<(u32, f64)>> {
        let words = format!("{} stat --daemon --json", self.feroce);
        let shown = output(&mut self.command(&self.net.b, &words, true))?;
        let daemons: Vec<Value> = serde_json::from_str(&shown)?;
        let programs = daemons.iter().filter_map(|daemon| daemon["programs"].as_array()).flatten();
        let bytes = programs.filter_map(|program| {
            let frames = &program["frames"];
            let pid = u32::try_from(program["pid"].as_u64()?).ok()?;
            Some((pid, frames["rx_bytes"].as_f64()? + frames["tx_bytes"].as_f64()?))
        });
        Ok(bytes.collect())
    }

    /// Prints the last lines of both ends of pair `number`.
    fn explain(&self, number: usize) -> Result {
        for end in ["client", "server"] {
            let text = std::fs::read(self.work.file(&format!("{end}{number}")))?;
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            for line in &lines[lines.len().saturating_sub(15)..] {
                println!("    {end}: {line}");
            }
        }
        Ok(())
    }
}

impl Running {
    fn is_running(&mut self) -> bool {
        self.client.is_running() | self.server.is_running()
    }
}

/// Waits for the clients of killed servers. Returns true if they ended within [`END_WITHIN`].
fn wait_for_clients(all: &mut [Running]) -> bool {
    let start = Instant::now();
    let mut passed = true;
    for pair in all.iter_mut().filter(|pair| pair.programs.fate == Fate::ServerKilled) {
        while pair.client.is_running() && start.elapsed() < END_WITHIN * 10 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let (after, is_in_time) = (start.elapsed(), start.elapsed() <= END_WITHIN);
        let word = if is_in_time { "passed" } else { "FAILED" };
        let name = pair.programs.name;
        println!("{word}  {name}: its client ended {after:.2?} after the server was killed");
        passed &= is_in_time;
    }
    passed
}
