//! Runs the incasts of the scenario `live-incast` twice, in virtual time and with real packets, and
//! compares the senders' shares of the link and their alphas. With real packets, `feroce fabric
//! live` is the switch, and `ib_send_bw` on Feroce with DCQCN sends and receives, in network
//! namespaces.

mod compare;
mod scenario;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::Result;
use crate::net::{Namespace, ip};
use crate::process::{Process, run};
use crate::setup::{
    BUILD_PACKAGES, Work, build, built, feroce_in, libraries, need_packages, need_root,
};
use crate::tally::{Outcome, Tally, Verdict};
use scenario::Scenario;

/// Number of the host that receives; its link is shared by all flows.
const RECEIVER: u32 = 9;

/// Options of `xtask live-incast`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Feroce's port
    #[arg(long, value_name = "KIND", default_value = "packet")]
    port_kind: String,
    /// Duration of a run in seconds, with its warm-up (default: the scenario's)
    #[arg(long, value_name = "N")]
    seconds: Option<u32>,
    /// Keep the figures in this folder
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// The folder with feroce and lib (default: they are built)
    #[arg(long, value_name = "FOLDER")]
    bin: Option<PathBuf>,
    /// Write the results to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Numbers of senders, the scenario's cases
    #[arg(value_name = "K", value_parser = ["2", "8"], default_values = ["2", "8"])]
    senders: Vec<String>,
}

/// A run with real packets.
struct Incast<'a> {
    scenario: &'a Scenario,
    feroce: &'a Path,
    port_kind: &'a str,
    cpus: [String; 2],
    folder: PathBuf,
    /// The namespace of the switch.
    switch: Namespace,
    /// The namespaces of the hosts: the senders, then the receiver's link.
    hosts: Vec<Namespace>,
    /// The namespaces of the receiving programs, one per sender.
    receivers: Vec<Namespace>,
}

/// Runs the command.
pub fn main(options: Options) -> Result<u8> {
    let Some(scenario) = Scenario::read(options.seconds)? else {
        eprintln!("xtask: too few seconds: {}", Scenario::shortest()?);
        return Ok(2);
    };
    need_root()?;
    need_packages(BUILD_PACKAGES)?;
    need_packages(&["perftest", "util-linux"])?;
    let folder = match &options.bin {
        Some(folder) => std::path::absolute(folder)?,
        None => {
            println!("Building");
            build(&["--bin", "feroce"])?;
            libraries()?;
            built()
        }
    };
    let feroce = feroce_in(&folder);
    let work = Work::new()?;
    let mut tally = Tally::new(options.senders.len(), options.json.clone());
    tally.begin("in virtual time");
    in_virtual_time(&feroce, &scenario, &work.file("virtual"))?;
    for count in &options.senders {
        tally.begin(&format!("{count} senders, port {}", options.port_kind));
        let folder = work.file(count);
        std::fs::create_dir(&folder)?;
        let incast = Incast::new(&scenario, &feroce, &options.port_kind, folder, count.parse()?)?;
        let report = incast.run()?.compare(&work.file("virtual"))?;
        let outcome = Outcome {
            subject: options.port_kind.clone(),
            what: format!("{count}:1"),
            case: String::new(),
            verdict: Verdict::of(report.faults.is_empty()),
            seconds: f64::from(scenario.duration),
            note: report.faults.join("; "),
        };
        tally.end(outcome, &report.text());
    }
    tally.finish()?;
    if let Some(keep) = &options.keep {
        std::fs::create_dir_all(keep)?;
        let mut copy = Command::new("cp");
        run(copy.arg("-r").arg(work.path().join(".")).arg(keep))?;
    }
    Ok(u8::from(!tally.has_passed()))
}

fn in_virtual_time(feroce: &Path, scenario: &Scenario, folder: &Path) -> Result {
    let mut command = Command::new(feroce);
    command.args(["fabric", "run", scenario::FILE]);
    command.args(["--set", &format!("duration={}s", scenario.duration)]);
    command.arg("--out").arg(folder).stderr(File::create(folder.with_extension("log"))?);
    match run(&mut command)? {
        0 => Ok(()),
        code => Err(format!("feroce fabric run: exit code {code}").into()),
    }
}

/// Two lists of CPUs, as `taskset` takes them: one for the switch, which must keep time, and the
/// others for the endpoints.
fn cpus() -> Result<[String; 2]> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    split_cpus(list.ok_or("no list of CPUs in /proc/self/status")?.trim())
}

/// The last CPU of a list such as `0-2,5`, and the others; the last one twice if it is the only
/// one.
fn split_cpus(list: &str) -> Result<[String; 2]> {
    let mut cpus: Vec<u32> = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cpus.extend(first.parse::<u32>()?..=last.parse()?);
    }
    let last = cpus.pop().ok_or("no CPU")?.to_string();
    let others: Vec<String> = cpus.iter().map(u32::to_string).collect();
    let others = if others.is_empty() { last.clone() } else { others.join(",") };
    Ok([last, others])
}

