//! Tries Feroce against a host with a real RNIC, which ssh reaches: runs the rows of
//! `tests/programs/table.txt` in both roles, captures both sides and writes a report.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use regex::Regex;

use crate::Result;
use crate::process::{Process, last_lines, output, words};
use crate::programs::outcome;
use crate::rows::{End, Row, Run, feroce_listeners, number, rows, seconds_each};
use crate::setup::{PROGRAM_PACKAGES, Work, built, feroce_in, need_packages, need_root};
use crate::tally::{Tally, Verdict};

/// Bytes of a packet that are captured: all headers, and messages of communication management.
const SNAP: &str = "512";
/// Packets that the peer captures in a run.
const PEER_PACKETS: &str = "20000";
/// Packets of each side in the report.
const SHOWN: usize = 60;
const SERVES: [&str; 2] = ["Feroce serves", "the peer serves"];

/// Options of `xtask interop-kit`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Feroce's interface on this host (default: the one that leads to the peer)
    #[arg(long, value_name = "IFACE")]
    interface: Option<String>,
    /// The IPv4 address of the peer's RNIC (default: what PEER resolves to)
    #[arg(long, value_name = "IP")]
    peer_address: Option<String>,
    /// The command that runs a command line at the peer (default: ssh -n -o BatchMode=yes PEER)
    #[arg(long, value_name = "COMMAND")]
    transport: Option<String>,
    /// Fewer iterations and longer timeouts, for a peer that moves some 10 MB/s
    #[arg(long)]
    slow: bool,
    /// Where report.md and captures go
    #[arg(long, value_name = "FOLDER", default_value = "target/interop")]
    report: PathBuf,
    /// Run nothing; print the commands, to be typed at both ends
    #[arg(long)]
    print: bool,
    /// Write the results to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Destination of ssh, such as root@connectx
    peer: String,
    /// A regular expression that picks rows
    #[arg(default_value = ".")]
    filter: String,
}

/// The output of a shell, by words.
fn shell(line: &str) -> Result<String> {
    output(Command::new("sh").args(["-c", line]))
}

/// Runs the command.
pub fn main(options: Options) -> Result<u8> {
    let host = options.peer.rsplit('@').next().unwrap_or_default().to_owned();
    let first_word = |line: &str| Ok::<_, Box<dyn std::error::Error>>(first(&shell(line)?));
    let address = match &options.peer_address {
        Some(address) => address.clone(),
        None => first_word(&format!("getent ahostsv4 '{host}'"))?.ok_or_else(|| {
            format!("{host} has no IPv4 address that is known here: use --peer-address")
        })?,
    };
    let interface = match &options.interface {
        Some(interface) => interface.clone(),
        None => {
            let route = shell(&format!("ip -o route get '{address}'"))?;
            let found = Regex::new(" dev ([^ ]+)")?.captures(&route).map(|found| found[1].into());
            found.ok_or_else(|| format!("no route to {address}: use --interface"))?
        }
    };
    let addresses = shell(&format!("ip -o -4 address show dev '{interface}'"))?;
    let own = Regex::new(" inet ([0-9.]+)")?.captures(&addresses).map(|found| found[1].into());
    let own: String = own.ok_or_else(|| format!("{interface} has no IPv4 address"))?;
    let rows = suited_rows(&options)?;
    if options.print {
        print_commands(&rows, &own, &address, &interface);
        return Ok(0);
    }
    need_root()?;
    need_packages(PROGRAM_PACKAGES)?;
    let transport = options.transport.clone();
    let peer = &options.peer;
    let transport = transport.unwrap_or_else(|| format!("ssh -n -o BatchMode=yes {peer}"));
    let peer = Peer::find(transport, &address)?;
    let work = Work::new()?;
    let tally = Tally::new(rows.len() * 2, options.json.clone());
    let feroce = find_feroce()?;
    let kit = Kit {
        options,
        host,
        interface,
        own,
        address,
        peer,
        feroce,
        work,
        tally,
        failures: Vec::new(),
    };
    kit.run(&rows)
}

fn first(text: &str) -> Option<String> {
    text.split_whitespace().next().map(str::to_owned)
}

