//! Network namespaces with the prefix `fr-`, and the links between them.

use std::process::Command;

use xshell::{Shell, cmd};

use crate::Result;
use crate::exit::{Guard, at_end};

/// The address of the first end of a pair.
pub const FIRST: &str = "10.77.0.1";
/// The address of the second end of a pair.
pub const SECOND: &str = "10.77.0.2";

/// A network namespace. Dropping it removes it.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    _guard: Guard,
}

impl Namespace {
    /// Makes the namespace `fr-PURPOSE-PID-SUFFIX`.
    pub fn new(purpose: &str, suffix: &str) -> Result<Namespace> {
        let name = format!("fr-{purpose}-{}-{suffix}", std::process::id());
        let removed = name.clone();
        let guard = at_end(move || {
            let _ = Command::new("ip").args(["netns", "delete", &removed]).status();
        });
        ip(&format!("netns add {name}"))?;
        Ok(Namespace { name, _guard: guard })
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that runs in the namespace.
    pub fn command(&self, program: &str) -> Command {
        command_in(&self.name, program)
    }

    /// `ip -n NAME WORDS`.
    pub fn ip(&self, words: &str) -> Result {
        ip(&format!("-n {} {words}", self.name))
    }

    /// Sets sysctl values, each as `name=value`.
    pub fn sysctl(&self, values: &[&str]) -> Result {
        let (sh, name) = (Shell::new()?, &self.name);
        Ok(cmd!(sh, "ip netns exec {name} sysctl -qw {values...}").quiet().run()?)
    }

    /// Turns off the offloads of an interface, so that each frame crosses it as it would cross a
    /// cable.
    pub fn plain_frames(&self, interface: &str) {
        const OFF: &str = "tx off gso off gro off tso off rxvlan off txvlan off";
        let mut command = self.command("ethtool");
        command.args(["-K", interface]).args(OFF.split(' '));
        if !command.output().is_ok_and(|output| output.status.success()) {
            println!("ethtool cannot set all features of {interface}");
        }
    }

    /// Turns off the offloads of an interface that join or split packets.
    pub fn plain_segments(&self, interface: &str) -> Result {
        let (sh, name) = (Shell::new()?, &self.name);
        let off = ["gro", "off", "gso", "off", "tso", "off"];
        Ok(cmd!(sh, "ip netns exec {name} ethtool -K {interface} {off...}")
            .quiet()
            .ignore_stdout()
            .run()?)
    }

    /// The MAC address of an interface.
    pub fn mac(&self, interface: &str) -> Result<String> {
        let mut command = self.command("cat");
        command.arg(format!("/sys/class/net/{interface}/address"));
        Ok(crate::process::output(&mut command)?.trim().to_owned())
    }

    /// Waits up to 5 s until a TCP socket listens on `port`.
    pub fn wait_for_port(&self, port: u16) -> Result {
        for _ in 0..100 {
            let mut command = self.command("ss");
            command.args(["-ltnH", &format!("sport = :{port}")]);
            if !crate::process::output(&mut command)?.is_empty() {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        Err(format!("nobody listens on port {port} in {}", self.name).into())
    }
}

/// A command that runs in the namespace called `name`.
pub fn command_in(name: &str, program: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", name, program]);
    command
}

/// `ip WORDS`.
pub fn ip(words: &str) -> Result {
    let (sh, words) = (Shell::new()?, words.split_whitespace());
    Ok(cmd!(sh, "ip {words...}").quiet().run()?)
}

/// Namespaces whose interfaces `v0` meet at a bridge. Their addresses are 10.77.0.1 and following.
#[derive(Debug)]
pub struct Star {
    ends: Vec<Namespace>,
    _switch: Namespace,
}

impl Star {
    /// A star with `count` ends, 1 to 254.
    pub fn new(purpose: &str, mtu: u32, count: usize) -> Result<Star> {
        let switch = Namespace::new(purpose, "switch")?;
        switch.ip("link add br0 type bridge forward_delay 0 mcast_snooping 0")?;
        switch.ip(&format!("link set br0 mtu {mtu} up"))?;
        let mut ends = Vec::new();
        for number in 1..=count {
            let (end, port) = (Namespace::new(purpose, &number.to_string())?, format!("p{number}"));
            ip(&format!(
                "link add v0 netns {} mtu {mtu} type veth peer name {port} netns {} mtu {mtu}",
                end.name(),
                switch.name()
            ))?;
            switch.ip(&format!("link set {port} master br0 up"))?;
            switch.plain_frames(&port);
            end.plain_frames("v0");
            end.ip("link set lo up")?;
            end.ip(&format!("address add 10.77.0.{number}/24 dev v0"))?;
            end.ip("link set v0 up")?;
            ends.push(end);
        }
        Ok(Star { ends, _switch: switch })
    }

    /// The names of the namespaces.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.ends.iter().map(Namespace::name)
    }
}

/// Two namespaces joined by a veth pair: v0 with 10.77.0.1 in `a`, v1 with 10.77.0.2 in `b`.
#[derive(Debug)]
pub struct Pair {
    /// The namespace of v0.
    pub a: Namespace,
    /// The namespace of v1.
    pub b: Namespace,
    /// The namespace of the bridge `br0`, if the pair has one.
    pub switch: Option<Namespace>,
}

impl Pair {
    /// A pair that a cable joins.
    pub fn new(purpose: &str, mtu: u32) -> Result<Pair> {
        let (a, b) = (Namespace::new(purpose, "a")?, Namespace::new(purpose, "b")?);
        ip(&format!(
            "link add v0 netns {} mtu {mtu} type veth peer name v1 netns {} mtu {mtu}",
            a.name(),
            b.name()
        ))?;
        let pair = Pair { a, b, switch: None };
        pair.set_up()?;
        Ok(pair)
    }

    /// A pair whose ends meet at the bridge `br0`, where frames can be captured.
    pub fn bridged(purpose: &str, mtu: u32) -> Result<Pair> {
        let switch = Namespace::new(purpose, "switch")?;
        switch.ip("link add br0 type bridge forward_delay 0 mcast_snooping 0")?;
        switch.ip(&format!("link set br0 mtu {mtu} up"))?;
        let (a, b) = (Namespace::new(purpose, "a")?, Namespace::new(purpose, "b")?);
        for (end, interface) in [(&a, "v0"), (&b, "v1")] {
            ip(&format!(
                "link add {interface} netns {} mtu {mtu} type veth peer name {interface} netns {} \
                 mtu {mtu}",
                end.name(),
                switch.name()
            ))?;
            switch.ip(&format!("link set {interface} master br0 up"))?;
            switch.plain_frames(interface);
        }
        let pair = Pair { a, b, switch: Some(switch) };
        pair.set_up()?;
        Ok(pair)
    }

    fn set_up(&self) -> Result {
        for (end, interface, address) in [(&self.a, "v0", FIRST), (&self.b, "v1", SECOND)] {
            end.ip(&format!("address add {address}/24 dev {interface}"))?;
            end.ip(&format!("link set {interface} up"))?;
        }
        Ok(())
    }

    /// Turns off the offloads of both ends.
    pub fn plain_frames(&self) {
        self.a.plain_frames("v0");
        self.b.plain_frames("v1");
    }
}