impl<'a> Incast<'a> {
    /// Makes the network: a star around the switch. Its interfaces p1 to pCOUNT lead to v0 of the
    /// senders. p9 leads to all receivers, which share one link through macvlans m0, because each
    /// program on Feroce needs an interface of its own.
    fn new(
        scenario: &'a Scenario,
        feroce: &'a Path,
        port_kind: &'a str,
        folder: PathBuf,
        count: u32,
    ) -> Result<Incast<'a>> {
        let space = |suffix: &str| namespace(count, suffix);
        let mut incast = Incast {
            scenario,
            feroce,
            port_kind,
            cpus: cpus()?,
            folder,
            switch: space("s")?,
            hosts: Vec::new(),
            receivers: Vec::new(),
        };
        for n in (1..=count).chain([RECEIVER]) {
            let host = space(&format!("h{n}"))?;
            let (switch, far) = (&incast.switch, format!("p{n}"));
            ip(&format!(
                "link add {far} netns {} type veth peer name v0 netns {}",
                switch.name(),
                host.name()
            ))?;
            for (end, interface) in [(switch, far.as_str()), (&host, "v0")] {
                end.plain_segments(interface)?;
                end.ip(&format!("link set {interface} up"))?;
            }
            incast.hosts.push(host);
        }
        let link = incast.hosts.last().expect("the receiver's");
        for (n, host) in (1..=count).zip(&incast.hosts) {
            host.ip(&format!("address add 10.77.2.{n}/24 dev v0"))?;
            let receiver = space(&format!("r{n}"))?;
            link.ip(&format!(
                "link add link v0 name m0 netns {} type macvlan mode private",
                receiver.name()
            ))?;
            receiver.ip(&format!("address add {}/24 dev m0", address(n)))?;
            receiver.ip("link set m0 up")?;
            incast.receivers.push(receiver);
        }
        Ok(incast)
    }

    fn count(&self) -> u32 {
        u32::try_from(self.receivers.len()).expect("at most 8")
    }

    /// Runs the incast. Its figures are then in the folder.
    fn run(self) -> Result<compare::Run<'a>> {
        let switch = self.start_switch()?;
        sleep(1.0); // It opens its interfaces.
        let mut ends = Vec::new();
        for (n, receiver) in (1..).zip(&self.receivers) {
            ends.push(self.start_endpoint(receiver, "m0", &format!("server-{n}"), None)?);
        }
        for receiver in &self.receivers {
            receiver.wait_for_port(18515)?;
        }
        for (n, host) in (1..=self.count()).zip(&self.hosts) {
            let server = address(n);
            ends.push(self.start_endpoint(host, "v0", &format!("client-{n}"), Some(&server))?);
        }
        sleep(2.0); // They connect.
        for (n, host) in (1..=self.count()).zip(&self.hosts) {
            let mut command = self.in_namespace(host, "-10", &self.cpus[1]);
            command.arg(self.feroce).args(["stat", "-i", "v0", "--qps", "--json"]);
            command.args(["--watch", "0.5"]);
            ends.push(self.start(&mut command, &format!("stat-{n}"))?);
        }
        sleep(f64::from(self.scenario.duration));
        while let Some(end) = ends.pop() {
            end.stop()?;
        }
        switch.stop()?;
        for part in ["live.log", "live.txt"] {
            print!("{}", std::fs::read_to_string(self.folder.join(part))?);
        }
        Ok(compare::Run { scenario: self.scenario, count: self.count(), folder: self.folder })
    }

    fn start_switch(&self) -> Result<Process> {
        let count = self.count();
        let mut command = self.in_namespace(&self.switch, "-20", &self.cpus[0]);
        command.arg(self.feroce).args(["fabric", "live", scenario::FILE]);
        for n in (1..=count).chain([RECEIVER]) {
            command.args(["--port", &format!("h{n}=p{n}")]);
        }
        command.args(["--case", &format!("{count}:1"), "--nics-obey", "--csv"]);
        command.arg(self.folder.join("live.csv"));
        self.start(&mut command, "live")
    }

    /// Starts `ib_send_bw` with the scenario's congestion control; a client if `server` is given.
    /// ib_send_bw sleeps while it waits for completions (-e).
    fn start_endpoint(
        &self,
        namespace: &Namespace,
        interface: &str,
        name: &str,
        server: Option<&str>,
    ) -> Result<Process> {
        let mut command = self.in_namespace(namespace, "-10", &self.cpus[1]);
        command.arg(self.feroce).args(["run", "--quiet", "--interface", interface, "--"]);
        command.args("ib_send_bw -F -e -s 65536 -n 1000000 -m 1024 -u 18 --tclass 104".split(' '));
        command.args(server);
        command.envs(self.scenario.variables()).env("FEROCE_PORT_KIND", self.port_kind);
        self.start(&mut command, name)
    }

    /// A command in `namespace`, with a priority and on given CPUs.
    fn in_namespace(&self, namespace: &Namespace, nice: &str, cpus: &str) -> Command {
        let mut command = Command::new("nice");
        command.args(["-n", nice, "taskset", "-c", cpus, "ip", "netns", "exec", namespace.name()]);
        command
    }

    /// Starts `command`, with its output in NAME.txt and its messages in NAME.log.
    fn start(&self, command: &mut Command, name: &str) -> Result<Process> {
        let file = |extension: &str| File::create(self.folder.join(format!("{name}.{extension}")));
        command.stdin(Stdio::null()).stdout(file("txt")?).stderr(file("log")?);
        Process::spawn(command)
    }
}

fn namespace(count: u32, suffix: &str) -> Result<Namespace> {
    let namespace = Namespace::new(&format!("incast{count}"), suffix)?;
    // The link carries nothing but the incast: no neighbour discovery.
    namespace
        .sysctl(&["net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"])?;
    Ok(namespace)
}

fn address(receiver: u32) -> String {
    format!("10.77.2.{}", 100 + receiver)
}

fn sleep(seconds: f64) {
    std::thread::sleep(Duration::from_secs_f64(seconds));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_gets_the_last_cpu() {
        assert_eq!(split_cpus("0-2,5").expect("a list"), ["5", "0,1,2"]);
        assert_eq!(split_cpus("3").expect("a list"), ["3", "3"]);
        assert!(split_cpus("all").is_err());
    }
}
