//! The ends of a row: Feroce in a namespace, ranks of an MPI program, rxe in the guest.

use std::path::PathBuf;
use std::process::Command;

use crate::Result;
use crate::daemon::Daemon;
use crate::guest::Guest;
use crate::net::{Star, command_in};
use crate::process::output;
use crate::root::Root;
use crate::rows::{End, feroce_listeners, number};

/// An end on Feroce, in a namespace.
pub struct FeroceEnd {
    /// Name of the namespace.
    pub namespace: String,
    /// The interface in it.
    pub interface: &'static str,
    /// The program `feroce`.
    pub feroce: PathBuf,
    /// The chroot, and the folders of the host that are needed in it.
    pub root: Option<(Root, [PathBuf; 2])>,
    /// Starts `feroce run` as an ordinary user.
    pub user: Option<PathBuf>,
    /// Words ahead of the row's.
    pub wrap: Vec<String>,
    /// Time limit.
    pub seconds: u64,
    /// Environment variables.
    pub variables: Vec<(&'static str, String)>,
}

impl FeroceEnd {
    /// Starts the daemon that owns the interface.
    pub fn start_daemon(&self) -> Result<Daemon> {
        Daemon::start(&self.feroce, &self.namespace, self.interface, &self.variables)
    }

    /// Identifiers of RDMA CM on which programs listen.
    fn cm_listeners(&self) -> usize {
        let mut command = command_in(&self.namespace, &self.feroce.display().to_string());
        let Ok(shown) = output(command.args(["stat", "--json"])) else { return 0 };
        let devices: Vec<serde_json::Value> = serde_json::from_str(&shown).unwrap_or_default();
        let listeners = devices.iter().filter_map(|device| device["listeners"].as_u64());
        usize::try_from(listeners.sum::<u64>()).unwrap_or(0)
    }
}

impl End for FeroceEnd {
    fn command(&self, words: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", &self.seconds.to_string()]);
        match &self.root {
            None => command.args(["ip", "netns", "exec", &self.namespace]),
            Some((root, [work, built])) => {
                let inner = root.command_in(&self.namespace, &[work, built]);
                command.arg(inner.get_program()).args(inner.get_args())
            }
        };
        command.args(&self.user).arg(&self.feroce);
        command.args(["run", "--quiet", "--interface", self.interface, "--"]);
        command.args(&self.wrap).args(words.split_whitespace());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn listeners(&self, group: &str) -> usize {
        let count =
            |words: &str| number(output(command_in(&self.namespace, "sh").args(["-c", words])));
        match group {
            // A member of a multicast group has a UDP socket instead, or its daemon; qperf has a
            // TCP socket, and opens its device later.
            "cm" | "rsocket" | "librpma" | "udapl" => {
                self.cm_listeners() + count("ss -lutnH | wc -l")
            }
            _ => count(feroce_listeners(group)),
        }
    }
}

/// Ranks of an MPI program on Feroce, in namespaces, which the script `ranks` starts.
pub struct RanksEnd<'a> {
    /// The namespaces.
    pub star: Option<&'a Star>,
    /// Ranks in each namespace.
    pub each: usize,
    /// A rank.
    pub end: FeroceEnd,
}

impl End for RanksEnd<'_> {
    fn command(&self, words: &str) -> Command {
        let names = self.star.iter().flat_map(|star| star.names());
        let hosts: Vec<String> = names.map(|name| format!("{name}:{}", self.each)).collect();
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", &self.end.seconds.to_string()]);
        command.args(words.split_whitespace());
        command.envs(self.end.variables.iter().map(|(name, value)| (name, value)));
        command.env("RANKS", hosts.join(",")).env("FEROCE", &self.end.feroce);
        command
    }

    fn listeners(&self, _: &str) -> usize {
        0
    }
}

/// The end in the guest.
pub struct RxeEnd<'a> {
    /// The guest.
    pub guest: &'a Guest,
    /// Time limit.
    pub seconds: u64,
}

impl End for RxeEnd<'_> {
    fn command(&self, words: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", &(self.seconds + 20).to_string()]);
        command.args(["ip", "netns", "exec", self.guest.engine.name()]);
        command.args(["ssh", "-n", "-F", &self.guest.ssh_config(), "guest"]);
        // The process id is for `stop`.
        let seconds = self.seconds;
        command.arg(format!("echo $$ > /run/row; exec timeout --kill-after=5 {seconds} {words}"));
        command
    }

    fn stop(&self) {
        let _ = self.guest.shell("kill $(cat /run/row)");
    }

    /// A program that uses the RDMA CM has no TCP socket: the kernel knows its identifiers and its
    /// groups.
    fn listeners(&self, group: &str) -> usize {
        number(self.guest.shell(match group {
            "cm" | "rsocket" => {
                "{ rdma resource show cm_id | grep LISTEN; ss -lutnH; \
                 ip -4 maddress show dev data; } | wc -l"
            }
            _ => "ss -ltnH | wc -l",
        }))
    }
}
