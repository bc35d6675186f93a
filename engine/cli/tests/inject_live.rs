//! `feroce conform inject --live A B --for TIME`: a relay between two `feroce perf`, which it knows
//! only by their packets. Needs root.

use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::unistd::geteuid;

/// Two namespaces with an interface `v0` each, whose other ends `p1` and `p2` are in a third.
struct Net {
    prefix: String,
}

fn run(line: &str) {
    let mut words = line.split(' ');
    let output = Command::new(words.next().expect("a program")).args(words).output();
    assert!(output.expect(line).status.success(), "{line}");
}

impl Net {
    fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !geteuid().is_root() {
            feroce_test_skip::skip("network namespaces need root");
            return None;
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let net = Self { prefix: format!("fr-inj-{}-{number}", std::process::id()) };
        for end in ["r", "h1", "h2"] {
            run(&format!("ip netns add {}", net.name(end)));
        }
        for n in 1..=2 {
            let (relay, host) = (net.name("r"), net.name(&format!("h{n}")));
            run(&format!(
                "ip link add p{n} netns {relay} mtu 4500 type veth \
                 peer name v0 netns {host} mtu 4500"
            ));
            run(&format!("ip -n {relay} link set p{n} up"));
            run(&format!("ip -n {host} link set v0 address 02:00:00:00:00:0{n} up"));
            run(&format!("ip -n {host} address add 10.77.1.{n}/24 dev v0"));
            for (namespace, name) in [(&relay, format!("p{n}")), (&host, "v0".to_owned())] {
                run(&format!(
                    "ip netns exec {namespace} ethtool -K {name} tx off gso off gro off tso off"
                ));
            }
        }
        Some(net)
    }

    fn name(&self, end: &str) -> String {
        format!("{}{end}", self.prefix)
    }

    /// Starts `feroce ARGUMENTS` in a namespace.
    fn start(&self, end: &str, arguments: &str) -> Child {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(end), env!("CARGO_BIN_EXE_feroce")]);
        command.args(arguments.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("feroce")
    }

    /// Transfers messages from the first host to the second.
    fn transfer(&self, options: &str) {
        let server = self.start("h2", "perf -i v0 --port-kind packet");
        std::thread::sleep(Duration::from_millis(500));
        let line = format!("perf -i v0 --port-kind packet {options} --check 10.77.1.2");
        for (child, who) in [(self.start("h1", &line), "client"), (server, "server")] {
            let Output { status, stdout, stderr } = child.wait_with_output().expect(who);
            let said = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
            assert!(status.success(), "{who}: {}\n{}", said[0], said[1]);
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for end in ["r", "h1", "h2"] {
            let _status = Command::new("ip").args(["netns", "delete", &self.name(end)]).status();
        }
    }
}

/// Starts the relay with a script, lets `work` happen, and returns what the relay prints.
fn relayed(net: &Net, options: &str, work: impl FnOnce()) -> String {
    let line = format!("conform inject drop-write-middle --live p1 p2 --for 12s{options}");
    let relay = net.start("r", &line);
    std::thread::sleep(Duration::from_millis(700));
    work();
    let Output { status, stdout, stderr } = relay.wait_with_output().expect("the relay");
    let said = String::from_utf8_lossy(&stdout).into_owned();
    assert!(status.success(), "{said}\n{}", String::from_utf8_lossy(&stderr));
    said
}

/// The number of frames in the line `relay: N frames, ...`.
fn frames(said: &str) -> u64 {
    let line =
        said.lines().find_map(|line| line.strip_prefix("relay: ")).expect("the relay's line");
    line.split(' ').next().expect("a number").parse().expect("a number")
}

const WRITES: &str = "--op write -s 16384 -m 1024 -n 200";

/// The relay drops a packet of a connection about which nobody told it anything. The transfer
/// succeeds, and nobody is accused.
#[test]
fn strangers_are_judged_by_their_packets() {
    let Some(net) = Net::new() else { return };
    let said = relayed(&net, "", || net.transfer(WRITES));
    assert!(said.contains("flow 0: 10.77.1.1 to 10.77.1.2, joined while open; path MTU unknown"));
    assert!(said.contains("1 of 1 items passed"), "{said}");
    assert!(said.contains("own delay median"), "{said}");
    assert!(frames(&said) > 200 * 16, "{said}");
}

/// With XDP programs the relay sees the first connection, and the kernel forwards the second.
#[test]
fn the_kernel_forwards_what_concerns_no_flow() {
    let Some(net) = Net::new() else { return };
    let work = || {
        net.transfer("--op write -s 16384 -m 1024 -n 20");
        net.transfer(WRITES);
    };
    let said = relayed(&net, " --xdp generic", work);
    assert!(said.contains("1 of 1 items passed"), "{said}");
    // A late machine sends packets of the first again.
    assert!((20 * 16..200 * 16).contains(&frames(&said)), "{said}");
}

/// The relay's own endpoints wait for the whole timeout, also after a NAK.
#[test]
fn own_endpoints_have_exact_timers() {
    let Some(net) = Net::new() else { return };
    for n in 1..=2 {
        let (end, other) = (net.name(&format!("h{n}")), 3 - n);
        run(&format!(
            "ip -n {end} neighbour replace 10.77.1.{other} lladdr 02:00:00:00:00:0{other} dev v0"
        ));
    }
    let [requester, responder] =
        ["h1", "h2"].map(|end| format!("feroce:{}:v0:packet", net.name(end)));
    let line = format!(
        "conform inject drop-retransmission --live p1 p2 --requester {requester} \
         --responder {responder} --again 2"
    );
    let relay = net.start("r", &line);
    let Output { status, stdout, stderr } = relay.wait_with_output().expect("the relay");
    let said = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(status.success(), "{}\n{}", said[0], said[1]);
}

/// Without a packet of a connection nothing can be judged.
#[test]
fn a_relay_that_sees_nothing_judges_nothing() {
    let Some(net) = Net::new() else { return };
    let relay = net.start("r", "conform inject drop-write-middle --live p1 p2 --for 1s");
    let Output { status, stderr, .. } = relay.wait_with_output().expect("the relay");
    assert_eq!(status.code(), Some(2));
    assert!(String::from_utf8_lossy(&stderr).contains("nothing to judge"));
}