/// The rows with two ends that need nothing at the peer but the distribution's packages.
fn suited_rows(options: &Options) -> Result<Vec<Row>> {
    let excluded = Regex::new("rcopy-and-compare|^migrate|^restarts|^rsockets|PRELOAD")?;
    let mut rows = rows(&options.filter, false)?;
    rows.retain(|row| {
        row.server.is_some()
            && !matches!(row.group.as_str(), "own" | "udapl" | "gloo" | "librpma" | "iser")
            && !excluded.is_match(&row.command)
    });
    for row in &mut rows {
        row.suit_other_peer();
        if options.slow {
            row.suit_slow_peer()?;
        }
    }
    Ok(rows)
}

/// The program of this clone if it and its libraries are built in the profile `BUILD_PROFILE`,
/// otherwise the installed one.
fn find_feroce() -> Result<PathBuf> {
    let folder = built();
    let feroce = feroce_in(&folder);
    if feroce.is_file() && folder.join("lib").is_dir() {
        return Ok(feroce);
    }
    match first(&shell("command -v feroce")?) {
        Some(path) => Ok(path.into()),
        None => Err("feroce is not installed: run scripts/install.sh".into()),
    }
}

/// The peer's device.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Device {
    name: String,
    /// Index of the RoCE v2 GID with the peer's address.
    gid: String,
    /// Index of the RoCE v2 GID with the link-local address.
    local_gid: String,
    netdev: String,
}

impl Device {
    /// The device with the GID of `address`, from lines `DEVICE/ports/1/.../INDEX:VALUE`.
    fn find(listed: &str, address: &str) -> Option<Device> {
        let octets: Vec<u8> = address.split('.').filter_map(|octet| octet.parse().ok()).collect();
        let &[a, b, c, d] = octets.as_slice() else { return None };
        let wanted = format!("0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}");
        let (mut types, mut netdevs, mut gids) =
            (BTreeMap::new(), BTreeMap::new(), Vec::<((&str, &str), &str)>::new());
        for line in listed.lines() {
            let Some((path, value)) = line.split_once(':') else { continue };
            let path = path.trim_start_matches("./");
            let device = path.split('/').next().unwrap_or_default();
            let key = (device, path.rsplit('/').next().unwrap_or_default());
            if path.contains("types") {
                types.insert(key, value);
            } else if path.contains("ndevs") {
                netdevs.insert(key, value);
            } else {
                gids.push((key, value));
            }
        }
        gids.retain(|(key, _)| types.get(key) == Some(&"RoCE v2"));
        let (key, _) = *gids.iter().find(|(_, gid)| *gid == wanted)?;
        let netdev = netdevs.get(&key).copied().unwrap_or_default();
        let local = gids.iter().find(|((device, index), gid)| {
            *device == key.0
                && netdevs.get(&(*device, *index)) == Some(&netdev)
                && gid.starts_with("fe80")
        });
        let local_gid = local.map_or("0", |((_, index), _)| index).to_owned();
        let (name, gid) = (key.0.to_owned(), key.1.to_owned());
        Some(Device { name, gid, local_gid, netdev: netdev.to_owned() })
    }

    /// The command line with the device and its GID.
    fn command(&self, line: &str) -> String {
        let Device { name, gid, local_gid, .. } = self;
        let line = match line {
            _ if line.starts_with("ib_") => line.replacen(' ', &format!(" -d {name} -x {gid} "), 1),
            _ if line.starts_with("ibv_") => line
                .replacen(' ', &format!(" -d {name} "), 1)
                .replacen(" -g 1", &format!(" -g {gid}"), 1)
                .replacen(" -g 0", &format!(" -g {local_gid}"), 1),
            _ if line.starts_with("env UCX_") => {
                let rest = &line["env ".len()..];
                format!("env UCX_NET_DEVICES={name}:1 UCX_IB_GID_INDEX={gid} {rest}")
            }
            _ => line.to_owned(),
        };
        for_shell(&line)
    }
}

/// The words as a shell takes them.
fn for_shell(line: &str) -> String {
    line.replace(';', "\\;")
}

/// The host with the RNIC.
struct Peer {
    transport: String,
    device: Device,
    /// The source from which tcpdump captures: the device or its interface. `None` without tcpdump.
    /// The kernel does not see an RNIC's packets, but some devices show them to tcpdump.
    sniffed: Option<String>,
}

