//! Feroce against Linux rxe in a guest, behind a bridge: both roles, every operation, sizes, losses
//! and errors. The program `rxe` of feroce-tests plays the cases; this command makes the guest.

use std::path::PathBuf;
use std::process::Command;

use crate::Result;
use crate::daemon::Daemon;
use crate::guest::Guest;
use crate::process::run;
use crate::setup::{
    BUILD_PACKAGES, Work, build, built, feroce_in, need_packages, need_root, need_scapy,
    reserve_hugepages,
};

const CAPTURES: &str = "target/rxe";
const HUGEPAGES: u64 = 64;

/// Options of `xtask rxe`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Feroce's port: af_xdp, packet, udp, dpdk (its af_packet driver), or daemon (as a client of
    /// `feroce up`). Several run one after the other, each with a filter of its own, if it has one
    #[arg(long = "port", value_name = "KIND[:FILTER]", default_value = "af_xdp")]
    ports: Vec<String>,
    /// Play the cases N times
    #[arg(long, value_name = "N", default_value_t = 1)]
    repeat: u32,
    /// Leave the guest and its network until Enter is pressed, and the captures in target/rxe
    #[arg(long)]
    keep: bool,
    /// Leave out cases whose path MTU is too large for the interface; otherwise they fail the run
    #[arg(long)]
    skip_mtu: bool,
    /// Let scapy compute the ICRC of only N frames of a case, evenly spaced; tshark and Feroce
    /// always check every frame
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    icrcs: Option<u32>,
    /// Print the names of the cases
    #[arg(long)]
    list: bool,
    /// Only the cases whose name contains this text
    filter: Option<String>,
}

/// Runs the command.
pub fn main(options: Options) -> Result<u8> {
    if options.list {
        build(&["--bin", "rxe"])?;
        let code = run(Command::new(program()).arg("--list").args(&options.filter))?;
        return Ok(u8::try_from(code).unwrap_or(1));
    }
    need_root()?;
    need_packages(BUILD_PACKAGES)?;
    need_packages(&["libibverbs-dev", "nftables", "tshark"])?;
    let python = need_scapy()?;
    println!("Building the suite");
    let mut what = vec!["--bin", "rxe", "--bin", "feroce"];
    if options.ports.iter().any(|port| port.starts_with("dpdk")) {
        need_packages(&["libdpdk-dev", "libclang-dev"])?;
        what.splice(..0, ["--features", "feroce-tests/dpdk"]);
    }
    build(&what)?;
    let _hugepages = reserve_hugepages(HUGEPAGES)?;
    let work = Work::new()?;
    let mut suite = Suite { guest: Guest::new("rxe", &work)?, python, options };
    let mut has_failed = false;
    for port in suite.options.ports.clone() {
        let (port, filter) = match port.split_once(':') {
            Some((port, filter)) => (port.to_owned(), Some(filter.to_owned())),
            None => (port, suite.options.filter.clone()),
        };
        println!("Feroce's {port} port against rxe");
        suite.guest.addresses_for(&port)?;
        has_failed |= !suite.play_again_if_dead(&port, filter.as_deref())?;
    }
    if suite.options.keep {
        suite.wait_for_enter(&work)?;
    }
    Ok(u8::from(has_failed))
}

fn program() -> PathBuf {
    built().join("rxe")
}

struct Suite {
    guest: Guest,
    python: String,
    options: Options,
}

impl Suite {
    /// Plays the cases; once more in a new guest if the guest's interface died. That is rare, and
    /// its cause is unknown: the state of the old guest is printed.
    fn play_again_if_dead(&mut self, port: &str, filter: Option<&str>) -> Result<bool> {
        if self.play(port, filter)? {
            return Ok(true);
        }
        self.guest.addresses_for("af_xdp")?;
        if self.guest.is_reachable("10.77.0.2")? {
            return Ok(false);
        }
        println!("The guest's interface is dead: once more, in a new guest. The old one says:");
        let state = self.guest.shell(
            "dmesg | tail -n 20; ip -s link show data; tc -s qdisc show dev data; ip neighbour",
        )?;
        let silent = state.is_empty();
        println!("{}", if silent { self.guest.console_tail() } else { state });
        self.guest.boot()?;
        self.guest.addresses_for(port)?;
        self.play(port, filter)
    }

    fn play(&self, port: &str, filter: Option<&str>) -> Result<bool> {
        std::fs::create_dir_all(CAPTURES)?;
        let _daemon = match port {
            "daemon" => {
                let (feroce, namespace) = (feroce_in(&built()), self.guest.engine.name());
                Some(Daemon::start(&feroce, namespace, "v0", &[])?)
            }
            _ => None,
        };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.guest.engine.name()]).arg(program());
        command.args(["--port", port, "--switch", self.guest.switch.name()]);
        command.args(["--captures", &format!("{CAPTURES}/{port}"), "--python", &self.python]);
        command.args(["--repeat", &self.options.repeat.to_string()]);
        if let Some(most) = self.options.icrcs {
            command.args(["--icrcs", &most.to_string()]);
        }
        command.args(self.options.keep.then_some("--keep"));
        command.args(self.options.skip_mtu.then_some("--skip-mtu"));
        command.args(filter.filter(|filter| !filter.is_empty()));
        Ok(run(&mut command)? == 0)
    }

    fn wait_for_enter(&self, work: &Work) -> Result {
        let (engine, switch) = (self.guest.engine.name(), self.guest.switch.name());
        println!(
            "The guest keeps running; its console is {}. The engine's namespace is {engine}, the \
             bridge's {switch}. Captures are in {CAPTURES}. Press Enter to end the guest.",
            work.file("console").display()
        );
        std::io::stdin().read_line(&mut String::new())?;
        Ok(())
    }
}
