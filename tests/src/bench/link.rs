//! A link for benchmarks: two network namespaces joined by a veth.

use std::fs::File;
use std::process::Command;

/// IPv4 addresses of the two ends.
pub const ADDRESSES: [&str; 2] = ["10.99.0.1", "10.99.0.2"];

/// The namespaces. Dropping this value removes them.
#[derive(Debug)]
pub struct Link {
    names: [String; 2],
}

impl Link {
    /// Creates the link with an interface MTU of 4500 bytes, enough for path MTU 4096.
    ///
    /// # Panics
    /// Without root, or if `ip` fails.
    pub fn new() -> Self {
        let id = std::process::id();
        let names = [format!("fr-bench-{id}-a"), format!("fr-bench-{id}-b")];
        let link = Self { names };
        let [a, b] = &link.names;
        for name in [a, b] {
            run(&format!("ip netns add {name}"));
        }
        run(&format!("ip -n {a} link add v0 mtu 4500 type veth peer name v0 mtu 4500 netns {b}"));
        for (name, address) in link.names.iter().zip(ADDRESSES) {
            run(&format!("ip -n {name} addr add {address}/24 dev v0"));
            run(&format!("ip -n {name} link set lo up"));
            run(&format!("ip -n {name} link set v0 up"));
        }
        link
    }

    /// Turns off the offloads with which AF_XDP would receive frames without checksums, or several
    /// packets as one frame.
    ///
    /// # Panics
    /// If `ethtool` fails.
    pub fn offloads_off(&self) {
        for name in &self.names {
            run(&format!("ip netns exec {name} ethtool -K v0 tx off gso off gro off tso off"));
        }
    }

    /// Moves the calling thread into the namespace of `end`.
    ///
    /// # Panics
    /// Without root.
    pub fn enter(&self, end: usize) {
        let file = File::open(format!("/run/netns/{}", self.names[end])).expect("the namespace");
        nix::sched::setns(file, nix::sched::CloneFlags::CLONE_NEWNET).expect("setns, as root");
    }
}

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

fn run(command: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    let output = Command::new(words[0]).args(&words[1..]).output();
    let output = output.unwrap_or_else(|error| panic!("{command}: {error}"));
    assert!(
        output.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
}