impl Peer {
    fn find(transport: String, address: &str) -> Result<Peer> {
        const LIST: &str = "cd /sys/class/infiniband && grep -H . */ports/1/gid_attrs/*/* \
                            */ports/1/gids/* 2> /dev/null; true";
        let listed = at(&transport, LIST)?;
        let device = Device::find(&listed, address).ok_or_else(|| {
            let has = if listed.is_empty() { "no RDMA device at all" } else { listed.as_str() };
            format!("no device of the peer has a RoCE v2 GID with {address}. It has: {has}")
        })?;
        let mut sniffed = None;
        if at(&transport, "command -v tcpdump")?.is_empty() {
            println!("the peer has no tcpdump: packets are captured at this end only");
        } else {
            let name = &device.name;
            let line = format!("tcpdump -D 2> /dev/null | grep -w {name}");
            let has = !at(&transport, &line)?.is_empty();
            sniffed = Some(if has { name.clone() } else { device.netdev.clone() });
        }
        Ok(Peer { transport, device, sniffed })
    }

    fn shell(&self, line: &str) -> Result<String> {
        at(&self.transport, line)
    }
}

/// Runs a command line at the peer, for at most 60 s.
fn at(transport: &str, line: &str) -> Result<String> {
    output(words(&format!("timeout 60 {transport}")).arg(line))
}

impl End for Peer {
    fn command(&self, line: &str) -> Command {
        let (seconds, line) = (seconds_each(), self.device.command(line));
        let mut command =
            words(&format!("timeout --kill-after=5 {} {}", seconds + 20, self.transport));
        // The process id is for `stop`.
        command.arg(format!("echo $$ > /tmp/feroce-kit.row; exec timeout -k 5 {seconds} {line}"));
        command
    }

    fn stop(&self) {
        let _ = self.shell("kill $(cat /tmp/feroce-kit.row)");
    }

    /// A program that uses the RDMA CM has no TCP socket: the kernel knows its identifiers.
    fn listeners(&self, group: &str) -> usize {
        number(self.shell(match group {
            "cm" | "rsocket" => "{ rdma resource show cm_id | grep LISTEN; ss -lunH; } | wc -l",
            _ => "ss -ltnH | wc -l",
        }))
    }
}

/// This host.
struct Here {
    feroce: PathBuf,
    interface: String,
    capture: PathBuf,
    is_slow: bool,
}

impl End for Here {
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", &seconds_each().to_string()]).arg(&self.feroce);
        command.args(["run", "--quiet", "--interface", &self.interface, "--pcap"]);
        command.arg(&self.capture).args(["--pcap-snap", SNAP, "--"]);
        if self.is_slow && std::env::var_os("FEROCE_WINDOW").is_none() {
            command.env("FEROCE_WINDOW", "64");
        }
        command.args(line.split_whitespace());
        command
    }

    fn listeners(&self, group: &str) -> usize {
        number(shell(feroce_listeners(group)))
    }
}

struct Kit {
    options: Options,
    host: String,
    interface: String,
    own: String,
    address: String,
    peer: Peer,
    feroce: PathBuf,
    work: Work,
    tally: Tally,
    /// Sections of the report.
    failures: Vec<String>,
}

impl Kit {
    fn run(mut self, rows: &[Row]) -> Result<u8> {
        let folder = self.options.report.clone();
        std::fs::create_dir_all(&folder)?;
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "pcap") {
                std::fs::remove_file(path)?;
            }
        }
        let device = &self.peer.device;
        println!(
            "Feroce on {} ({}) against {} on {} ({}, GID index {})",
            self.interface, self.own, device.name, self.options.peer, self.address, device.gid
        );
        let mut there = BTreeMap::new();
        for row in rows {
            if self.peer_has(row.program(), &mut there)? {
                self.play(row, 0)?;
                self.play(row, 1)?;
            }
        }
        self.tally.finish()?;
        let report = folder.join("report.md");
        std::fs::write(&report, self.report()?)?;
        let (passed, failed) = self.counts();
        println!("{passed} passed, {failed} failed: {}", report.display());
        Ok(u8::from(!self.tally.has_passed()))
    }

    fn counts(&self) -> (usize, usize) {
        (self.tally.count(Verdict::Passed), self.tally.count(Verdict::Failed))
    }

    /// Returns true if the peer has the program; says so once if not.
    fn peer_has(&self, program: &str, there: &mut BTreeMap<String, bool>) -> Result<bool> {
        if let Some(known) = there.get(program) {
            return Ok(*known);
        }
        let has = !self.peer.shell(&format!("command -v {program}"))?.is_empty();
        if !has {
            self.tally.print(&format!("the peer has no {program}: its rows are left out"));
        }
        there.insert(program.to_owned(), has);
        Ok(has)
    }

    /// Runs a row; `case` is an index of [`SERVES`].
    fn play(&mut self, row: &Row, case: usize) -> Result {
        let started = Instant::now();
        let work = self.work.path().to_owned();
        for side in ["here", "peer"] {
            let _ = std::fs::remove_file(self.work.file(&format!("{side}.pcap")));
        }
        let here = Here {
            feroce: self.feroce.clone(),
            interface: self.interface.clone(),
            capture: self.work.file("here.pcap"),
            is_slow: self.options.slow,
        };
        self.tally.begin(&row.command);
        let (server, client, address): (&dyn End, &dyn End, &str) = match case {
            0 => (&here, &self.peer, &self.own),
            _ => (&self.peer, &here, &self.address),
        };
        let run = Run { server, client, address, preload: "", work: &work };
        let tcpdump = self.capture()?;
        let verdict = run.play(row)?;
        if let Some(tcpdump) = tcpdump {
            tcpdump.stop()?;
        }
        let (word, name) = (Verdict::of(verdict.is_ok()), SERVES[case]);
        let seconds = started.elapsed().as_secs_f64();
        let line = format!(
            "{:<7} {seconds:4.0} s  {:<9} {:<42} {} ({name})",
            word.word(),
            row.group,
            row.what,
            row.command
        );
        let why = verdict.as_ref().err().cloned().unwrap_or_default();
        let explained = run.explain(&why)?;
        let section = match verdict {
            Ok(()) => None,
            Err(_) => Some(self.describe(row, name, &run, &why)?),
        };
        self.tally.end(outcome(row, name, word, seconds, &why), &line);
        if let Some(section) = section {
            self.tally.print(&explained);
            self.failures.push(section);
        }
        Ok(())
    }

    /// Captures at the peer, into `peer.pcap` here.
    fn capture(&self) -> Result<Option<Process>> {
        let Some(sniffed) = &self.peer.sniffed else { return Ok(None) };
        let mut command = words(&self.peer.transport);
        command.arg(format!(
            "exec timeout {} tcpdump -i {sniffed} -s {SNAP} -c {PEER_PACKETS} -U -w - \
             udp port 4791",
            seconds_each()
        ));
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command.stdout(File::create(self.work.file("peer.pcap"))?);
        Ok(Some(Process::spawn(&mut command)?))
    }

    /// The section of the report about a failed run. Keeps its captures.
    fn describe(&self, row: &Row, case: &str, run: &Run<'_>, why: &str) -> Result<String> {
        let number = self.failures.len() + 1;
        let server = row.server.as_deref().unwrap_or("-");
        let client = row.client.replace("SERVER", run.address);
        let mut text = format!(
            "\n### {number}. {} ({case})\n\n{why}\n\n\
             ```\nserver: {server}\nclient: {client}\n```\n",
            row.name()
        );
        for side in ["server", "client"] {
            let said = last_lines(&run.output(side)?, 25);
            text += &format!("\nThe last lines of the {side}:\n\n```\n{said}\n```\n");
        }
        for side in ["here", "peer"] {
            let capture = self.work.file(&format!("{side}.pcap"));
            if !std::fs::metadata(&capture).is_ok_and(|metadata| metadata.len() > 0) {
                continue;
            }
            let kept = format!("{number}-{side}.pcap");
            std::fs::copy(&capture, self.options.report.join(&kept))?;
            let mut tshark = words("tshark --disable-protocol rpcordma -r");
            let packets = last_lines(&output(tshark.arg(&capture))?, SHOWN);
            text += &format!(
                "\nThe last {SHOWN} packets captured {side} (all: {kept}):\n\n```\n{packets}\n```\n"
            );
        }
        Ok(text)
    }

    fn report(&self) -> Result<String> {
        const PACKAGES: &str = "dpkg-query -W libibverbs1 perftest rdmacm-utils ibverbs-providers \
                                ucx-utils libfabric-bin 2> /dev/null";
        let Device { name, netdev, .. } = &self.peer.device;
        let (passed, failed) = self.counts();
        let (feroce, interface) = (self.feroce.display(), &self.interface);
        let now = shell("date -u '+%Y-%m-%d %H:%M'")?;
        let failures = match self.failures.is_empty() {
            true => "\nNone.\n".to_owned(),
            false => self.failures.concat(),
        };
        let mut text = format!(
            "# Feroce against {name} on {}\n\n{} UTC: {passed} runs passed, {failed} failed.\n\n\
             {}\n\n## The failures\n{failures}",
            self.host,
            now.trim(),
            self.tally.table(&SERVES)
        );
        text += "\n## This end\n";
        for (title, line) in [
            ("System", "uname -srm".to_owned()),
            ("Feroce", format!("'{feroce}' --version")),
            ("Interface", format!("ethtool -i {interface}")),
            ("Link", format!("ip -s link show dev {interface}")),
            ("Device", format!("'{feroce}' devinfo -i {interface}")),
            (
                "Settings that are not the default",
                format!("'{feroce}' config | grep -v ' default '"),
            ),
            ("Packages", PACKAGES.to_owned()),
        ] {
            text += &block(title, &shell(&format!("{{ {line}; }} 2>&1"))?);
        }
        text += "\n## The peer\n";
        for (title, line) in [
            ("System", "uname -srm".to_owned()),
            ("Device and firmware", format!("ibv_devinfo -v -d {name}")),
            ("Interface", format!("ethtool -i {netdev}")),
            ("Link", format!("ip -s link show dev {netdev}")),
            ("Flow control, priorities", format!("ethtool -a {netdev}; mlnx_qos -i {netdev}")),
            ("Packages", PACKAGES.to_owned()),
        ] {
            text += &block(title, &self.peer.shell(&format!("{{ {line}; }} 2>&1"))?);
        }
        Ok(text)
    }
}

fn block(title: &str, text: &str) -> String {
    format!("\n{title}:\n\n```\n{}\n```\n", text.trim_end())
}

/// Prints the commands of all runs, to be typed at both ends.
fn print_commands(rows: &[Row], own: &str, address: &str, interface: &str) {
    let word = str::to_owned;
    let (name, gid, local_gid) = (word("DEVICE"), word("GID"), word("LOCAL_GID"));
    let device = Device { name, gid, local_gid, netdev: String::new() };
    println!(
        "# Here: Feroce on {interface} ({own}). The peer: {address}. DEVICE is the peer's device,\n\
         # GID the index of its RoCE v2 GID with {address}, LOCAL_GID that of its fe80:: GID\n\
         # (show_gids lists them). Start the first line of a pair, wait until it listens, then\n\
         # start the second."
    );
    let here = format!("here: sudo feroce run --interface {interface} --");
    for (number, row) in (1..).zip(rows) {
        let server = row.server.as_deref().unwrap_or_default();
        let client = |address: &str| row.client.replace("SERVER", address);
        println!(
            "\n# {number}. {}. Passed if a line of the client's output matches: {}",
            row.name(),
            row.pattern
        );
        println!("{here} {}", for_shell(server));
        println!("peer: {}", device.command(&client(own)));
        println!("peer: {}", device.command(server));
        println!("{here} {}", for_shell(&client(address)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "\
        mlx5_0/ports/1/gid_attrs/ndevs/0:eth1\n\
        mlx5_0/ports/1/gid_attrs/ndevs/2:eth1\n\
        mlx5_0/ports/1/gid_attrs/ndevs/3:eth1\n\
        mlx5_0/ports/1/gid_attrs/types/0:IB/RoCE v1\n\
        mlx5_0/ports/1/gid_attrs/types/2:RoCE v2\n\
        mlx5_0/ports/1/gid_attrs/types/3:RoCE v2\n\
        mlx5_0/ports/1/gids/0:0000:0000:0000:0000:0000:ffff:0a4d:0002\n\
        mlx5_0/ports/1/gids/2:fe80:0000:0000:0000:0000:00ff:fe00:0001\n\
        mlx5_0/ports/1/gids/3:0000:0000:0000:0000:0000:ffff:0a4d:0002\n";

    #[test]
    fn the_device_with_the_rocev2_gid_of_the_address_is_found() {
        let device = Device::find(LISTED, "10.77.0.2").expect("a device");
        let names = [&device.name, &device.gid, &device.local_gid, &device.netdev];
        assert_eq!(names, ["mlx5_0", "3", "2", "eth1"]);
        assert_eq!(Device::find(LISTED, "10.77.0.3"), None);
        let line = device.command("ibv_rc_pingpong -g 1 -c");
        assert_eq!(line, "ibv_rc_pingpong -d mlx5_0  -g 3 -c".replace("  ", " "));
        assert_eq!(device.command("ib_send_bw -F"), "ib_send_bw -d mlx5_0 -x 3 -F");
        assert_eq!(device.command("fi_pingpong -p verbs;x"), "fi_pingpong -p verbs\\;x");
    }
}
